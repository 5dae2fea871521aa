"""Each target of a benchmark, judged by itself: a metric of a load profile, against the old server or a limit. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from crossgrade.bench.paired import PairedSamples
from crossgrade.bench.statistics import (
    AgainstLimit,
    Decision,
    NonInferiority,
    against_limit,
    non_inferiority,
    unpaired_non_inferiority,
)
from crossgrade.gates.benchmark_rules import METRICS, BenchmarkRules
from crossgrade.gates.verdict import counted


@dataclass(frozen=True)
class StoredBaseline:
    """Launches of the old generation that were measured earlier: for each profile's name, the metrics of each launch.

    `days` are those on which they were measured, oldest first (2026-12-01).
    """

    generation: int
    metrics: Mapping[str, Sequence[Mapping[str, float]]]
    days: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """`6 stored launches of generation 1 (2026-12-01)`."""
        fewest = min(map(len, self.metrics.values()), default=0)
        days = " to ".join(dict.fromkeys((self.days[0], self.days[-1]))) if self.days else ""
        return f"{counted(fewest, 'stored launch', 'stored launches')} of generation {self.generation}" + (
            f" ({days})" if days else ""
        )


@dataclass(frozen=True)
class Judged:
    """One target: a metric of a profile, and its result; None where a launch did not measure it."""

    profile: str
    metric: str
    result: NonInferiority | AgainstLimit | None

    @property
    def title(self) -> str:
        return f"{self.profile}: {self.metric}" if self.profile else self.metric

    @property
    def outcome(self) -> Decision:
        return self.result.outcome if self.result else "failed"

    @property
    def words(self) -> str:
        if self.result is None:
            return METRICS[self.metric].label
        told = describe(self.metric, self.result)
        return f"{self.profile}: {told}" if self.profile else told


def describe(name: str, result: NonInferiority | AgainstLimit) -> str:
    """`output 812.3 → 651.0 tokens/s (ratio 0.801, 95% bounds 0.79 to 0.81), allowed loss 10%`.

    Against a limit: `output 91.2 tokens/s (95% bounds 90.1 to 92.3), floor 89.5`.
    """
    metric = METRICS[name]
    level = f"{100 * result.confidence:g}% bounds"
    if isinstance(result, AgainstLimit):
        bounds = "no bounds from one launch"
        if result.lower_bound is not None and result.upper_bound is not None:
            bounds = f"{level} {_number(result.lower_bound * metric.scale)} to "
            bounds += _number(result.upper_bound * metric.scale)
        kind = "floor" if result.higher_is_better else "ceiling"
        return (
            f"{metric.label} {_number(result.mean * metric.scale)} {metric.unit} ({bounds}), "
            f"{kind} {result.limit * metric.scale:g}"
        )
    bounds = "no bounds from one pair"
    if result.lower_bound_ratio is not None and result.upper_bound_ratio is not None:
        bounds = f"{level} {_ratio(result.lower_bound_ratio)} to {_ratio(result.upper_bound_ratio)}"
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


def judge_targets(samples: PairedSamples, rules: BenchmarkRules, stored: StoredBaseline | None) -> list[Judged]:
    """Each target of each profile, in their order."""
    judged = []
    for position, result in enumerate(samples.new[0].results):
        name = result.profile.name
        new = [launch.results[position].metrics() for launch in samples.new]
        if stored is None:
            old: Sequence[Mapping[str, float]] = [launch.results[position].metrics() for launch in samples.old]
        else:
            old = stored.metrics.get(name, ())
        judged += _judge_profile(name, old, new, rules, paired=stored is None)
    return judged


def _judge_profile(
    profile: str,
    old: Sequence[Mapping[str, float]],
    new: Sequence[Mapping[str, float]],
    rules: BenchmarkRules,
    *,
    paired: bool,
) -> list[Judged]:
    judged: list[Judged] = []
    targets = rules.targets(profile)
    looks = len(rules.looks)
    for metric, loss in targets.allowed_losses.items():
        higher = METRICS[metric].higher_is_better
        result: NonInferiority | None = None
        if old and all(metric in launch for launch in (*old, *new)):
            before, after = [launch[metric] for launch in old], [launch[metric] for launch in new]
            if paired:
                result = non_inferiority(
                    list(zip(before, after, strict=True)),
                    allowed_loss=loss,
                    higher_is_better=higher,
                    confidence=rules.confidence,
                    minimum_pairs=rules.minimum_pairs,
                    looks=looks,
                )
            else:
                result = unpaired_non_inferiority(
                    before,
                    after,
                    allowed_loss=loss,
                    higher_is_better=higher,
                    confidence=rules.confidence,
                    minimum_launches=rules.minimum_pairs,
                    looks=looks,
                )
        judged.append(Judged(profile, metric, result))
    for metric, limit in targets.limits.items():
        against: AgainstLimit | None = None
        if all(metric in launch for launch in new):
            against = against_limit(
                [launch[metric] for launch in new],
                limit=limit,
                higher_is_better=METRICS[metric].higher_is_better,
                confidence=rules.confidence,
                minimum_launches=rules.minimum_pairs,
                looks=looks,
            )
        judged.append(Judged(profile, metric, against))
    return judged
