"""Taking a run back: its journaled steps, newest first, each through its own module."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from crossgrade.engine.context import JournaledContext
from crossgrade.engine.events import Events
from crossgrade.engine.journal import Journal, StepRecord
from crossgrade.engine.view import Machine, TaskView
from crossgrade.errors import CrossgradeError
from crossgrade.modules import NAMES, load_module


@dataclass
class UndoResult:
    """How many steps were taken back, and those that could not be, with the commands that do it by hand."""

    undone: int = 0
    failed: list[tuple[StepRecord, str]] = field(default_factory=list)


def undo_run(
    journal: Journal,
    run_id: str,
    machine: Machine,
    environment: Mapping[str, str],
    events: Events,
    *,
    only_unfinished: bool = False,
) -> UndoResult:
    """Undo the steps of a run. `only_unfinished` leaves completed steps as they are, for going on from there.

    Every undo may meet an effect that is whole, half made, never made or already undone. A failing undo does
    not stop the others: each that works brings the machine nearer to what it was.
    """
    result = UndoResult()
    for step in reversed(journal.steps(run_id)):
        if step.state == "undone" or (only_unfinished and step.state == "done"):
            continue
        context = JournaledContext(
            run_id, step.task, step.name, step.module, journal, _view(machine, environment), _silent
        )
        try:
            if step.module not in NAMES:
                raise CrossgradeError(f"this crossgrade has no module {step.module!r} to undo it with")
            what = load_module(step.module).undo(step.undo, context)
        except (CrossgradeError, OSError) as error:
            result.failed.append((step, str(error)))
            events.emit(
                "rollback_failed",
                task=step.task,
                name=step.name,
                what=f"{step.intent}: {error}",
                by_hand=list(step.by_hand),
            )
            continue
        journal.mark_undone(run_id, step.ordinal)
        if what:
            result.undone += 1
            events.emit("rolled_back", task=step.task, name=step.name, what=what)
    return result


def _view(machine: Machine, environment: Mapping[str, str]) -> TaskView:
    return TaskView(machine, environment, _no_template, _no_condition)


def _no_template(text: str, name: str) -> str:
    raise CrossgradeError(f"an undo has no variables to render {name} with: {text[:40]!r}")


def _no_condition(expression: str) -> bool:
    raise CrossgradeError(f"an undo has no variables to evaluate {expression!r} with")


_silent: Callable[[str], None] = lambda message: None  # noqa: E731, ARG005 - an undo has no live line
