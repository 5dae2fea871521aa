"""What a benchmark measured, read from its file of samples. Pure; times are seconds."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from crossgrade.bench.statistics import LEAST_PAIRS, NonInferiority, non_inferiority, t_quantile
from crossgrade.errors import TaskError
from crossgrade.gates.benchmark import METRICS, Metric

Side = Literal["old", "new"]
SIDES: tuple[Side, Side] = ("old", "new")
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Launch:
    """One launch of one side: its figures by the names of METRICS, and those of each request that succeeded.

    `others` is the share of the machine's processor time that other processes took, None where it is not known.
    """

    pair: int
    side: Side
    metrics: Mapping[str, float]
    others: float | None = None
    times_to_first_token: tuple[float, ...] = ()
    inter_token_latencies: tuple[float, ...] = ()
    ends_to_end: tuple[float, ...] = ()
    errors: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Interval:
    """A mean with its bounds; they are None with fewer than two launches."""

    mean: float
    lower: float | None
    upper: float | None


@dataclass(frozen=True)
class Comparison:
    """One metric, old against new. `ratios` are new to old, one for each pair; `judged`: whether the gate judges it."""

    name: str
    metric: Metric
    old: Interval
    new: Interval
    ratios: tuple[float, ...]
    result: NonInferiority
    judged: bool


@dataclass(frozen=True)
class Measurements:
    """All launches of one benchmark. `profile` is the load that was put on them; `problem` what could not be read."""

    profile: Mapping[str, Any]
    launches: tuple[Launch, ...]
    problem: str = ""

    @property
    def concurrency(self) -> int | None:
        value = self.profile.get("concurrency")
        return value if isinstance(value, int) else None

    def of(self, side: Side) -> tuple[Launch, ...]:
        return tuple(launch for launch in self.launches if launch.side == side)

    def pairs(self, name: str) -> tuple[tuple[int, float, float], ...]:
        """Number, old and new figure of each pair in which both sides measured this metric."""
        old, new = ({launch.pair: launch.metrics.get(name) for launch in self.of(side)} for side in SIDES)
        return tuple(
            (number, before, after)
            for number, before in sorted(old.items())
            if before is not None and (after := new.get(number)) is not None
        )


def read_samples(lines: Iterable[str]) -> Measurements:
    """The measurements in a file of samples: a header, then one line for each pair (`modules.benchmark`).

    A line that cannot be read is named in `problem`, and the others count: a file may end in the middle of a line.
    """
    profile: Mapping[str, Any] = {}
    launches: list[Launch] = []
    unreadable: list[int] = []
    for number, line in enumerate(lines, 1):
        found = _read_line(line)
        if found is None:
            unreadable.append(number)
        elif isinstance(found, Mapping):
            profile = found
        else:
            launches += found
    problem = f"unreadable: line {', '.join(map(str, unreadable[:5]))} of the samples" if unreadable else ""
    return Measurements(profile, tuple(launches), problem)


def from_figures(figures: Mapping[str, Any], problem: str) -> Measurements:
    """What the verdict itself tells of each launch, where the file of samples cannot be had."""
    try:
        launches = [
            Launch(int(value["pair"]), _side(value["side"]), _numbers(value["metrics"]), value.get("others"))
            for value in figures.get("launches") or ()
        ]
    except (ValueError, KeyError, TypeError, AttributeError):
        return Measurements({}, (), f"{problem}; the launches in the verdict are unreadable too")
    return Measurements({}, tuple(launches), problem)


def _read_line(line: str) -> Mapping[str, Any] | list[Launch] | None:
    """The profile in a header, the two launches in the line of a pair, None for what is neither."""
    try:
        value = json.loads(line)
        if "number" in value:
            return [_launch(value["number"], side, value[side]) for side in SIDES]
        return dict(value["profile"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _launch(pair: int, side: Side, value: Mapping[str, Any]) -> Launch:
    result = value["result"]
    good = [sample for sample in result["samples"] if not sample.get("error")]
    return Launch(
        int(pair),
        side,
        _numbers(result["metrics"]),
        value.get("others"),
        tuple(float(sample["time_to_first_token"]) for sample in good if sample.get("time_to_first_token") is not None),
        tuple(float(latency) for sample in good for latency in sample["inter_token_latencies"]),
        tuple(float(sample["end_to_end"]) for sample in good),
        {str(kind): int(count) for kind, count in (result.get("errors") or {}).items()},
    )


def _side(value: Any) -> Side:
    if value not in SIDES:
        raise ValueError(f"{value!r} is no side")
    return "old" if value == "old" else "new"


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """The figures that can be compared and drawn: finite, above zero, and of a metric that is known here."""
    numbers = {str(name): float(value) for name, value in values.items() if name in METRICS}
    return {name: value for name, value in numbers.items() if math.isfinite(value) and value > 0}


def mean_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """Geometric mean with two-sided bounds by Student's t on logarithms. Raises ValueError for no values.

    A replicate is one launch, so the bounds hold for the next launch's mean, not for the next request.
    """
    if not values:
        raise ValueError("no values")
    logs = [math.log(value) for value in values]
    mean = math.fsum(logs) / len(logs)
    if len(logs) < LEAST_PAIRS:
        return Interval(math.exp(mean), None, None)
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in logs) / (len(logs) - 1))
    half = t_quantile((1 + confidence) / 2, len(logs) - 1) * spread / math.sqrt(len(logs))
    return Interval(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


# What a reader wants to see of every benchmark, whatever its gate judges.
_ALWAYS = (
    "output_tokens_per_second",
    "requests_per_second",
    "ttft_median",
    "ttft_p99",
    "itl_median",
    "itl_p99",
    "end_to_end_median",
)


def compare_metrics(measurements: Measurements, figures: Mapping[str, Any]) -> tuple[Comparison, ...]:
    """Each metric that is judged, then the others of `_ALWAYS`, by the same statistics as the gate's.

    `figures` are those of the verdict: the allowed losses, the confidence, the looks.
    """
    losses = {str(name): float(loss) for name, loss in (figures.get("allowed_losses") or {}).items()}
    confidence = float(figures.get("confidence") or CONFIDENCE)
    looks = len(figures.get("looks") or ()) or 1
    compared = []
    for name in (*losses, *(name for name in _ALWAYS if name not in losses)):
        pairs = measurements.pairs(name)
        if name not in METRICS or not pairs:
            continue
        try:
            result = non_inferiority(
                [(old, new) for _, old, new in pairs],
                allowed_loss=losses.get(name, 0.0),
                higher_is_better=METRICS[name].higher_is_better,
                confidence=confidence,
                minimum_pairs=int(figures.get("minimum_pairs") or LEAST_PAIRS),
                looks=looks if name in losses else 1,
            )
        except TaskError:  # numbers in the verdict that no gate can have used
            continue
        compared.append(
            Comparison(
                name,
                METRICS[name],
                mean_interval([old for _, old, _ in pairs]),
                mean_interval([new for _, _, new in pairs]),
                tuple(new / old for _, old, new in pairs),
                result,
                judged=name in losses,
            )
        )
    return tuple(compared)
