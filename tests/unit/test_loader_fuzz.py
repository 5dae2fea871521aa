"""Mutated playbooks: only typed errors come out of the loader, each with a place in the file, after bounded work."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.work import bounded_work

from crossgrade.commands.schema_output import schema_of
from crossgrade.errors import CrossgradeError
from crossgrade.modules import NAMES, arguments_of
from crossgrade.playbook.check import check_templates
from crossgrade.playbook.loader import ModuleCatalogue, load_playbook
from crossgrade.playbook.positions import PlaybookErrors, lines_of
from crossgrade.playbook.schema import KEYWORDS
from crossgrade.playbook.yamltext import MAX_MISTAKES

CATALOGUE = ModuleCatalogue(NAMES, arguments_of)
EVERYTHING = """# every shape that a playbook has
- name: first
  hosts: localhost
  vars: {a: 1, b: '{{ a }}', path: "{{ a }}/x"}
  vars_files: [one.yml]
  gather_facts: false
  pre_tasks:
    - debug: msg="{{ a }} b"
  tasks:
    - name: 'a task: quoted'
      command: echo "{{ b }}"
      args:
        chdir: /tmp
      register: done
      when: a == 1 and b is defined
      loop: [1, 2]
      loop_control: {loop_var: one}
      retries: 3
      until: done is succeeded
      changed_when: "'x' in done.stdout"
      notify: told
    - block:
        - copy:
            dest: /tmp/x
            content: |
              several
                lines: {{ a }}
      rescue:
      - fail: {msg: no}
      always:
      - set_fact:
          c: &anchor [1, 2, {k: v}]
          d: *anchor
      environment:
        PATH: /usr/bin
    - assert:
        that:
          - a is defined
          - a > 0
  handlers:
  - name: told
    debug:
      var: a

- hosts: [x, y]
  tags: a,b
  tasks: []
"""
BASES = [
    EVERYTHING,
    *(path.read_text() for path in sorted((Path(__file__).resolve().parents[2] / "playbooks").rglob("*.yml"))),
]

# Calls of Python functions for each character, and for a file of any size: 20 times what the worst has needed.
CALLS_A_CHARACTER = 1_500
CALLS_AT_LEAST = 3_000_000

PIECES = st.sampled_from(
    [
        *"'\"{}[]:,-#&*!|>%@`\t\\=~?\r\u00a0\u2028",
        *(": ", " #", "{{ ", " }}", "{%", "- ", "\n", "\n\n", "---\n", "<<: ", "  ", "!unsafe ", "!!int ", "\x00", "“"),
        *("hosts:", "when: ", "block:\n", "yes", "{{ x }}/y", "<<<<<<< a\n"),
        *sorted({name + ":" for place in KEYWORDS.values() for name in place}),
    ]
)


def _lines(change: Callable[[list[str], int], None]) -> Callable[[str, int, str], str]:
    def mutate(text: str, at: int, _piece: str) -> str:
        lines = text.split("\n")
        change(lines, at % len(lines))
        return "\n".join(lines)

    return mutate


def _duplicate(lines: list[str], at: int) -> None:
    lines.insert(at, lines[at])


def _swap(lines: list[str], at: int) -> None:
    lines[at], lines[at - 1] = lines[at - 1], lines[at]


def _remove(lines: list[str], at: int) -> None:
    del lines[at]


def _indent(lines: list[str], at: int) -> None:
    lines[at] = " " * (at % 3 + 1) + lines[at]


def _dedent(lines: list[str], at: int) -> None:
    lines[at] = lines[at].removeprefix(" " * (at % 3 + 1))


def _tab(lines: list[str], at: int) -> None:
    lines[at] = "\t" + lines[at].lstrip(" ")


def _join(lines: list[str], at: int) -> None:
    lines[at - 1 : at + 1] = [lines[at - 1] + " " + lines[at].strip()] if at else [lines[at]]


def _move(lines: list[str], at: int) -> None:
    lines.append(lines.pop(at))


MUTATIONS: list[Callable[[str, int, str], str]] = [
    *map(_lines, (_duplicate, _swap, _remove, _indent, _dedent, _tab, _join, _move)),
    lambda text, at, piece: text[: at % (len(text) + 1)] + piece + text[at % (len(text) + 1) :],
    lambda text, at, piece: text[: at % (len(text) + 1)] + piece + text[at % (len(text) + 1) + len(piece) :],
    lambda text, at, _piece: text[: at % (len(text) + 1)] + text[at % (len(text) + 1) + 1 :],
    lambda text, at, _piece: text[: at % (len(text) + 1)] + text[at % (len(text) + 1) + 40 :],
]
mutated = st.builds(
    lambda text, changes: _mutated(text, changes),
    st.sampled_from(BASES),
    st.lists(st.tuples(st.sampled_from(MUTATIONS), st.integers(0, 1_000_000), PIECES), min_size=1, max_size=8),
)


def _mutated(text: str, changes: list[tuple[Callable[[str, int, str], str], int, str]]) -> str:
    for mutate, at, piece in changes:
        text = mutate(text, at, piece)
    return text


@cache
def _validator() -> Any:
    return jsonschema.Draft7Validator(schema_of("playbook"))


def load(text: str) -> None:
    """Load a playbook and judge what comes out."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "p.yml"
        file.write_bytes(text.encode("utf-8", "surrogatepass"))
        try:
            with bounded_work(CALLS_AT_LEAST + CALLS_A_CHARACTER * len(text)):
                assert check_templates(load_playbook(file, CATALOGUE)) is not None
        except PlaybookErrors as errors:
            judge(errors, text)
        except CrossgradeError as error:
            judge_one(error)
        else:
            # An editor with the schema shows no error where the loader sees none.
            assert [error.message for error in _validator().iter_errors(yaml.safe_load(text))] == []


def judge_one(error: CrossgradeError) -> None:
    assert str(error)
    assert all(letter.isprintable() or letter == "\n" for letter in str(error))


def judge(errors: PlaybookErrors, text: str) -> None:
    count = len(lines_of(text))
    seen = set()
    for error in errors.errors:
        assert error.place is not None
        assert 1 <= error.place.line <= count + 1
        assert error.place.column >= 1
        judge_one(error)
        seen.add((error.place.line, error.place.column, error.message))
    assert len(seen) == len(errors.errors), "the same is told twice"
    not_explained = [error for error in errors.errors if error.message.startswith("not valid YAML")]
    assert len(not_explained) <= MAX_MISTAKES


@settings(max_examples=200)
@given(mutated)
def test_mutated_playbooks(text: str) -> None:
    load(text)


@pytest.mark.slow
@settings(max_examples=20_000)
@given(mutated)
def test_many_mutated_playbooks(text: str) -> None:
    load(text)


def test_what_is_mutated_is_right() -> None:
    for text in BASES[:1]:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "p.yml").write_text(text)
            assert check_templates(load_playbook(Path(folder) / "p.yml", CATALOGUE)) == []


N = 150_000  # characters: the file is read again after each mistake
HOSTILE = {
    "spaces before a value": f"a:{' ' * N}{{{{ x }}}} y\n",
    "spaces behind a quote": f"a: 'b' c{' ' * N}x\n",
    "dashes": "- " * 40 + f"{'- ' * (N // 2)}{{{{ x }}}} y\n",
    "quotes": f"a: {chr(39)}x{chr(39)}{' y' * (N // 2)}\n",
    "one quote": f"a: '{'b' * N}",
    "templates": f"a: {'{{ x }} ' * (N // 8)}\n",
    "brackets in a line": f"a: {'[' * 90}{'x,' * (N // 2)}\n",
    "brackets in lines": "- hosts: a\n  tasks:\n" + "    - debug: [\n" * 5_000,
    "tabs": "- hosts: a\n  tasks:\n" + "\t- debug:\n" * 10_000,
    "texts after quotes": "- hosts: a\n  tasks:\n" + "    - debug: 'x' y\n      foo\n" * 5_000,
    "no colons": "- hosts: a\n  tasks:\n" + "    - debug\n        msg: x\n" * 5_000,
    "colons": f"a: {'b: ' * (N // 3)}\n",
    "escapes": f'a: "{chr(92)}d' + "\\d" * (N // 2) + '"\n',
    "marks of a conflict": "<<<<<<< a\n=======\n>>>>>>> b\n" * 5_000,
    "empty lines": "\n" * N + "\t\n\tx: y: z",
    "dots": f"{'a.' * (N // 2)}\nb: c: d\n",
    "unknown keys": "- hosts: a\n  tasks:\n" + "    - debgu: {}\n" * 3_000,
    "wrong templates": "- hosts: a\n  tasks:\n" + "    - debug: {msg: '{{ x | defualt }}'}\n" * 1_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_texts_made_to_be_slow(name: str) -> None:
    load(HOSTILE[name])
