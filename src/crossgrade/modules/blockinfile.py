"""blockinfile: lines of a text file between two marker lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from crossgrade.errors import TaskError
from crossgrade.modules.contract import ApplyContext, Change, HostView, Module, Outcome, Plan, Unchanged
from crossgrade.modules.editing import Edit, Target, apply_edit, compiled, look_at_target, plan_edit
from crossgrade.modules.file_undo import undo
from crossgrade.modules.refusing import FILE
from crossgrade.playbook.arguments import argument


@dataclass(frozen=True)
class Arguments:
    """Puts lines into a text file, between two marker lines by which they are found again, or takes them out."""

    path: str = argument(doc="The file.", aliases=("dest", "destfile", "name"))
    block: str = argument(
        doc="The lines. Without any, those that are there are taken out, markers too.", default="", aliases=("content",)
    )
    state: Literal["absent", "present"] = argument(
        doc="Whether the block is to be there.", default="present", choices=("absent", "present")
    )
    marker: str = argument(
        doc="The marker lines; `{mark}` stands for what `marker_begin` and `marker_end` say.",
        default="# {mark} ANSIBLE MANAGED BLOCK",
    )
    marker_begin: str = argument(doc="What `{mark}` is above the block.", default="BEGIN")
    marker_end: str = argument(doc="What `{mark}` is below the block.", default="END")
    insertafter: str | None = argument(
        doc="Where a new block goes: after the last line that matches this pattern, or `EOF`, which is also where it "
        "goes when nothing matches. With `(?m)` in it, the pattern is looked for once, in the whole text.",
        default=None,
    )
    insertbefore: str | None = argument(
        doc="Where a new block goes: before the last line that matches this pattern, or `BOF`.", default=None
    )
    create: bool = argument(doc="Make a file that is missing.", default=False)
    prepend_newline: bool = argument(doc="An empty line above the block, but not on top of the file.", default=False)
    append_newline: bool = argument(doc="An empty line below the block, but not at the end of the file.", default=False)
    backup: bool = argument(doc="Keep a copy of the old file beside the new one.", default=False)
    validate: str | None = argument(
        doc="A program that must accept the new file (`%s`) before it is put in its place.", default=None
    )
    mode: Any = argument(doc='The mode: "0644" (with quotes) or u=rw,g=r,o=r.', default=None)
    owner: str | None = argument(doc="The user, by name or number.", default=None)
    group: str | None = argument(doc="The group, by name or number.", default=None)
    mutually_exclusive: ClassVar[tuple[tuple[str, ...], ...]] = (("insertbefore", "insertafter"),)
    refused: ClassVar[Mapping[str, str]] = FILE


@dataclass(frozen=True)
class State:
    """The file; None when it is missing and nothing is to be in it."""

    target: Target | None


def inspect(arguments: Arguments, host: HostView) -> State:
    begin, end = _markers(arguments)
    if begin == end or b"\n" in begin + end:
        raise TaskError(
            "the lines above and below a block must be two different single lines, or it would not be found again",
            remedy="`marker` is one line with {mark} in it; `marker_begin` and `marker_end` differ.",
        )
    target = look_at_target(
        arguments.path,
        host,
        mode=arguments.mode,
        owner=arguments.owner,
        group=arguments.group,
        backup=arguments.backup,
        validate=arguments.validate,
        create=arguments.create,
    )
    return State(None if arguments.state == "absent" and not target.entry.exists else target)


def _markers(arguments: Arguments) -> tuple[bytes, bytes]:
    return (
        arguments.marker.replace("{mark}", arguments.marker_begin).encode(errors="surrogateescape"),
        arguments.marker.replace("{mark}", arguments.marker_end).encode(errors="surrogateescape"),
    )


def plan(arguments: Arguments, state: State) -> Plan:
    target = state.target
    if target is None:
        return Unchanged(f"there is no {arguments.path}", {"msg": f"File {arguments.path} not present"})
    edit = with_block(target.content or b"", arguments)
    if not target.entry.exists:
        edit = Edit(edit.content or b"", "File created")
    return plan_edit(target, edit)


def with_block(content: bytes, arguments: Arguments) -> Edit:
    """The text with the block in it, or without it."""
    lines = content.splitlines(keepends=True)
    begin, end = _markers(arguments)
    inside = (arguments.block if arguments.state == "present" else "").encode(errors="surrogateescape")
    place, rest = _place(lines, content, begin, end, arguments)
    if not inside:
        return Edit(b"".join([*lines[:place], *lines[rest:]]), "Block removed") if rest > place else Edit(None)
    block = [begin + b"\n", inside if inside.endswith(b"\n") else inside + b"\n", end + b"\n"]
    above, below = lines[:place], lines[rest:]
    if above and not above[-1].endswith((b"\n", b"\r")):
        above[-1] += b"\n"
    if arguments.prepend_newline and above and above[-1] != b"\n":
        above.append(b"\n")
    if arguments.append_newline and below and below[0] != b"\n":
        block.append(b"\n")
    new = b"".join([*above, *block, *below])
    return Edit(None) if new == content else Edit(new, "Block inserted")


def _place(lines: list[bytes], content: bytes, begin: bytes, end: bytes, arguments: Arguments) -> tuple[int, int]:
    """The lines from here to there give way to the block; both are the same for a new one.

    A marker counts however its line ends. Of several the last ones count, in any order.
    """
    bare = [line.rstrip(b"\r\n") for line in lines]
    numbers = [max((number for number, line in enumerate(bare) if line == mark), default=None) for mark in (begin, end)]
    found = [number for number in numbers if number is not None]
    if len(found) == len(numbers):
        return min(found), max(found) + 1
    place = _new_place(lines, content, arguments)
    return place, place


def _new_place(lines: list[bytes], content: bytes, arguments: Arguments) -> int:
    """The number of lines above a new block."""
    if arguments.insertbefore == "BOF":
        return 0
    given = arguments.insertbefore or arguments.insertafter or "EOF"
    if given == "EOF" and arguments.insertbefore is None:
        return len(lines)
    after = arguments.insertbefore is None
    pattern = compiled(given, "insertafter" if after else "insertbefore")
    if "(?m)" in given:
        match = pattern.search(content)
        if match is None:
            return len(lines)
        return min(len(lines), content.count(b"\n", 0, match.end() if after else match.start()) + after)
    matching = [number for number, line in enumerate(lines) if pattern.search(line)]
    return matching[-1] + after if matching else len(lines)


def apply(arguments: Arguments, change: Change, context: ApplyContext) -> Outcome:  # noqa: ARG001 (the contract's shape)
    return apply_edit(change, context)


MODULE = Module(
    name="blockinfile",
    arguments=Arguments,
    effect="changes",
    inspect=inspect,
    plan=plan,
    apply=apply,
    undo=undo,
    summary="Lines of a text file between two marker lines.",
)
