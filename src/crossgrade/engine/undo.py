"""Taking a run back, or making what it left half made whole: its journaled steps, each through its own module."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from crossgrade.engine.context import JournaledContext
from crossgrade.engine.events import Events
from crossgrade.engine.failpoints import pass_point
from crossgrade.engine.journal import Journal, JournalUnusableError
from crossgrade.engine.records import StepRecord
from crossgrade.engine.view import Machine, TaskView
from crossgrade.errors import CrossgradeError
from crossgrade.modules import NAMES, load_module
from crossgrade.modules.contract import Module
from crossgrade.store.reserve import release_reserve


@dataclass
class UndoResult:
    """How many steps were taken back or completed, and those that failed, with the commands that do it by hand."""

    undone: int = 0
    completed: int = 0
    failed: list[tuple[StepRecord, str]] = field(default_factory=list)


@dataclass(frozen=True)
class Recovery:
    """What undoing needs: the run's journal, the machine, and whom to tell."""

    journal: Journal
    run_id: str
    machine: Machine
    environment: Mapping[str, str]
    events: Events

    def undo_all(self) -> UndoResult:
        """Undo every step of the run, newest first.

        Every undo may meet an effect that is whole, half made, never made or already undone. A failing undo does
        not stop the others: each that works brings the machine nearer to what it was.
        """
        result = UndoResult()
        release_reserve(self.machine.store)
        # on a full disk: an undo may be repeated, but not left out
        with suppress(JournalUnusableError):
            self.journal.begin_rollback(self.run_id)
        for step in reversed(self.journal.steps(self.run_id)):
            if step.state != "undone":
                self._undo(step, result)
        return result

    def settle(self) -> UndoResult:
        """Leave no step half made: complete those that are past their commit point, undo the others.

        Steps that are on record as done stay as they are, for going on from there.
        """
        result = UndoResult()
        for step in reversed(self.journal.steps(self.run_id)):
            if step.state == "intended" and not self._complete(step, result):
                self._undo(step, result)
        return result

    def _complete(self, step: StepRecord, result: UndoResult) -> bool:
        try:
            what = self._module(step).complete(step.undo, self._context(step))
        except (CrossgradeError, OSError) as error:
            message = f"{step.intent}: it was past its commit point, but could not be completed: {error}"
            self.events.emit("warning", message=message)
            return False
        if what is None:
            return False
        self.journal.complete(self.run_id, step.ordinal, step.module, step.task)
        pass_point("completed", step.module, step.task)
        result.completed += 1
        self.events.emit("completed", task=step.task, name=step.name, what=what)
        return True

    def _undo(self, step: StepRecord, result: UndoResult) -> None:
        pass_point("undoing", step.module, step.task)
        try:
            what = self._module(step).undo(step.undo, self._context(step))
        except (CrossgradeError, OSError) as error:
            result.failed.append((step, str(error)))
            self.events.emit(
                "rollback_failed",
                task=step.task,
                name=step.name,
                what=f"{step.intent}: {error}",
                by_hand=list(step.by_hand),
            )
            return
        pass_point("reversed", step.module, step.task)
        with suppress(JournalUnusableError):
            self.journal.mark_undone(self.run_id, step.ordinal)
        pass_point("undone", step.module, step.task)
        if what:
            result.undone += 1
            self.events.emit("rolled_back", task=step.task, name=step.name, what=what)

    def _module(self, step: StepRecord) -> Module[Any, Any]:
        if step.module not in NAMES:
            raise CrossgradeError(f"this crossgrade has no module {step.module!r} to undo it with")
        return load_module(step.module)

    def _context(self, step: StepRecord) -> JournaledContext:
        view = TaskView(self.machine, self.environment, _no_template, _no_condition)
        return JournaledContext(self.run_id, step.task, step.name, step.module, self.journal, view, _silent)


def _no_template(text: str, name: str, marks: Mapping[str, Any] | None = None) -> str:  # noqa: ARG001 (its shape)
    raise CrossgradeError(f"an undo has no variables to render {name} with: {text[:40]!r}")


def _no_condition(expression: str) -> bool:
    raise CrossgradeError(f"an undo has no variables to evaluate {expression!r} with")


_silent: Callable[[str], None] = lambda message: None  # noqa: E731, ARG005 - an undo has no live line
