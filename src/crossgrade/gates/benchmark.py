"""The benchmark gate: is the new generation as fast as the old one, within the loss allowed? Pure.

Evidence: paired launches (`bench.paired`). Verdict: non-inferiority for each metric (`bench.statistics`), and
all of them must pass; requiring all needs no further correction, since a candidate that is too slow in one
metric passes only if that metric's own test errs. A request with an error fails the gate, and so does evidence
that is inconclusive after the greatest number of pairs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from crossgrade.bench.paired import Launch, PairedSamples
from crossgrade.bench.samples import RequestSample
from crossgrade.bench.statistics import NonInferiority, non_inferiority, planned_looks
from crossgrade.errors import TaskError
from crossgrade.gates.verdict import Finding, Verdict, counted
from crossgrade.jsontype import JSON

GATE = "benchmark"
DISTURBING_SHARE = 0.1  # of the processor time: from here on other processes are worth a warning
ERRORS_SHOWN = 5  # failed requests that become findings of their own


@dataclass(frozen=True)
class Metric:
    """How a figure of `LoadResult.metrics()` is judged and shown: its value times `scale` is in `unit`."""

    label: str
    unit: str
    scale: float
    higher_is_better: bool


METRICS: Mapping[str, Metric] = {
    "output_tokens_per_second": Metric("output", "tokens/s", 1.0, True),
    "requests_per_second": Metric("requests", "requests/s", 1.0, True),
    "total_tokens_per_second": Metric("input and output", "tokens/s", 1.0, True),
    "accept_length": Metric("acceptance length", "tokens/step", 1.0, True),
    "stream_tokens_per_second_median": Metric("output of one stream (median)", "tokens/s", 1.0, True),
    "stream_tokens_per_second_p90": Metric("output of one stream (90th percentile)", "tokens/s", 1.0, True),
    "ttft_median": Metric("time to first token (median)", "ms", 1000.0, False),
    "ttft_p90": Metric("time to first token (90th percentile)", "ms", 1000.0, False),
    "ttft_p99": Metric("time to first token (99th percentile)", "ms", 1000.0, False),
    "itl_median": Metric("inter-token latency (median)", "ms", 1000.0, False),
    "itl_p90": Metric("inter-token latency (90th percentile)", "ms", 1000.0, False),
    "itl_p99": Metric("inter-token latency (99th percentile)", "ms", 1000.0, False),
    "end_to_end_median": Metric("end-to-end latency (median)", "ms", 1000.0, False),
    "end_to_end_p90": Metric("end-to-end latency (90th percentile)", "ms", 1000.0, False),
    "end_to_end_p99": Metric("end-to-end latency (99th percentile)", "ms", 1000.0, False),
}


@dataclass(frozen=True)
class BenchmarkRules:
    """What is judged, and how strictly.

    `allowed_losses` maps names of METRICS to the share that may be lost (0.1: 10%). The looks at the verdict
    are planned from the two numbers of pairs (`statistics.planned_looks`). Where a launch takes seconds and the
    machine is shared, a maximum of 24 costs little and decides even where pairs differ by 10%.
    """

    allowed_losses: Mapping[str, float]
    minimum_pairs: int = 3
    maximum_pairs: int = 8
    confidence: float = 0.95

    def __post_init__(self) -> None:
        if not self.allowed_losses:
            raise TaskError("benchmark: no metric to judge", remedy=f"name one of {', '.join(METRICS)}")
        for name, loss in self.allowed_losses.items():
            if name not in METRICS:
                raise TaskError(f"benchmark: there is no metric {name}", remedy=f"metrics are {', '.join(METRICS)}")
            if not 0.0 <= loss < 1.0:
                raise TaskError(f"benchmark: the allowed loss of {name} is {loss}, not from 0 to less than 1")
        planned_looks(self.minimum_pairs, self.maximum_pairs)  # raises for numbers that cannot be planned

    @property
    def looks(self) -> tuple[int, ...]:
        """The numbers of pairs after which the evidence is looked at."""
        return planned_looks(self.minimum_pairs, self.maximum_pairs)


def decided(samples: PairedSamples, rules: BenchmarkRules) -> bool:
    """Whether more pairs could not change the verdict, or none may be added."""
    count = len(samples.pairs)
    if count >= rules.maximum_pairs or _failed_requests(samples):
        return True
    results = _judge_metrics(samples, rules)
    if None in results.values():
        return True
    if count not in rules.looks:
        return False
    outcomes = {result.outcome for result in results.values() if result}
    return "failed" in outcomes or outcomes == {"passed"}


def judge_benchmark(samples: PairedSamples, rules: BenchmarkRules) -> Verdict:
    """The verdict on all pairs there are. Raises SampleError for figures that cannot be compared."""
    count = len(samples.pairs)
    if count == 0:
        return Verdict(GATE, "not run", "no pair of launches was measured")
    failed_requests = _failed_requests(samples)
    if failed_requests:
        return _request_errors(samples, rules, failed_requests)
    results = _judge_metrics(samples, rules)
    missing = [name for name, result in results.items() if result is None]
    if missing:
        names = ", ".join(METRICS[name].label for name in missing)
        return Verdict(GATE, "failed", f"not measured in every launch: {names}", figures=_figures(samples, rules))
    judged = {name: result for name, result in results.items() if result}
    findings = [_finding(name, result) for name, result in judged.items()]
    findings += [Finding("note", side, note) for side, note in _notes(samples)]
    if busy := _busy(samples):
        findings.append(Finding("warning", "this machine", busy))
    # The reason is about what decided: a failed metric first, then an inconclusive one.
    worst = min(judged, key=lambda name: ("failed", "inconclusive", "passed").index(judged[name].outcome))
    result = judged[worst]
    text = describe(worst, result)
    if result.outcome == "inconclusive":
        more = "" if count >= rules.maximum_pairs else f" of at most {rules.maximum_pairs}"
        text = f"inconclusive after {counted(count, 'pair')}{more}: {text}"
        if busy := _busy(samples):
            text += f"; {busy}"
    elif result.outcome == "passed" and len(judged) > 1:
        text += f"; all {len(judged)} metrics passed"
    metrics: dict[str, JSON] = {name: judgement.to_json() for name, judgement in judged.items()}
    return Verdict(
        gate=GATE,
        outcome="passed" if result.outcome == "passed" else "failed",
        reason=text,
        findings=tuple(findings),
        figures={**_figures(samples, rules), "metrics": metrics},
    )


def describe(name: str, result: NonInferiority) -> str:
    """`output 812.3 → 651.0 tokens/s (ratio 0.801, 95% bounds 0.79 to 0.81), allowed loss 10%`."""
    metric = METRICS[name]
    bounds = "no bounds from one pair"
    if result.lower_bound_ratio is not None and result.upper_bound_ratio is not None:
        bounds = (
            f"{100 * result.confidence:g}% bounds "
            f"{_ratio(result.lower_bound_ratio)} to {_ratio(result.upper_bound_ratio)}"
        )
    return (
        f"{metric.label} {_number(result.old * metric.scale)} → {_number(result.new * metric.scale)} "
        f"{metric.unit} (ratio {_ratio(result.mean_ratio)}, {bounds}), "
        f"allowed loss {100 * result.allowed_loss:g}%"
    )


def _number(value: float) -> str:
    """With one decimal, or three significant digits where that is more."""
    return f"{value:.1f}" if abs(value) >= 100 else f"{value:.3g}"


def _ratio(value: float) -> str:
    return f"{value:.3f}" if value < 1000 else f"{value:.2g}"


def _judge_metrics(samples: PairedSamples, rules: BenchmarkRules) -> dict[str, NonInferiority | None]:
    """For each metric its result; None where a launch did not measure it."""
    measured = [(pair.old.result.metrics(), pair.new.result.metrics()) for pair in samples.pairs]
    results: dict[str, NonInferiority | None] = {}
    for name, loss in rules.allowed_losses.items():
        if all(name in old and name in new for old, new in measured):
            results[name] = non_inferiority(
                [(old[name], new[name]) for old, new in measured],
                allowed_loss=loss,
                higher_is_better=METRICS[name].higher_is_better,
                confidence=rules.confidence,
                minimum_pairs=rules.minimum_pairs,
                looks=len(rules.looks),
            )
        else:
            results[name] = None
    return results


def _finding(name: str, result: NonInferiority) -> Finding:
    return Finding(
        level="note" if result.outcome == "passed" else "failure",
        subject=name,
        message=f"{result.outcome}: {describe(name, result)}",
        evidence=result.to_json(),
    )


def _launches(samples: PairedSamples) -> list[tuple[int, Launch]]:
    return [(pair.number, launch) for pair in samples.pairs for launch in (pair.old, pair.new)]


def _failed_requests(samples: PairedSamples) -> list[tuple[int, Launch, RequestSample]]:
    return [(number, launch, sample) for number, launch in _launches(samples) for sample in launch.result.failed]


def _request_errors(
    samples: PairedSamples, rules: BenchmarkRules, failed: list[tuple[int, Launch, RequestSample]]
) -> Verdict:
    kinds: dict[tuple[str, str], int] = {}
    for _, launch, sample in failed:
        key = launch.side, str(sample.error)
        kinds[key] = kinds.get(key, 0) + 1
    listed = ", ".join(f"{number} {kind} ({side})" for (side, kind), number in sorted(kinds.items()))
    findings = [
        Finding(
            level="failure",
            subject=f"pair {number}, {launch.side}, request {sample.index}",
            message=f"{sample.error}: {sample.detail}",
            evidence=sample.to_json(),
        )
        for number, launch, sample in failed[:ERRORS_SHOWN]
    ]
    reason = f"{counted(len(failed), 'request')} failed: {listed}"
    return Verdict(GATE, "failed", reason, tuple(findings), _figures(samples, rules))


def _notes(samples: PairedSamples) -> list[tuple[str, str]]:
    """What the launches noted, each once for each side."""
    return list(
        dict.fromkeys((launch.side, note) for _, launch in _launches(samples) for note in launch.result.notes())
    )


def _busy(samples: PairedSamples) -> str:
    """A sentence when other processes disturbed the measurement, else nothing."""
    shares = [launch.others for _, launch in _launches(samples) if launch.others is not None]
    mean = sum(shares) / len(shares) if shares else 0.0
    if mean < DISTURBING_SHARE:
        return ""
    return f"other processes took {100 * mean:.0f}% of this machine's processor time meanwhile"


def _figures(samples: PairedSamples, rules: BenchmarkRules) -> dict[str, JSON]:
    return {
        "pairs": len(samples.pairs),
        "minimum_pairs": rules.minimum_pairs,
        "maximum_pairs": rules.maximum_pairs,
        "looks": list(rules.looks),
        "confidence": rules.confidence,
        "allowed_losses": dict(rules.allowed_losses),
        "launches": [
            {
                "pair": number,
                "side": launch.side,
                "others": launch.others,
                "metrics": dict(launch.result.metrics()),
            }
            for number, launch in _launches(samples)
        ],
    }
