"""Making a venv and filling it with a lock's dists and with wheels that were built here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from crossgrade.errors import TaskError
from crossgrade.modules import uv
from crossgrade.modules.contract import ApplyContext, Lock, LockRequest
from crossgrade.modules.locks import lock_without
from crossgrade.modules.wheels import WheelSource, verified

if TYPE_CHECKING:
    from crossgrade.process import Completed


@dataclass(frozen=True)
class Recipe:
    """All that goes into a venv. `request` is what the lock was resolved from, for its indexes."""

    python: str
    request: LockRequest
    lock: Lock
    wheels: tuple[WheelSource, ...]
    prompt: str

    def replaced(self) -> frozenset[str]:
        """Names of dists in the lock whose place a wheel takes."""
        return frozenset(wheel.name for wheel in self.wheels if wheel.name)

    def expected_versions(self) -> dict[str, str]:
        """Name → version of what will be installed, as far as it is known before the wheels are built."""
        locked = {dist.name: dist.version for dist in self.lock.dists}
        built = {one.name: one.version or f"built here, {one.key[:8]}" for one in self.wheels if one.name}
        return {**locked, **built}


def counted(number: int, thing: str) -> str:
    """`1 dist`, `2 dists`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def fill_venv(
    recipe: Recipe, venv: Path, lock_file: Path, context: ApplyContext, *, existing: bool = False, cloned: bool = False
) -> list[str]:
    """Make the venv, unless it was `cloned`, and install everything; `lock_file` is where the lock's text may be kept.

    Returns what `uv pip check` has to say against the result: needs of a wheel that the lock does not meet are
    for the gates to judge, not a reason to stop. Raises TaskError when uv fails, StoreError when a wheel is not
    what was built.
    """
    python = str(venv / "bin" / "python")
    environment = uv.uv_environment(context.host.environment, recipe.request)
    files = [verified(wheel) for wheel in recipe.wheels]
    if not cloned:
        _must(context, uv.make_venv(recipe.python, venv, recipe.prompt, existing=existing), {}, "make the venv")
    text = lock_without(recipe.lock.text, recipe.replaced())
    lock_file.write_text(text, encoding="utf-8")
    if text:
        context.progress(f"installing {counted(len(recipe.lock.dists), 'dist')}")
        argv = uv.install_lock(python, lock_file, recipe.request)
        _must(context, argv, environment, "install the lock")
    if files:
        context.progress(f"installing {', '.join(file.name for file in files)}")
        _must(context, uv.install_wheels(python, files, reinstall=cloned), {}, "install the wheels")
    checked = context.run([uv.uv_program(), "pip", "check", "--python", python], timeout=300.0)
    return [] if checked.succeeded else complaints(checked.stderr)


def complaints(said: str) -> list[str]:
    """What `uv pip check` found: its lines that name a package."""
    return [line.strip() for line in said.splitlines() if line.strip().startswith("The package ")]


def _must(context: ApplyContext, argv: Sequence[str], environment: Mapping[str, str], what: str) -> Completed:
    completed = uv.persistently(
        lambda: context.run(argv, environment=environment, log_name="python_env.log"), context.progress
    )
    if not completed.succeeded:
        kind = uv.UnreachableError if uv.is_transient(completed) else TaskError
        raise kind(
            f"uv could not {what}: {uv.explain(completed.stderr) or completed.outcome()}",
            remedy=f"The whole output is in {context.log_directory / 'python_env.log'}.",
        )
    return completed
