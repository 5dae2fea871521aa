"""The upgrade: lock, recover, plan, walk, and on any failure back to where it began."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crossgrade.engine.events import Events
from crossgrade.engine.interrupt import Interrupted, defer, deliver, hold_off, ignore_to_the_end, interruptible
from crossgrade.engine.journal import Journal, JournalUnusableError
from crossgrade.engine.opening import opened_journal
from crossgrade.engine.outcome import Ending, failed_ending, finished_ending
from crossgrade.engine.plan import SavedPlan, changed_facts
from crossgrade.engine.planning import build_company, build_walk, make_plan
from crossgrade.engine.plays import walk_plays
from crossgrade.engine.prepare import Prepared, prepare, process_environment
from crossgrade.engine.records import RunState
from crossgrade.engine.recovery import empty_temporary, settle
from crossgrade.engine.request import Request
from crossgrade.engine.returning import finish_overdue, refuse_while_waiting, start_waiting
from crossgrade.engine.run_id import new_run_id
from crossgrade.engine.task_runner import RunFiles
from crossgrade.engine.undo import Recovery, UndoResult
from crossgrade.engine.view import Machine, lock_from_json
from crossgrade.engine.walk import HostFailed, Walk
from crossgrade.errors import CrossgradeError, ExitCode
from crossgrade.playbook.inventory import Host
from crossgrade.playbook.model import Play
from crossgrade.playbook.secrets import masked
from crossgrade.store.atomic import make_folder
from crossgrade.store.layout import Store
from crossgrade.store.lock import hold
from crossgrade.store.reserve import keep_reserve

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
        keep_reserve(store)
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
    finish_overdue(request, journal, events)
    if not resume:
        refuse_while_waiting(request)
    interrupted = journal.unfinished()
    if resume and interrupted is None:
        raise CrossgradeError(
            "there is no interrupted run to resume", remedy="`crossgrade status` shows what is there."
        )
    if interrupted is not None:
        machine = Machine(store, prepared.playbook.directory, False)
        recovery = Recovery(journal, interrupted.id, machine, process_environment(), events)
        resume = settle(recovery, interrupted, store, resume=resume)
    else:
        empty_temporary(store)  # a kill of `restore` leaves no run on record
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
    run_id = interrupted.id if resume and interrupted is not None else new_run_id()
    run = _Run(prepared, journal, run_id, planning.plan, locks or {}, events)
    defer()  # a signal that comes now is delivered where it is dealt with
    if resume:
        journal.reopen_run(run_id)
    else:
        journal.begin_run(run_id, request.command, request.to_journal())
    failure = run.carry_out()
    ending = run.end(failure)
    ignore_to_the_end()
    report = store.run_folder(run_id) / "report.json"
    _announce(events, ending, report, time.monotonic() - began, run)
    try:
        write_report(report)
    except OSError as error:
        events.emit("warning", message=f"the report could not be written: {error}")
    return ending


@dataclass
class _Run:
    """One run from its first event to its end. `locks` are a saved plan's own."""

    prepared: Prepared
    journal: Journal
    run_id: str
    plan: SavedPlan
    locks: Mapping[str, Any]
    events: Events
    differing: int = 0
    gates_not_run: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.machine = Machine(self.store, self.prepared.playbook.directory, False, dict(self.locks))
        self.company = build_company(self.prepared)
        self.machine.confirm_within = self.prepared.request.confirm_within
        self.machine.locks.update({digest: lock_from_json(value) for digest, value in self.plan.locks.items()})

    @property
    def store(self) -> Store:
        return self.prepared.request.store

    def carry_out(self) -> BaseException | None:
        """Walk all plays on all hosts. Returns why that ended early; from then on no signal is looked at any more."""
        try:
            try:
                deliver()
                self._begin()
                self._walk()
            except (HostFailed, CrossgradeError) as error:
                return error
            except Exception as error:  # noqa: BLE001 - whatever our own fault is, the transaction must be taken back
                with suppress(OSError):
                    (self.store.run_folder(self.run_id) / "traceback.txt").write_text(masked(traceback.format_exc()))
                return error
            finally:
                hold_off()
        except Interrupted as error:
            return error
        return None

    def _begin(self) -> None:
        request = self.prepared.request
        make_folder(self.store.run_folder(self.run_id), 0o700)
        self.events.emit(
            "run_started",
            run=self.run_id,
            command=request.command,
            playbook=str(request.playbook),
            store=str(self.store.root),
        )
        self.events.emit("plan", plan=self.plan.to_json())

    def _walk(self) -> None:
        files = RunFiles(self.journal, self.run_id)

        def begin(play: Play, host: Host, batch: Sequence[Host]) -> Walk:
            predicted = {(task.task, task.item): task for task in self.plan.tasks if task.host == host.name}
            return build_walk(
                self.prepared, play, host, self.machine, self.events, files, self.company, batch, predicted
            )

        def end(walk: Walk) -> None:
            self.differing += walk.differing
            self.gates_not_run += walk.gates_not_run

        walk_plays(self.prepared, self.company, self.events, begin, end, lambda _, __: None)
        if self.company.memory.failure is not None:
            raise self.company.memory.failure

    def end(self, failure: BaseException | None) -> Ending:
        """Take everything back after a failure, and record how the run ended."""
        request, undone = self.prepared.request, UndoResult()
        if failure is not None:
            whose = failure.host if isinstance(failure, HostFailed) else self.prepared.hosts[0].name
            counts = self.company.memory.of(whose).counts
            if not isinstance(failure, HostFailed):
                counts.failed += 1
            undone = Recovery(self.journal, self.run_id, self.machine, process_environment(), self.events).undo_all()
            with suppress(OSError):  # recovery does it too
                empty_temporary(self.store)
            counts.rolled_back = undone.undone
        elif not start_waiting(self.store, self.run_id) and request.confirm_within is not None:
            message = "--confirm-within: this run activated nothing, so nothing need be confirmed"
            self.events.emit("warning", message=message)
        ending = (
            finished_ending(request, self.journal, self.company.memory.total())
            if failure is None
            else failed_ending(request, self.journal, failure, undone, self.run_id)
        )
        state: RunState = "done" if failure is None else "rollback failed" if undone.failed else "rolled back"
        try:
            self.journal.end_run(self.run_id, state, int(ending.exit_code), ending.reason or ending.outcome)
        except JournalUnusableError as error:
            self.events.emit("warning", message=f"{error.message}; the next command records how this run ended")
        for number, host in enumerate(self.company.roster.hosts_of(self.prepared)):
            counts = self.company.memory.of(host.name).counts
            self.events.of_host(host.name).emit("recap", **vars(counts), first=number == 0)
        return ending


def _announce(events: Events, ending: Ending, report: Path, seconds: float, run: _Run) -> None:
    events.emit(
        "run_ended",
        exit_code=int(ending.exit_code),
        outcome=ending.outcome,
        reason=ending.reason,
        evidence=list(ending.evidence),
        working_environment=ending.working_environment,
        active=ending.active,
        next_command=ending.next_command,
        confirmation=ending.confirmation,
        report=str(report),
        differs=run.differing,
        gates_not_run=list(run.gates_not_run),
        seconds=round(seconds, 3),
    )
