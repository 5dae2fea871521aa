"""python_env with `path`: an ordinary venv at a place of the user's choice.

A venv cannot be moved once its scripts are written, so it is made at its final place, and a file inside says
which run made it and whether it is complete. That file is there before the first other one: the folder comes
to its place by a rename with the file in it. So undo can tell what it may remove from what was there before.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crossgrade.errors import TaskError
from crossgrade.jsontype import JSON
from crossgrade.modules.contract import (
    ApplyContext,
    Change,
    HostView,
    Lock,
    LockRequest,
    Offers,
    Outcome,
    Plan,
    Prediction,
    Space,
    Unchanged,
)
from crossgrade.modules.dists import dist_differences, installed, unsatisfied, wheel_problem
from crossgrade.modules.durable import sync_filesystem
from crossgrade.modules.files import absolute, prediction_for
from crossgrade.modules.filling import Recipe, counted, fill_venv
from crossgrade.modules.git_wheels import git_wheels
from crossgrade.modules.locks import lock_entries
from crossgrade.modules.resolution_warnings import Resolution, reasons, warnings_of
from crossgrade.modules.wheels import WheelSource
from crossgrade.store.atomic import sync_directory, write_json
from crossgrade.store.layout import remove_path

MARKER = ".crossgrade.json"


@dataclass(frozen=True)
class State:
    """`satisfied` when the venv is there and holds all; else `lock` says what is to be installed."""

    path: Path
    request: LockRequest
    wheels: tuple[WheelSource, ...]
    satisfied: bool
    lock: Lock | None = None
    bytes: int = 0
    offers: Offers = field(default_factory=Offers)


def inspect(
    given: str, request: LockRequest, wheels: tuple[WheelSource, ...], python_abi: str, host: HostView
) -> State:
    """Raises TaskError when something else is at the place, or an environment that lacks what is asked for."""
    path = absolute(given, host)
    predicted = prediction_for(path, host)
    if predicted is not None and predicted.get("exists", True):
        return State(path, request, wheels, satisfied=True)
    if not path.exists() and not path.is_symlink():
        return _to_make(path, request, wheels, python_abi, host)
    if read_marker(path).get("complete") is False:  # a run's own leftover: made anew
        return _to_make(path, request, wheels, python_abi, host)
    if not (path / "pyvenv.cfg").is_file():
        raise TaskError(f"{path} is there and is not a venv", remedy="Give another `path`, or move it away.")
    dists = installed(path)
    problems = unsatisfied(dists, request.requirements)
    problems += [problem for wheel in wheels if (problem := wheel_problem(dists, wheel))]
    if problems:
        raise TaskError(
            f"{path} is there and is not what the task asks for: {'; '.join(problems)}",
            remedy="An environment that is there is never changed. Leave `path` out to build a candidate beside it, "
            "or move it away to have it made anew.",
        )
    return State(path, request, wheels, satisfied=True)


def _to_make(
    path: Path, request: LockRequest, wheels: tuple[WheelSource, ...], python_abi: str, host: HostView
) -> State:
    lock = host.resolve(request)
    wheels = (*wheels, *git_wheels(lock, python_abi, host.store))
    offers = host.offers(request, lock)
    size = host.installed_bytes(request, lock)
    return State(path, request, wheels, satisfied=False, lock=lock, bytes=size, offers=offers)


def read_marker(path: Path) -> dict[str, Any]:
    """Which run made this venv, and whether it is complete; empty for one that crossgrade did not make."""
    try:
        value = json.loads((path / MARKER).read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


# ---- plan


def plan(state: State) -> Plan:
    values = {"generation": None, "path": str(state.path), "python": str(state.path / "bin" / "python")}
    if state.satisfied:
        return Unchanged(f"{state.path} holds all that is asked for", values)
    assert state.lock is not None  # noqa: S101 - inspect gives one of the two
    recipe = Recipe(state.request.python, state.request, state.lock, state.wheels, state.path.name)
    count = len(state.wheels)
    wheels = f" and {counted(count, 'wheel')} built here" if count else ""
    expected = recipe.expected_versions()
    entries = tuple(lock_entries(state.lock.text))
    dists: dict[str, JSON] = dict(expected)
    value: dict[str, JSON] = {
        "exists": True, "path": str(state.path), "isdir": True, "islnk": False, "isreg": False, "dists": dists,
    }  # fmt: skip
    return Change(
        f"make {state.path} with {counted(len(state.lock.dists), 'dist')}{wheels}",
        dist_differences({}, expected, reasons(entries), first=[entry.dist.name for entry in entries if entry.named]),
        values,
        predicts=(Prediction("path", str(state.path), value),),
        payload={"state": state, "recipe": recipe},
        space=(Space(state.path, state.bytes, state.path.name),),
        venv=state.path,
        warnings=warnings_of(Resolution(state.request, state.lock, {}, expected, state.offers)),
    )


# ---- apply


def apply(state: State, recipe: Recipe, change: Change, context: ApplyContext) -> Outcome:
    path = state.path
    record: dict[str, JSON] = {"path": str(path), "run": context.run_id}
    with context.step(f"make {path}", record, by_hand=[f"rm -r {path}"]):
        path.parent.mkdir(parents=True, exist_ok=True)
        if read_marker(path).get("complete") is False:
            _remove(path)
        work = _beside(path)
        remove_path(work)
        work.mkdir()
        write_json(work / MARKER, {"run": context.run_id, "complete": False})
        work.rename(path)
        sync_directory(path.parent)
        lock_file = context.store.temporary / f"lock-{recipe.lock.digest[:24]}.txt"
        warnings = fill_venv(recipe, path, lock_file, context, existing=True)
        remove_path(lock_file)
        sync_filesystem(path)
        write_json(path / MARKER, {"run": context.run_id, "complete": True})
    return Outcome(change.values, message="; ".join(warnings))


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.crossgrade")


def _remove(path: Path) -> None:
    """Remove a venv that crossgrade made. It loses its name first, so a kill in between leaves no half of it there."""
    work = _beside(path)
    remove_path(work)
    path.rename(work)
    remove_path(work)


def undo(record: Mapping[str, JSON], context: ApplyContext) -> str:  # noqa: ARG001 (the contract's shape)
    path = Path(str(record["path"]))
    remove_path(_beside(path))
    # A link means that it was adopted since; another run's name, or none, that it is not this run's to remove.
    if path.is_symlink() or read_marker(path).get("run") != record["run"]:
        return ""
    _remove(path)
    return f"removed {path}"
