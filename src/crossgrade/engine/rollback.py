"""`rollback`: one rename back, or the end of an interrupted run. Imports little: it is wanted in a hurry."""

from __future__ import annotations

import shlex

from crossgrade.engine.events import Events
from crossgrade.engine.interrupt import undisturbed
from crossgrade.engine.journal import Journal
from crossgrade.engine.opening import opened_journal
from crossgrade.engine.records import RunRecord, predecessor_of
from crossgrade.engine.request import Request
from crossgrade.errors import CrossgradeError, ExitCode, StoreError
from crossgrade.jsontype import JSON
from crossgrade.store.activation import switch
from crossgrade.store.lock import hold

RESTART_SECONDS = 600.0


def rollback(request: Request, events: Events, *, to: int | None) -> int:
    """Go back to generation `to`, or to the one before the active one; an interrupted run is undone first.

    Returns the number of the generation that is active afterwards. Raises StoreError when there is nothing
    to go back to, CrossgradeError with exit code 6 when an interrupted run cannot be undone.
    """
    store = request.store
    if not store.exists:
        raise StoreError(f"there is no store at {store.root}", remedy="Run `crossgrade upgrade` first, or give --root.")
    with (
        hold(store.lock_path, "crossgrade rollback"),
        undisturbed(),
        # made when it is missing: a store whose damaged journal was moved away must still be able to go back
        opened_journal(store, create=True) as journal,
    ):
        interrupted = journal.unfinished()
        if interrupted is not None and _recover(request, journal, interrupted, events) and to is None:
            return _active(request)
        return _switch(request, journal, to, events)


def _active(request: Request) -> int:
    active = request.store.active()
    return 0 if active is None else active


def _recover(request: Request, journal: Journal, run: RunRecord, events: Events) -> bool:
    """Take an interrupted upgrade back as a whole, settle any other run. True when that is what was asked for."""
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
    # a return that was killed after the link had turned has now happened; before that, it is still to come
    return any(step.state == "done" for step in journal.steps(run.id))


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
    restart = _restart_command(journal)
    undo: dict[str, JSON] = {"previous": active, "generation": target, "restart": list(restart)}
    by_hand = [f"ln -sfn {store.venv(active)} {store.active_link}"] if active else []
    ordinal = journal.intend(run_id, "rollback", "rollback", "activate", f"activate generation {target}", undo, by_hand)
    switch(store, target)
    journal.record_activation(run_id, active, target)
    journal.complete(run_id, ordinal, "activate", "rollback")
    journal.end_run(run_id, "done", 0, f"generation {active} -> {target}")
    events.emit("rolled_back", task="rollback", name="active link", what=f"generation {active} -> {target}")
    if restart:
        _restart(request, run_id, restart, target)
    return target


def _restart_command(journal: Journal) -> tuple[str, ...]:
    """The restart of the newest activation that had one: the service must take up what the link now points at."""
    for run in reversed(journal.runs()):
        for step in reversed(journal.steps(run.id)):
            command = step.undo.get("restart")
            if step.module == "activate" and isinstance(command, list):
                return tuple(str(part) for part in command)
    return ()


def _restart(request: Request, run_id: str, command: tuple[str, ...], target: int) -> None:
    from crossgrade.engine.prepare import process_environment
    from crossgrade.process import run_process

    folder = request.store.run_folder(run_id)
    folder.mkdir(mode=0o700, exist_ok=True)
    completed = run_process(command, env=process_environment(), timeout=RESTART_SECONDS, log=folder / "restart.log")
    if not completed.succeeded:
        error = CrossgradeError(
            f"generation {target} is active again, but the restart failed: {completed.outcome()}",
            remedy=f"Run it by hand: {shlex.join(command)}\n  Its output is in {folder / 'restart.log'}.",
        )
        error.exit_code = ExitCode.ROLLBACK_FAILED
        raise error
