"""Old against new, metric by metric: what the gate decided in its own numbers, the rest by the same statistics."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from crossgrade.bench.statistics import LEAST_PAIRS, NonInferiority, non_inferiority, t_quantile
from crossgrade.errors import TaskError
from crossgrade.gates.benchmark import METRICS, Metric
from crossgrade.report.measurements import Measurements

CONFIDENCE = 0.95

# What a reader wants to see of every benchmark, whatever its gate judges.
_ALWAYS = (
    "output_tokens_per_second",
    "total_tokens_per_second",
    "requests_per_second",
    "accept_length",
    "ttft_median",
    "ttft_p99",
    "itl_median",
    "itl_p99",
    "end_to_end_median",
)


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
class Limit:
    """One metric of the new server against an absolute limit, in the metric's own unit (seconds for times)."""

    name: str
    metric: Metric
    new: Interval
    limit: float
    outcome: str

    @property
    def kind(self) -> str:
        return "floor" if self.metric.higher_is_better else "ceiling"


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


def compare_metrics(measurements: Measurements, figures: Mapping[str, Any]) -> tuple[Comparison, ...]:
    """Each metric that the gate judged, with its own result, then the others of `_ALWAYS`.

    `figures` are those of the verdict. What it judged and could not decide, for requests that failed, has no result in
    it: that is computed here, as the others are.
    """
    losses = dict(figures.get("allowed_losses") or {})
    recorded = _of_load(figures, measurements.name, "metrics")
    judged = dict.fromkeys((*recorded, *([] if measurements.name else losses)))
    names = [name for name in (*judged, *(each for each in _ALWAYS if each not in judged)) if name in METRICS]
    found = (_compare(name, measurements, recorded.get(name), losses.get(name), name in judged) for name in names)
    return tuple(compared for compared in found if compared is not None)


def limits_of(measurements: Measurements, figures: Mapping[str, Any]) -> Iterator[Limit]:
    """Floors and ceilings that the gate judged."""
    for name, result in _of_load(figures, measurements.name, "limits").items():
        values = [launch.metrics[name] for launch in measurements.of("new") if name in launch.metrics]
        limit = result.get("limit") if isinstance(result, Mapping) else None
        if name in METRICS and values and isinstance(limit, (int, float)):
            yield Limit(name, METRICS[name], mean_interval(values), float(limit), str(result.get("outcome")))


def _of_load(figures: Mapping[str, Any], load: str, kind: str) -> Mapping[str, Any]:
    """The results of one load in the verdict; where there is one load without a name, they stand by themselves."""
    profiles = figures.get("profiles")
    of_load = profiles.get(load) if isinstance(profiles, Mapping) else None
    found = of_load.get(kind) if isinstance(of_load, Mapping) else None if load else figures.get(kind)
    return found if isinstance(found, Mapping) else {}


def _compare(name: str, measurements: Measurements, recorded: Any, loss: Any, judged: bool) -> Comparison | None:
    pairs = measurements.pairs(name)
    if not pairs:
        return None
    try:
        result = NonInferiority(**recorded) if isinstance(recorded, Mapping) else None
        if result is None:
            result = non_inferiority(
                [(old, new) for _, old, new in pairs],
                allowed_loss=float(loss or 0.0),
                higher_is_better=METRICS[name].higher_is_better,
                confidence=CONFIDENCE,
                minimum_pairs=LEAST_PAIRS,
            )
    except (TaskError, TypeError, ValueError):  # of another version of the gate, which knows more or less than this one
        return None
    return Comparison(
        name,
        METRICS[name],
        mean_interval([old for _, old, _ in pairs]),
        mean_interval([new for _, _, new in pairs]),
        tuple(new / old for _, old, new in pairs),
        result,
        judged,
    )
