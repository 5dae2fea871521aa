"""The mistakes that people make in playbooks: each is told with its place and with what to write, and all at once."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from crossgrade.modules import NAMES, arguments_of
from crossgrade.playbook.loader import ModuleCatalogue, load_playbook, load_variables
from crossgrade.playbook.positions import PlaybookErrors

CATALOGUE = ModuleCatalogue(NAMES, arguments_of)
TASKS = "- hosts: localhost\n  tasks:\n"  # two lines: the tasks begin in line 3


@dataclass(frozen=True)
class Told:
    line: int
    column: int
    message: str
    remedy: str


def told_of(text: str, folder: Path) -> list[Told]:
    """All that the loader says of a playbook."""
    file = folder / "p.yml"
    file.write_bytes(text.encode())
    try:
        load_playbook(file, CATALOGUE)
    except PlaybookErrors as errors:
        found = []
        for error in errors.errors:
            assert error.place is not None
            assert error.excerpt
            found.append(Told(error.place.line, error.place.column, error.message, error.remedy))
        return found
    return []


def task(*lines: str) -> str:
    return TASKS + "".join(f"    {line}\n" for line in lines)


# (the playbook, line, column, part of the message, part of the remedy): the only thing that is told of it.
MISTAKES = [
    # templates and quotes
    (task("- debug:", "    msg: {{ a }}"), 4, 15, "read as a mapping", '`msg: "{{ a }}"`'),
    (task("- debug:", "    msg: {{ a }}/b # why"), 4, 14, "needs quotes", '`msg: "{{ a }}/b" # why`'),
    (task("- debug: {msg: {{ a }}/b, verbosity: 1}"), 3, 20, "needs quotes", '{msg: "{{ a }}/b", verbosity: 1}'),
    (task("- command: {argv: [ls, {{ a }}/b]}"), 3, 28, "needs quotes", '[ls, "{{ a }}/b"]'),
    (task("- command: {{ a }} -v"), 3, 16, "needs quotes", '`- command: "{{ a }} -v"`'),
    (task('- debug:', '    msg: {{ a["b"] }}/c'), 4, 14, "needs quotes", """`msg: '{{ a["b"] }}/c'`"""),
    (task('- debug:', '    msg: "{{ a }}"/b'), 4, 23, "after the closing quote", '`msg: "{{ a }}/b"`'),
    (task("- debug:", "    msg: '{{ a['b'] }}'"), 4, 21, "after the closing quote", """`msg: "{{ a['b'] }}"`"""),
    (task("- debug:", '    msg: "say "hello""'), 4, 20, "after the closing quote", """`msg: 'say "hello"'`"""),
    (task("- debug:", '  when: "{{ a }}" == 1'), 4, 23, "after the closing quote", "`when: a == 1`"),
    (task("- debug:", '  when: "a" in b'), 4, 17, "after the closing quote", """`when: '"a" in b'`"""),
    (task("- debug:", '    msg: "{{ a }}'), 4, 14, "never closed", "Add the closing quote"),
    (task("- debug:", '    msg: "{{ a'), 4, 14, "never closed", "`}}` in front of it"),
    (task("- command: echo '{{ a }}"), 3, 16, "opened and not closed", "Close it"),
    (task("- debug:", "    msg: “{{ a }}: b”"), 4, 14, "no quote in YAML", '`msg: "{{ a }}: b"`'),
    # tabs and characters that look like spaces
    (task("- debug:", "\tmsg: a"), 4, 5, "a tab is used", "only spaces"),
    (TASKS + "\t- debug:\n\t    msg: a\n", 3, 1, "a tab is used", "only spaces"),
    (task("- debug:", "\u00a0   msg: a", "    verbosity: 1"), 4, 5, "U+00A0 looks like a space", "Replace it"),
    (TASKS + "    - debug:\n    \u00a0 register: a\n", 4, 5, "U+00A0 looks like a space", "Replace it"),
    (TASKS + "  \u00a0 - debug: {}\n", 3, 3, "no keyword", "U+00A0, which only looks like a space"),
    # indentation
    (task("- copy:", "  src: a", "  dest: b"), 4, 7, "`src` is an argument of `copy`", "Indent it below `copy:`"),
    (task("- command:", "    cmd: a", "    when: b"), 5, 9, "`when` is a keyword of the task", "Begin it in column 7"),
    (task("- copy:", "    src: a", "   dest: b"), 5, 8, "nothing above it begins", "`src` in line 4 begins in"),
    (task("- copy:", "    src: a", "      dest: b"), 5, 11, "indented deeper than `src`", "in column 9"),
    (task("- command: a", "when: b"), 4, 5, "in the column of the list's `-`", "Begin it in column 7, as `command`"),
    (task("- block:", "    - debug:", "    rescue: []"), 5, 9, "in the column of the list's", "column 7, as `block`"),
    (task("- block:", "    - debug:", "- rescue: []"), 5, 7, "`rescue` without `block`", "without a `- `"),
    (task("- debug: {}", " - debug: {}"), 4, 6, "nothing above it begins", "`-` in line 3 begins in column 5"),
    (TASKS + "    - debug:\n handlers: []\n", 4, 2, "nothing above it begins", "`tasks` in line 2 begins in column 3"),
    (task("debug: {}"), 3, 5, "expected a list of tasks", "Each task starts with `- `"),
    ("hosts: localhost\ntasks: []\n", 1, 1, "expected a list of plays", "Write `- ` in front of the first key"),
    ("- debug:\n- debug:\n", 1, 3, "this is a task, where a play was expected", "below `tasks:`"),
    ("- hosts: localhost\n  vars:\n    - a: 1\n", 3, 5, "expected a mapping", "without `- `"),
    # `:`, `=`, brackets
    (task("- debug:", "    msg:a"), 4, 9, "takes no text of its own", "`msg: a`"),
    (task("- debug:", "    msg:a", "    verbosity: 1"), 4, 13, "no space behind the `:`", "`msg: a`"),
    (task("- debug", "    msg: a"), 3, 12, "no `:` behind `debug`", "`- debug:`"),
    (task("- name words", "  debug:"), 3, 11, "no `:` behind `name`", "`- name: words`"),
    (task("- debug: msg: a"), 3, 14, "`debug:` and `msg:` stand in one line", "Begin a new line with `msg:`"),
    (task("- name: Note: this", "  debug:"), 3, 17, "holds `: `", '`- name: "Note: this"`'),
    (task("- debug:", "    msg = a", "    verbosity: 1"), 4, 9, "`msg = …` is no entry", "`msg: a`"),
    (task("- debug: msg=a b"), 3, 14, "takes no text of its own", 'needs quotes: `msg="…"`'),
    (task("- copy: src=a", "    dest: b"), 4, 9, "as `key=value`", "in a line of its own"),
    (task("- debug: {msg: a"), 3, 14, "this `{` is never closed", "Add the `}`"),
    (task("- command: [a, b", "- debug:"), 3, 16, "this `[` is never closed", "Add the `]`"),
    (task("- debug: {msg: a verbosity: 1}"), 3, 31, "a comma is missing", "commas part the items"),
    (task("- command: a]", "- debug: ]"), 4, 14, "this `]` closes nothing", "Remove it"),
    # beginnings that mean something in YAML
    (task("- command: @a"), 3, 16, "begins with `@`", '`- command: "@a"`'),
    (task("- command: %a"), 3, 16, "begins with `%`", '`- command: "%a"`'),
    (task("- command: *a"), 3, 16, 'no anchor "&a"', "needs quotes"),
    (task("- command: !a"), 3, 16, 'the tag "!a"', "needs quotes"),
    (task("- command:", '    chdir: "C:\\data"', "    cmd: a"), 4, 19, "`\\d` means nothing", "single quotes"),
    # names
    (task("- debug:", "  wehn: a"), 4, 7, "no keyword `wehn`", 'Did you mean "when"?'),
    (task("- copi:"), 3, 7, "no module or keyword `copi`", 'Did you mean "copy"?'),
    (task("- debug:", "    mgs: a"), 4, 9, 'no argument "mgs"', 'Did you mean "msg"?'),
    (task("- debug:", "  register: '{{ a }}'"), 4, 17, "cannot be the name of a variable", "without braces"),
    (task("- debug:", "    msg: a", "    msg: b"), 5, 9, '"msg" is there twice, first in line 4', "Remove one"),
    ("<<<<<<< HEAD\n- hosts: a\n=======\n- hosts: b\n>>>>>>> x\n", 1, 1, "merge conflict", "Keep one"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line", "column", "message", "remedy"), MISTAKES, ids=[each[3] for each in MISTAKES])
def test_a_mistake_is_told_once_with_its_place_and_what_to_write(
    text: str, line: int, column: int, message: str, remedy: str, tmp_path: Path
) -> None:
    found = told_of(text, tmp_path)
    firsts = [one for one in found if message in one.message]
    assert firsts, found
    assert (firsts[0].line, firsts[0].column) == (line, column)
    assert remedy in firsts[0].remedy
    assert [one for one in found if one not in firsts and "is an argument of `copy`" not in one.message] == []


def test_mistakes_of_all_kinds_are_told_at_once(tmp_path: Path) -> None:
    text = """- hosts: localhost
  vars:
    home: {{ base }}/x
    a-b: 1
  tasks:
    - copy: {src: a, dset: b, dest: c}
    - debug:
        msg: "a
    - copi: {}
    - debug: {msg: {{ a }}/b}
      wehn: b
    - command: a
      when: b = c
\t- debug:
    - debug:
        msg: x
       verbosity: 1
    - debug: [
    - debug: {msg: '{{ a | defualt(1) }}'}
  post_tasks:
    - debug:
        msg: a
        msg: b
- hosts: other
  task: []
"""
    assert [(one.line, one.message) for one in told_of(text, tmp_path)] == [
        (3, "a value that starts with `{{` needs quotes"),
        (4, '"a-b" cannot be the name of a variable'),
        (6, 'there is no argument "dset"'),
        (8, "a quote that is opened here is never closed"),
        (9, "there is no module or keyword `copi`"),
        (10, "a value that starts with `{{` needs quotes"),
        (11, "a task has no keyword `wehn`"),
        (13, "a single `=` compares nothing, in the expression `b = c`"),
        (14, "a tab is used for indentation"),
        (17, "this line begins in column 8, where nothing above it begins"),
        (18, "this `[` is never closed"),
        (19, 'there is no filter `defualt`, in "{{ a | defualt(1) }}"'),
        (23, 'the key "msg" is there twice, first in line 22'),
        (25, "a play has no keyword `task`"),
    ]


def test_mistakes_of_a_file_of_variables_are_told_at_once(tmp_path: Path) -> None:
    file = tmp_path / "vars.yml"
    file.write_text("a: {{ b }}/c\nd-e: 1\nf: 1\nf: 2\n")
    with pytest.raises(PlaybookErrors) as caught:
        load_variables(file)
    assert [error.place and error.place.line for error in caught.value.errors] == [1, 2, 4]


@pytest.mark.parametrize("end", ["\r\n", "\r", "\u2028", "\x85"])
def test_places_are_right_whatever_ends_a_line(end: str, tmp_path: Path) -> None:
    text = task("- debug:", "    msg: {{ a }}/b", "- copi:", "- debug: 'a").replace("\n", end)
    assert [(one.line, one.column) for one in told_of(text, tmp_path)] == [(4, 14), (5, 7), (6, 14)]


def test_as_they_were_meant_these_playbooks_are_right(tmp_path: Path) -> None:
    """What the remedy says to write is read without a mistake."""
    mended = 0
    for text, line, _, _, remedy in MISTAKES:
        told = next((one for one in told_of(text, tmp_path) if remedy in one.remedy), None)
        written = re.search(r"(?:quotes|value|Write|write):? `(.*)`[.:]", told.remedy) if told else None
        if (
            written is None
            or told is None
            or line != told.line
            or "missing" in told.message
            or "if it is text" in told.remedy
        ):
            continue
        lines = text.split("\n")
        was = lines[line - 1]
        lines[line - 1] = was[: len(was) - len(was.lstrip())] + written[1]
        if len(written[1]) < len(was.strip()) - 12 or "…" in written[1]:
            continue  # it shows a part of the line
        assert told_of("\n".join(lines), tmp_path) == [], written[1]
        mended += 1
    assert mended > 15
