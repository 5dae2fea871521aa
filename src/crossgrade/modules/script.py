"""script: run a file of the playbook, from a private copy of it."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossgrade.errors import TaskError
from crossgrade.jsontype import JSON
from crossgrade.modules.contract import ApplyContext, Change, HostView, Module, Outcome, Plan, Skipped
from crossgrade.modules.files import expand, follow
from crossgrade.modules.placing import find_source
from crossgrade.modules.program_run import (
    Place,
    find_place,
    foreseen_paths,
    leftovers_warning,
    short,
    skipped_in_check_mode,
    values_of,
    why_failed,
)
from crossgrade.playbook.arguments import argument
from crossgrade.process import StartError

_USUAL_SHELL = "/bin/sh"  # what a shell runs a file with that begins neither with #! nor as an ELF file
_OWN_START = (b"#!", b"\x7fELF")


@dataclass(frozen=True)
class Arguments:
    """Runs a script that lies beside the playbook or in its `files/`. Nothing of what it does can be taken back."""

    cmd: str = argument(
        doc="The script's path and its arguments, split at spaces as a shell does (quotes count); `$NAME` and `~` are "
        "expanded.",
        free_form=True,
    )
    executable: str | None = argument(doc="What runs the script: a program, and options of it.", default=None)
    chdir: str | None = argument(doc="The directory to run it in; else that of the playbook.", default=None)
    creates: str | None = argument(doc="Where this exists (a path or glob), there is nothing to do.", default=None)
    removes: str | None = argument(doc="Where this does not exist, there is nothing to do.", default=None)


@dataclass(frozen=True)
class State:
    """`source` is the script, `words` its arguments, `runner` what stands before it; both as they are started."""

    source: Path
    words: tuple[str, ...]
    runner: tuple[str, ...]
    shown: str
    place: Place
    creates: str
    removes: str


def inspect(arguments: Arguments, host: HostView) -> State:
    name, *words = _words(arguments.cmd, "the script's line")
    place = find_place(arguments.chdir, arguments.creates, arguments.removes, host)
    runner = _words(arguments.executable, "`executable`") if arguments.executable else []
    source = Path(name) if place.satisfied else find_source(name, "files", host)
    if not place.satisfied and follow(source, host).kind not in ("file", "unknown"):
        raise TaskError(f"{source} is no file that could be run")
    return State(
        source,
        tuple(expand(word, host.environment) for word in words),
        tuple(expand(word, host.environment) for word in runner),
        arguments.cmd,
        place,
        arguments.creates or "",
        arguments.removes or "",
    )


def _words(line: str, what: str) -> list[str]:
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise TaskError(f"{what} cannot be split into words: {error}", remedy="Mind the quotes.") from error
    if not words:
        raise TaskError(f"{what} is empty")
    return words


def plan(arguments: Arguments, state: State) -> Plan:  # noqa: ARG001 (the contract's shape)
    if state.place.satisfied:
        matched = "creates" if state.creates and state.place.satisfied.endswith(" exists") else "removes"
        words = state.place.satisfied.replace("'", "")
        return Skipped(f"not run, since {state.place.satisfied}", {"msg": f"{words}, matching {matched} option"})
    predicts = foreseen_paths(state.place)
    return Change(
        f"run the script {short(state.shown)}",
        values_known=False,
        predicts=predicts,
        payload={"state": state},
        in_check_mode=skipped_in_check_mode(state.place, {"msg": "Check mode is not supported for this task."}),
    )


def apply(arguments: Arguments, change: Change, context: ApplyContext) -> Outcome:  # noqa: ARG001 (the contract's shape)
    import tempfile

    state: State = change.payload["state"]
    folder = Path(tempfile.mkdtemp(prefix="script-", dir=context.store.temporary))  # mode 0700
    try:
        with context.step(change.summary, {"folder": str(folder)}):
            private = folder / state.source.name
            shutil.copyfile(state.source, private)
            private.chmod(0o700)
            completed = context.run(_argv(state, private), cwd=state.place.directory)
    except StartError as error:
        return Outcome({"rc": 126, "msg": error.message}, False, True, error.message)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    failed = not completed.succeeded
    values: dict[str, Any] = values_of("", completed.returncode, completed.stdout, completed.stderr)
    del values["cmd"]
    if failed:
        values["msg"] = "non-zero return code"
    if completed.leftovers:
        values["warnings"] = [leftovers_warning(completed.leftovers)]
    why = why_failed(state.shown, completed.outcome(), completed.stdout, completed.stderr)
    return Outcome(values, changed=True, failed=failed, message=why if failed else "")


def _argv(state: State, private: Path) -> list[str]:
    runner = list(state.runner)
    if not runner:
        with private.open("rb") as stream:
            begins = stream.read(4)
        runner = [] if begins.startswith(_OWN_START) else [_USUAL_SHELL]
    return [*runner, str(private), *state.words]


def undo(record: Mapping[str, JSON], context: ApplyContext) -> str:
    """What the script did stays; a copy of it that a kill left is removed."""
    folder = Path(str(record.get("folder", "")))
    if folder.parent == context.store.temporary and folder.is_dir():
        shutil.rmtree(folder, ignore_errors=True)
    return ""


MODULE = Module(
    name="script",
    arguments=Arguments,
    effect="changes",
    inspect=inspect,
    plan=plan,
    apply=apply,
    undo=undo,
    proves_itself=False,
    summary="Run a script of the playbook. It cannot be taken back.",
)
