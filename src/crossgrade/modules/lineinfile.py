"""lineinfile: one line of a text file."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from crossgrade.errors import TaskError
from crossgrade.modules.contract import ApplyContext, Change, HostView, Module, Outcome, Plan, Unchanged
from crossgrade.modules.editing import Edit, Target, apply_edit, compiled, look_at_target, plan_edit
from crossgrade.modules.file_undo import undo
from crossgrade.modules.refusing import FILE
from crossgrade.playbook.arguments import argument

Found = tuple[int, "re.Match[bytes] | None"]  # the number of a line, from 0, and what a pattern found in it


@dataclass(frozen=True)
class Arguments:
    """Makes sure that a text file has a certain line, or has no line that matches a pattern."""

    path: str = argument(doc="The file.", aliases=("dest", "destfile", "name"))
    line: str | None = argument(
        doc="The line to be there; with `state: absent` the line to take out.", default=None, aliases=("value",)
    )
    regexp: str | None = argument(
        doc="A Python pattern for the line that `line` replaces: the last one that matches. With `state: absent` all "
        "lines that match are taken out.",
        default=None,
        aliases=("regex",),
    )
    search_string: str | None = argument(doc="Like `regexp`, but the text itself.", default=None)
    state: Literal["absent", "present"] = argument(
        doc="Whether the line is to be there.", default="present", choices=("absent", "present")
    )
    backrefs: bool = argument(
        doc="Fill in the groups of `regexp` (`\\1`) in `line`; where nothing matches, the file stays as it is.",
        default=False,
    )
    insertafter: str | None = argument(
        doc="Where a new line goes: after the last line that matches this pattern, or `EOF`, which is also where it "
        "goes when nothing matches.",
        default=None,
    )
    insertbefore: str | None = argument(
        doc="Where a new line goes: before the last line that matches this pattern, or `BOF`.", default=None
    )
    firstmatch: bool = argument(doc="The first line that matches, instead of the last.", default=False)
    create: bool = argument(doc="Make a file that is missing.", default=False)
    backup: bool = argument(doc="Keep a copy of the old file beside the new one.", default=False)
    validate: str | None = argument(
        doc="A program that must accept the new file (`%s`) before it is put in its place.", default=None
    )
    mode: Any = argument(doc='The mode: "0644" (with quotes) or u=rw,g=r,o=r.', default=None)
    owner: str | None = argument(doc="The user, by name or number.", default=None)
    group: str | None = argument(doc="The group, by name or number.", default=None)
    mutually_exclusive: ClassVar[tuple[tuple[str, ...], ...]] = (
        ("insertbefore", "insertafter"),
        ("regexp", "search_string"),
        ("backrefs", "search_string"),
    )
    refused: ClassVar[Mapping[str, str]] = FILE


@dataclass(frozen=True)
class State:
    """The file; None when it is missing and nothing is to be in it."""

    target: Target | None


def inspect(arguments: Arguments, host: HostView) -> State:
    present = arguments.state == "present"
    if present and arguments.line is None:
        raise TaskError("`state: present` needs `line`")
    if present and arguments.backrefs and arguments.regexp is None:
        raise TaskError("`backrefs` needs `regexp`, whose groups it fills in")
    if not present and arguments.line is arguments.regexp is arguments.search_string is None:
        raise TaskError("`state: absent` needs one of `line`, `regexp`, `search_string`")
    target = look_at_target(
        arguments.path,
        host,
        mode=arguments.mode,
        owner=arguments.owner,
        group=arguments.group,
        backup=arguments.backup,
        validate=arguments.validate,
        create=arguments.create or not present,
    )
    return State(None if not present and not target.entry.exists else target)


def plan(arguments: Arguments, state: State) -> Plan:
    if state.target is None:
        return Unchanged(f"there is no {arguments.path}", {"msg": "file not present"})
    lines = _lines(state.target.content or b"")
    values: dict[str, Any] = {"backup": ""}
    if arguments.state == "absent":
        kept = without(lines, arguments)
        values["found"] = len(lines) - len(kept)
        edit = Edit(b"".join(kept), f"{values['found']} line(s) removed") if values["found"] else Edit(None)
    else:
        edit = with_line(lines, arguments)
    return plan_edit(state.target, edit, values, backup_key="backup")


def _lines(content: bytes) -> list[bytes]:
    """The lines with their ends; only a line feed ends one."""
    return re.findall(rb"[^\n]*\n|[^\n]+", content)


def _search(arguments: Arguments) -> Callable[[bytes], re.Match[bytes] | bool | None]:
    """What tells whether a line is meant by `regexp` or `search_string`; without these none is."""
    if arguments.regexp is not None:
        pattern: re.Pattern[bytes] = compiled(arguments.regexp, "regexp")
        return pattern.search
    if arguments.search_string is not None:
        text = arguments.search_string.encode(errors="surrogateescape")
        return lambda line: text in line
    return lambda line: None  # noqa: ARG005 - no line at all


def without(lines: list[bytes], arguments: Arguments) -> list[bytes]:
    """The lines that stay."""
    if arguments.regexp is None and arguments.search_string is None:
        wanted = (arguments.line or "").encode(errors="surrogateescape")
        return [line for line in lines if line.rstrip(b"\r\n") != wanted]
    meant = _search(arguments)
    return [line for line in lines if not meant(line)]


def with_line(lines: list[bytes], arguments: Arguments) -> Edit:
    """The lines with the one that is to be there: in place of the one that is meant, else put in where asked."""
    # a block scalar ends with a line feed, which ends the line anyway
    wanted = (arguments.line or "").removesuffix("\n").encode(errors="surrogateescape")
    meant = _search(arguments)
    matches = [(number, found) for number, line in enumerate(lines) if (found := meant(line))]
    if matches:
        number, found = matches[0 if arguments.firstmatch else -1]
        if arguments.backrefs and isinstance(found, re.Match):
            wanted = _expanded(found, wanted)
        return _replaced(lines, number, wanted)
    if arguments.backrefs:
        return Edit(None)
    place, same = _place(lines, arguments, wanted)
    if same is not None:
        return _replaced(lines, same, wanted)
    if lines and place == len(lines) and not lines[-1].endswith((b"\n", b"\r")):
        lines = [*lines[:-1], lines[-1] + b"\n"]
    return Edit(b"".join([*lines[:place], wanted + b"\n", *lines[place:]]), "line added")


def _expanded(found: re.Match[bytes], line: bytes) -> bytes:
    try:
        return found.expand(line)
    except (re.error, IndexError) as error:
        raise TaskError(f"`line` cannot be filled in: {error}") from error


def _replaced(lines: list[bytes], number: int, wanted: bytes) -> Edit:
    new = wanted if wanted.endswith(b"\n") else wanted + b"\n"
    if lines[number] == new:
        return Edit(None)
    return Edit(b"".join([*lines[:number], new, *lines[number + 1 :]]), "line replaced")


def _place(lines: list[bytes], arguments: Arguments, wanted: bytes) -> tuple[int, int | None]:
    """Where the line goes, as the number of lines before it, and the number of a line that is the same already.

    With `firstmatch`, lines behind the one that decides the place are not looked at, but for the next one.
    """
    given = arguments.insertafter or arguments.insertbefore or "EOF"
    after = 1 if arguments.insertafter else 0
    anchor = None
    if given not in ("BOF", "EOF") or (given == "EOF" and arguments.insertbefore):
        anchor = compiled(given, "insertafter" if arguments.insertafter else "insertbefore")
    place, same = None, None
    for number, line in enumerate(lines):
        if line.rstrip(b"\r\n") == wanted:
            same = number
        elif anchor is not None and anchor.search(line):
            place = number + after
            if arguments.firstmatch:
                break
    if same is None and place is not None and after and lines[place : place + 1]:
        same = place if lines[place].rstrip(b"\r\n") == wanted else None
    if given == "BOF":
        return 0, same
    return len(lines) if place is None else place, same


def apply(arguments: Arguments, change: Change, context: ApplyContext) -> Outcome:  # noqa: ARG001 (the contract's shape)
    return apply_edit(change, context)


MODULE = Module(
    name="lineinfile",
    arguments=Arguments,
    effect="changes",
    inspect=inspect,
    plan=plan,
    apply=apply,
    undo=undo,
    summary="One line of a text file.",
)
