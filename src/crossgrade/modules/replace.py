"""replace: every match of a pattern in a text file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from crossgrade.errors import TaskError
from crossgrade.modules.contract import ApplyContext, Change, HostView, Module, Outcome, Plan
from crossgrade.modules.editing import Edit, Target, apply_edit, look_at_target, plan_edit
from crossgrade.modules.file_undo import undo
from crossgrade.modules.refusing import FILE
from crossgrade.playbook.arguments import argument


@dataclass(frozen=True)
class Arguments:
    """Replaces all that matches a pattern in a text file, or in a part of it."""

    path: str = argument(doc="The file.", aliases=("dest", "destfile", "name"))
    regexp: str = argument(doc="A Python pattern; `^` and `$` match at every line, `.` matches no line end.")
    replace: str = argument(doc="What comes in its place; `\\1` is a group of the pattern.", default="")
    after: str | None = argument(
        doc="Only what comes after the first match of this pattern, in which `.` matches line ends too.", default=None
    )
    before: str | None = argument(
        doc="Only what comes before the last match of this pattern; with `after`, before the next one.", default=None
    )
    encoding: str = argument(doc="The encoding of the file.", default="utf-8")
    backup: bool = argument(doc="Keep a copy of the old file beside the new one.", default=False)
    validate: str | None = argument(
        doc="A program that must accept the new file (`%s`) before it is put in its place.", default=None
    )
    mode: Any = argument(doc='The mode: "0644" (with quotes) or u=rw,g=r,o=r.', default=None)
    owner: str | None = argument(doc="The user, by name or number.", default=None)
    group: str | None = argument(doc="The group, by name or number.", default=None)
    refused: ClassVar[Mapping[str, str]] = FILE


@dataclass(frozen=True)
class State:
    target: Target


def inspect(arguments: Arguments, host: HostView) -> State:
    try:
        "".encode(arguments.encoding)
    except LookupError as error:
        raise TaskError(f"there is no encoding {arguments.encoding!r}") from error
    return State(
        look_at_target(
            arguments.path,
            host,
            mode=arguments.mode,
            owner=arguments.owner,
            group=arguments.group,
            backup=arguments.backup,
            validate=arguments.validate,
        )
    )


def plan(arguments: Arguments, state: State) -> Plan:
    content = state.target.content or b""
    return plan_edit(state.target, replaced(content, arguments), {"rc": 0})


def replaced(content: bytes, arguments: Arguments) -> Edit:
    """The text with everything replaced. Bytes that are no text of the encoding stay as they are."""
    text = content.decode(arguments.encoding, errors="surrogateescape")
    start, end = 0, len(text)
    if arguments.after is not None or arguments.before is not None:
        part = _part(text, arguments)
        if part is None:
            return Edit(None, "the file has no such part: `after` or `before` matches nothing in it")
        start, end = part
    pattern = _compiled(arguments.regexp, "regexp", re.MULTILINE)
    try:
        new, number = pattern.subn(arguments.replace, text[start:end])
    except (re.error, IndexError) as error:
        raise TaskError(f"`replace` cannot be filled in: {error}") from error
    if not number or new == text[start:end]:
        return Edit(None)
    try:
        whole = (text[:start] + new + text[end:]).encode(arguments.encoding, errors="surrogateescape")
    except UnicodeEncodeError as error:
        raise TaskError(f"{error.object[error.start]!r} does not exist in {error.encoding}") from error
    return Edit(whole, f"{number} replacements made")


def _part(text: str, arguments: Arguments) -> tuple[int, int] | None:
    """Where the part begins and ends that `after` and `before` leave; None when one of them matches nothing."""
    after, before = arguments.after, arguments.before
    if after is not None and before is not None:
        found = _compiled(f"{after}(?P<crossgrade_part>.*?){before}", "after ... before", re.DOTALL).search(text)
    elif after is not None:
        found = _compiled(f"{after}(?P<crossgrade_part>.*)", "after", re.DOTALL).search(text)
    else:
        found = _compiled(f"(?P<crossgrade_part>.*){before}", "before", re.DOTALL).search(text)
    return None if found is None else found.span("crossgrade_part")


def _compiled(pattern: str, what: str, flags: int) -> re.Pattern[str]:
    try:
        return re.compile(pattern, flags)
    except re.error as error:
        raise TaskError(f"`{what}` is no regular expression: {error}: {pattern!r}") from error


def apply(arguments: Arguments, change: Change, context: ApplyContext) -> Outcome:  # noqa: ARG001 (the contract's shape)
    return apply_edit(change, context)


MODULE = Module(
    name="replace",
    arguments=Arguments,
    effect="changes",
    inspect=inspect,
    plan=plan,
    apply=apply,
    undo=undo,
    summary="Every match of a pattern in a text file.",
)
