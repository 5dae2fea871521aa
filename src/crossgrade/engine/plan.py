"""The plan as data: what a run would do, in order, and what that was concluded from.

A plan can be saved, read back, shown and compared. It holds no secrets: tasks with `no_log` keep only
their names, and extra variables are named, not shown.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from crossgrade.errors import CrossgradeError
from crossgrade.modules.contract import Difference, PlanWarning
from crossgrade.playbook.secrets import masked
from crossgrade.store.atomic import write_file

SCHEMA = "crossgrade.plan/1"

# change: will change the machine; check: a gate or probe that will run; may change: depends on what is only
# known after an earlier task ran; ok, skipped: nothing to do; fails: the task fails already now
Action = Literal["change", "check", "may change", "ok", "skipped", "fails"]
ACTIVE: tuple[Action, ...] = ("change", "check", "may change")


@dataclass(frozen=True)
class Foreseen:
    """What a gate would say, found by a deep plan. `verdict` is as a gate gives it, None when there is none.

    `tolerated` says why a failure would not end the run, "" when it would.
    """

    outcome: Literal["would pass", "would fail", "not run"]
    reason: str
    verdict: Mapping[str, Any] | None = None
    tolerated: str = ""

    @property
    def ends_the_run(self) -> bool:
        return self.outcome == "would fail" and not self.tolerated


@dataclass(frozen=True)
class PlannedTask:
    """One task (or one item of its loop) of a plan. `task` is the task's stable place in the playbook.

    `foreseen` is there in a deep plan only; `verdict` is what a gate that only reads has said already. `warnings` are
    what a person should know before it is carried out.
    """

    task: str
    name: str
    module: str
    action: Action
    summary: str
    host: str = "localhost"
    item: str = ""
    differences: tuple[Difference, ...] = ()
    place: str = ""
    foreseen: Foreseen | None = None
    verdict: Mapping[str, Any] | None = None
    warnings: tuple[PlanWarning, ...] = ()

    def matches(self, other: PlannedTask) -> bool:
        """Whether the same was foreseen as the other says."""
        return (self.action, self.summary) == (other.action, other.summary)


@dataclass(frozen=True)
class SavedPlan:
    """A whole plan. `basis` holds the facts that it was made from, `locks` the resolutions by digest of request."""

    playbook: str
    root: str
    tasks: tuple[PlannedTask, ...]
    basis: Mapping[str, Any]
    locks: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def count(self, action: Action) -> int:
        return sum(task.action == action for task in self.tasks)

    @property
    def has_changes(self) -> bool:
        return any(task.action in ("change", "may change") for task in self.tasks)

    @property
    def has_work(self) -> bool:
        return any(task.action in ACTIVE for task in self.tasks)

    @property
    def would_fail(self) -> tuple[PlannedTask, ...]:
        """The gates of which a deep plan knows that they would end the run."""
        return tuple(task for task in self.tasks if task.foreseen is not None and task.foreseen.ends_the_run)

    def to_json(self) -> dict[str, Any]:
        """Without the secrets of vaults; what resolving has found stays as it is, it must fit its digest."""
        return {"schema": SCHEMA, **masked({**asdict(self), "locks": {}}), "locks": asdict(self)["locks"]}


def save_plan(plan: SavedPlan, path: Path) -> None:
    """Write the plan to a file, readable by its owner only. Raises CrossgradeError when that cannot be."""
    try:
        write_file(path, (json.dumps(plan.to_json(), indent=1) + "\n").encode())
    except OSError as error:
        raise CrossgradeError(f"cannot write the plan to {path}: {error.strerror}") from error


def load_plan(path: Path) -> SavedPlan:
    """Read a saved plan. Raises CrossgradeError for a file that is missing or is not a plan of this version."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        if value.get("schema") != SCHEMA:
            raise CrossgradeError(
                f"{path} is not a plan of this crossgrade: its schema is {value.get('schema')!r}, not {SCHEMA!r}",
                remedy="Make a new one with `crossgrade plan -o FILE`.",
            )
        tasks = tuple(map(_task, value["tasks"]))
        return SavedPlan(value["playbook"], value["root"], tasks, value["basis"], value["locks"], tuple(value["notes"]))
    except OSError as error:
        raise CrossgradeError(f"cannot read the plan {path}: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CrossgradeError(
            f"{path} is not a plan: {error}", remedy="Make one with `crossgrade plan -o FILE`."
        ) from error


def _task(value: Mapping[str, Any]) -> PlannedTask:
    differences = tuple(Difference(**item) for item in value["differences"])
    foreseen = Foreseen(**value["foreseen"]) if value.get("foreseen") else None
    warnings = tuple(PlanWarning(**item) for item in value.get("warnings", ()))
    return PlannedTask(**{**value, "differences": differences, "foreseen": foreseen, "warnings": warnings})


def changed_facts(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """In words, each fact that differs between when a plan was made and now."""
    return [
        f"{name}: {then.get(name)!r} when the plan was made, {now.get(name)!r} now"
        for name in sorted(then.keys() | now.keys())
        if then.get(name) != now.get(name)
    ]
