"""slurp: the content of a file."""

from __future__ import annotations

import base64
from dataclasses import dataclass

from crossgrade.errors import TaskError
from crossgrade.modules.contract import ApplyContext, Change, HostView, Module, Outcome, Plan
from crossgrade.modules.files import absolute, follow, known_content
from crossgrade.playbook.arguments import argument
from crossgrade.playbook.markers import DependsOnUnknown

MOST_BYTES = 64 << 20  # it becomes a value of the playbook, base64 and all


@dataclass(frozen=True)
class Arguments:
    """Reads a whole file; `content` is base64, for the filter `b64decode`."""

    src: str = argument(doc="The file.", aliases=("path",))


@dataclass(frozen=True)
class State:
    source: str
    content: bytes


def inspect(arguments: Arguments, host: HostView) -> State:
    path = absolute(arguments.src, host)
    entry = follow(path, host)
    if not entry.exists:
        raise TaskError(f"there is no file {path}")
    if entry.kind not in ("file", "unknown"):
        raise TaskError(f"{path} is a {entry.state}, no file that could be read")
    if (entry.size or 0) > MOST_BYTES:
        raise TaskError(
            f"{path} has {entry.size} bytes: more than {MOST_BYTES >> 20} MiB are not read into a value",
            remedy="`stat` gives its checksum; `copy` with `remote_src` copies it.",
        )
    content = known_content(entry) if entry.kind == "file" else None
    if content is None:
        raise DependsOnUnknown(f"{path}, which an earlier task makes")
    return State(str(path), content)


def plan(arguments: Arguments, state: State) -> Plan:
    content = base64.b64encode(state.content).decode()
    values = {"content": content, "source": state.source, "encoding": "base64"}
    return Change(f"read {arguments.src}", values=values)


def apply(arguments: Arguments, change: Change, context: ApplyContext) -> Outcome:  # noqa: ARG001 (the contract's shape)
    return Outcome(change.values)


MODULE = Module(
    name="slurp",
    arguments=Arguments,
    effect="reads",
    inspect=inspect,
    plan=plan,
    apply=apply,
    summary="The content of a file, as base64.",
)
