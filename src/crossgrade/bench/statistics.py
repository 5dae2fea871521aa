"""Deciding whether a new generation is no worse than the old one. Pure.

The question is one of non-inferiority. Each pair is one launch of the old and one of the new server,
interleaved in time, and gives one log-ratio `log(new / old)`. With `m = log(1 - allowed_loss)` (for a figure
of which less is better, the ratio is turned round), a one-sided t interval on the mean log-ratio decides:

* `passed`: the lower bound is above `m`, so a loss as large as the allowed one is ruled out;
* `failed`: the upper bound is below `m`, so the loss is larger than the allowed one;
* `inconclusive`: neither. More pairs may decide.

**Looking more than once.** Whoever tests after 3 pairs at 95%, then again after 6 and after 8, and stops at
the first pass, lets more than 5% of the candidates pass whose loss is exactly the allowed one (11%, by
simulation). So the looks are planned beforehand (`planned_looks`), and each look is made at the confidence
`1 - (1 - confidence) / looks` (Bonferroni): whatever the correlation between the looks, the chance of a wrong
pass over all of them together is at most `1 - confidence`, and that of a wrong fail too (4% each, for three
looks). The price is power: with no change at all, 3 to 8 pairs and an allowed loss of 5%, the gate passes in
over 99% of cases where pairs differ by 2% (standard deviation), in 97% at 3%, in 84% at 4%; with up to 24 pairs
in over 99% at 4%. The tests simulate both.

**Three questions, one interval.** `non_inferiority` takes pairs; `unpaired_non_inferiority` takes launches of the old
server that were measured earlier (Welch's t on the logs: it leaves room for unlike spreads); `against_limit` takes
launches of the new server alone and an absolute limit. The power of each is in `bench.power`.

**Several figures.** Where k figures must all pass, each is judged at the full confidence: a candidate that is too slow
in one of them passes only if that one's own test errs, so the chance of a wrong pass stays at most
`1 - confidence` (an intersection-union test: Berger 1982, Technometrics 24(4), "Multiparameter hypothesis testing and
acceptance sampling"). What grows with k is the chance that a good candidate is not let through.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from crossgrade.errors import TaskError
from crossgrade.jsontype import JSON

Decision = Literal["passed", "failed", "inconclusive"]
Design = Literal["pairs", "stored"]

LEAST_PAIRS = 2  # with fewer there is no spread
LOOK_GROWTH = 2  # each planned look has this many times the pairs of the one before
NEARLY_ALL = 1.25  # a look this close to the last one becomes the last one


class SampleError(TaskError, ValueError):
    """A figure that cannot be compared: not a finite number above zero."""


@dataclass(frozen=True)
class NonInferiority:
    """What the launches say. Ratios are new to old, as measured: above 1 is more, also where less is better.

    `lower_bound_ratio` and `upper_bound_ratio` are one-sided bounds, each at `look_confidence`; they are None
    with fewer than two pairs. `sd_log_ratio` is the standard deviation of the log-ratios between pairs (0.02:
    about 2%); where the old launches are stored ones, that of the difference of two single launches. `old` and
    `new` are geometric means, in the figure's own unit. `pairs` counts the new launches, `old_launches` the old.
    """

    outcome: Decision
    pairs: int
    old: float
    new: float
    mean_ratio: float
    lower_bound_ratio: float | None
    upper_bound_ratio: float | None
    sd_log_ratio: float | None
    allowed_loss: float
    higher_is_better: bool
    confidence: float
    look_confidence: float
    looks: int
    old_launches: int = 0
    design: Design = "pairs"

    def to_json(self) -> dict[str, JSON]:
        return {
            "outcome": self.outcome,
            "design": self.design,
            "pairs": self.pairs,
            "old_launches": self.old_launches,
            "old": self.old,
            "new": self.new,
            "mean_ratio": self.mean_ratio,
            "lower_bound_ratio": self.lower_bound_ratio,
            "upper_bound_ratio": self.upper_bound_ratio,
            "sd_log_ratio": self.sd_log_ratio,
            "allowed_loss": self.allowed_loss,
            "higher_is_better": self.higher_is_better,
            "confidence": self.confidence,
            "look_confidence": self.look_confidence,
            "looks": self.looks,
        }


@dataclass(frozen=True)
class AgainstLimit:
    """Launches of one server against an absolute limit, in the figure's own unit. `mean` is geometric.

    `higher_is_better`: the limit is a floor; otherwise it is a ceiling. Bounds are None with fewer than two launches.
    """

    outcome: Decision
    launches: int
    mean: float
    lower_bound: float | None
    upper_bound: float | None
    sd_log: float | None
    limit: float
    higher_is_better: bool
    confidence: float
    look_confidence: float
    looks: int

    def to_json(self) -> dict[str, JSON]:
        return dict(vars(self))


@dataclass(frozen=True)
class _Interval:
    """A mean of logs with one-sided bounds, each at `confidence`; None where there is no spread to tell them from."""

    mean: float
    lower: float | None
    upper: float | None
    spread: float | None

    def ruled(self, margin: float, higher_is_better: bool) -> Decision:
        """Where the mean lies: better than the margin (`passed`), worse, or too near to it to tell."""
        if self.lower is None or self.upper is None:
            return "inconclusive"
        worst, best = (self.lower, self.upper) if higher_is_better else (-self.upper, -self.lower)
        return "passed" if worst > margin else "failed" if best < margin else "inconclusive"


def non_inferiority(
    pairs: Sequence[tuple[float, float]],
    *,
    allowed_loss: float,
    higher_is_better: bool,
    confidence: float = 0.95,
    minimum_pairs: int = 3,
    looks: int = 1,
) -> NonInferiority:
    """Judge pairs of (old, new).

    `allowed_loss` is a share (0.05: the new may be 5% worse; where less is better, a time may grow to
    1 / 0.95). `looks` is the number of looks planned in all, see above. With fewer than `minimum_pairs` pairs
    the outcome is inconclusive. Raises SampleError for figures that are not finite and above zero, TaskError
    for an allowed loss outside 0 to 1 or no pair at all.
    """
    _check_loss(allowed_loss)
    look_confidence = _look_confidence(confidence, looks)
    if not pairs:
        raise TaskError("there is no pair of launches to judge")
    old, new = _logs([old for old, _ in pairs]), _logs([new for _, new in pairs])
    interval = _one_sample([after - before for before, after in zip(old, new, strict=True)], look_confidence)
    enough = len(pairs) >= minimum_pairs
    return NonInferiority(
        outcome=interval.ruled(math.log1p(-allowed_loss), higher_is_better) if enough else "inconclusive",
        pairs=len(pairs),
        old=_geometric(old),
        new=_geometric(new),
        mean_ratio=_exp(interval.mean),
        lower_bound_ratio=None if interval.lower is None else _exp(interval.lower),
        upper_bound_ratio=None if interval.upper is None else _exp(interval.upper),
        sd_log_ratio=interval.spread,
        allowed_loss=allowed_loss,
        higher_is_better=higher_is_better,
        confidence=confidence,
        look_confidence=look_confidence,
        looks=max(1, looks),
        old_launches=len(pairs),
    )


def unpaired_non_inferiority(
    old: Sequence[float],
    new: Sequence[float],
    *,
    allowed_loss: float,
    higher_is_better: bool,
    confidence: float = 0.95,
    minimum_launches: int = 3,
    looks: int = 1,
) -> NonInferiority:
    """Judge new launches against old ones that were measured at another time: Welch's t on the logs.

    Weaker than pairs: what has changed on the machine in between counts as the candidate's doing. Arguments and errors
    are those of `non_inferiority`. With fewer than two launches on a side, or fewer than `minimum_launches` new ones,
    it is inconclusive.
    """
    _check_loss(allowed_loss)
    look_confidence = _look_confidence(confidence, looks)
    if not old or not new:
        raise TaskError("there is no launch to judge" if not new else "there is no stored launch to compare with")
    before, after = _logs(old), _logs(new)
    interval = _welch(before, after, look_confidence)
    enough = len(new) >= minimum_launches
    return NonInferiority(
        outcome=interval.ruled(math.log1p(-allowed_loss), higher_is_better) if enough else "inconclusive",
        pairs=len(new),
        old=_geometric(before),
        new=_geometric(after),
        mean_ratio=_exp(interval.mean),
        lower_bound_ratio=None if interval.lower is None else _exp(interval.lower),
        upper_bound_ratio=None if interval.upper is None else _exp(interval.upper),
        sd_log_ratio=interval.spread,
        allowed_loss=allowed_loss,
        higher_is_better=higher_is_better,
        confidence=confidence,
        look_confidence=look_confidence,
        looks=max(1, looks),
        old_launches=len(old),
        design="stored",
    )


def against_limit(
    values: Sequence[float],
    *,
    limit: float,
    higher_is_better: bool,
    confidence: float = 0.95,
    minimum_launches: int = 3,
    looks: int = 1,
) -> AgainstLimit:
    """Judge launches of one server against an absolute limit: a floor, or a ceiling where less is better.

    What is judged is the mean launch (the geometric mean over launches): `passed` when its bound is beyond the limit
    on the good side, `failed` when it is beyond it on the bad side. A server that does exactly the limit passes in at
    most `1 - confidence` of cases, so a floor is what must be exceeded, not what is hoped for. Raises as
    `non_inferiority` does.
    """
    if not (math.isfinite(limit) and limit > 0):
        raise TaskError(f"the limit is {limit}; it must be a finite number above zero")
    look_confidence = _look_confidence(confidence, looks)
    if not values:
        raise TaskError("there is no launch to judge")
    interval = _one_sample(_logs(values), look_confidence)
    margin = math.log(limit)
    outcome = interval.ruled(margin if higher_is_better else -margin, higher_is_better)
    return AgainstLimit(
        outcome=outcome if len(values) >= minimum_launches else "inconclusive",
        launches=len(values),
        mean=_exp(interval.mean),
        lower_bound=None if interval.lower is None else _exp(interval.lower),
        upper_bound=None if interval.upper is None else _exp(interval.upper),
        sd_log=interval.spread,
        limit=limit,
        higher_is_better=higher_is_better,
        confidence=confidence,
        look_confidence=look_confidence,
        looks=max(1, looks),
    )


def _check_loss(allowed_loss: float) -> None:
    if not 0.0 <= allowed_loss < 1.0:
        raise TaskError(f"the allowed loss is {allowed_loss}; it must be from 0 to less than 1")


def _look_confidence(confidence: float, looks: int) -> float:
    if not 0.5 < confidence < 1.0:
        raise TaskError(f"the confidence is {confidence}; it must be between 0.5 and 1")
    return 1 - (1 - confidence) / max(1, looks)


def _logs(values: Sequence[float]) -> list[float]:
    for value in values:
        if not (math.isfinite(value) and value > 0):
            raise SampleError(f"a launch measured {value}: only finite numbers above zero can be compared")
    return [math.log(value) for value in values]


def _geometric(logs: Sequence[float]) -> float:
    return math.exp(math.fsum(logs) / len(logs))


def variance(values: Sequence[float]) -> float:
    """With n - 1 in the denominator. Raises ZeroDivisionError for fewer than two values."""
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)


def _one_sample(logs: Sequence[float], confidence: float) -> _Interval:
    count = len(logs)
    mean = math.fsum(logs) / count
    if count < LEAST_PAIRS:
        return _Interval(mean, None, None, None)
    spread = math.sqrt(variance(logs))
    half_width = t_quantile(confidence, count - 1) * spread / math.sqrt(count)
    return _Interval(mean, mean - half_width, mean + half_width, spread)


def _welch(old: Sequence[float], new: Sequence[float], confidence: float) -> _Interval:
    """The difference of two means with unlike variances, by the degrees of freedom of Welch and Satterthwaite."""
    mean = math.fsum(new) / len(new) - math.fsum(old) / len(old)
    if min(len(old), len(new)) < LEAST_PAIRS:
        return _Interval(mean, None, None, None)
    spread = math.sqrt(variance(old) + variance(new))
    parts = variance(old) / len(old), variance(new) / len(new)
    half_width = 0.0
    if sum(parts) > 0:
        squares = parts[0] ** 2 / (len(old) - 1) + parts[1] ** 2 / (len(new) - 1)
        # Variances so small that their squares vanish: the fewest degrees of freedom that there can be.
        freedom = sum(parts) ** 2 / squares if squares > 0 else min(len(old), len(new)) - 1
        half_width = t_quantile(confidence, freedom) * math.sqrt(sum(parts))
    return _Interval(mean, mean - half_width, mean + half_width, spread)


def _exp(value: float) -> float:
    """exp, at most the largest float: JSON has no infinity."""
    return math.exp(min(value, 700.0))


def t_quantile(probability: float, degrees_of_freedom: float) -> float:
    """Quantile of Student's t distribution (`scipy.special`, far quicker to import than `scipy.stats`)."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees_of_freedom, probability))


def planned_looks(minimum_pairs: int, maximum_pairs: int) -> tuple[int, ...]:
    """The numbers of pairs after which the verdict is looked at: 3, 6, 8 for 3 to 8; 3, 6, 12, 24 for 3 to 24.

    Few looks, each with twice the pairs of the one before: a look after every pair would cost more in confidence
    than it can save in pairs.
    """
    if not LEAST_PAIRS <= minimum_pairs <= maximum_pairs:
        raise TaskError(
            f"{minimum_pairs} to {maximum_pairs} pairs cannot be planned: "
            f"at least {LEAST_PAIRS} are needed, and the maximum cannot be below the minimum"
        )
    looks = [minimum_pairs]
    while looks[-1] < maximum_pairs:
        following = looks[-1] * LOOK_GROWTH
        # A look shortly before the last one would only cost confidence.
        looks.append(maximum_pairs if following * NEARLY_ALL >= maximum_pairs else following)
    return tuple(looks)


def percentile(values: Sequence[float], percent: float) -> float:
    """Percentile, interpolated linearly between order statistics, as numpy's default. Raises ValueError."""
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    position = (len(ordered) - 1) * percent / 100
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def median(values: Sequence[float]) -> float:
    """Raises ValueError for no values."""
    return percentile(values, 50)
