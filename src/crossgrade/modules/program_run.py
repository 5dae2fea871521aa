"""Running one program for `command`, `shell` and `script`: when there is nothing to do, and what a result holds."""

from __future__ import annotations

import errno
import glob
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from crossgrade.errors import TaskError
from crossgrade.modules.contract import ApplyContext, Change, HostView, Outcome, Plan, Prediction, Skipped, Unchanged
from crossgrade.modules.files import absolute, expand, follow
from crossgrade.process import StartError

_GLOB = re.compile(r"[*?\[]")
SHOWN = 120  # characters of a command in a summary


@dataclass(frozen=True)
class Place:
    """Where a program runs, and why it need not: `satisfied` is "" when it must run.

    `creates` and `removes` are absolute paths or globs, "" when not given.
    """

    directory: Path
    creates: str
    removes: str
    satisfied: str


@dataclass(frozen=True)
class State:
    """`command` as results show it (`cmd`), `argv` what is started, `shown` for people."""

    command: str | tuple[str, ...]
    argv: tuple[str, ...]
    shown: str
    place: Place


def find_place(chdir: str | None, creates: str | None, removes: str | None, host: HostView) -> Place:
    """Raises TaskError when the directory to run in does not exist."""
    directory = absolute(chdir, host) if chdir else host.playbook_directory.absolute()
    if chdir and follow(directory, host).kind not in ("directory", "unknown"):
        raise TaskError(f"the directory to run in does not exist: {directory}")
    wanted = _path_from(directory, creates, host)
    unwanted = _path_from(directory, removes, host)
    satisfied = ""
    if wanted and _matches(wanted, host):
        satisfied = f"'{creates}' exists"
    elif unwanted and not _matches(unwanted, host):
        satisfied = f"'{removes}' does not exist"
    return Place(directory, wanted, unwanted, satisfied)


def _path_from(directory: Path, path: str | None, host: HostView) -> str:
    return str(directory / expand(path, host.environment)) if path else ""


def _matches(pattern: str, host: HostView) -> bool:
    """Whether the path, or anything that the glob matches, will be there."""
    if not _GLOB.search(pattern):
        return follow(Path(pattern), host).exists
    return any(follow(Path(found), host).exists for found in glob.glob(pattern))  # noqa: PTH207 - absolute pattern


def foreseen_paths(place: Place) -> tuple[Prediction, ...]:
    """What the program promises by `creates` and `removes`; a glob promises no name."""
    promised = ((place.creates, True), (place.removes, False))
    return tuple(
        Prediction("path", path, {"exists": exists}) for path, exists in promised if path and not _GLOB.search(path)
    )


def plan_run(state: State) -> Plan:
    satisfied = state.place.satisfied
    if satisfied:
        return Unchanged(
            f"not run, since {satisfied}",
            {
                **values_of(state.command, 0, f"skipped, since {satisfied}".replace("'", ""), ""),
                "msg": f"Did not run command since {satisfied}",
                "start": None,
                "end": None,
                "delta": None,
            },
        )
    values = {
        **values_of(state.command, 0, "", ""),
        "msg": "Command would have run if not in check mode",
        "start": None,
        "end": None,
        "delta": None,
    }
    return Change(
        f"run {short(state.shown)}",
        values=values,
        values_known=False,
        predicts=foreseen_paths(state.place),
        payload={"state": state},
        in_check_mode=skipped_in_check_mode(state.place, values),
    )


def skipped_in_check_mode(place: Place, values: Mapping[str, Any]) -> Skipped | None:
    """What `check_mode: true` makes of it: only with `creates` or `removes` is it told as a change."""
    return None if place.creates or place.removes else Skipped("not run in check mode", values)


def short(line: str) -> str:
    """A command for a summary: one line, not too long."""
    line = " ".join(line.split("\n"))
    return line if len(line) <= SHOWN else line[:SHOWN] + "…"


def apply_run(
    change: Change, context: ApplyContext, *, stdin: str | None, add_newline: bool, strip_empty_ends: bool
) -> Outcome:
    """Run it. Nothing is known of what it does, so nothing can be taken back; the journal still says that it ran."""
    state: State = change.payload["state"]
    missing = _why_not_runnable(state, context.host)
    if missing is not None:
        return Outcome({**values_of(state.command, missing[0], "", ""), "msg": missing[1]}, False, True, missing[1])
    if stdin is not None and add_newline and not stdin.endswith("\n"):
        stdin += "\n"
    begun = now()
    try:
        with context.step(change.summary, {}):
            completed = context.run(state.argv, cwd=state.place.directory, input_text=stdin)
    except StartError as error:  # the kernel cannot execute it: no interpreter, another architecture
        values = {**values_of(state.command, errno.ENOEXEC, "", ""), "msg": error.message}
        return Outcome(values, False, True, error.message)
    ended = begun + timedelta(seconds=completed.seconds)
    stdout, stderr = completed.stdout, completed.stderr
    if strip_empty_ends:
        stdout, stderr = stdout.rstrip("\r\n"), stderr.rstrip("\r\n")
    failed = not completed.succeeded
    values = {
        **values_of(state.command, completed.returncode, stdout, stderr),
        "start": str(begun),
        "end": str(ended),
        "delta": str(ended - begun),
        "msg": "non-zero return code" if failed else "",
    }
    if completed.leftovers:
        values["warnings"] = [leftovers_warning(completed.leftovers)]
    why = why_failed(state.shown, completed.outcome(), stdout, stderr)
    return Outcome(values, changed=True, failed=failed, message=why if failed else "")


def leftovers_warning(count: int) -> str:
    return (
        f"{count} processes that the command left running were stopped; a service is started through the "
        "service manager"
    )


def why_failed(shown: str, outcome: str, stdout: str, stderr: str) -> str:
    """One line for people: what ran, how it ended, its last words."""
    said = (stderr or stdout).strip().splitlines()
    return f"{short(shown)}: {outcome}" + (f": {said[-1][: SHOWN * 4]}" if said else "")


def values_of(command: str | Sequence[str], rc: int, stdout: str, stderr: str) -> dict[str, Any]:
    return {
        "cmd": command if isinstance(command, str) else list(command),
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
        path = state.place.directory / program
        if not path.exists():
            return errno.ENOENT, f"there is no program {program}"
        if path.is_dir() or not os.access(path, os.X_OK):
            return errno.EACCES, f"{program} is not executable"
        return None
    if shutil.which(program, path=host.environment.get("PATH", os.defpath)) is None:
        return errno.ENOENT, f"there is no program {program} on PATH"
    return None


def now() -> datetime:
    """Local time without its zone, as Ansible writes it."""
    return datetime.now(timezone.utc).astimezone().replace(tzinfo=None)
