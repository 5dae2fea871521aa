"""The upgrade: lock, recover, plan, walk, and on any failure back to where it began."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from crossgrade.engine.events import Events
from crossgrade.engine.interrupt import Interrupted, interruptible, undisturbed
from crossgrade.engine.journal import Journal
from crossgrade.engine.opening import opened_journal
from crossgrade.engine.outcome import Ending, failed_ending, finished_ending
from crossgrade.engine.plan import SavedPlan, changed_facts
from crossgrade.engine.planning import build_walk, make_plan
from crossgrade.engine.prepare import Prepared, prepare, process_environment
from crossgrade.engine.records import RunState
from crossgrade.engine.recovery import empty_temporary, settle
from crossgrade.engine.request import Request
from crossgrade.engine.results import Counts
from crossgrade.engine.run_id import new_run_id
from crossgrade.engine.task_runner import RunFiles
from crossgrade.engine.undo import Recovery, UndoResult
from crossgrade.engine.view import Machine, lock_from_json
from crossgrade.engine.walk import HostFailed
from crossgrade.errors import CrossgradeError, ExitCode
from crossgrade.store.lock import hold

Observe = Callable[[], Mapping[str, Any]]
Confirm = Callable[[SavedPlan], bool]


class Refusal(Exception):  # noqa: N818 - carries a plan that is not carried out
    """The plan is not carried out, and nothing was changed."""

    def __init__(self, plan: SavedPlan, reason: str, exit_code: ExitCode) -> None:
        super().__init__(reason)
        self.plan = plan
        self.reason = reason
        self.exit_code = exit_code


def upgrade(
    request: Request,
    events: Events,
    observe: Observe,
    confirm: Confirm,
    *,
    saved: SavedPlan | None = None,
    resume: bool = False,
    show_plan: Callable[[SavedPlan], None],
    write_report: Callable[[Path], None],
) -> Ending:
    """Carry out a playbook as one transaction.

    Raises CrossgradeError when something is wrong before anything was changed, LockedError when another run
    holds the store, Refusal when the plan already fails or is not confirmed.
    """
    prepared = prepare(request)
    store = request.store
    store.create()
    with (
        hold(store.lock_path, f"crossgrade {request.command}"),
        interruptible(),
        opened_journal(store, create=True) as journal,
    ):
        return _locked(prepared, journal, events, observe, confirm, saved, resume, show_plan, write_report)


def _locked(
    prepared: Prepared,
    journal: Journal,
    events: Events,
    observe: Observe,
    confirm: Confirm,
    saved: SavedPlan | None,
    resume: bool,
    show_plan: Callable[[SavedPlan], None],
    write_report: Callable[[Path], None],
) -> Ending:
    request, store = prepared.request, prepared.request.store
    interrupted = journal.unfinished()
    if resume and interrupted is None:
        raise CrossgradeError(
            "there is no interrupted run to resume", remedy="`crossgrade status` shows what is there."
        )
    if interrupted is not None:
        machine = Machine(store, prepared.playbook.directory, False)
        recovery = Recovery(journal, interrupted.id, machine, process_environment(), events)
        resume = settle(recovery, interrupted, store, resume=resume)
    began = time.monotonic()
    locks = {digest: lock_from_json(value) for digest, value in saved.locks.items()} if saved else None
    silent = Events("localhost", ())
    planning = make_plan(prepared, silent, observe, locks=locks)
    if saved is not None:
        changed = changed_facts(saved.basis, planning.plan.basis)
        if changed:
            raise CrossgradeError(
                "the saved plan does not fit any more: " + "; ".join(changed),
                remedy="Make a new one with `crossgrade plan -o FILE`.",
            )
    if planning.failure:
        raise Refusal(planning.plan, planning.failure, ExitCode.NOTHING_CHANGED)
    show_plan(planning.plan)
    if planning.plan.has_work and not confirm(planning.plan):
        raise Refusal(planning.plan, "not confirmed", ExitCode.NOTHING_CHANGED)
    if resume and interrupted is not None:
        run_id = interrupted.id
        journal.reopen_run(run_id)
    else:
        run_id = new_run_id()
        journal.begin_run(run_id, request.command, request.to_journal())
    store.run_folder(run_id).mkdir(mode=0o700, exist_ok=True)
    events.emit(
        "run_started",
        run=run_id,
        command=request.command,
        playbook=str(request.playbook),
        store=str(store.root),
    )
    events.emit("plan", plan=planning.plan.to_json())
    return _carry_out(prepared, journal, run_id, planning.plan, locks, events, began, write_report)


def _carry_out(
    prepared: Prepared,
    journal: Journal,
    run_id: str,
    plan: SavedPlan,
    locks: Mapping[str, Any] | None,
    events: Events,
    began: float,
    write_report: Callable[[Path], None],
) -> Ending:
    store = prepared.request.store
    machine = Machine(store, prepared.playbook.directory, False, dict(locks or {}))
    machine.locks.update({digest: lock_from_json(value) for digest, value in plan.locks.items()})
    counts, differing = Counts(), 0
    failure: BaseException | None = None
    try:
        for play, hosts in prepared.plays:
            for host in hosts:
                predicted = {(task.task, task.item): task for task in plan.tasks if task.host == host.name}
                walk = build_walk(prepared, play, host, machine, events, RunFiles(journal, run_id), predicted)
                walk.counts = counts
                try:
                    walk.run()
                finally:
                    differing += walk.differing
    except (HostFailed, CrossgradeError, Interrupted) as error:
        failure = error
    except Exception as error:  # noqa: BLE001 - whatever our own fault is, the transaction must be taken back
        failure = error
        trace = store.run_folder(run_id) / "traceback.txt"
        trace.write_text(traceback.format_exc())
    with undisturbed():
        undone = UndoResult()
        if failure is not None:
            if not isinstance(failure, HostFailed):
                counts.failed += 1
            undone = Recovery(journal, run_id, machine, process_environment(), events).undo_all()
            empty_temporary(store)
            counts.rolled_back = undone.undone
        ending = (
            finished_ending(prepared.request, journal, counts)
            if failure is None
            else failed_ending(prepared.request, journal, failure, undone, run_id)
        )
        state: RunState = "done" if failure is None else "rollback failed" if undone.failed else "rolled back"
        journal.end_run(run_id, state, int(ending.exit_code), ending.reason or ending.outcome)
    events.emit("recap", **vars(counts))
    report = store.run_folder(run_id) / "report.json"
    _announce(events, ending, report, time.monotonic() - began, differing)
    write_report(report)
    return ending


def _announce(events: Events, ending: Ending, report: Path, seconds: float, differing: int) -> None:
    events.emit(
        "run_ended",
        exit_code=int(ending.exit_code),
        outcome=ending.outcome,
        reason=ending.reason,
        evidence=list(ending.evidence),
        working_environment=ending.working_environment,
        active=ending.active,
        next_command=ending.next_command,
        report=str(report),
        differs=differing,
        seconds=round(seconds, 3),
    )
