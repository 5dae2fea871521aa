"""Making a plan: one walk in check mode, kept as data."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from crossgrade.engine.events import Events
from crossgrade.engine.plan import PlannedTask, SavedPlan
from crossgrade.engine.prepare import Prepared, check_all_templates, plan_basis, play_scope, process_environment
from crossgrade.engine.results import Counts
from crossgrade.engine.space import IGNORE, missing_room
from crossgrade.engine.task_runner import RunFiles, TaskRunner
from crossgrade.engine.view import Machine, lock_to_json
from crossgrade.engine.walk import HostFailed, Selection, Walk
from crossgrade.errors import CrossgradeError
from crossgrade.modules.contract import Lock
from crossgrade.playbook.inventory import Host
from crossgrade.playbook.model import Play

if TYPE_CHECKING:
    from crossgrade.engine.deep import Foresight


@dataclass(frozen=True)
class Planning:
    """A plan, the counts of its walk, and why it would fail ("" when it would not)."""

    plan: SavedPlan
    counts: Counts
    failure: str = ""


def build_walk(
    prepared: Prepared,
    play: Play,
    host: Host,
    machine: Machine,
    events: Events,
    files: RunFiles | None,
    predicted: Mapping[tuple[str, str], PlannedTask] | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Walk:
    """A walk of one play on one host: of a plan without `files`, of a run with them."""
    request = prepared.request
    machine.library = prepared.playbook.library
    return Walk(
        play=play,
        host=host.name,
        scope=play_scope(prepared, play, host, check_mode=files is None),
        base_environment=process_environment(),
        runner=TaskRunner(
            machine,
            files,
            lambda task, message: events.emit("task_progress", task=task, message=message),
            request.verbosity,
        ),
        events=events,
        selection=Selection(request.only_tags, request.skip_tags),
        sleep=sleep,
        predicted=predicted or {},
        library=prepared.playbook.library,
    )


def make_plan(
    prepared: Prepared,
    events: Events,
    observe: Callable[[], Mapping[str, Any]],
    *,
    locks: Mapping[str, Lock] | None = None,
    notes: tuple[str, ...] = (),
    foresight: Foresight | None = None,
) -> Planning:
    """Foresee what an upgrade would do. Reads only; writes nothing below the root.

    With `foresight`, gates that only read files are judged too.
    """
    request = prepared.request
    machine = Machine(request.store, prepared.playbook.directory, True, dict(locks or {}))
    machine.confirm_within = request.confirm_within
    machine.foresight = foresight
    counts = Counts()
    tasks: list[PlannedTask] = []
    failure = ""
    for play, hosts in prepared.plays:
        for host in hosts:
            if failure:
                break
            walk = build_walk(prepared, play, host, machine, events, None)
            walk.counts = counts
            try:
                walk.run()
            except HostFailed as failed:
                failure = f"task {failed.name!r} would fail: {_in_short(failed.told.message)}"
            except CrossgradeError as error:
                failure = str(error)
            tasks += walk.planned
    if not failure and not request.extra_vars.get(IGNORE):
        lacking = missing_room(machine.space)
        if lacking:
            failure = f"{lacking}; `crossgrade gc` makes room, --root goes elsewhere, `-e {IGNORE}=true` goes on anyway"
    plan = SavedPlan(
        playbook=str(request.playbook),
        root=str(request.root),
        tasks=tuple(tasks),
        basis=plan_basis(prepared, request.store, observe),
        locks={digest: lock_to_json(lock) for digest, lock in machine.locks.items()},
        notes=notes,
    )
    if plan.has_work:
        # A `rescue` that cannot be read must come out now, not in the middle of a failure. With nothing to do,
        # nothing will run, and a plan stays quick.
        check_all_templates(prepared)
    return Planning(plan, counts, failure)


def _in_short(message: str) -> str:
    """The first line: the plan's own entry for the task has the rest."""
    first, *more = message.splitlines() or [""]
    return f"{first.rstrip(':')} (the plan says more)" if more else first
