"""Void launches: what voids one, how often it is repeated, and that it is told; and what is seen of GPUs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import cast

import pytest
from tests.support.measured import PROFILE, NoProcess, result, sample

from crossgrade.bench.gpu_watch import FOREIGN_NUMBERS, GpuWatching
from crossgrade.bench.lengths import parse_lengths
from crossgrade.bench.paired import PairedSamples, Told, run_alone, run_pairs, run_pairs_side_by_side
from crossgrade.bench.samples import LoadResult
from crossgrade.bench.server_process import RunningServer
from crossgrade.bench.void import GpuRecord, void_causes
from crossgrade.facts.gpus import Gpu, GpuFacts, GpuProcess
from crossgrade.facts.nvml import CLOCK_REASONS
from crossgrade.gates.benchmark import decided, judge_benchmark
from crossgrade.gates.benchmark_rules import BenchmarkRules
from crossgrade.knowledge import table
from crossgrade.process import RunningProcess

SERVER = RunningServer("http://127.0.0.1:1", 1, 0.5, cast("RunningProcess", NoProcess()))
RULES = BenchmarkRules({"output_tokens_per_second": 0.1})
GOOD = result(800.0)
FAILING = replace(GOOD, other_errors=(replace(sample(3), error="http_status"),))
SHORT = replace(GOOD, samples=(sample(0), sample(1, tokens=12)))
THROTTLED = GpuRecord(looks=9, reasons={"GPU 0: hw_thermal_slowdown": 3})


def kinds(one: LoadResult, gpus: GpuRecord | None = None) -> list[str]:
    return [cause.kind for cause in void_causes([one], gpus)]


def test_what_voids_a_launch() -> None:
    assert kinds(GOOD) == []
    assert kinds(FAILING) == ["errors"]
    assert kinds(SHORT) == ["short_output"]
    [short] = void_causes([SHORT], None)
    assert short.detail == "1 of 2 answers were shorter than the 50 tokens asked for (the shortest 12)"
    assert kinds(GOOD, THROTTLED) == ["throttled"]
    assert kinds(GOOD, GpuRecord(looks=9, strangers=("pid 7 (python) on GPU 0",))) == ["other_process"]
    # a full load is not throttling, nor is somebody who was there all the while
    assert kinds(GOOD, GpuRecord(reasons={"GPU 0: sw_power_cap": 9}, standing=("pid 7 on GPU 0",))) == []


def test_answers_may_end_early_where_that_is_not_known_to_be_wrong() -> None:
    model_decides = replace(PROFILE, extra_body={})
    own_lengths = replace(PROFILE, output_lengths=parse_lengths({"uniform": [4, 50]}))
    for profile in (model_decides, own_lengths):
        assert kinds(replace(SHORT, profile=profile)) == []


def test_speed_does_not_void() -> None:
    """Repeating what was slow would choose the answer."""
    assert kinds(result(0.001, first=50.0)) == []


def run(launched: Sequence[LoadResult], gpus: Sequence[GpuRecord] = (), maximum_void: int = 3) -> PairedSamples:
    """Pairs of launches that measure these, in the order of launching; then good ones."""
    measured, records = iter(launched), iter(gpus)

    @contextlib.contextmanager
    def watch(_: object) -> Iterator[object]:
        record = next(records, GpuRecord())
        yield lambda: record

    return run_pairs(
        lambda: contextlib.nullcontext(SERVER),
        lambda: contextlib.nullcontext(SERVER),
        lambda _: [next(measured, GOOD)],
        enough=lambda samples: decided(samples, RULES),
        maximum_pairs=8,
        watch=watch,  # type: ignore[arg-type]  # a stub
        maximum_void=maximum_void,
    )


def test_a_void_launch_is_measured_again_and_told() -> None:
    samples = run([GOOD], [GpuRecord(), THROTTLED])
    assert [pair.number for pair in samples.pairs] == [1, 2, 3]
    [void] = samples.void
    assert (void.number, len(void.launches)) == (1, 2), "its partner is measured again as well"
    verdict = judge_benchmark(samples, RULES)
    assert verdict.passed
    assert verdict.reason.endswith("; 1 void launch measured again")
    [warning] = [
        each for each in verdict.of_level("warning") if "measured again" in each.message
    ]  # others: a busy machine
    assert warning.message == (
        "measured again: new server: GPU 0: hw_thermal_slowdown held the clocks down at 3 of 9 looks"
    )
    assert verdict.figures["void"] == ["new server: GPU 0: hw_thermal_slowdown held the clocks down at 3 of 9 looks"]


def test_gpus_that_always_throttle_leave_no_verdict() -> None:
    samples = run([], [THROTTLED] * 99, maximum_void=2)
    assert (len(samples.pairs), len(samples.void)) == (0, 3)
    verdict = judge_benchmark(samples, replace(RULES, maximum_void=2))
    assert verdict.outcome == "not run"
    assert verdict.reason.startswith("3 void launches, the last because of the old server: GPU 0: hw_thermal_slowdown")


def test_a_candidate_that_twice_fails_requests_fails() -> None:
    once = judge_benchmark(run([GOOD, FAILING]), RULES)
    assert once.passed, "once may be chance; it is told"
    assert any("measured again" in each.message for each in once.of_level("warning"))
    # the order is old, new; void; then old, new again
    twice = run([GOOD, FAILING, GOOD, FAILING])
    assert len(twice.void) == 2
    verdict = judge_benchmark(twice, RULES)
    assert verdict.outcome == "failed"
    assert verdict.reason == "the new server made its launch void 2 times: failed requests: 1 http_status"
    none_allowed = replace(RULES, maximum_void=0)
    assert judge_benchmark(run([GOOD, FAILING], maximum_void=0), none_allowed).outcome == "failed"


def test_alone_and_side_by_side_repeat_too() -> None:
    measured = iter([GOOD, SHORT])
    numbers: list[int] = []
    rules = BenchmarkRules(floors={"output_tokens_per_second": 700.0})
    samples = run_alone(
        lambda: contextlib.nullcontext(SERVER),
        lambda _: [next(measured, GOOD)],
        enough=lambda so_far: decided(so_far, rules),
        maximum_launches=8,
        told=Told(launch=lambda number, _: numbers.append(number)),
    )
    assert numbers == [1, 2, 2, 3]
    verdict = judge_benchmark(samples, rules)
    assert verdict.passed
    assert verdict.reason == (
        "output 800.0 tokens/s (95% bounds 800.0 to 800.0), floor 700; 1 void launch measured again"
    )
    turns = iter([FAILING])
    beside = run_pairs_side_by_side(
        lambda: contextlib.nullcontext(SERVER),
        lambda: contextlib.nullcontext(SERVER),
        lambda _server, _number: next(turns, GOOD),
        lambda parts: [LoadResult.joined(PROFILE, parts)],
        rounds=2,
        enough=lambda so_far: decided(so_far, RULES),
        maximum_pairs=8,
    )
    assert (len(beside.pairs), len(beside.void)) == (3, 1)


def test_clock_reasons_are_those_of_nvml() -> None:
    assert {row["reason"] for row in table("clock_reasons")} == set(CLOCK_REASONS.values())


def test_without_a_driver_it_is_said() -> None:
    with GpuWatching(None)(lambda: ()) as record:
        pass
    assert record().problem == "no driver"
    samples = run([], [record()] * 99)
    notes = [finding.message for finding in judge_benchmark(samples, RULES).of_level("note")]
    assert "GPUs not watched: no driver" in notes


def gpus(*pids: int, reasons: tuple[str, ...] = ()) -> GpuFacts:
    processes = tuple(GpuProcess(pid, "python") for pid in pids)
    return GpuFacts(gpus=(Gpu(0, "NVIDIA H200", "0000:61:00.0", processes=processes, clock_reasons=reasons),))


def test_strangers_are_those_who_came_later() -> None:
    looks = iter([gpus(7), gpus(7, 100, 8, reasons=("hw_slowdown",))])
    last = gpus(7, 100)
    with GpuWatching(lambda: next(looks, last), every=60)(lambda: [100]) as record:
        pass
    seen = record()
    assert seen.strangers == ("pid 8 (python) on GPU 0",)
    assert seen.standing == ("pid 7 (python) on GPU 0",)
    assert seen.reasons == {"GPU 0: hw_slowdown": 1}


def test_in_a_container_nobody_is_called_a_stranger() -> None:
    looks = iter([gpus()])
    with GpuWatching(lambda: next(looks, gpus(4711)), every=60)(lambda: [os.getpid()]) as record:
        pass
    assert record().strangers == ()
    assert record().problem == FOREIGN_NUMBERS


@pytest.mark.parametrize("words", ["permission denied"])
def test_gpus_that_cannot_be_read_are_told(words: str) -> None:
    with GpuWatching(lambda: GpuFacts(gpus=(), unknown={"gpus": words}), every=60)(lambda: ()) as record:
        pass
    assert record().problem == words
