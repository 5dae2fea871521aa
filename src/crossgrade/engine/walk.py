"""Walking a play: blocks, conditions, loops, retries, registered values and handlers, in Ansible's order.

The same walk makes a plan (nothing is changed, results are foreseen) and a run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from crossgrade.engine.company import Company
from crossgrade.engine.events import Events
from crossgrade.engine.explained import explained, sentence
from crossgrade.engine.handling import Handlers
from crossgrade.engine.including import Including, RoleRuns
from crossgrade.engine.looping import item_variables, loop_list
from crossgrade.engine.memory import HostMemory
from crossgrade.engine.meta import Telling, does_for_all
from crossgrade.engine.plan import Action, Foreseen, PlannedTask
from crossgrade.engine.results import TaskResult, combine_loop, foretold, may_change, not_run, result_event
from crossgrade.engine.retrying import attempts
from crossgrade.engine.surroundings import facts_set_by, names_that_are_set, scope_of
from crossgrade.engine.task_runner import TaskRunner
from crossgrade.engine.time_limit import TaskTimedOut, plain_seconds, seconds_of, time_limit
from crossgrade.engine.turns import HostEnded, Turn, Turns
from crossgrade.errors import CrossgradeError
from crossgrade.playbook.inventory_made import MAKERS
from crossgrade.playbook.library import Library
from crossgrade.playbook.model import Block, Play, Step, Task
from crossgrade.playbook.roles import Role
from crossgrade.playbook.secrets import masked
from crossgrade.playbook.statements import DYNAMIC
from crossgrade.playbook.tags import is_selected
from crossgrade.playbook.templating import DependsOnUnknown, Templar
from crossgrade.playbook.values import is_template_text
from crossgrade.playbook.variables import Precedence, Scope, Unknown

# How a plan names what the walk found; the other statuses are called the same.
_FORESEEN: dict[str, Action] = {"changed": "change", "failed": "fails", "ignored": "ok"}


class HostFailed(Exception):  # noqa: N818 - a turn in the walk that blocks catch, not an error for users
    """A task failed and nothing has rescued it yet."""

    def __init__(
        self, task: Task, name: str, result: TaskResult, told: TaskResult, host: str, *, own: bool = True
    ) -> None:
        super().__init__(name)
        self.host = host
        self.own = own  # false where another host's task failed for this host too
        self.task = task
        self.name = name
        self.result = result  # for the playbook's own variables
        self.told = told  # for people and records: without what `no_log` hides


@dataclass(frozen=True)
class Selection:
    """`--tags` and `--skip-tags`; empty means not given."""

    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()


@dataclass
class Walk:
    """One walk of one play on one host. `predicted` is the plan's own entry for each task and item."""

    play: Play
    host: str
    scope: Scope
    base_environment: Mapping[str, str]
    runner: TaskRunner
    events: Events
    selection: Selection
    sleep: Callable[[float], None]
    predicted: Mapping[tuple[str, str], PlannedTask] = field(default_factory=dict)
    memory: HostMemory = field(default_factory=lambda: HostMemory("localhost"))
    company: Company = field(default_factory=Company)
    force_handlers: bool = False
    sharing: list[HostMemory] = field(default_factory=list)
    failure: HostFailed | None = None
    ending: str = ""
    leaving: bool = False
    planned: list[PlannedTask] = field(default_factory=list)
    differing: int = 0
    gates_not_run: list[str] = field(default_factory=list)
    library: Library | None = None
    roles: list[Role] = field(default_factory=list)
    role_runs: RoleRuns = field(default_factory=RoleRuns)
    _in_rescue: int = 0
    _rescuable: int = 0
    _place: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.handlers = Handlers(list(self.play.handlers), self._handler_name)
        self.roles = [*self.play.roles]

    @property
    def directory(self) -> Path:
        """The folder of the play's file."""
        return self.play.directory or self.runner.machine.playbook_directory

    @property
    def check_mode(self) -> bool:
        return self.runner.files is None

    def turns(self) -> Turns:
        """Walk the sections of the play, each with its handlers; see `engine.turns`.

        Raises HostFailed at the first failure that nothing rescues.
        """
        try:
            self.memory.gathered.on_demand(self._add_facts if self.play.gather_facts is None else None)
            if self.templar(self.scope).boolean(self.play.gather_facts, default=False):
                yield Turn((-1,), None)
                self._gather_facts()
            for number, (_, steps) in enumerate(self.play.sections()):
                try:
                    yield from self.steps(steps, 2 * number)
                except HostFailed:
                    forced = self.templar(self.scope).boolean(self.play.force_handlers, default=False)
                    if forced or self.force_handlers:
                        yield from self.run_handlers(2 * number + 1)
                    raise
                yield from self.run_handlers(2 * number + 1)
        except HostEnded:
            return

    def _add_facts(self) -> None:
        from crossgrade.engine.gathering import add_facts, gather

        add_facts(self.memory.gathered, gather(("all",), self.base_environment, self.runner.machine.store.root))

    def _gather_facts(self) -> None:
        name, began = "Gathering Facts", time.monotonic()
        self.events.emit("task_started", task=f"{self.play.uid}/facts", name=name, module="setup", handler=False)
        self._add_facts()
        result = TaskResult("ok", seconds=time.monotonic() - began)
        self.memory.counts.count(result)
        self.events.emit("task_result", **result_event(f"{self.play.uid}/facts", name, "setup", result, "", None))

    # ---- blocks

    def steps(self, steps: Sequence[Step], part: int = 0) -> Turns:
        """`part` tells several lists that stand at one place apart, in their order."""
        self._place += [part, 0]
        try:
            for at, step in enumerate(steps):
                self._place[-1] = at
                yield from self._block(step) if isinstance(step, Block) else self._task(step)
        finally:
            del self._place[-2:]

    def _block(self, block: Block) -> Turns:
        if block.role is not None and self.role_runs.is_done(block.role):
            return
        self._rescuable += bool(block.rescue)
        try:
            try:
                try:
                    yield from self.steps(block.block, 0)
                finally:
                    self._rescuable -= bool(block.rescue)
            except HostFailed as failure:
                if not block.rescue:
                    raise
                yield from self._rescue(block, failure)
            else:
                self._might_be_rescued(block)
        except (HostEnded, GeneratorExit):
            raise
        except BaseException as error:
            self.leaving = self.leaving or not isinstance(error, HostFailed)
            with suppress(HostEnded):  # an end that `always` makes does not unmake the failure
                yield from self.steps(block.always, 2)
            raise
        yield from self.steps(block.always, 2)
        if block.role is not None:
            self.role_runs.note_end(block.role)

    def _rescue(self, block: Block, failure: HostFailed) -> Turns:
        if failure.own:
            self.memory.counts.failed -= 1
            self.memory.counts.rescued += 1
            self.memory.known["ansible_failed_task"] = {
                "name": failure.name if failure.task.name else "",
                "action": failure.task.module,
            }
            self.memory.known["ansible_failed_result"] = failure.result.registered()
        self._in_rescue += 1
        try:
            yield from self.steps(block.rescue, 1)
        finally:
            self._in_rescue -= 1

    def _might_be_rescued(self, block: Block) -> None:
        """In a plan: nobody knows whether the block will hold, so that there may be the variables of its rescue."""
        if self.check_mode:
            for name in names_that_are_set(block.rescue):
                if name not in self.memory.known and name not in self.scope:
                    self.memory.known[name] = Unknown("what may yet be rescued", certain=False)

    # ---- one task

    def _task(self, task: Task, *, handler: bool = False) -> Turns:
        handler = handler or self.handlers.running
        if not handler and not is_selected(task.tags, self.selection.only, self.selection.skip):
            return
        if not (yield Turn(tuple(self._place), task)):
            return  # another host has done it for all
        self.scope = self.company.roster.renewed(self.scope, self.host)
        scope = scope_of(task, self.scope, self.directory)
        templar = self.templar(scope)
        name = self._name(task, templar)
        if task.module == "meta":
            yield from Telling(self, task, name).run(templar)
            return
        title = f"{task.role.name} : {name}" if task.role else name
        self.events.emit("task_started", task=task.uid, name=title, module=task.module, handler=handler)
        if task.module in DYNAMIC and self.library is not None:
            yield from Including(self, task, name, self.library).run(scope, templar)
            return
        if task.loop is None:
            result = self.ignoring(task, templar, self._attempts(task, name, scope))
            self.remember(task, result.registered(), result, templar)
            self.tell(task, name, templar, result)
        else:
            result = self._loop(task, name, scope, templar)
        self.memory.counts.count(result)
        self.role_runs.note_task(task, result)
        if not result.known:
            self._may_have_set(task, result)
        if not_run(result) and not result.failed:
            self.gates_not_run.append(name)
        if result.changed and not result.failed:
            self._notify(task, templar)
        if result.failed and result.status != "ignored":
            self.fail(task, name, templar, result)

    def _may_have_set(self, task: Task, result: TaskResult) -> None:
        """In a plan: variables that this task sets when its turn comes, if it does."""
        if task.module == "set_fact":
            origin = f"task {task.display_name!r}"  # each its own: Python takes one object for equal to itself
            self.memory.known.update({name: Unknown(origin, certain=False) for name in facts_set_by(task)})
            if any(map(is_template_text, task.arguments)):
                self.scope = self.scope.with_unknown(origin)
        elif task.module == "include_vars":
            self.scope = self.scope.with_unknown(f"the variables of task {task.display_name!r}")
        elif task.module in MAKERS and not result.made:
            self.company.roster.note_doubt(f"task {task.display_name!r}")

    def fail(self, task: Task, name: str, templar: Templar, result: TaskResult) -> None:
        """Leave the walk. Raises HostFailed."""
        told = result.hidden() if self._hidden(task, templar) else result
        self.failure = HostFailed(task, name, result, told, self.host)
        raise self.failure

    def _loop(self, task: Task, name: str, scope: Scope, templar: Templar) -> TaskResult:
        early: TaskResult | None = None
        items: Sequence[Any] = ()
        try:
            items = self.items(task, templar)
        except DependsOnUnknown as unknown:
            early = TaskResult("may change", summary=f"loops over what depends on {unknown.origin}", known=False)
        except CrossgradeError as error:
            early = self.ignoring(task, templar, TaskResult("failed", message=str(error), failed=True))
        if early is not None:
            self.remember(task, early.registered(), early, templar)
            self.tell(task, name, templar, early)
            return early
        control = task.loop_control
        results: list[TaskResult] = []
        for index, item in enumerate(items):
            if index and not self.check_mode:
                self._pause(task, templar)
            item_scope = scope.with_layer(
                Precedence.LOOP, item_variables(control, items, index, templar), templated=False
            )
            item_templar = self.templar(item_scope)
            result = self.ignoring(task, item_templar, self._attempts(task, name, item_scope))
            result = replace(result, item=item, has_item=True)
            self.tell(task, name, item_templar, replace(result, item=self.label(task, item, item_templar)))
            results.append(result)
            if control.break_when:
                try:
                    if self._with_result(task, item_scope, result).all_hold(control.break_when):
                        break
                except DependsOnUnknown as unknown:
                    results += self._perhaps(task, name, templar, items[index + 1 :], unknown)
                    break
                except CrossgradeError as error:
                    broken = TaskResult("failed", message=f"break_when: {error}", failed=True, item=item, has_item=True)
                    self.tell(task, name, item_templar, broken)
                    results.append(broken)
                    break
        combined, registered = combine_loop(results, control.loop_var)
        self.remember(task, registered, combined, templar)
        if not results:
            self.tell(task, name, templar, replace(combined, message="no items in the list"))
        return combined

    def _pause(self, task: Task, templar: Templar) -> None:
        with suppress(CrossgradeError, TypeError, ValueError):
            seconds = float(templar.template(task.loop_control.pause))
            if seconds > 0:
                self.sleep(seconds)

    def _perhaps(
        self, task: Task, name: str, templar: Templar, items: Sequence[Any], unknown: DependsOnUnknown
    ) -> list[TaskResult]:
        """In a plan: the items after one of which nobody knows whether `break_when` ends the loop with it."""
        why = f"unless break_when ends the loop before: depends on {unknown.origin}"
        perhaps = [TaskResult("may change", summary=why, known=False, item=item, has_item=True) for item in items]
        for result in perhaps:
            self.tell(task, name, templar, result)
        return perhaps

    def items(self, task: Task, templar: Templar) -> Sequence[Any]:
        return loop_list(task, templar, self.base_environment, check_mode=self.check_mode)

    def label(self, task: Task, item: Any, templar: Templar) -> Any:
        if task.loop_control.label is None:
            return item
        try:
            return templar.template(task.loop_control.label)
        except CrossgradeError:
            return item  # a label is for reading only

    def _attempts(self, task: Task, name: str, scope: Scope) -> TaskResult:
        if not task.until and task.retries is None:
            return self._attempt(task, name, scope)

        def unsatisfied(result: TaskResult) -> bool:
            if result.skipped or not result.known or self.check_mode:
                return False
            if not task.until:
                return result.failed
            return not self._with_result(task, scope, result).all_hold(task.until, task.spot_of("until"))

        def announce(message: str) -> None:
            self.events.emit("task_progress", task=task.uid, message=message)

        try:
            templar = self.templar(scope)
            return attempts(
                lambda: self._attempt(task, name, scope),
                unsatisfied,
                retries=None if task.retries is None else int(templar.template(task.retries, task.spot_of("retries"))),
                delay=None if task.delay is None else float(templar.template(task.delay, task.spot_of("delay"))),
                sleep=self.sleep,
                announce=announce,
            )
        except DependsOnUnknown as unknown:
            return may_change(unknown.origin)
        except ValueError as error:
            return TaskResult("failed", message=f"retries and delay must be numbers: {error}", failed=True)
        except CrossgradeError as error:
            return TaskResult("failed", message=str(error), failed=True)

    def _attempt(self, task: Task, name: str, scope: Scope) -> TaskResult:
        templar = self.templar(scope)
        try:
            for index, expression in enumerate(task.when):
                if not templar.evaluate_condition(expression, task.spot_of("when", index)):
                    return TaskResult(
                        "skipped",
                        skipped=True,
                        values={"skip_reason": "Conditional result was False", "false_condition": expression},
                    )
            environment = self._environment(task, templar)
            in_check_mode = templar.boolean(task.check_mode, default=False, spot=task.spot)
            hidden = templar.boolean(task.no_log, default=False, spot=task.spot)
            delegate = self.company.delegate(task, templar, self.host, self.play.connection)
            gives_facts = templar.boolean(task.conduct.delegate_facts, default=False, spot=task.spot)
            become = self.company.becoming.prefix(task, templar)
            seconds = seconds_of(task, templar)
        except DependsOnUnknown as unknown:
            return may_change(unknown.origin)
        except CrossgradeError as error:
            return TaskResult("failed", message=str(error), failed=True)
        try:
            with time_limit(seconds):
                result = self.runner.run_once(
                    task, name, templar, environment, in_check_mode=in_check_mode, hidden=hidden, become=become
                )
        except TaskTimedOut:
            message = f"it did not end within its `timeout` of {seconds:g} s, and was stopped"
            return TaskResult(
                "failed", message=message, failed=True, values={"timedout": {"period": plain_seconds(seconds)}}
            )
        except CrossgradeError as error:  # the task has not come to what `failed_when` could judge
            return TaskResult("failed", message=str(error), failed=True)
        result = self.company.roster.take(self.host, result, check_mode=self.check_mode)
        self.runner.machine.predict(result.predicts)
        for memory in [delegate] if delegate is not None and gives_facts else [self.memory, *self.sharing]:
            memory.known.update(result.facts)
            memory.included.update(result.included)
            if result.gathered:
                from crossgrade.engine.gathering import add_facts

                add_facts(memory.gathered, result.gathered)
        if result.skipped:
            return result
        return self._judge(task, scope, result) if result.known else self._foresee_changed(task, scope, result)

    def _foresee_changed(self, task: Task, scope: Scope, result: TaskResult) -> TaskResult:
        """What `changed_when` says of a result that nobody knows yet: often it is `false`, whatever comes."""
        if not task.changed_when or result.status == "may change":
            return result
        try:
            changed = self._with_result(task, scope, result).all_hold(task.changed_when, task.spot_of("changed_when"))
        except DependsOnUnknown:
            return replace(result, status="may change")
        except CrossgradeError as error:
            return replace(result, failed=True, status="failed", message=str(error))
        return replace(result, changed=changed, status="change" if changed else "check")

    def _judge(self, task: Task, scope: Scope, result: TaskResult) -> TaskResult:
        """Let `changed_when` and `failed_when` have their say about the result."""
        try:
            if task.changed_when:
                templar = self._with_result(task, scope, result)
                changed = templar.all_hold(task.changed_when, task.spot_of("changed_when"))
                if self.check_mode:
                    status = "change" if changed else "ok" if result.status == "change" else result.status
                else:
                    status = "changed" if changed else "ok"
                result = replace(result, changed=changed, status="failed" if result.failed else status)
            if task.failed_when:
                templar = self._with_result(task, scope, result)
                fails = templar.all_hold(task.failed_when, task.spot_of("failed_when"))
                result = replace(result, values={**result.values, "failed_when_result": fails})
                if fails:
                    message = result.message or f"failed_when is true: {' and '.join(map(str, task.failed_when))}"
                    result = replace(result, failed=True, status="failed", message=message)
                elif result.failed:
                    result = replace(result, failed=False, status="changed" if result.changed else "ok")
        except DependsOnUnknown:
            return result
        except CrossgradeError as error:
            return replace(result, failed=True, status="failed", message=str(error))
        return result

    def ignoring(self, task: Task, templar: Templar, result: TaskResult) -> TaskResult:
        if not result.failed:
            return result
        result = explained(result)
        try:
            ignored = templar.boolean(task.ignore_errors, default=False, spot=task.spot)
        except CrossgradeError as error:
            return replace(result, message=f"{result.message}; and ignore_errors: {error}")
        return replace(result, status="ignored") if ignored else result

    # ---- what is asked by whoever walks several hosts side by side

    def does_for_all(self, task: Task) -> bool:
        """Whether one host does this task for all of its batch."""
        if task.module in ("add_host", "meta"):
            return task.module == "add_host" or does_for_all(task)
        return self.shares(task)

    def shares(self, task: Task) -> bool:
        """Whether what comes of a task that one host does for all is kept for all of them. Of `add_host` it is not."""
        if task.module == "meta":
            return True
        try:
            templar = self.templar(scope_of(task, self.scope, self.directory))
            return templar.boolean(task.conduct.run_once, default=False, spot=task.spot)
        except CrossgradeError:
            return False

    def is_fatal(self, task: Task) -> bool:
        """Whether a failure of this task is one of all hosts."""
        try:
            templar = self.templar(scope_of(task, self.scope, self.directory))
            return templar.boolean(task.any_errors_fatal, default=False, spot=task.spot)
        except CrossgradeError:
            return True  # whoever wrote it meant to be careful

    # ---- variables

    def templar(self, scope: Scope) -> Templar:
        return self._templar_with(scope, self.memory.known)

    def _templar_with(self, scope: Scope, known: Mapping[str, Any]) -> Templar:
        layered = scope.with_layer(Precedence.FACTS, self.memory.gathered, templated=False)
        layered = layered.with_layer(Precedence.INCLUDED_VARS, self.memory.included)
        layered = layered.with_layer(Precedence.SET_FACTS, known, templated=False)
        foreseen = self.runner.machine.path_foreseen if self.check_mode else _nothing_foreseen
        return Templar(layered, directory=self.directory, environment=self.base_environment, foreseen=foreseen)

    def _with_result(self, task: Task, scope: Scope, result: TaskResult) -> Templar:
        if not task.register:
            return self._templar_with(scope, self.memory.known)
        value = result.registered() if result.known else Unknown(f"the result of task {task.display_name!r}")
        known = {**self.memory.known, task.register: value}
        return self._templar_with(scope, known)

    def remember(self, task: Task, value: Any, result: TaskResult, templar: Templar) -> None:
        """Keep what `register` asks for: the value, or in a plan what stands for one that the run will give."""
        if task.register:
            kept = value
            if not result.known:
                origin = f"the result of task {task.display_name!r}"
                kept = Unknown(origin, foretold(task, result, may_fail=self._may_fail(task, templar)))
            for memory in (self.memory, *self.sharing):
                memory.known[task.register] = kept

    def _may_fail(self, task: Task, templar: Templar) -> bool:
        """Whether the walk goes on after a failure of this task, so that later tasks may see one."""
        if self._rescuable:
            return True
        try:
            return templar.boolean(task.ignore_errors, default=False, spot=task.spot)
        except CrossgradeError:  # not known yet, or the failure that it is told as
            return True

    def _environment(self, task: Task, templar: Templar) -> dict[str, str]:
        environment = dict(self.base_environment)
        for layer in task.environment:
            values = templar.template(layer, task.spot_of("environment"))
            if not isinstance(values, Mapping):
                raise CrossgradeError("environment needs a mapping of names to values", place=task.spot.place)
            environment.update({str(key): str(value) for key, value in values.items()})
        return environment

    def _name(self, task: Task, templar: Templar) -> str:
        try:
            return str(templar.template(task.display_name))
        except CrossgradeError:
            return task.display_name  # Ansible too shows the name as it is written

    # ---- handlers

    def _notify(self, task: Task, templar: Templar) -> None:
        for raw in task.notify:
            self.handlers.notify(str(templar.template(raw, task.spot_of("notify"))), task.spot_of("notify").place)

    def run_handlers(self, part: int = 0) -> Turns:
        """Each notified handler once, in the order in which they are defined."""
        self._place += [part, 0]
        try:
            yield from self.handlers.flush(self._handle)
        finally:
            del self._place[-2:]

    def _handle(self, handler: Task, at: int) -> Turns:
        self._place[-1] = at
        yield from self._task(handler, handler=True)

    def _handler_name(self, handler: Task) -> str:
        return self._name(handler, self.templar(scope_of(handler, self.scope, self.directory)))

    # ---- telling

    def tell(self, task: Task, name: str, templar: Templar, result: TaskResult) -> None:
        hidden = self._hidden(task, templar)
        shown = result.hidden() if hidden else result
        item = str(shown.item) if shown.has_item else ""
        if self.check_mode:
            action: Action = _FORESEEN.get(result.status, result.status)  # type: ignore[arg-type]  # the rest are Actions
            summary = "hidden by no_log" if hidden and not result.failed else shown.summary
            if result.failed:
                summary = "\n".join((shown.message, *map(sentence, shown.explanations[:1])))
            place = str(task.spot.place)
            planned = PlannedTask(
                task.uid,
                name,
                task.module,
                action,
                summary,
                self.host,
                item,
                shown.differences,
                place,
                warnings=shown.warnings,
            )
            planned = replace(planned, verdict=shown.verdict)
            self.planned.append(replace(planned, foreseen=self._tolerating(task, templar, shown.foreseen)))
        else:
            self._compare(task, name, result, item, hidden=hidden)
            foreseen = self.predicted.get((task.uid, item))
            if foreseen is not None and not hidden and result.changed:  # a plan asks more than a run does
                shown = replace(shown, warnings=foreseen.warnings)
        diff = None if task.diff is None else templar.boolean(task.diff, default=False, spot=task.spot)
        self.events.emit("task_result", **result_event(task.uid, name, task.module, shown, item, diff, hidden=hidden))

    def _tolerating(self, task: Task, templar: Templar, foreseen: Foreseen | None) -> Foreseen | None:
        """Say why the playbook would go on after what a gate would say, where it would."""
        if foreseen is None or foreseen.outcome != "would fail":
            return foreseen
        why = "`rescue` takes it up" if self._rescuable else "`failed_when` decides" if task.failed_when else ""
        if self.ignoring(task, templar, TaskResult("failed", failed=True)).status == "ignored":
            why = "`ignore_errors` is set"
        return replace(foreseen, tolerated=why)

    def _hidden(self, task: Task, templar: Templar) -> bool:
        try:
            return templar.boolean(task.no_log, default=False, spot=task.spot)
        except CrossgradeError:
            return True  # whoever wrote `no_log` meant to hide something

    def _compare(self, task: Task, name: str, result: TaskResult, item: str, *, hidden: bool) -> None:
        """Hold what happened against what was foreseen. A failure was foreseen by nobody, and is told as itself."""
        foreseen = self.predicted.get((task.uid, item))
        if foreseen is None or foreseen.action == "may change" or result.failed or self._in_rescue:
            return
        on_machine = task.module not in MAKERS or bool(task.changed_when)
        action: Action = "change" if result.changed and on_machine else "skipped" if result.skipped else "ok"
        same = action == foreseen.action or (action == "ok" and foreseen.action == "check")
        alike = masked(result.summary) == masked(foreseen.summary)  # a saved plan has stars already
        if same and (action != "change" or hidden or not result.summary or alike):
            return
        self.differing += 1
        self.events.emit(
            "prediction_differs",
            task=task.uid,
            name=name,
            predicted=f"{foreseen.action}: {foreseen.summary}",
            happened=f"{action}: {result.summary}",
        )


def _nothing_foreseen(_: str) -> None:
    """A run sees the disk as it is."""
