"""command: run a program. There is no shell, so no pipes, redirections or globs."""

from __future__ import annotations

import errno
import glob
import os
import re
import shlex
import shutil
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, ClassVar

from crossgrade.errors import TaskError
from crossgrade.modules.contract import (
    ApplyContext,
    Change,
    HostView,
    Module,
    Outcome,
    Plan,
    Prediction,
    Unchanged,
)
from crossgrade.modules.files import absolute, expand, follow
from crossgrade.playbook.arguments import argument
from crossgrade.process import StartError

_GLOB = re.compile(r"[*?\[]")
SHOWN = 120  # characters of a command in a summary


@dataclass(frozen=True)
class Arguments:
    """Runs a program, without a shell. What it leaves running when it ends is stopped."""

    cmd: str | None = argument(
        doc="The program and its arguments, split at spaces as a shell does (quotes count).",
        default=None,
        free_form=True,
    )
    argv: tuple[str, ...] = argument(doc="The same as a list, which needs no quotes.", default=())
    chdir: str | None = argument(doc="The directory to run it in; else that of the playbook.", default=None)
    creates: str | None = argument(doc="Where this exists (a path or glob), there is nothing to do.", default=None)
    removes: str | None = argument(doc="Where this does not exist, there is nothing to do.", default=None)
    stdin: str | None = argument(doc="What the program reads on its standard input.", default=None)
    stdin_add_newline: bool = argument(doc="End `stdin` with a newline.", default=True)
    strip_empty_ends: bool = argument(doc="Drop empty lines at the end of its output.", default=True)
    expand_argument_vars: bool = argument(doc="Expand `$NAME` and `~` in the arguments.", default=True)
    mutually_exclusive: ClassVar[tuple[tuple[str, ...], ...]] = (("cmd", "argv"),)
    required_one_of: ClassVar[tuple[tuple[str, ...], ...]] = (("cmd", "argv"),)


@dataclass(frozen=True)
class State:
    """`command` as results show it, `argv` with variables expanded. `satisfied` says why it need not run.

    `creates` and `removes` are absolute paths or globs, "" when not given.
    """

    command: tuple[str, ...]
    argv: tuple[str, ...]
    directory: Path
    creates: str
    removes: str
    satisfied: str


def inspect(arguments: Arguments, host: HostView) -> State:
    command = _split(arguments)
    directory = absolute(arguments.chdir or "", host) if arguments.chdir else host.playbook_directory.absolute()
    if arguments.chdir and follow(directory, host).kind not in ("directory", "unknown"):
        raise TaskError(f"the directory to run in does not exist: {directory}")
    creates = _path_from(directory, arguments.creates, host)
    removes = _path_from(directory, arguments.removes, host)
    satisfied = ""
    if creates and _matches(creates, host):
        satisfied = f"'{arguments.creates}' exists"
    elif removes and not _matches(removes, host):
        satisfied = f"'{arguments.removes}' does not exist"
    argv = command
    if arguments.expand_argument_vars:
        argv = tuple(expand(part, host.environment) for part in command)
    return State(command, argv, directory, creates, removes, satisfied)


def _split(arguments: Arguments) -> tuple[str, ...]:
    if arguments.argv:
        return arguments.argv
    try:
        parts = shlex.split(arguments.cmd or "")
    except ValueError as error:
        raise TaskError(
            f"the command cannot be split into arguments: {error}",
            remedy="Mind the quotes, or give the arguments as a list in `argv`.",
        ) from error
    if not parts:
        raise TaskError("the command is empty")
    return tuple(parts)


def _path_from(directory: Path, path: str | None, host: HostView) -> str:
    return str(directory / expand(path, host.environment)) if path else ""


def _matches(pattern: str, host: HostView) -> bool:
    """Whether the path, or anything that the glob matches, will be there."""
    if not _GLOB.search(pattern):
        return follow(Path(pattern), host).exists
    return any(follow(Path(found), host).exists for found in glob.glob(pattern))  # noqa: PTH207 - absolute pattern


def plan(arguments: Arguments, state: State) -> Plan:  # noqa: ARG001 (the contract's shape)
    if state.satisfied:
        return Unchanged(
            f"not run, since {state.satisfied}",
            {
                **_values(state, 0, f"skipped, since {state.satisfied}".replace("'", ""), ""),
                "msg": f"Did not run command since {state.satisfied}",
                "start": None,
                "end": None,
                "delta": None,
            },
        )
    predicts = []
    if state.creates and not _GLOB.search(state.creates):
        predicts.append(Prediction("path", state.creates, {"exists": True}))
    if state.removes and not _GLOB.search(state.removes):
        predicts.append(Prediction("path", state.removes, {"exists": False}))
    line = shlex.join(state.command)
    line = line if len(line) <= SHOWN else line[:SHOWN] + "…"
    return Change(f"run {line}", values_known=False, predicts=tuple(predicts), payload={"state": state})


def apply(arguments: Arguments, change: Change, context: ApplyContext) -> Outcome:
    state: State = change.payload["state"]
    missing = _why_not_runnable(state, context.host)
    if missing is not None:
        return Outcome({**_values(state, missing[0], "", ""), "msg": missing[1]}, False, True, missing[1])
    text = arguments.stdin
    if text is not None and arguments.stdin_add_newline and not text.endswith("\n"):
        text += "\n"
    begun = _now()
    # nothing is known of what a command does, so nothing can be taken back; the journal still says that it ran
    try:
        with context.step(change.summary, {}):
            completed = context.run(state.argv, cwd=state.directory, input_text=text)
    except StartError as error:  # the kernel cannot execute it: no interpreter, another architecture
        return Outcome({**_values(state, errno.ENOEXEC, "", ""), "msg": error.message}, False, True, error.message)
    ended = begun + timedelta(seconds=completed.seconds)
    stdout, stderr = completed.stdout, completed.stderr
    if arguments.strip_empty_ends:
        stdout, stderr = stdout.rstrip("\r\n"), stderr.rstrip("\r\n")
    failed = not completed.succeeded
    message = "non-zero return code" if failed else ""
    values = {
        **_values(state, completed.returncode, stdout, stderr),
        "start": str(begun),
        "end": str(ended),
        "delta": str(ended - begun),
        "msg": message,
    }
    if completed.leftovers:
        values["warnings"] = [
            f"{completed.leftovers} processes that the command left running were stopped; a service is "
            "started through the service manager"
        ]
    said = (stderr or stdout).strip().splitlines()
    why = f"{shlex.join(state.command)[:SHOWN]}: {completed.outcome()}"
    if said:
        why += f": {said[-1][: SHOWN * 4]}"
    return Outcome(values, changed=True, failed=failed, message=why if failed else "")


def _values(state: State, rc: int, stdout: str, stderr: str) -> dict[str, Any]:
    return {
        "cmd": list(state.command),
        "rc": rc,
        "stdout": stdout,
        "stdout_lines": stdout.splitlines(),
        "stderr": stderr,
        "stderr_lines": stderr.splitlines(),
    }


def _why_not_runnable(state: State, host: HostView) -> tuple[int, str] | None:
    """The error number and the reason, as an exec would give them; None when the program can be started."""
    program = state.argv[0]
    if "/" in program:
        path = state.directory / program
        if not path.exists():
            return errno.ENOENT, f"there is no program {program}"
        if path.is_dir() or not os.access(path, os.X_OK):
            return errno.EACCES, f"{program} is not executable"
        return None
    if shutil.which(program, path=host.environment.get("PATH", os.defpath)) is None:
        return errno.ENOENT, f"there is no program {program} on PATH"
    return None


def _now() -> datetime:
    """Local time without its zone, as Ansible writes it."""
    return datetime.now(timezone.utc).astimezone().replace(tzinfo=None)


MODULE = Module(
    name="command",
    arguments=Arguments,
    effect="changes",
    inspect=inspect,
    plan=plan,
    apply=apply,
    proves_itself=False,
    summary="Run a program, without a shell.",
)
