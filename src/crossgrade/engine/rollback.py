"""`rollback`: one rename back, or the end of an interrupted run. Imports little: it is wanted in a hurry."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from crossgrade.engine.events import Events
from crossgrade.engine.interrupt import undisturbed
from crossgrade.engine.journal import Journal
from crossgrade.engine.opening import opened_journal
from crossgrade.engine.records import RunRecord, predecessor_of
from crossgrade.engine.request import Request
from crossgrade.errors import CrossgradeError, ExitCode, StoreError
from crossgrade.jsontype import JSON
from crossgrade.store.activation import check_switch, switch
from crossgrade.store.atomic import make_folder
from crossgrade.store.confirmation import read_confirmation
from crossgrade.store.lock import hold
from crossgrade.store.watcher import disarm

RESTART_SECONDS = 600.0
TURNS = ("rollback", "return")  # the commands of runs that are nothing but a turn of the link


def rollback(request: Request, events: Events, *, to: int | None) -> int:
    """Go back to generation `to`, or to the one before the active one; an interrupted run is undone first.

    Returns the number of the generation that is active afterwards. Raises StoreError when there is nothing
    to go back to, CrossgradeError with exit code 6 when an interrupted run cannot be undone.
    """
    from crossgrade.engine.returning import finish_overdue
    from crossgrade.store.reserve import release_reserve

    store = request.store
    if not store.exists:
        raise StoreError(f"there is no store at {store.root}", remedy="Run `crossgrade upgrade` first, or give --root.")
    release_reserve(store)  # before SQLite opens its files: they need room
    with (
        hold(store.lock_path, "crossgrade rollback"),
        undisturbed(),
        # made when it is missing: a store whose damaged journal was moved away must still be able to go back
        opened_journal(store, create=True) as journal,
    ):
        try:
            returned = finish_overdue(request, journal, events)
        except StoreError as error:  # whoever asks to go back has decided, whatever was to be confirmed
            if error.exit_code == ExitCode.ROLLBACK_FAILED:
                raise
            events.emit("warning", message=error.message)
            disarm(store)
            returned = None
        if returned is not None and to is None:
            return returned  # what was asked for is what the dead-man switch has just done
        interrupted = journal.unfinished()
        if interrupted is not None and recover(request, journal, interrupted, events) and to is None:
            return _active(request)
        active = _switch(request, journal, to, events)
        confirmation = read_confirmation(store)
        if confirmation is not None and confirmation.generation != active:
            disarm(store)  # somebody has decided: nothing waits to be confirmed any more
        return active


def _active(request: Request) -> int:
    active = request.store.active()
    return 0 if active is None else active


def recover(request: Request, journal: Journal, run: RunRecord, events: Events) -> bool:
    """Take an interrupted upgrade back as a whole, settle any other run. True when that is a return by itself.

    Raises CrossgradeError with exit code 6 when a step cannot be undone.
    """
    from crossgrade.engine.prepare import process_environment
    from crossgrade.engine.recovery import settle, take_back
    from crossgrade.engine.undo import Recovery
    from crossgrade.engine.view import Machine

    machine = Machine(request.store, request.playbook.parent, False)
    recovery = Recovery(journal, run.id, machine, process_environment(), events)
    if run.command == "upgrade":
        take_back(recovery, run, request.store)
        return True
    settle(recovery, run, request.store, resume=False)
    if run.command not in TURNS:
        return True  # nobody who settles an interrupted `restore` or `confirm` wants the link turned as well
    # a return that was killed after the link had turned has now happened; before that, it is still to come
    return any(step.state == "done" for step in journal.steps(run.id))


def _switch(request: Request, journal: Journal, to: int | None, events: Events) -> int:
    store = request.store
    active = store.active()
    target = to
    if target is None:
        target = None if active is None else predecessor_of(active, journal.activations())
    if target is None:
        raise StoreError(
            f"there is no generation before {active} to go back to" if active else "nothing was adopted yet",
            remedy="`crossgrade rollback --to N` takes any complete generation; `crossgrade status` lists them.",
        )
    generation = store.generation(target)
    if target == active:
        return target
    if generation.state == "building" or not generation.manifest:
        raise StoreError(f"generation {target} is not complete")
    if generation.state == "rejected" and to is None:
        raise CrossgradeError(f"generation {target} was rejected by a gate", remedy=f"--to {target} goes there anyway.")
    turn(request, journal, target, _restart_command(journal), events)
    return target


def turn(
    request: Request, journal: Journal, target: int, restart: Sequence[str], events: Events, reason: str = ""
) -> None:
    """Turn the link to another generation by one rename, as a run of its own, and restart the service.

    The run's command is the request's. Raises CrossgradeError with exit code 6 when the link is turned, but the restart
    failed.
    """
    from crossgrade.engine.run_id import new_run_id

    store, command = request.store, request.command
    check_switch(store, target)  # a refusal must leave no run open
    active = store.active()
    run_id = new_run_id()
    journal.begin_run(run_id, command, request.to_journal())
    make_folder(store.run_folder(run_id), 0o700)
    events.emit("run_started", run=run_id, command=command, playbook=str(request.playbook), store=str(store.root))
    undo: dict[str, JSON] = {"previous": active, "generation": target, "restart": list(restart)}
    by_hand = [f"ln -sfn {store.venv(active)} {store.active_link}"] if active else []
    ordinal = journal.intend(run_id, command, command, "activate", f"activate generation {target}", undo, by_hand)
    try:
        switch(store, target)
    except (StoreError, OSError) as error:
        if store.active() != target:
            journal.mark_undone(run_id, ordinal)
            journal.end_run(run_id, "failed", int(ExitCode.NOTHING_CHANGED), str(error))
        raise
    journal.record_activation(run_id, active, target)
    events.emit("rolled_back", task=command, name="active link", what=f"generation {active} -> {target}")
    summary = f"{f'{reason}: ' if reason else ''}generation {active} -> {target}"
    try:
        # inside the step, as in an upgrade: a kill before it has ended restarts again
        if restart:
            restart_service(request, run_id, restart, target)
    except CrossgradeError as error:
        journal.complete(run_id, ordinal, "activate", command)
        journal.end_run(run_id, "failed", int(error.exit_code), f"{summary}; {error.message}")
        raise
    journal.complete(run_id, ordinal, "activate", command)
    journal.end_run(run_id, "done", 0, summary)


def _restart_command(journal: Journal) -> tuple[str, ...]:
    """The restart of the newest activation that had one: the service must take up what the link now points at."""
    for run in reversed(journal.runs()):
        for step in reversed(journal.steps(run.id)):
            command = step.undo.get("restart")
            if step.module == "activate" and isinstance(command, list):
                return tuple(str(part) for part in command)
    return ()


def restart_service(request: Request, run_id: str, command: Sequence[str], target: int) -> None:
    """Restart what runs from generation `target`. Raises CrossgradeError with exit code 6 when that fails."""
    from crossgrade.engine.prepare import process_environment
    from crossgrade.process import run_process

    folder = request.store.run_folder(run_id)
    make_folder(folder, 0o700)
    completed = run_process(command, env=process_environment(), timeout=RESTART_SECONDS, log=folder / "restart.log")
    if not completed.succeeded:
        error = CrossgradeError(
            f"generation {target} is active again, but the restart failed: {completed.outcome()}",
            remedy=f"Run it by hand: {shlex.join(command)}\n  Its output is in {folder / 'restart.log'}.",
        )
        error.exit_code = ExitCode.ROLLBACK_FAILED
        raise error
