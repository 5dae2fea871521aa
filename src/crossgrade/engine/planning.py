"""Making a plan: one walk in check mode, kept as data."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from crossgrade.engine.becoming import Becoming
from crossgrade.engine.company import Company
from crossgrade.engine.events import Events
from crossgrade.engine.magic import with_magic
from crossgrade.engine.memory import Memory
from crossgrade.engine.plan import PlannedTask, SavedPlan
from crossgrade.engine.plays import walk_plays
from crossgrade.engine.prepare import Prepared, check_all_templates, plan_basis, play_scope, process_environment
from crossgrade.engine.results import Counts
from crossgrade.engine.roster import Roster
from crossgrade.engine.space import IGNORE, missing_room
from crossgrade.engine.task_runner import RunFiles, TaskRunner
from crossgrade.engine.view import Machine, lock_to_json
from crossgrade.engine.walk import Selection, Walk
from crossgrade.errors import CrossgradeError, WrongOptionsError
from crossgrade.modules.contract import Lock
from crossgrade.playbook.inventory import Host
from crossgrade.playbook.model import Play, walk
from crossgrade.playbook.tags import is_selected

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
    company: Company,
    batch: Sequence[Host],
    predicted: Mapping[tuple[str, str], PlannedTask] | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Walk:
    """A walk of one play on one host: of a plan without `files`, of a run with them."""
    request = prepared.request
    events = events.of_host(host.name)
    machine.library = prepared.playbook.library
    return Walk(
        play=play,
        host=host.name,
        scope=with_magic(
            company.roster.doubtful(
                play_scope(prepared, play, host, company.roster.inventory, check_mode=files is None)
            ),
            prepared,
            play,
            host,
            batch,
            company,
            check_mode=files is None,
        ),
        base_environment=company.becoming.environment,
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
        memory=company.memory.of(host.name),
        company=company,
        force_handlers=request.force_handlers,
        library=prepared.playbook.library,
    )


def build_company(prepared: Prepared) -> Company:
    """What the walks of a plan or of a run share."""
    becoming = Becoming(process_environment())
    return Company(Memory(), Roster(prepared.inventory), prepared.request.extra_vars, becoming)


def walk_in_check_mode(
    prepared: Prepared, machine: Machine, events: Events, company: Company, planned: list[PlannedTask]
) -> None:
    """Walk all plays and foresee; what each task would do is appended to `planned`.

    A task that would fail leaves its failure in the company's memory. Raises CrossgradeError for what ends the walk.
    """

    def begin(play: Play, host: Host, batch: Sequence[Host]) -> Walk:
        walk = build_walk(prepared, play, host, machine, events, None, company, batch)
        walk.planned = planned
        return walk

    def perhaps(play: Play, why: str) -> None:
        planned.extend(_perhaps_planned(prepared, play, why))

    walk_plays(prepared, company, events, begin, lambda _: None, perhaps)


def _perhaps_planned(prepared: Prepared, play: Play, why: str) -> Iterator[PlannedTask]:
    """The tasks of a play of which only the run knows whether it has hosts."""
    request, hosts = prepared.request, ", ".join(play.hosts)
    for task in walk([step for _, steps in play.sections() for step in steps]):
        if task.module != "meta" and is_selected(task.tags, request.only_tags, request.skip_tags):
            name, place, summary = task.display_name, str(task.spot.place), f"its hosts depend on {why}"
            yield PlannedTask(task.uid, name, task.module, "may change", summary, hosts, place=place)


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
    company = build_company(prepared)
    tasks: list[PlannedTask] = []
    failure = ""
    try:
        walk_in_check_mode(prepared, machine, events, company, tasks)
    except WrongOptionsError:
        raise  # about a play's hosts, which are wrong from the beginning
    except CrossgradeError as error:
        failure = str(error)
    failed = company.memory.failure
    if failed is not None and not failure:
        where = f" on {failed.host}" if len(prepared.hosts) > 1 else ""
        failure = f"task {failed.name!r} would fail{where}: {_in_short(failed.told.message)}"
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
    return Planning(plan, company.memory.total(), failure)


def _in_short(message: str) -> str:
    """The first line: the plan's own entry for the task has the rest."""
    first, *more = message.splitlines() or [""]
    return f"{first.rstrip(':')} (the plan says more)" if more else first
