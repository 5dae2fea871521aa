"""One task, or one item of its loop: from raw arguments to a result, in a plan and in a run alike.

In a plan, what only reads is done, what would change or check is described, and what it would leave behind
is predicted for the tasks after it. In a run the same path goes on: apply, then inspect and plan once more,
which must find nothing left to do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from crossgrade.engine.context import JournaledContext
from crossgrade.engine.journal import Journal
from crossgrade.engine.results import Status, TaskResult, may_change
from crossgrade.engine.view import Machine, TaskView
from crossgrade.errors import CrossgradeError
from crossgrade.modules import load_module
from crossgrade.modules.contract import Change, Module, Outcome, Skipped, Unchanged
from crossgrade.playbook.arguments import parse_arguments, raw_argument_names, rest_that_may_be_unknown
from crossgrade.playbook.markers import Unknown
from crossgrade.playbook.model import Task
from crossgrade.playbook.positions import Spot
from crossgrade.playbook.templating import DependsOnUnknown, Templar, TemplateError


@dataclass(frozen=True)
class RunFiles:
    """What a real run has and a plan has not: its journal and its id."""

    journal: Journal
    run_id: str


@dataclass(frozen=True)
class TaskRunner:
    """Runs single tasks for one host. `files=None` makes it a plan."""

    machine: Machine
    files: RunFiles | None
    report_progress: Callable[[str, str], None]
    verbosity: int = 0

    def run_once(
        self,
        task: Task,
        name: str,
        templar: Templar,
        environment: Mapping[str, str],
        *,
        in_check_mode: bool = False,
        hidden: bool = False,
        become: tuple[str, ...] = (),
    ) -> TaskResult:
        """Run the task for one item, once. Errors that a user can mend become a failed result.

        Raises CrossgradeError where a template cannot be expanded: no result then, that `failed_when` could judge.
        `templar` holds the variables of the task (and item), `environment` the whole process environment.
        `in_check_mode` is the task's own `check_mode: true`: in a run, this task only says what it would do.
        `become` begins the command line of its programs (`engine.becoming`).
        """
        began = time.monotonic()
        printed: list[str] = []
        try:
            raw = self._expanded(task, templar)
        except DependsOnUnknown as unknown:
            return may_change(unknown.origin)
        try:
            result = self._run(task, raw, name, templar, environment, in_check_mode, hidden, become, printed)
        except DependsOnUnknown as unknown:
            result = may_change(unknown.origin)
        except TemplateError:
            raise
        except CrossgradeError as error:
            result = TaskResult("failed", message=str(error), failed=True)
        except OSError as error:
            place = f": {error.filename}" if error.filename else ""
            result = TaskResult("failed", message=f"{error.strerror or error}{place}", failed=True)
        output = "\n".join(printed) if result.failed else ""
        return replace(result, seconds=time.monotonic() - began, output=output)

    def _expanded(self, task: Task, templar: Templar) -> dict[str, Any]:
        """The arguments without templates. Raises CrossgradeError, DependsOnUnknown."""
        module = load_module(task.module)
        spot = task.spot_of("arguments")
        perhaps = rest_that_may_be_unknown(module.arguments, task.arguments) if self.files is None else frozenset()
        raw: dict[str, Any] = templar.template(
            task.arguments, spot, keep=raw_argument_names(module.arguments) | perhaps
        )
        raw.update({name: _known_or_not(templar, raw[name], spot.at(name)) for name in perhaps})
        if task.module == "set_fact":
            raw = {templar.template(name, spot): value for name, value in raw.items()}
        return raw

    def _run(
        self,
        task: Task,
        raw: Mapping[str, Any],
        name: str,
        templar: Templar,
        environment: Mapping[str, str],
        in_check_mode: bool,
        hidden: bool,
        become: tuple[str, ...],
        printed: list[str],
    ) -> TaskResult:
        module = load_module(task.module)
        arguments = parse_arguments(module.arguments, raw, task.spot_of("arguments"))
        view = TaskView(
            self.machine,
            environment,
            templar.render_text,
            templar.evaluate_condition,
            self.verbosity,
            printed=printed,
            directories=templar.directories,
            become=become,
            base_environment=templar.environment,
        )
        if self.machine.watch is not None:
            self.machine.watch(task.module, arguments, view)
        planned = module.plan(arguments, module.inspect(arguments, view))
        if in_check_mode and isinstance(planned, Change) and planned.in_check_mode is not None:
            planned = planned.in_check_mode
        if isinstance(planned, Skipped):
            return TaskResult("skipped", message=planned.summary, values=planned.values, skipped=True)
        if isinstance(planned, Unchanged):
            return TaskResult("ok", summary=planned.summary, message=planned.summary, values=planned.values)
        if self.files is None:
            self.machine.space += planned.space
        if module.effect != "reads" and (self.files is None or in_check_mode):
            foreseen = None
            if self.files is None and self.machine.foresight is not None:
                foreseen = self.machine.foresight.look(module, arguments, planned, view)
            return replace(_foreseen(module, planned, in_a_plan=self.files is None), foreseen=foreseen)
        context = self._context(task, name, view, hidden)
        outcome = module.apply(arguments, planned, context)
        result = _result(module, planned, outcome)
        if self.files is None and not planned.values_known:
            result = replace(result, known=False, values={})
        if self.files is not None and module.proves_itself and module.effect != "reads" and not result.failed:
            self._prove(module, arguments, view)
        return result

    def _context(self, task: Task, name: str, view: TaskView, hidden: bool) -> Any:
        if self.files is None:
            return ReadingContext(view)
        return JournaledContext(
            self.files.run_id,
            task.uid,
            name,
            task.module,
            self.files.journal,
            view,
            _silent if hidden else lambda message: self.report_progress(task.uid, message),
            hidden,
        )

    def _prove(self, module: Module[Any, Any], arguments: Any, view: TaskView) -> None:
        left = module.plan(arguments, module.inspect(arguments, view))
        if isinstance(left, Change):
            raise CrossgradeError(
                f"{module.name} said that it was done, but a second look finds work left: {left.summary}",
                remedy="This is a fault of the module, or something else changes the same things: please report it.",
            )


def _known_or_not(templar: Templar, value: Any, spot: Spot) -> Any:
    try:
        return templar.template(value, spot)
    except DependsOnUnknown as unknown:
        return Unknown(unknown.origin)


def _silent(message: str) -> None:
    """The progress of a task whose output is hidden is not shown."""


@dataclass(frozen=True)
class ReadingContext:
    """The context of a module that only reads, in a plan: there is nothing to journal."""

    host: TaskView

    @property
    def store(self) -> Any:
        return self.host.store

    def progress(self, message: str) -> None:
        """Nobody waits for a read."""


def _foreseen(module: Module[Any, Any], change: Change, *, in_a_plan: bool) -> TaskResult:
    changes = module.effect == "changes"
    if in_a_plan:
        status: Status = "may change" if change.uncertain else "change" if changes else "check"
    else:
        status = "changed" if changes else "ok"
    return TaskResult(
        status,
        summary=change.summary,
        message=change.summary,
        values=change.values,
        known=change.values_known or not in_a_plan,  # in a run there is nothing to wait for
        runs=True,
        changed=changes,
        differences=change.differences,
        predicts=change.predicts,
        warnings=change.warnings,
    )


def _result(module: Module[Any, Any], change: Change, outcome: Outcome) -> TaskResult:
    changed = (module.effect == "changes") if outcome.changed is None else outcome.changed
    status: Status = "failed" if outcome.failed else "changed" if changed else "ok"
    summary = change.summary if module.effect != "reads" else ""
    return TaskResult(
        status,
        summary=summary,
        message=outcome.message or summary,
        values=outcome.values,
        changed=changed,
        failed=outcome.failed,
        differences=outcome.differences or change.differences,
        verdict=outcome.verdict.to_json() if outcome.verdict else None,
        facts=outcome.facts,
        included=outcome.included,
        gathered=outcome.gathered,
        made=() if outcome.made is None else (outcome.made,),
        warnings=change.warnings,
    )
