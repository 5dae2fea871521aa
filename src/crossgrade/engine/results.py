"""What came of a task: the value that `register` keeps, and the counts of the recap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from crossgrade.engine.plan import Foreseen
from crossgrade.jsontype import Concealed
from crossgrade.modules.contract import Difference, PlanWarning, Prediction
from crossgrade.playbook.inventory_made import Made
from crossgrade.playbook.markers import Unknown
from crossgrade.playbook.model import Task

Status = Literal["ok", "changed", "skipped", "failed", "ignored", "change", "check", "may change", "fails"]
HIDDEN = "the output is hidden: `no_log` is set for this task"


@dataclass(frozen=True)
class TaskResult:
    """The result of a task or of one item of its loop.

    `values` is what `register` sees beside the common keys. In a plan `known=False` says that the values
    are only known after the run, `runs` that the task will be run for certain. `summary` is what was done, or
    will be. `foreseen` is of a gate in a deep plan.
    Of a failed one, `output` is what its failed programs printed, which is looked at and kept nowhere, and
    `explanations` are the known failures in it. `warnings` are those of the plan. `included` are
    variables of `include_vars`. `made` are the hosts and groups that it made; of a loop only where all items are known.
    """

    status: Status
    summary: str = ""
    message: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    known: bool = True
    runs: bool = False
    changed: bool = False
    failed: bool = False
    skipped: bool = False
    differences: tuple[Difference, ...] = ()
    verdict: Mapping[str, Any] | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    included: Mapping[str, Any] = field(default_factory=dict)
    gathered: Mapping[str, Any] = field(default_factory=dict)
    made: tuple[Made, ...] = ()
    predicts: tuple[Prediction, ...] = ()
    item: Any = None
    has_item: bool = False
    seconds: float = 0.0
    foreseen: Foreseen | None = None
    output: str = ""
    explanations: tuple[Mapping[str, Any], ...] = ()
    warnings: tuple[PlanWarning, ...] = ()

    def registered(self, loop_variable: str = "item") -> dict[str, Any]:
        """The value for `register`, with Ansible's common keys."""
        value: dict[str, Any] = {**self.values, "changed": self.changed, "failed": self.failed}
        if self.skipped:
            value["skipped"] = True
            if "false_condition" in value:  # it did not even come to a failure
                del value["failed"]
        if self.failed and self.message and "msg" not in value:
            value["msg"] = self.message
        if self.has_item:
            value[loop_variable] = self.item
            value["ansible_loop_var"] = loop_variable
        return value

    def hidden(self) -> TaskResult:
        """The same with everything that could hold a secret taken out, for events, reports and plans."""
        return replace(
            self,
            message=HIDDEN if self.message else "",
            values={},
            differences=(),
            verdict=None,
            foreseen=replace(self.foreseen, reason=HIDDEN, verdict=None) if self.foreseen else None,
            item="(hidden)" if self.has_item else None,
            output="",
            explanations=(),
            warnings=(),
        )


def result_event(
    task: str, name: str, module: str, result: TaskResult, item: str, diff: bool | None, *, hidden: bool = False
) -> dict[str, Any]:
    """The data of a `task_result` event. `diff` is the task's own wish to show differences, None when it has none."""
    return {
        "task": task,
        "name": name,
        "module": module,
        "status": result.status,
        "summary": "" if hidden else result.summary,
        "message": result.message,
        "values": _told(result.values),
        "item": item,
        "diff": diff,
        "differences": [vars(difference) for difference in result.differences],
        "verdict": result.verdict,
        "warnings": [vars(warning) for warning in result.warnings],
        "explanations": [dict(explanation) for explanation in result.explanations],
        "seconds": round(result.seconds, 3),
    }


def may_change(origin: str) -> TaskResult:
    """The result, in a plan, of a task that depends on what only the run knows; `origin` says where that comes from."""
    return TaskResult("may change", summary=f"depends on {origin}", known=False)


def foretold(task: Task, result: TaskResult, *, may_fail: bool) -> dict[str, Any]:
    """What a plan knows all the same of a result that only the run gives.

    `may_fail`: the walk would go on if the task failed. Where it would not, whoever sees the result sees no failure.
    """
    known: dict[str, Any] = {} if may_fail else {"failed": False}
    if result.runs:
        known["skipped"] = False
        if task.changed_when and result.status != "may change":
            known["changed"] = result.changed
    return known


def not_run(result: TaskResult) -> bool:
    """Whether it is of a gate whose verdict is `not run`, of this run or on record, for one item of a loop at least."""
    items = result.values.get("results")
    values = items if isinstance(items, list) else [result.values]
    return any(isinstance(value, Mapping) and value.get("verdict") == "not run" for value in values)


def _told(value: Any) -> Any:
    """A value as events and reports have it: without what is concealed, which `register` sees."""
    if isinstance(value, Concealed):
        return "***"
    if isinstance(value, Unknown):
        return f"(known after the run: {value.origin})"
    if isinstance(value, Mapping):
        return {name: _told(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_told(item) for item in value]
    return value


def _made(results: Sequence[TaskResult]) -> tuple[Made, ...]:
    return tuple(made for result in results for made in result.made)


def combine_loop(results: Sequence[TaskResult], loop_variable: str) -> tuple[TaskResult, dict[str, Any]]:
    """The result of a whole loop and the value for `register`, as Ansible combines them.

    It is skipped when every item was (an empty loop too), failed or changed when any item was.
    """
    failed = any(result.failed for result in results)
    changed = any(result.changed for result in results)
    skipped = all(result.skipped for result in results)
    registered: dict[str, Any] = {
        "results": [result.registered(loop_variable) for result in results],
        "changed": changed,
        "skipped": skipped,
        **({"failed": True} if failed else {}),
    }
    if results:
        registered["msg"] = _loop_message(failed=failed, skipped=skipped)
    else:
        registered["skipped_reason"] = "No items in the list"
    order: tuple[Status, ...] = (
        "failed",
        "ignored",
        "fails",
        "may change",
        "change",
        "check",
        "changed",
        "ok",
        "skipped",
    )
    present = {result.status for result in results}
    status: Status = next((status for status in order if status in present), "skipped")
    combined = TaskResult(
        status,
        message=registered["msg"] if failed else "",
        values=registered,
        known=all(result.known for result in results),
        runs=any(result.runs for result in results),
        changed=changed,
        failed=failed,
        skipped=skipped,
        made=() if any(not result.known and not result.made for result in results) else _made(results),
        explanations=next((result.explanations for result in results if result.explanations), ()),
    )
    return combined, registered


def _loop_message(*, failed: bool, skipped: bool) -> str:
    if skipped:
        return "All items skipped"
    return "One or more items failed" if failed else "All items completed"


@dataclass
class Counts:
    """The recap of one host, with Ansible's meaning of each field and ours for `rolled_back` (undone steps)."""

    ok: int = 0
    changed: int = 0
    unreachable: int = 0
    failed: int = 0
    skipped: int = 0
    rescued: int = 0
    ignored: int = 0
    rolled_back: int = 0

    def count(self, result: TaskResult) -> None:
        """Count a task once, whatever the number of its items. A changed task is ok as well, as in Ansible."""
        if result.status == "ignored":
            self.ok += 1
            self.ignored += 1
            self.changed += result.changed
        elif result.failed:
            self.failed += 1
        elif result.skipped:
            self.skipped += 1
        else:
            self.ok += 1
            self.changed += result.changed
