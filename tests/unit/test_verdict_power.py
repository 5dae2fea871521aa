"""Stored launches, limits and power, by simulation with fixed seeds: false passes, and power as computed."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from crossgrade.bench.power import Test as PlannedTest
from crossgrade.bench.power import launches_needed, pooled_spread, power_to_pass, smallest_loss
from crossgrade.bench.statistics import (
    AgainstLimit,
    Decision,
    NonInferiority,
    against_limit,
    non_inferiority,
    unpaired_non_inferiority,
)
from crossgrade.errors import TaskError

QUICK_RUNS = 2000
SLOW_RUNS = 40_000
ALLOWED = 0.05
Judge = Callable[[random.Random, float, float], Decision]


def launches(luck: random.Random, ratio: float, spread: float, count: int) -> list[float]:
    """Figures of launches of a server that does 90 times `ratio`."""
    return [90 * ratio * math.exp(luck.gauss(0, spread)) for _ in range(count)]


def pairs_judged(luck: random.Random, ratio: float, spread: float) -> Decision:
    old, new = launches(luck, 1, spread, 6), launches(luck, ratio, spread, 6)
    return non_inferiority(list(zip(old, new, strict=True)), allowed_loss=ALLOWED, higher_is_better=True).outcome


def stored_judged(luck: random.Random, ratio: float, spread: float) -> Decision:
    # the old ones differ three times as much: Welch's test leaves room for that
    old, new = launches(luck, 1, 3 * spread, 5), launches(luck, ratio, spread, 8)
    return unpaired_non_inferiority(old, new, allowed_loss=ALLOWED, higher_is_better=True).outcome


def limit_judged(luck: random.Random, ratio: float, spread: float) -> Decision:
    new = launches(luck, ratio, spread, 5)
    return against_limit(new, limit=90 * (1 - ALLOWED), higher_is_better=True).outcome


def share(judge: Judge, outcome: Decision, ratio: float, spread: float, runs: int) -> float:
    luck = random.Random(20261202)  # noqa: S311 - a repeatable simulation
    return sum(judge(luck, ratio, spread) == outcome for _ in range(runs)) / runs


def check_false_passes(judge: Judge, runs: int, room: float) -> None:
    three_standard_errors = 3 * math.sqrt(0.05 * 0.95 / runs)
    for outcome in ("passed", "failed"):
        wrong = share(judge, outcome, 1 - ALLOWED, 0.02, runs)
        assert wrong <= 0.05 + room + three_standard_errors, outcome
        assert wrong >= 0.05 - 0.02 - three_standard_errors, f"{outcome}: so strict that it decides nothing"


# Welch's degrees of freedom are an approximation: some tenths of a percent.
JUDGES = [(pairs_judged, 0.0), (stored_judged, 0.006), (limit_judged, 0.0)]


@pytest.mark.parametrize(("judge", "room"), JUDGES)
def test_a_loss_of_exactly_the_allowed_one_passes_in_5_percent(judge: Judge, room: float) -> None:
    check_false_passes(judge, QUICK_RUNS, room)


@pytest.mark.slow
@pytest.mark.parametrize(("judge", "room"), JUDGES)
def test_the_same_with_many_runs(judge: Judge, room: float) -> None:
    check_false_passes(judge, SLOW_RUNS, room)


def test_several_targets_need_no_correction() -> None:
    """One of four metrics has exactly the allowed loss, the others have none: it passes in at most 5% of cases."""
    luck = random.Random(20261202)  # noqa: S311 - a repeatable simulation

    def all_pass(ratios: tuple[float, ...]) -> bool:
        return all(pairs_judged(luck, ratio, 0.01) == "passed" for ratio in ratios)

    runs = 1000
    wrong = sum(all_pass((1.0, 1.0, 1.0, 1 - ALLOWED)) for _ in range(runs)) / runs
    assert wrong <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs)
    assert wrong > 0.02
    # all four at the limit: far rarer still
    assert sum(all_pass((1 - ALLOWED,) * 4) for _ in range(runs)) <= 3


@pytest.mark.parametrize(
    ("judge", "test"),
    [(pairs_judged, PlannedTest("pairs", 6, 0.95)), (limit_judged, PlannedTest("alone", 5, 0.95))],
)
@pytest.mark.parametrize("spread", [0.015, 0.03])
def test_power_is_as_computed(judge: Judge, test: PlannedTest, spread: float) -> None:
    computed = power_to_pass(test, spread, ALLOWED)
    assert 0.3 < computed < 1.0
    found = share(judge, "passed", 1.0, spread, QUICK_RUNS)
    assert found == pytest.approx(computed, abs=0.01 + 3 * math.sqrt(0.25 / QUICK_RUNS))


def test_power_against_stored_launches_is_as_computed() -> None:
    def judge(luck: random.Random, ratio: float, spread: float) -> Decision:
        old, new = launches(luck, 1, spread, 5), launches(luck, ratio, spread, 6)
        return unpaired_non_inferiority(old, new, allowed_loss=ALLOWED, higher_is_better=True).outcome

    computed = power_to_pass(PlannedTest("stored", 6, 0.95, 5), 0.03, ALLOWED)
    found = share(judge, "passed", 1.0, 0.03, QUICK_RUNS)
    assert found == pytest.approx(computed, abs=0.03 + 3 * math.sqrt(0.25 / QUICK_RUNS))


@pytest.mark.parametrize("layout", ["pairs", "stored", "alone"])
def test_the_smallest_loss_is_told_in_9_of_10_cases(layout: str) -> None:
    test = PlannedTest(layout, 8, 0.98, 6)  # type: ignore[arg-type]  # one of three words
    smallest = smallest_loss(test, 0.01)
    assert 0.005 < smallest < 0.04
    assert power_to_pass(test, 0.01, smallest) == pytest.approx(0.9, abs=1e-3)
    assert smallest_loss(test, 0.02) > smallest


def test_how_many_are_needed() -> None:
    test = PlannedTest("pairs", 3, 0.95)
    needed = launches_needed(test, 0.02, 0.02)
    assert needed is not None
    assert power_to_pass(PlannedTest("pairs", needed, 0.95), 0.02, 0.02) >= 0.9
    assert power_to_pass(PlannedTest("pairs", needed - 1, 0.95), 0.02, 0.02) < 0.9
    assert launches_needed(test, 0.5, 0.01) is None


def test_the_spread_is_within_runs() -> None:
    """A machine that is slower on another day has no greater spread."""
    one, other = [90.0, 91.0, 92.0], [45.0, 45.5, 46.0]
    spread = pooled_spread([one, other, [10.0]])
    assert spread is not None
    assert spread.sd_log == pytest.approx(0.011, abs=0.001)
    assert (spread.launches, spread.runs, spread.freedom) == (6, 2, 4)
    assert pooled_spread([[1.0], []]) is None


def test_stored_launches_by_scipys_welch() -> None:
    from scipy import stats

    old, new = [88.1, 90.3, 91.0, 89.2], [87.0, 88.5, 88.9, 86.2, 87.7]
    result = unpaired_non_inferiority(old, new, allowed_loss=0.05, higher_is_better=True)
    found = stats.ttest_ind([math.log(one) for one in new], [math.log(one) for one in old], equal_var=False)
    low, high = found.confidence_interval(0.90)
    assert result.lower_bound_ratio == pytest.approx(math.exp(low))
    assert result.upper_bound_ratio == pytest.approx(math.exp(high))
    assert (result.design, result.pairs, result.old_launches) == ("stored", 5, 4)


def floor(values: list[float], limit: float = 89.5, higher_is_better: bool = True) -> AgainstLimit:
    return against_limit(values, limit=limit, higher_is_better=higher_is_better)


@pytest.mark.parametrize(
    ("values", "outcome"),
    [
        ([91.0, 91.2, 90.9], "passed"),
        ([87.0, 87.1, 86.9], "failed"),
        ([89.0, 90.0, 89.6], "inconclusive"),
        ([91.0, 91.2], "inconclusive"),  # too few
        ([91.0], "inconclusive"),
    ],
)
def test_89_and_a_half_is_told_from_87(values: list[float], outcome: str) -> None:
    assert floor(values).outcome == outcome
    # the reciprocal is a time with a ceiling
    assert floor([1 / one for one in values], 1 / 89.5, higher_is_better=False).outcome == outcome


def test_too_few_launches_decide_nothing() -> None:
    def judge(old: list[float], new: list[float]) -> NonInferiority:
        return unpaired_non_inferiority(old, new, allowed_loss=0.05, higher_is_better=True)

    assert judge([90.0], [90.0, 90.1, 90.2]).outcome == "inconclusive"
    assert judge([90.0, 90.1], [90.0, 90.1]).outcome == "inconclusive"
    assert judge([90.0, 90.1], [90.0, 90.1, 90.0]).outcome == "passed"
    for old, new, words in (([], [1.0], "no stored launch"), ([1.0], [], "no launch to judge")):
        with pytest.raises(TaskError, match=words):
            judge(old, new)
    with pytest.raises(TaskError, match="above zero"):
        floor([1.0, 2.0], 0.0)
