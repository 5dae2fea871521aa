"""Dynamic includes: when their turn comes, their tasks are read, and run where the include stands."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crossgrade.engine.results import TaskResult, combine_loop, may_change
from crossgrade.engine.surroundings import role_variables
from crossgrade.engine.turns import Turns
from crossgrade.errors import CrossgradeError, PlaybookError
from crossgrade.playbook.arguments import parse_arguments
from crossgrade.playbook.build import Builder, Inherited
from crossgrade.playbook.imports import Included, task_file_places
from crossgrade.playbook.inventory_made import MAKERS
from crossgrade.playbook.library import Library, first_file
from crossgrade.playbook.model import Condition, Task
from crossgrade.playbook.model import walk as every_task
from crossgrade.playbook.roles import Role, looked_in, with_layers
from crossgrade.playbook.statements import STATEMENTS
from crossgrade.playbook.templating import DependsOnUnknown, Templar
from crossgrade.playbook.values import Reader
from crossgrade.playbook.variables import Layer, Precedence, Scope

if TYPE_CHECKING:
    from crossgrade.engine.walk import Walk


@dataclass(frozen=True)
class Target:
    """What one item of an include's loop (or the include itself) brings in; nothing where it is skipped."""

    result: TaskResult
    label: Any = None
    included: Included | None = None


@dataclass(frozen=True)
class Including:
    """One dynamic include on its turn."""

    walk: Walk
    task: Task
    name: str
    library: Library

    def run(self, scope: Scope, templar: Templar) -> Turns:
        """Read what it names for all items of its loop, then run that. Raises HostFailed."""
        walk, task = self.walk, self.task
        try:
            targets = self._targets(scope, templar)
        except DependsOnUnknown as unknown:
            reason = f"loops over what depends on {unknown.origin}"
            targets = [self._not_known(reason, unknown.origin)]
        except CrossgradeError as error:
            targets = [self._ignoring(TaskResult("failed", message=str(error), failed=True), templar)]
        for target in targets:
            walk.tell(task, self.name, templar, replace(target.result, item=target.label))
        combined = self._remember(targets, templar)
        self._count(combined, targets)
        if combined.failed and combined.status != "ignored":
            walk.fail(task, self.name, templar, combined)
        for part, target in enumerate(targets):
            if target.included is not None:
                self._begin(target.included)
                yield from walk.steps(target.included.steps, part)
            else:
                walk.company.roster.may_grow = True  # nobody knows what would have been in it

    def _targets(self, scope: Scope, templar: Templar) -> list[Target]:
        task, control = self.task, self.task.loop_control
        if task.loop is None:
            return [self._target(scope, (), "")]
        found = []
        for index, item in enumerate(self.walk.items(task, templar)):
            values: dict[str, Any] = {control.loop_var: item, "ansible_loop_var": control.loop_var}
            if control.index_var:
                values[control.index_var] = index
            layer = Layer(Precedence.PARAMETERS, values, templated=False)
            item_scope = scope.with_layer(Precedence.LOOP, values, templated=False)
            target = self._target(item_scope, (layer,), f"/{index}")
            result = replace(target.result, item=item, has_item=True)
            label = self.walk.label(task, item, self.walk.templar(item_scope))
            found.append(replace(target, result=result, label=label))
        return found

    def _target(self, scope: Scope, item: tuple[Layer, ...], suffix: str) -> Target:
        walk, task = self.walk, self.task
        began = time.monotonic()
        templar = walk.templar(scope)
        uncertain = ""
        try:
            for at, condition in enumerate(task.when):
                if not templar.evaluate_condition(condition, task.spot_of("when", at)):
                    values = {"skip_reason": "Conditional result was False", "false_condition": condition}
                    return Target(TaskResult("skipped", skipped=True, values=values))
        except DependsOnUnknown as unknown:
            uncertain = unknown.origin
        except CrossgradeError as error:
            return self._ignoring(TaskResult("failed", message=str(error), failed=True), templar)
        try:
            arguments = self._arguments(templar)
        except DependsOnUnknown as unknown:
            return self._not_known(f"what is included depends on {unknown.origin}", unknown.origin)
        except CrossgradeError as error:
            failed = TaskResult("failed", message=str(error), failed=True)
            return (
                self._not_known(f"depends on {uncertain}", uncertain) if uncertain else self._ignoring(failed, templar)
            )
        try:
            inherited = self._inherited(item, task.when if uncertain else ())
            included, what = self._read(arguments, inherited, f"{task.uid}{suffix}")
        except CrossgradeError as error:
            if uncertain:  # it may never be read
                return self._not_known(f"depends on {uncertain}", uncertain)
            return Target(TaskResult("failed", message=str(error), failed=True))
        if included is None:
            return self._not_known(f"{what} is made by an earlier task", what)
        seconds = time.monotonic() - began
        if uncertain:
            result = replace(may_change(uncertain), seconds=seconds)
            return Target(result, None, included)
        given: dict[str, Any] = {"include": arguments.get("file") or arguments.get("name"), "include_args": {}}
        return Target(TaskResult("ok", message=f"included: {what}", values=given, seconds=seconds), None, included)

    def _ignoring(self, failed: TaskResult, templar: Templar) -> Target:
        return Target(self.walk.ignoring(self.task, templar, failed))

    def _not_known(self, reason: str, origin: str) -> Target:
        """Nobody knows which variables would be set: from here on an undefined one may be one of them."""
        self.walk.scope = self.walk.scope.with_unknown(origin)
        self.walk.company.roster.unread = origin
        return Target(TaskResult("may change", summary=reason, known=False))

    def _arguments(self, templar: Templar) -> dict[str, Any]:
        spot = self.task.spot_of("arguments")
        raw = templar.template(self.task.arguments, spot, keep=("apply",))
        parse_arguments(STATEMENTS[self.task.module], {**raw, "apply": {}}, spot)
        if "role" in raw:
            raw.setdefault("name", raw["role"])
        return dict(raw)

    def _inherited(self, item: tuple[Layer, ...], conditions: tuple[Condition, ...]) -> Inherited:
        """What the included tasks get from here. In a plan, conditions that nobody can judge yet go down with it."""
        inherited = self.task.inherited
        assert inherited is not None  # noqa: S101 - the builder gives it to every dynamic include
        own = self.task.spot.at("vars")
        values = own.node.value if "vars" in (self.task.spot.node.entries or {}) else None
        layers = (Layer(Precedence.PARAMETERS, values, spot=own),) if values else ()
        return replace(
            inherited,
            parameters=(*inherited.parameters, *item, *layers),
            when=(*inherited.when, *conditions),
        )

    def _read(self, arguments: dict[str, Any], inherited: Inherited, uid: str) -> tuple[Included | None, str]:
        """What is included, and its name for people; None for a file that only the run makes. Raises PlaybookErrors."""
        directory = self.walk.directory
        imports = Builder(Reader(), self.library, directory).imports
        if self.task.module == "include_role":
            name = str(arguments["name"])
            return imports.included_role(self.task, arguments, inherited, uid), name
        places = task_file_places(str(arguments["file"]), inherited, directory, inherited.place)
        file = first_file(places)
        foreseen = next((place for place in places if self._is_foreseen(place)), None)
        if foreseen is not None:
            return None, str(foreseen)
        if file is None:
            raise PlaybookError(
                f"there is no file of tasks {arguments['file']!r}",
                remedy=looked_in(places),
                place=self.task.spot_of("arguments").place,
            )
        return imports.included_tasks(file, self.task, inherited, uid), str(file)

    def _is_foreseen(self, path: Path) -> bool:
        return self.walk.check_mode and ("path", str(path)) in self.walk.runner.machine.predictions

    def _remember(self, targets: Sequence[Target], templar: Templar) -> TaskResult:
        if self.task.loop is None or (len(targets) == 1 and not targets[0].result.has_item):
            result = targets[0].result
            value = result.registered()
            if not result.failed:
                value.pop("failed", None)
            self.walk.remember(self.task, value, result, templar)
            return result
        combined, registered = combine_loop([target.result for target in targets], self.task.loop_control.loop_var)
        self.walk.remember(self.task, registered, combined, templar)
        return combined

    def _count(self, combined: TaskResult, targets: Sequence[Target]) -> None:
        """As Ansible counts: each file that is included is a task that is ok."""
        included = sum(target.included is not None for target in targets)
        if included and not combined.failed:
            self.walk.memory.counts.ok += included
        else:
            self.walk.memory.counts.count(combined)

    def _begin(self, included: Included) -> None:
        walk = self.walk
        walk.handlers.add(included.handlers)
        if any(task.module in MAKERS for task in every_task((*included.steps, *included.handlers))):
            walk.company.roster.may_grow = True
        for role in included.roles:
            walk.roles.append(role)
            walk.scope = with_layers(walk.scope, role.public_layers())
        if included.roles:
            walk.scope = walk.scope.with_layer(Precedence.MAGIC, role_variables(walk.roles), templated=False)


@dataclass
class RoleRuns:
    """Which roles have run: the same role with the same parameters runs once, unless it allows duplicates."""

    _began: set[str] = field(default_factory=set)
    _done: set[str] = field(default_factory=set)

    def is_done(self, role: Role) -> bool:
        """Whether this use of a role is left out."""
        return not role.allow_duplicates and role.identity in self._done

    def note_task(self, task: Task, result: TaskResult) -> None:
        if task.role is not None and not result.skipped:
            self._began.add(task.role.identity)

    def note_end(self, role: Role) -> None:
        if role.identity in self._began:
            self._done.add(role.identity)
