"""What the benchmark gate judges, and how strictly. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from crossgrade.bench.paired import MAXIMUM_VOID
from crossgrade.bench.statistics import planned_looks
from crossgrade.errors import TaskError


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
class Targets:
    """What one load profile is held to. `allowed_losses` maps names of METRICS to shares (0.1: 10%).

    `floors` (of what should be high) and `ceilings` (of times, in seconds) are absolute limits.
    """

    allowed_losses: Mapping[str, float] = field(default_factory=dict)
    floors: Mapping[str, float] = field(default_factory=dict)
    ceilings: Mapping[str, float] = field(default_factory=dict)

    @property
    def limits(self) -> dict[str, float]:
        """Floors and ceilings: a metric can have only one of them."""
        return {**self.floors, **self.ceilings}

    def check(self) -> None:
        """Raises TaskError for an unknown metric, a loss that is no share, and limits that make no sense."""
        for name in (*self.allowed_losses, *self.floors, *self.ceilings):
            if name not in METRICS:
                raise TaskError(f"benchmark: there is no metric {name}", remedy=f"metrics are {', '.join(METRICS)}")
        for name, loss in self.allowed_losses.items():
            if not 0.0 <= loss < 1.0:
                raise TaskError(f"benchmark: the allowed loss of {name} is {loss}, not from 0 to less than 1")
        for name, limit in self.limits.items():
            if not (math.isfinite(limit) and limit > 0):
                raise TaskError(f"benchmark: the limit of {name} is {limit}, not a number above zero")
        for name in self.floors:
            if not METRICS[name].higher_is_better:
                raise TaskError(f"benchmark: {name} is a time, which has no floor", remedy="`ceilings` is for times")
        for name in self.ceilings:
            if METRICS[name].higher_is_better:
                raise TaskError(
                    f"benchmark: of {name} more is better: it has no ceiling", remedy="`floors` is for speeds"
                )


@dataclass(frozen=True)
class BenchmarkRules:
    """What is judged, and how strictly.

    `allowed_losses`, `floors` and `ceilings` are for every load profile, unless `of_profile` has targets for its name.
    The looks at the verdict are planned from the two numbers of pairs (`statistics.planned_looks`). Where a launch
    takes seconds and the machine is shared, a maximum of 24 costs little and decides even where pairs differ by 10%.
    `maximum_void` replicates may be void and are measured again.
    """

    allowed_losses: Mapping[str, float] = field(default_factory=dict)
    minimum_pairs: int = 3
    maximum_pairs: int = 8
    confidence: float = 0.95
    floors: Mapping[str, float] = field(default_factory=dict)
    ceilings: Mapping[str, float] = field(default_factory=dict)
    of_profile: Mapping[str, Targets] = field(default_factory=dict)
    maximum_void: int = MAXIMUM_VOID

    def __post_init__(self) -> None:
        every = Targets(self.allowed_losses, self.floors, self.ceilings)
        for targets in (every, *self.of_profile.values()):
            targets.check()
        asked = tuple(self.of_profile.values()) or (every,)
        if not all(targets.allowed_losses or targets.limits for targets in asked):
            raise TaskError("benchmark: no metric to judge", remedy=f"name one of {', '.join(METRICS)}")
        if self.maximum_void < 0:
            raise TaskError(f"benchmark: {self.maximum_void} launches cannot be repeated, at least 0 are needed")
        planned_looks(self.minimum_pairs, self.maximum_pairs)  # raises for numbers that cannot be planned

    def targets(self, profile: str) -> Targets:
        """What the profile of this name is held to."""
        return self.of_profile.get(profile) or Targets(self.allowed_losses, self.floors, self.ceilings)

    @property
    def looks(self) -> tuple[int, ...]:
        """The numbers of pairs after which the evidence is looked at."""
        return planned_looks(self.minimum_pairs, self.maximum_pairs)

    @property
    def look_confidence(self) -> float:
        """The confidence of each look, so that all of them together keep `confidence`."""
        return 1 - (1 - self.confidence) / len(self.looks)
