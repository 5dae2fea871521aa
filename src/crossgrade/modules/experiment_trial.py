"""Trying a launch variant: servers one after the other under a time limit, load on each, and a look into their logs."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from crossgrade.errors import TaskError
from crossgrade.gates.experiment_outcome import Explained, Result, Speed, Trial, judge_trial
from crossgrade.modules.server import fresh_log, server_spec

if TYPE_CHECKING:
    from crossgrade.bench.gpu_memory import Used
    from crossgrade.bench.samples import LoadProfile, LoadResult
    from crossgrade.bench.server_process import ServerSpec
    from crossgrade.modules.contract import ApplyContext
    from crossgrade.modules.experiment import Arguments, State

Side = Literal["plain", "variant"]
MEMORY_SECONDS = 120.0  # for a driver to take the memory of a server back that has ended
LONGEST_LINE = 400
LEAST_SECONDS = 0.5  # that a server is given, however little of the time limit is left


class _NotServedError(Exception):
    """A server that did not serve. `end` says that the experiment's own time limit ended it."""

    def __init__(self, problem: str, log: Path, last_words: tuple[str, ...] = (), *, end: bool = False) -> None:
        super().__init__(problem)
        self.problem = problem
        self.log = log
        self.last_words = last_words
        self.end = end


@dataclass
class _Matrix:
    """What has been measured so far: by concurrency and side, one figure for each launch."""

    speeds: dict[tuple[int, Side], list[float]] = field(default_factory=dict)
    log: Path | None = None  # of the variant's last launch

    def add(self, side: Side, profile: LoadProfile, result: LoadResult) -> None:
        self.speeds.setdefault((profile.concurrency, side), []).append(result.output_tokens_per_second)

    def pairs(self) -> tuple[Speed, ...]:
        """Only whole pairs."""
        return tuple(
            Speed(concurrency, tuple(zip(plain, self.speeds.get((concurrency, "variant"), []), strict=False)))
            for (concurrency, side), plain in self.speeds.items()
            if side == "plain" and self.speeds.get((concurrency, "variant"))
        )


def order_of(number: int) -> tuple[Side, Side]:
    """Which goes first in pair `number`, from 1. The variant begins: if it is blocked, one launch is enough to know."""
    return ("variant", "plain") if number % 2 else ("plain", "variant")


def try_variant(arguments: Arguments, state: State, context: ApplyContext) -> Result:
    """Launch both in turns until all pairs are there, the variant fails, or the time is over."""
    from crossgrade.bench.gpu_memory import used_memory, wait_given_back

    deadline = time.monotonic() + arguments.time_limit
    environment = context.host.environment
    specs = {
        "plain": server_spec(state.candidate, context.host, state.plain, cwd=context.log_directory),
        "variant": server_spec(state.candidate, context.host, state.variant, cwd=context.log_directory),
    }
    matrix = _Matrix()
    before: Used = used_memory(environment)
    for number in range(1, arguments.pairs + 1):
        for side in order_of(number):
            context.progress(f"{state.experiment.title}: pair {number} of {arguments.pairs}, the {side} server")
            log = fresh_log(context.log_directory, f"experiment-{state.experiment.name}-{side}-{number:02}")
            try:
                results = serve(specs[side], state.profiles, log, deadline, context.progress)
            except _NotServedError as error:
                return _ended(error, side, matrix, arguments, state)
            finally:  # what is tried next, here or in the next task, finds the GPUs free
                held = wait_given_back(before, lambda: used_memory(environment), MEMORY_SECONDS)
            for profile, result in results:
                matrix.add(side, profile, result)
            if side == "variant":
                matrix.log = log
                if number == 1 and (blocked := _quietly_blocked(state, log)):
                    return judge_trial(state.experiment, blocked, arguments.noise)
            if held:
                note = f"memory that the {side} server did not give back within {MEMORY_SECONDS:g} s: {held}"
                return _stopped(matrix, arguments, state, note)
    return _judged(matrix, arguments, state, [])


def serve(
    spec: ServerSpec,
    profiles: tuple[LoadProfile, ...],
    log: Path,
    deadline: float,
    progress: Callable[[str], None],
) -> list[tuple[LoadProfile, LoadResult]]:
    """One launch: start, load at each concurrency, stop. Raises _NotServedError."""
    from crossgrade.bench.load import load
    from crossgrade.bench.server_process import ServerStartError, launch
    from crossgrade.process import StartError

    def left() -> float:
        return max(LEAST_SECONDS, deadline - time.monotonic())

    if deadline - time.monotonic() <= 0:
        raise _NotServedError("the time limit was over before it could be started", log, end=True)
    results = []
    limited = replace(spec, start_timeout=min(spec.start_timeout, left()))
    try:
        with launch(limited, log) as server:
            for profile in profiles:
                progress(f"concurrency {profile.concurrency}: {profile.requests} requests")
                try:
                    result = asyncio.run(asyncio.wait_for(load(server.base_url, profile), left()))
                except asyncio.TimeoutError:
                    problem = f"it was still answering {profile.concurrency} streams when the time limit was over"
                    raise _NotServedError(problem, log, server.process.tail(), end=True) from None
                except TaskError as error:
                    raise _NotServedError(error.message, log, server.process.tail()) from error
                if result.failed:
                    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(result.errors_by_kind.items()))
                    detail = result.failed[0].detail
                    problem = f"requests failed at concurrency {profile.concurrency} ({kinds}): {detail}"
                    raise _NotServedError(problem, log, server.process.tail())
                results.append((profile, result))
    except ServerStartError as error:
        problem = error.message.partition("; its last words:")[0]
        raise _NotServedError(problem, log, error.last_words, end=limited.start_timeout < spec.start_timeout) from error
    except StartError as error:
        raise _NotServedError(error.message, log) from error
    return results


# ---- what it comes to


def _ended(error: _NotServedError, side: Side, matrix: _Matrix, arguments: Arguments, state: State) -> Result:
    limit = f" (time limit of the experiment: {arguments.time_limit:g} s)" if error.end else ""
    if error.end and matrix.pairs():  # what is there can be judged
        return _judged(matrix, arguments, state, [f"the {side} server: {error.problem}{limit}"])
    problem = error.problem + limit
    if side == "plain":
        reason = f"the plain launch line does not serve, so there is nothing to compare with: {problem}"
        return Result("not tried", reason, (*error.last_words[-3:], f"log: {error.log}"))
    trial = Trial(problem, error.last_words, explained_in(error.log), log=str(error.log))
    return judge_trial(state.experiment, trial, arguments.noise)


def _stopped(matrix: _Matrix, arguments: Arguments, state: State, note: str) -> Result:
    if matrix.pairs():
        return _judged(matrix, arguments, state, [note])
    return Result("not tried", f"it was not measured to the end: {note}")


def _judged(matrix: _Matrix, arguments: Arguments, state: State, notes: list[str]) -> Result:
    trial = Trial(speeds=matrix.pairs(), log=str(matrix.log or ""))
    result = judge_trial(state.experiment, trial, arguments.noise)
    if len(next(iter(trial.speeds)).pairs) < arguments.pairs:
        notes = [*notes, f"{len(next(iter(trial.speeds)).pairs)} of {arguments.pairs} pairs were measured"]
    return replace(result, evidence=(*notes, *result.evidence))


def _quietly_blocked(state: State, log: Path) -> Trial | None:
    """A server that serves without the feature: by what its log says, or does not say. None for one that uses it."""
    refusal = first_line(log, state.experiment.refused)
    if refusal:
        return Trial(refusal=refusal, log=str(log))
    shown = state.experiment.shown_by(state.version)
    if shown and not first_line(log, (shown,)):
        return Trial(unshown=shown, log=str(log))
    return None


def first_line(log: Path, patterns: tuple[str, ...]) -> str:
    """The first line of a log that fits one of the patterns, "" when none does."""
    if not patterns:
        return ""
    wanted = [re.compile(pattern) for pattern in patterns]
    with log.open("rb") as file:
        for raw in file:
            line = raw[: 10 * LONGEST_LINE].decode("utf-8", "replace").strip()
            if any(pattern.search(line) for pattern in wanted):
                return line[:LONGEST_LINE]
    return ""


def explained_in(log: Path) -> tuple[Explained, ...]:
    """The known failures in a log, the likeliest root first; none in one that cannot be read."""
    from crossgrade.failures.explaining import explain
    from crossgrade.failures.reading import read_output

    try:
        found = explain(read_output(log))
    except (OSError, ValueError):
        return ()
    return tuple(Explained(each.kind, each.cause, each.evidence[0].text if each.evidence else "") for each in found)
