"""After a kill: what the journal says of the run that was interrupted, made true again.

There is one commit point, the rename of the active link. A run that was killed before it is undone as far as it
was half made; a step that was killed after its commit point is completed. A run that had failed already, and was
killed while it was being taken back, is taken back to its end.
"""

from __future__ import annotations

from crossgrade.engine.events import Events
from crossgrade.engine.interrupt import undisturbed
from crossgrade.engine.journal import Journal
from crossgrade.engine.records import RunRecord
from crossgrade.engine.undo import Recovery, UndoResult
from crossgrade.errors import CrossgradeError, ExitCode, StoreError
from crossgrade.store.layout import Store, remove_path


def refuse_while_interrupted(journal: Journal, why: str) -> None:
    """Raises CrossgradeError when a run was interrupted; `why` says what waits for its end."""
    run = journal.unfinished()
    if run is not None:
        raise CrossgradeError(f"`{run.command}` was interrupted: {why}", remedy=way_out(run.command))


def way_out(command: str) -> str:
    """What to do about an interrupted run."""
    if command == "upgrade":
        return "`crossgrade upgrade --resume` finishes it, `crossgrade rollback` undoes it."
    if command == "bisect":
        return "`crossgrade bisect` goes on with it, `crossgrade rollback` settles it."
    return "`crossgrade rollback` settles it."


def settle(recovery: Recovery, run: RunRecord, store: Store, *, resume: bool) -> bool:
    """Leave nothing half made of an interrupted run. True when the run can be taken up again (`resume`).

    Raises CrossgradeError with exit code 6 when that fails.
    """
    with undisturbed():
        if run.state == "rolling back":
            take_back(recovery, run, store)
            return False
        result = recovery.settle()
        empty_temporary(store)
        if result.failed:
            raise rollback_failure(result, store)
        parts = [f"{result.undone} unfinished steps taken back"] if result.undone else []
        parts += [f"{result.completed} steps completed"] if result.completed else []
        what = ", ".join(parts) or "no step was left half made"
        if not resume:
            recovery.journal.end_run(run.id, "interrupted", int(ExitCode.INTERRUPTED), f"interrupted; {what}")
    _tell(recovery.events, run, f"{what}; going on from there")
    return resume


def take_back(recovery: Recovery, run: RunRecord, store: Store) -> None:
    """Undo the whole of an interrupted run. Raises CrossgradeError with exit code 6 when that fails."""
    with undisturbed():
        undone = recovery.undo_all()
        empty_temporary(store)
        if undone.failed:
            raise rollback_failure(undone, store)
        summary = f"interrupted, then rolled back: {undone.undone} steps taken back"
        recovery.journal.end_run(run.id, "rolled back", int(ExitCode.INTERRUPTED), summary)
    _tell(recovery.events, run, f"undone, {undone.undone} steps taken back")


def _tell(events: Events, run: RunRecord, what: str) -> None:
    events.emit("recovered", run=run.id, message=f"run {run.id} (`{run.command}`) was interrupted: {what}.")


def rollback_failure(undone: UndoResult, store: Store) -> CrossgradeError:
    """The error for an undo that failed, with the commands that do it by hand. Its exit code is 6."""
    from crossgrade.engine.standing import working_environment

    commands = [command for step, _ in undone.failed for command in step.by_hand]
    error = StoreError(
        "the rollback failed too: " + "; ".join(f"{step.intent}: {why}" for step, why in undone.failed),
        remedy="Mend it by hand:\n    " + "\n    ".join(commands) if commands else working_environment(store),
    )
    error.exit_code = ExitCode.ROLLBACK_FAILED
    return error


def empty_temporary(store: Store) -> None:
    """Remove work in progress. Only the holder of the lock may: nobody else writes there."""
    if store.temporary.is_dir():
        for entry in store.temporary.iterdir():
            remove_path(entry)
