"""tempfile: a new file or directory with a name that nobody can guess."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from crossgrade.errors import TaskError
from crossgrade.modules.contract import ApplyContext, Change, HostView, Module, Outcome, Plan
from crossgrade.modules.file_operations import MakeDirectory, Operation, WriteFile, perform, plan_change
from crossgrade.modules.file_undo import undo
from crossgrade.modules.files import Entry, absolute, entry_at, follow, path_values
from crossgrade.playbook.arguments import argument

EMPTY_SHA1 = "da39a3ee5e6b4b0d3255bfef95601890afd80709"


@dataclass(frozen=True)
class Arguments:
    """Makes an empty file or directory that only its owner can read. Whoever made it takes it away again."""

    state: Literal["directory", "file"] = argument(doc="What to make.", default="file", choices=("directory", "file"))
    path: str | None = argument(doc="In which directory; without it in $TMPDIR, else in /tmp.", default=None)
    prefix: str = argument(doc="How the name begins.", default="ansible.")
    suffix: str = argument(doc="How the name ends.", default="")


@dataclass(frozen=True)
class State:
    folder: Path


def inspect(arguments: Arguments, host: HostView) -> State:
    for name, value in (("prefix", arguments.prefix), ("suffix", arguments.suffix)):
        if "/" in value or "\0" in value:
            raise TaskError(f"`{name}` is a part of a name and cannot hold a slash: {value!r}")
    names = ("TMPDIR", "TEMP", "TMP")
    usual = next((host.environment[name] for name in names if host.environment.get(name)), "/tmp")  # noqa: S108 - the system's
    folder = absolute(arguments.path or usual, host)
    if follow(folder, host).kind not in ("directory", "unknown"):
        raise TaskError(f"there is no directory {folder}")
    return State(folder)


def plan(arguments: Arguments, state: State) -> Plan:
    return Change(
        f"make a temporary {arguments.state} in {state.folder}", values_known=False, payload={"folder": state.folder}
    )


def apply(arguments: Arguments, change: Change, context: ApplyContext) -> Outcome:
    path = change.payload["folder"] / f"{arguments.prefix}{secrets.token_hex(6)}{arguments.suffix}"
    place = Entry(path, "absent")
    if os.path.lexists(path):
        raise TaskError(f"{path} exists already")
    operation: Operation = MakeDirectory(place, 0o700)
    if arguments.state == "file":
        operation = WriteFile(place, b"", EMPTY_SHA1, 0, 0o600)
    perform(plan_change(f"make {path}", [operation], {}), context)
    return Outcome({"path": str(path), **path_values(entry_at(path))})


MODULE = Module(
    name="tempfile",
    arguments=Arguments,
    effect="changes",
    inspect=inspect,
    plan=plan,
    apply=apply,
    undo=undo,
    proves_itself=False,  # it makes a new one each time
    summary="A new empty file or directory.",
)
