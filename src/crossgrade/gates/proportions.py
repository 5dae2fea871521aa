"""Shares of right answers, and whether a new share is lower than an old one by less than a margin. Pure.

* `wilson`: the score interval of one share (E. B. Wilson, JASA 22, 1927, 209-212).
* `paired_loss`: old and new answered the same questions, so that only the questions count which one of them got right
  alone. The score test of T. Tango (Statistics in Medicine 17, 1998, 891-908) says how far a result lies from a
  hypothetical loss; its normal approximation lets too much pass where few answers differ (with 32 questions and no
  loss seen it rules out 7.8%, though a loss as large as that shows nothing in 7.4% of cases). So the test is made
  exact and unconditional: of all rates at which answers may differ, the one that makes a wrong pass most likely is
  taken (C.-f. Hsueh, J.-p. Liu, J. J. Chen, Biometrics 57, 2001, 478-483). The bounds are those losses that this test
  cannot rule out.
* `independent_loss`: a tool told only how many were right. The hybrid score interval of R. G. Newcombe (Statistics in
  Medicine 17, 1998, 873-890, method 10), which is wider than need be for the same questions: they go up and down
  together.

A loss is `old - new` as a share of all questions. Bounds are one-sided, each at `confidence`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from crossgrade.errors import TaskError
from crossgrade.jsontype import JSON

if TYPE_CHECKING:
    from numpy.typing import NDArray

Decision = Literal["passed", "failed", "inconclusive"]

RATES_TRIED = 96  # rates of differing answers between the least and the largest that a loss allows
BISECTIONS = 18  # of a bound: to 4e-6


@dataclass(frozen=True)
class Loss:
    """What answers of old and new to the same questions say. Shares are from 0 to 1.

    `only_old` and `only_new` are questions that one of them alone got right; None where only totals are known.
    `lower` and `upper` bound the loss from below and above, one-sided, each at `confidence`.
    """

    outcome: Decision
    asked: int
    old: float
    new: float
    only_old: int | None
    only_new: int | None
    lower: float
    upper: float
    allowed: float
    confidence: float

    @property
    def loss(self) -> float:
        return self.old - self.new

    def to_json(self) -> dict[str, JSON]:
        return {
            "outcome": self.outcome,
            "asked": self.asked,
            "old": self.old,
            "new": self.new,
            "only_old": self.only_old,
            "only_new": self.only_new,
            "lower": self.lower,
            "upper": self.upper,
            "allowed": self.allowed,
            "confidence": self.confidence,
        }


def wilson(right: int, asked: int, confidence: float = 0.95) -> tuple[float, float]:
    """The two-sided score interval of a share. Raises ValueError for numbers that are no share."""
    if not 0 <= right <= asked or asked == 0:
        raise ValueError(f"{right} of {asked} is no share")
    return _wilson(right, asked, _quantile(0.5 + confidence / 2))


def paired_loss(pairs: Sequence[tuple[bool, bool]], allowed: float, confidence: float = 0.95) -> Loss:
    """Judge (old right, new right) of each question: is the loss less than `allowed`?

    `passed`: a loss as large as that is ruled out; `failed`: the loss is larger; `inconclusive`: neither. Raises
    TaskError for a margin that is none, and for no question.
    """
    _check(len(pairs), allowed, confidence)
    only_old = sum(old and not new for old, new in pairs)
    only_new = sum(new and not old for old, new in pairs)
    count = len(pairs)
    upper = _upper(only_old, only_new, count, confidence)
    lower = -_upper(only_new, only_old, count, confidence)  # the loss of old against new, turned round
    return Loss(
        outcome=_outcome(lower, upper, allowed),
        asked=count,
        old=sum(old for old, _ in pairs) / count,
        new=sum(new for _, new in pairs) / count,
        only_old=only_old,
        only_new=only_new,
        lower=lower,
        upper=upper,
        allowed=allowed,
        confidence=confidence,
    )


def independent_loss(old: tuple[int, int], new: tuple[int, int], allowed: float, confidence: float = 0.95) -> Loss:
    """Judge (right, asked) of old and new. Raises TaskError as `paired_loss` does, ValueError for what is no share."""
    _check(min(old[1], new[1]), allowed, confidence)
    for right, asked in (old, new):
        if not 0 <= right <= asked:
            raise ValueError(f"{right} of {asked} is no share")
    quantile = _quantile(confidence)
    share_old, share_new = old[0] / old[1], new[0] / new[1]
    (low_old, high_old), (low_new, high_new) = _wilson(*old, quantile), _wilson(*new, quantile)
    loss = share_old - share_new
    upper = loss + math.hypot(high_old - share_old, share_new - low_new)
    lower = loss - math.hypot(share_old - low_old, high_new - share_new)
    outcome = _outcome(lower, upper, allowed)
    return Loss(outcome, min(old[1], new[1]), share_old, share_new, None, None, lower, upper, allowed, confidence)


def questions_needed(allowed: float, confidence: float = 0.95) -> int:
    """The least number of questions that can rule out a loss as large as `allowed`, if every answer is right again."""
    if not 0.0 < allowed < 1.0:
        raise TaskError(f"the margin is {allowed}; it must be between 0 and 1")
    return math.ceil(math.log(1 - confidence) / math.log1p(-allowed))


def more_than_by_chance(only_old: int, only_new: int) -> float:
    """How likely it is that so many of the differing ones are the new one's alone: one-sided exact test (McNemar)."""
    from scipy.special import bdtrc

    differing = only_old + only_new
    return 1.0 if only_new == 0 else float(bdtrc(only_new - 1, differing, 0.5))


def _check(count: int, allowed: float, confidence: float) -> None:
    if count < 1:
        raise TaskError("there is no question to judge")
    if not 0.0 < allowed < 1.0:
        raise TaskError(f"the margin is {allowed}; it must be between 0 and 1")
    if not 0.5 < confidence < 1.0:
        raise TaskError(f"the confidence is {confidence}; it must be between 0.5 and 1")


def _outcome(lower: float, upper: float, allowed: float) -> Decision:
    if upper < allowed:
        return "passed"
    return "failed" if lower > allowed else "inconclusive"


def _quantile(probability: float) -> float:
    from scipy.special import ndtri

    return float(ndtri(probability))


def _wilson(right: int, asked: int, quantile: float) -> tuple[float, float]:
    share, square = right / asked, quantile * quantile
    centre = (share + square / (2 * asked)) / (1 + square / asked)
    half = quantile / (1 + square / asked) * math.sqrt(share * (1 - share) / asked + square / (4 * asked * asked))
    low = 0.0 if right == 0 else max(0.0, centre - half)
    return low, 1.0 if right == asked else min(1.0, centre + half)


@cache
def _upper(worse: int, better: int, count: int, confidence: float) -> float:
    """The least loss that is ruled out when `worse` questions were lost and `better` won."""
    low, high = (worse - better) / count, 1.0
    if low >= 1.0:
        return 1.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if middle < 1.0 and _chance_of_no_more(worse, better, count, middle) <= 1 - confidence:
            high = middle
        else:
            low = middle
    return high


def _chance_of_no_more(worse: int, better: int, count: int, loss: float) -> float:
    """The largest chance, over all rates of differing answers, of a result that speaks as little for this loss.

    The result is (questions lost, questions won), trinomial with rates `rate` and `rate - loss`. For each number of
    lost ones, the won ones from some number on belong to it.
    """
    import numpy
    from scipy.special import bdtr, bdtrc

    seen = _distance(numpy.array([worse]), numpy.array([better]), count, loss)[0]
    lost = numpy.arange(count + 1)
    low, high = numpy.zeros(count + 1, dtype=int), count - lost + 1  # the least number won lies between them
    while (open_ := low < high).any():
        middle = (low + high) // 2
        enough = _distance(lost, middle, count, loss) <= seen + 1e-9
        high = numpy.where(open_ & enough, middle, high)
        low = numpy.where(open_ & ~enough, middle + 1, low)
    least, largest = max(loss, 0.0), (1 + loss) / 2
    # closer together near the least, where all differing answers are lost ones
    rates = least + (largest - least) * numpy.linspace(0, 1, RATES_TRIED)[:, None] ** 2
    rates = numpy.clip(rates, 1e-12, 1 - 1e-12)
    won = numpy.clip((rates - loss) / (1 - rates), 0.0, 1.0)
    # binomial: exactly so many lost, and of the rest at least so many won
    at_most = bdtr(lost, count, rates)
    exactly = numpy.diff(at_most, prepend=0.0, axis=1)
    rest = numpy.maximum(count - lost, 1)
    some = bdtrc(numpy.clip(low - 1, 0, rest), rest, won)
    chance = numpy.where(low <= 0, 1.0, numpy.where(low > count - lost, 0.0, some))
    return float((exactly * chance).sum(axis=1).max())


def _distance(lost: NDArray[Any], won: NDArray[Any], count: int, loss: float) -> NDArray[Any]:
    """Tango's score: how many standard deviations the observed loss lies above the hypothetical one.

    The rate of lost ones is the likeliest under the hypothesis.
    """
    import numpy

    linear = lost + won - loss * (2 * count + won - lost)
    root = numpy.sqrt(numpy.maximum(linear**2 + 8 * count * won * loss * (1 - loss), 0.0))
    won_rate = numpy.maximum((linear + root) / (4 * count), max(0.0, -loss))
    variance = count * (2 * won_rate + loss - loss * loss)
    score: NDArray[Any] = (lost - won - count * loss) / numpy.sqrt(numpy.maximum(variance, 1e-12))
    return score
