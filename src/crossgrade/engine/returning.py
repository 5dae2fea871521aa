"""The dead-man switch: going back when nobody confirms, and `confirm`.

Whoever acts holds the store's lock and reads the record and the link again; so of a confirmation and a return that
meet, one comes first and the other sees it. A return writes into the record that it has begun and removes it as its
last act: if it is killed in between, the watcher that systemd starts again, or the next command, finishes it.
"""

from __future__ import annotations

import time
from dataclasses import replace

from crossgrade.engine.events import Events
from crossgrade.engine.interrupt import undisturbed
from crossgrade.engine.journal import Journal
from crossgrade.engine.opening import opened_journal
from crossgrade.engine.records import OPEN_STATES
from crossgrade.engine.request import Request
from crossgrade.engine.rollback import recover, restart_service, turn
from crossgrade.errors import CrossgradeError, ExitCode, StoreError
from crossgrade.store.atomic import make_folder
from crossgrade.store.confirmation import (
    Confirmation,
    Instant,
    is_due,
    read_confirmation,
    seconds_left,
    started_anew,
    write_confirmation,
)
from crossgrade.store.layout import Store
from crossgrade.store.reserve import release_reserve
from crossgrade.store.watcher import disarm, hold_patiently

RETURN = "return"
CONFIRM = "confirm"
# The watcher holds the lock for moments; a run that holds it restarts the time when it ends.
CONFIRM_PATIENCE_SECONDS = 5.0
NOT_CONFIRMED = "not confirmed in time"


def waiting(store: Store) -> Confirmation | None:
    """What waits to be confirmed: an activation whose generation is active. A record whose link was not turned is none.

    Raises StoreError when the record is damaged.
    """
    confirmation = read_confirmation(store)
    if confirmation is None or (store.active() != confirmation.generation and not confirmation.returning):
        return None
    return confirmation


def refuse_while_waiting(request: Request) -> None:
    """An upgrade on top of one that is not confirmed is refused. Needs the lock; raises CrossgradeError."""
    confirmation = waiting(request.store)
    if confirmation is not None:
        left = max(0.0, seconds_left(confirmation, Instant.now()))
        raise CrossgradeError(
            f"generation {confirmation.generation} waits to be confirmed ({left:.0f} s left)",
            remedy=f"`{request.hint('confirm')}` keeps it, `{request.hint('rollback')}` goes back to generation "
            f"{confirmation.previous}.",
        )


def start_waiting(store: Store, run_id: str) -> bool:
    """Give the whole time from now on, when this run left something to confirm: nobody could do so while it ran.

    True when it did. Needs the lock.
    """
    confirmation = waiting(store)
    if confirmation is None or confirmation.run != run_id or confirmation.returning:
        return False
    write_confirmation(store, started_anew(confirmation, Instant.now()))
    return True


def confirm(request: Request, events: Events) -> int:
    """Keep what was activated: no return any more. Returns the generation's number.

    Raises LockedError while another run goes on, CrossgradeError when nothing waits, and when it is too late: then the
    host has gone back, or does so now.
    """
    store = request.store
    if not store.exists:
        raise StoreError(f"there is no store at {store.root}", remedy="Give --root, or --playbook.")
    release_reserve(store)  # before SQLite opens its files: they need room
    with (
        hold_patiently(store.lock_path, "crossgrade confirm", CONFIRM_PATIENCE_SECONDS),
        undisturbed(),
        opened_journal(store, create=True) as journal,
    ):
        returned = finish_overdue(request, journal, events)
        if returned is not None:
            raise CrossgradeError(
                f"too late: {NOT_CONFIRMED}; generation {returned} is active again",
                remedy=f"`{request.hint('upgrade')}` activates the new one again: it is kept.",
            )
        confirmation = waiting(store)
        if confirmation is None:
            raise _nothing_to_confirm(request, journal)
        from crossgrade.engine.run_id import new_run_id

        run_id = new_run_id()
        journal.begin_run(run_id, CONFIRM, request.to_journal())
        disarm(store)
        journal.end_run(run_id, "done", 0, f"generation {confirmation.generation} is confirmed")
        return confirmation.generation


def _nothing_to_confirm(request: Request, journal: Journal) -> CrossgradeError:
    last = next((run for run in reversed(journal.runs()) if run.command in (RETURN, CONFIRM, "upgrade")), None)
    if last is not None and last.command == RETURN:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(last.started))
        return CrossgradeError(
            f"too late: the host went back at {when} ({last.summary})",
            remedy=f"`{request.hint('upgrade')}` activates the new generation again: it is kept.",
        )
    return CrossgradeError("there is nothing to confirm", remedy="Only `upgrade --confirm-within` leaves something.")


def finish_overdue(request: Request, journal: Journal, events: Events) -> int | None:
    """Go back when the time is over or a return was not finished; the active generation, or None when nothing was due.

    Needs the lock. A record whose link was never turned is taken away. Raises CrossgradeError as `go_back` does.
    """
    store = request.store
    confirmation = read_confirmation(store)
    if confirmation is None or not is_due(confirmation, Instant.now()):
        return None
    if waiting(store) is None:
        disarm(store)
        return None
    reason = confirmation.returning or NOT_CONFIRMED
    events.emit("warning", message=f"{reason}: the host goes back to generation {confirmation.previous}")
    go_back(request, journal, confirmation, reason, events)
    disarm(store)
    return confirmation.previous


def go_back(request: Request, journal: Journal, confirmation: Confirmation, reason: str, events: Events) -> None:
    """Go back to the earlier generation: undo the run if it was interrupted, else one rename; restart. Needs the lock.

    May be called again after a kill at any point. The record stays, for the caller to remove. Raises CrossgradeError
    (exit code 6) when the restart failed, or, with the link where it was, when the journal or a generation is damaged.
    """
    store = request.store
    request = request.with_command(RETURN)
    confirmation = replace(confirmation, returning=reason)
    write_confirmation(store, confirmation)
    try:
        _go_back(request, journal, confirmation, events)
    except CrossgradeError as error:
        write_confirmation(store, replace(confirmation, problem=error.message))
        raise


def _go_back(request: Request, journal: Journal, confirmation: Confirmation, events: Events) -> None:
    from crossgrade.engine.run_id import new_run_id

    store, target = request.store, confirmation.previous
    open_runs = [run for run in journal.runs() if run.state in OPEN_STATES]
    for run in open_runs:
        if run.command == RETURN:
            # Undoing an unfinished return would go forward again: it is done once more instead.
            journal.end_run(run.id, "interrupted", int(ExitCode.INTERRUPTED), "interrupted, then done again")
    interrupted = next((run for run in open_runs if run.id == confirmation.run), None)
    if interrupted is None and store.active() == confirmation.generation:
        turn(request, journal, target, confirmation.restart, events, confirmation.returning)
        return
    run_id = new_run_id()
    journal.begin_run(run_id, RETURN, request.to_journal())
    make_folder(store.run_folder(run_id), 0o700)
    summary = f"{confirmation.returning}: generation {confirmation.generation} -> {target}"
    try:
        if interrupted is not None:
            recover(request, journal, interrupted, events)  # switching back and the restart are part of it
        elif store.active() == target and confirmation.restart:
            # An earlier attempt turned the link; nobody knows whether it came to the restart.
            restart_service(request, run_id, confirmation.restart, target)
    except CrossgradeError as error:
        journal.end_run(run_id, "failed", int(error.exit_code), f"{summary}; {error.message}")
        if store.active() == confirmation.generation:
            turn(request, journal, target, confirmation.restart, events, confirmation.returning)
        raise
    journal.end_run(run_id, "done", 0, summary)
