"""What is said of a benchmark beforehand, and its errors, against simulated launches."""

from __future__ import annotations

import numpy
import pytest

from crossgrade.bench import power
from crossgrade.bench.statistics import non_inferiority, planned_looks

LOOKS = planned_looks(3, 8)


def passes(loss: float, spread: float, allowed: float, runs: int, seed: int) -> float:
    """The share of simulated comparisons, look by look, that pass. `spread`: SD of the log of one launch."""
    random = numpy.random.default_rng(seed)
    passed = 0
    for _ in range(runs):
        old = numpy.exp(random.normal(0, spread, LOOKS[-1])) * 100
        new = numpy.exp(random.normal(0, spread, LOOKS[-1])) * 100 * (1 - loss)
        for look in LOOKS:
            values = [(float(one), float(other)) for one, other in zip(old[:look], new[:look], strict=True)]
            result = non_inferiority(
                values, allowed_loss=allowed, higher_is_better=True, confidence=0.95, looks=len(LOOKS)
            )
            if result.outcome != "inconclusive":
                passed += result.outcome == "passed"
                break
    return passed / runs


def test_a_loss_as_large_as_the_allowed_one_passes_seldom() -> None:
    share = passes(loss=0.05, spread=0.01, allowed=0.05, runs=1500, seed=7)
    assert share <= 0.05 + 3 * (0.05 * 0.95 / 1500) ** 0.5


@pytest.mark.parametrize("spread", [0.01, 0.02])
def test_the_stated_effect_is_told_in_nine_of_ten_cases(spread: float) -> None:
    planned = power.Test("pairs", LOOKS[-1], 1 - 0.05 / len(LOOKS))
    allowed = power.smallest_loss(planned, spread)
    share = passes(loss=0.0, spread=spread, allowed=allowed, runs=600, seed=11)
    assert share >= 0.9 - 3 * (0.9 * 0.1 / 600) ** 0.5, "with no loss it passes as often as stated, or more"
