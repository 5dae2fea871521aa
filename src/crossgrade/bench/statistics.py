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
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from crossgrade.errors import TaskError
from crossgrade.jsontype import JSON

Decision = Literal["passed", "failed", "inconclusive"]

LEAST_PAIRS = 2  # with fewer there is no spread
LOOK_GROWTH = 2  # each planned look has this many times the pairs of the one before
NEARLY_ALL = 1.25  # a look this close to the last one becomes the last one


class SampleError(TaskError, ValueError):
    """A figure that cannot be compared: not a finite number above zero."""


@dataclass(frozen=True)
class NonInferiority:
    """What the pairs say. Ratios are new to old, as measured: above 1 is more, also where less is better.

    `lower_bound_ratio` and `upper_bound_ratio` are one-sided bounds, each at `look_confidence`; they are None
    with fewer than two pairs. `sd_log_ratio` is the standard deviation of the log-ratios between pairs (0.02:
    about 2%). `old` and `new` are geometric means, in the figure's own unit.
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

    def to_json(self) -> dict[str, JSON]:
        return {
            "outcome": self.outcome,
            "pairs": self.pairs,
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
    if not 0.0 <= allowed_loss < 1.0:
        raise TaskError(f"the allowed loss is {allowed_loss}; it must be from 0 to less than 1")
    if not 0.5 < confidence < 1.0:
        raise TaskError(f"the confidence is {confidence}; it must be between 0.5 and 1")
    if not pairs:
        raise TaskError("there is no pair of launches to judge")
    for value in (value for pair in pairs for value in pair):
        if not (math.isfinite(value) and value > 0):
            raise SampleError(f"a launch measured {value}: only finite numbers above zero can be compared")
    count = len(pairs)
    logs = [math.log(new) - math.log(old) for old, new in pairs]
    mean = math.fsum(logs) / count
    look_confidence = 1 - (1 - confidence) / max(1, looks)
    lower = upper = spread = None
    outcome: Decision = "inconclusive"
    if count >= LEAST_PAIRS:
        spread = math.sqrt(math.fsum((value - mean) ** 2 for value in logs) / (count - 1))
        half_width = t_quantile(look_confidence, count - 1) * spread / math.sqrt(count)
        lower, upper = mean - half_width, mean + half_width
        margin = math.log1p(-allowed_loss)
        worst, best = (lower, upper) if higher_is_better else (-upper, -lower)
        if count >= minimum_pairs:
            if worst > margin:
                outcome = "passed"
            elif best < margin:
                outcome = "failed"
    return NonInferiority(
        outcome=outcome,
        pairs=count,
        old=math.exp(math.fsum(math.log(old) for old, _ in pairs) / count),
        new=math.exp(math.fsum(math.log(new) for _, new in pairs) / count),
        mean_ratio=math.exp(mean),
        lower_bound_ratio=None if lower is None else _exp(lower),
        upper_bound_ratio=None if upper is None else _exp(upper),
        sd_log_ratio=spread,
        allowed_loss=allowed_loss,
        higher_is_better=higher_is_better,
        confidence=confidence,
        look_confidence=look_confidence,
        looks=max(1, looks),
    )


def _exp(value: float) -> float:
    """exp, at most the largest float: JSON has no infinity."""
    return math.exp(min(value, 700.0))


def t_quantile(probability: float, degrees_of_freedom: int) -> float:
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
