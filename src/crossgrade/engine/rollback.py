"""`rollback`: one rename back, or the end of an interrupted run. Imports little: it is wanted in a hurry."""

from __future__ import annotations

from crossgrade.engine.events import Events
from crossgrade.engine.interrupt import undisturbed
from crossgrade.engine.journal import Journal, open_journal, predecessor_of
from crossgrade.engine.request import Request
from crossgrade.errors import CrossgradeError, ExitCode, StoreError
from crossgrade.store.activation import switch
from crossgrade.store.lock import hold


def rollback(request: Request, events: Events, *, to: int | None) -> int:
    """Go back to generation `to`, or to the one before the active one; an interrupted run is undone first.

    Returns the number of the generation that is active afterwards. Raises StoreError when there is nothing
    to go back to, CrossgradeError with exit code 6 when an interrupted run cannot be undone.
    """
    store = request.store
    if not store.exists:
        raise StoreError(f"there is no store at {store.root}", remedy="Run `crossgrade upgrade` first, or give --root.")
    with hold(store.lock_path, "crossgrade rollback"), undisturbed():
        journal = open_journal(store.journal_path)
        try:
            interrupted = journal.unfinished()
            if interrupted is not None:
                _undo_interrupted(request, journal, interrupted.id, events)
                if to is None:
                    return _active(request)
            return _switch(request, journal, to, events)
        finally:
            journal.close()


def _active(request: Request) -> int:
    active = request.store.active()
    return 0 if active is None else active


def _undo_interrupted(request: Request, journal: Journal, run_id: str, events: Events) -> None:
    from crossgrade.engine.prepare import process_environment
    from crossgrade.engine.run import empty_temporary, rollback_failure
    from crossgrade.engine.undo import undo_run
    from crossgrade.engine.view import Machine

    machine = Machine(request.store, request.playbook.parent, False)
    undone = undo_run(journal, run_id, machine, process_environment(), events)
    empty_temporary(request.store)
    if undone.failed:
        raise rollback_failure(undone, request.store)
    journal.end_run(run_id, "rolled back", int(ExitCode.INTERRUPTED), "interrupted, then rolled back")
    events.emit("recovered", run=run_id, message=f"run {run_id} was undone: {undone.undone} steps taken back.")


def _switch(request: Request, journal: Journal, to: int | None, events: Events) -> int:
    from crossgrade.engine.run_id import new_run_id

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
    run_id = new_run_id()
    journal.begin_run(run_id, "rollback", request.to_journal())
    undo = {"previous": active, "generation": target}
    by_hand = [f"ln -sfn {store.venv(active)} {store.active_link}"] if active else []
    ordinal = journal.intend(run_id, "rollback", "rollback", "activate", f"activate generation {target}", undo, by_hand)
    switch(store, target)
    journal.record_activation(run_id, active, target)
    journal.complete(run_id, ordinal, "activate")
    journal.end_run(run_id, "done", 0, f"generation {active} -> {target}")
    events.emit("rolled_back", task="rollback", name="active link", what=f"generation {active} -> {target}")
    return target
