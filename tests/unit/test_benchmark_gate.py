"""The benchmark gate's verdicts, its reasons word for word, and the order of paired launches."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

import pytest
from tests.support.measured import NoProcess, result, sample

from crossgrade.bench.paired import Launch, Pair, PairedSamples, Side, Told, order_of, run_pairs
from crossgrade.bench.samples import LoadProfile, LoadResult, RequestSample
from crossgrade.bench.server_process import RunningServer
from crossgrade.errors import TaskError
from crossgrade.gates.benchmark import BenchmarkRules, decided, judge_benchmark
from crossgrade.gates.verdict import Verdict
from crossgrade.process import RunningProcess

RULES = BenchmarkRules({"output_tokens_per_second": 0.1})


def pairs(speeds: list[tuple[float, float]], firsts: tuple[float, float] = (0.02, 0.02)) -> PairedSamples:
    return PairedSamples(
        tuple(
            Pair(
                number,
                order_of(number)[0],
                Launch("old", 0.0, 0.5, result(old, firsts[0])),
                Launch("new", 0.0, 0.5, result(new, firsts[1])),
            )
            for number, (old, new) in enumerate(speeds, 1)
        )
    )


def with_errors(samples: PairedSamples, *errors: RequestSample) -> PairedSamples:
    """The same, with failed requests in the last pair's new launch."""
    *before, last = samples.pairs
    broken = replace(last.new.result, other_errors=errors)
    return PairedSamples((*before, replace(last, new=replace(last.new, result=broken))))


SLOW = [(812.3, 651.0), (808.0, 648.0), (815.0, 652.0)]
EQUAL = [(812.3, 810.0), (808.0, 809.0), (815.0, 812.0)]
NOISY = [(812.0, 700.0), (800.0, 900.0), (815.0, 600.0)]


def test_a_loss_of_a_fifth_fails_with_its_numbers() -> None:
    verdict = judge_benchmark(pairs(SLOW), RULES)
    assert verdict.outcome == "failed"
    assert verdict.reason == (
        "output 811.8 → 650.3 tokens/s (ratio 0.801, 95% bounds 0.798 to 0.804), allowed loss 10%"
    )
    [finding] = verdict.findings
    assert (finding.level, finding.subject) == ("failure", "output_tokens_per_second")
    assert finding.evidence["outcome"] == "failed"
    assert finding.evidence["pairs"] == 3


def test_no_loss_passes() -> None:
    verdict = judge_benchmark(pairs(EQUAL), RULES)
    assert verdict.outcome == "passed"
    assert verdict.reason.startswith("output 811.8 → 810.3 tokens/s (ratio 0.998, 95% bounds ")
    assert [finding.level for finding in verdict.findings] == ["note"]


def test_inconclusive_fails_and_says_after_how_many_pairs() -> None:
    at_three = judge_benchmark(pairs(NOISY), RULES)
    assert at_three.outcome == "failed"
    assert at_three.reason.startswith("inconclusive after 3 pairs of at most 8: output ")
    rules = BenchmarkRules({"output_tokens_per_second": 0.1}, maximum_pairs=3)
    assert judge_benchmark(pairs(NOISY), rules).reason.startswith("inconclusive after 3 pairs: output ")


def test_a_busy_machine_is_named_as_what_disturbed() -> None:
    noisy = pairs(NOISY)
    busy = PairedSamples(
        tuple(
            replace(pair, old=replace(pair.old, others=0.4), new=replace(pair.new, others=0.5)) for pair in noisy.pairs
        )
    )
    verdict = judge_benchmark(busy, RULES)
    words = "other processes took 45% of this machine's processor time meanwhile"
    assert verdict.reason.endswith(f"; {words}")
    assert [finding.message for finding in verdict.of_level("warning")] == [words]


def test_no_pair_is_not_run() -> None:
    verdict = judge_benchmark(PairedSamples(), RULES)
    assert verdict.outcome == "not run"
    assert not verdict.passed


def test_all_metrics_must_pass() -> None:
    rules = BenchmarkRules({"output_tokens_per_second": 0.1, "ttft_median": 0.2, "itl_p99": 0.2})
    equal = judge_benchmark(pairs(EQUAL), rules)
    assert equal.outcome == "passed"
    assert equal.reason.endswith("allowed loss 10%; all 3 metrics passed")
    slower = judge_benchmark(pairs(EQUAL, firsts=(0.02, 0.03)), rules)
    assert slower.outcome == "failed"
    assert slower.reason == (
        "time to first token (median) 20 → 30 ms (ratio 1.500, 95% bounds 1.500 to 1.500), allowed loss 20%"
    )
    assert [finding.level for finding in slower.findings] == ["note", "failure", "note"]


def test_a_faster_first_token_passes() -> None:
    rules = BenchmarkRules({"ttft_median": 0.05})
    assert judge_benchmark(pairs(EQUAL, firsts=(0.03, 0.02)), rules).passed


def test_a_failed_request_fails_the_gate_whatever_the_speed() -> None:
    broken = replace(sample(1), error="http_status", detail="500 OK: out of memory")
    stalled = replace(sample(7), error="timeout", detail="0 chunks within 60 s")
    samples = with_errors(pairs(EQUAL), broken, stalled)
    verdict = judge_benchmark(samples, RULES)
    assert verdict.outcome == "failed"
    assert verdict.reason == "2 requests failed: 1 http_status (new), 1 timeout (new)"
    assert verdict.findings[0].subject == "pair 3, new, request 1"
    assert verdict.findings[0].message == "http_status: 500 OK: out of memory"


def test_a_metric_without_samples_fails() -> None:
    one_chunk = replace(sample(), inter_token_latencies=())
    silent = replace(result(800.0), samples=(one_chunk,))
    launch = Launch("old", 0.0, 0.5, silent)
    samples = PairedSamples((Pair(1, "old", launch, replace(launch, side="new")),))
    rules = BenchmarkRules({"itl_p99": 0.1})
    verdict = judge_benchmark(samples, rules)
    assert verdict.reason == "not measured in every launch: inter-token latency (99th percentile)"
    assert verdict.outcome == "failed"
    assert decided(samples, rules)


@pytest.mark.parametrize(
    ("speeds", "expected"),
    [
        (EQUAL, True),
        (SLOW, True),
        (NOISY, False),
        (EQUAL[:2], False),
        ([*EQUAL, (800.0, 801.0)], False),  # four pairs are no planned look
        (NOISY * 2 + NOISY[:2], True),  # the most there may be
    ],
)
def test_when_it_is_decided(speeds: list[tuple[float, float]], expected: bool) -> None:
    assert decided(pairs(speeds), RULES) is expected


def test_an_error_decides_at_once() -> None:
    assert decided(with_errors(pairs(EQUAL[:1]), replace(sample(), error="connect")), RULES)


def test_samples_and_verdict_are_json() -> None:
    samples = with_errors(pairs(EQUAL), replace(sample(), error="connect"))
    kept = json.loads(json.dumps(samples.to_json(), allow_nan=False))
    assert kept["pairs"][1]["first"] == "new"
    assert kept["pairs"][2]["new"]["result"]["errors"] == {"connect": 1}
    for judged in (samples, pairs(EQUAL), PairedSamples()):
        verdict = judge_benchmark(judged, RULES)
        assert Verdict.from_json(json.loads(json.dumps(verdict.to_json(), allow_nan=False))) == verdict


@pytest.mark.parametrize(
    ("losses", "options", "words"),
    [
        ({}, {}, "no metric"),
        ({"tokens": 0.1}, {}, "there is no metric tokens"),
        ({"itl_p99": 1.5}, {}, "allowed loss"),
        ({"itl_p99": 0.1}, {"minimum_pairs": 9}, "cannot be planned"),
        ({"itl_p99": 0.1}, {"minimum_pairs": 1}, "cannot be planned"),
        ({}, {"floors": {"itl_p99": 0.1}}, "is a time, which has no floor"),
        ({}, {"ceilings": {"requests_per_second": 3.0}}, "more is better: it has no ceiling"),
        ({}, {"floors": {"requests_per_second": 0.0}}, "not a number above zero"),
        ({"itl_p99": 0.1}, {"maximum_void": -1}, "at least 0"),
    ],
)
def test_rules_that_make_no_sense(losses: Mapping[str, float], options: dict[str, Any], words: str) -> None:
    with pytest.raises(TaskError, match=words):
        BenchmarkRules(losses, **options)


def test_launches_are_interleaved_in_the_order_abba() -> None:
    events: list[str] = []

    @contextlib.contextmanager
    def launch(side: Side) -> Iterator[RunningServer]:
        events.append(f"start {side}")
        yield RunningServer("http://127.0.0.1:1", 1, 0.5, cast("RunningProcess", NoProcess()))
        events.append("stop")

    def measure(_: RunningServer) -> list[LoadResult]:
        events.append("measure")
        return [result(800.0)]

    seen: list[int] = []
    samples = run_pairs(
        lambda: launch("old"),
        lambda: launch("new"),
        measure,
        enough=lambda samples: len(samples.pairs) == 3,
        maximum_pairs=8,
        told=Told(
            pair=lambda pair: seen.append(pair.number),
            launch=lambda number, side: events.append(f"{number} {side}"),
        ),
    )
    assert [event.split()[1] for event in events if event.startswith("start")] == [
        *("old", "new"),
        *("new", "old"),
        *("old", "new"),
    ]
    assert events[:4] == ["1 old", "start old", "measure", "stop"]
    assert seen == [1, 2, 3]
    assert [(pair.first, pair.old.side, pair.new.side) for pair in samples.pairs] == [
        ("old", "old", "new"),
        ("new", "old", "new"),
        ("old", "old", "new"),
    ]


def test_there_are_never_more_than_the_maximum_of_pairs() -> None:
    server = RunningServer("http://127.0.0.1:1", 1, 0.5, cast("RunningProcess", NoProcess()))
    samples = run_pairs(
        lambda: contextlib.nullcontext(server),
        lambda: contextlib.nullcontext(server),
        lambda _: [result(800.0)],
        enough=lambda _: False,
        maximum_pairs=4,
    )
    assert len(samples.pairs) == 4


@pytest.mark.parametrize(
    "options", [{"concurrency": 0}, {"requests": 0}, {"max_tokens": 0}, {"timeout": 0.0}, {"endpoint": "x"}]
)
def test_profiles_that_make_no_sense(options: dict[str, object]) -> None:
    with pytest.raises(TaskError, match="load profile"):
        LoadProfile(**options)  # type: ignore[arg-type]  # wrong on purpose
