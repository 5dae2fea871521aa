"""How a run ended, in the words that a person needs: why, the evidence, where the environment stands, what next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from crossgrade.engine.explained import sentence
from crossgrade.engine.interrupt import Interrupted
from crossgrade.engine.journal import Journal
from crossgrade.engine.records import predecessor_of
from crossgrade.engine.request import Request
from crossgrade.engine.results import Counts
from crossgrade.engine.standing import working_environment
from crossgrade.engine.undo import UndoResult
from crossgrade.engine.walk import HostFailed
from crossgrade.errors import ExitCode
from crossgrade.store.watcher import describe


@dataclass(frozen=True)
class Ending:
    """The end of a run. `active` is the number of the active generation, None before anything was adopted.

    `confirmation` says what waits to be confirmed: how, until when, and what watches; None when nothing does.
    """

    exit_code: ExitCode
    outcome: str
    reason: str
    evidence: tuple[str, ...]
    working_environment: str
    active: int | None
    next_command: str
    confirmation: Mapping[str, Any] | None = None


def finished_ending(request: Request, journal: Journal, counts: Counts) -> Ending:
    store = request.store
    active = store.active()
    previous = None if active is None else predecessor_of(active, journal.activations())
    following = f"`{request.hint('rollback')}` returns to generation {previous}" if previous is not None else ""
    outcome = "Done" if counts.changed else "Nothing to do: everything is as asked"
    if counts.rescued:
        outcome = f"Done; failures that were rescued: {counts.rescued}"
    elif not counts.ok + counts.skipped:
        outcome = "Nothing was done: no task was chosen (look at --tags and --skip-tags)"
    return Ending(ExitCode.DONE, outcome, "", (), working_environment(store), active, following, _confirmation(request))


def _confirmation(request: Request) -> dict[str, Any] | None:
    described = describe(request.store)
    if described is None or not described["activated"]:
        return None
    return {**described, "command": request.hint("confirm")}


def failed_ending(
    request: Request, journal: Journal, failure: BaseException, undone: UndoResult, run_id: str
) -> Ending:
    """The ending of a run that failed or was interrupted, after its rollback."""
    store = request.store
    evidence: tuple[str, ...] = ()
    if isinstance(failure, HostFailed):
        reason = f"task {failure.name!r} failed: {failure.told.message}"
        evidence = _evidence(failure)
    elif isinstance(failure, Interrupted):
        reason = f"stopped by {failure.signal.name}"
    else:
        reason = str(failure) or repr(failure)
        if not hasattr(failure, "exit_code"):
            reason = f"a fault of crossgrade itself: {type(failure).__name__}: {reason}"
            evidence = (f"traceback: {store.run_folder(run_id) / 'traceback.txt'}",)
    standing = working_environment(store)
    if undone.failed:
        commands = [command for step, _ in undone.failed for command in step.by_hand]
        evidence += tuple(f"{step.name}: {step.intent}: {why}" for step, why in undone.failed)
        return Ending(
            ExitCode.ROLLBACK_FAILED,
            "FAILED, and the rollback failed too",
            reason,
            evidence,
            standing,
            store.active(),
            "; ".join(commands) or "crossgrade status",
        )
    turned = any(turn.run == run_id and turn.previous is not None for turn in journal.activations())
    untouched = "back where it was" if turned else "untouched"
    code = ExitCode.INTERRUPTED if isinstance(failure, Interrupted) else ExitCode.FAILED
    outcome = "INTERRUPTED and rolled back" if code == ExitCode.INTERRUPTED else "FAILED and rolled back"
    return Ending(
        code, outcome, reason, evidence, f"{standing} ({untouched})", store.active(),
        f"mend the cause and run `{request.hint('upgrade')}` again: what was built is kept and used",
    )  # fmt: skip


def _evidence(failure: HostFailed) -> tuple[str, ...]:
    return (*_findings(failure.told.verdict), *map(sentence, failure.told.explanations))


def _findings(verdict: Mapping[str, Any] | None) -> tuple[str, ...]:
    if not verdict:
        return ()
    failures = [finding for finding in verdict["findings"] if finding["level"] == "failure"]
    shown = tuple(f"{finding['subject']}: {finding['message']}" for finding in failures[:5])
    return shown + ((f"and {len(failures) - 5} more",) if len(failures) > 5 else ())
