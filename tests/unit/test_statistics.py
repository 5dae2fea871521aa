"""The verdict's statistics: against SciPy's own intervals, and by simulation."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossgrade.bench.statistics import (
    Decision,
    NonInferiority,
    SampleError,
    median,
    non_inferiority,
    percentile,
    planned_looks,
)
from crossgrade.errors import TaskError

FIGURES = st.floats(min_value=1e-3, max_value=1e6)
QUICK = settings(deadline=None)  # the first example imports scipy
PAIRS = st.lists(st.tuples(FIGURES, FIGURES), min_size=3, max_size=12)


def judge(ratios: Sequence[float], allowed_loss: float = 0.1, **options: int) -> NonInferiority:
    return non_inferiority(
        [(800.0, 800.0 * ratio) for ratio in ratios],
        allowed_loss=allowed_loss,
        higher_is_better=True,
        **options,
    )


@pytest.mark.parametrize(
    ("ratios", "outcome"),
    [
        ([1.0, 1.01, 0.99], "passed"),
        ([0.8, 0.81, 0.79], "failed"),
        ([0.9, 0.91, 0.89], "inconclusive"),
        ([1.0, 1.3, 0.7], "inconclusive"),
        ([1.0, 1.0], "inconclusive"),  # too few
        ([1.0], "inconclusive"),
        ([1.0, 1.0, 1.0], "passed"),  # no spread at all
        ([1.5, 1.52, 1.48], "passed"),
    ],
)
def test_outcomes(ratios: list[float], outcome: str) -> None:
    assert judge(ratios).outcome == outcome


@QUICK
@given(PAIRS)
def test_bounds_are_those_of_scipy(pairs: list[tuple[float, float]]) -> None:
    from scipy import stats

    result = non_inferiority(pairs, allowed_loss=0.05, higher_is_better=True)
    logs = [math.log(new / old) for old, new in pairs]
    # A two-sided 90% interval is made of two one-sided 95% bounds.
    standard_error = stats.sem(logs)
    assert result.lower_bound_ratio is not None
    assert result.upper_bound_ratio is not None
    assert result.mean_ratio == pytest.approx(math.exp(sum(logs) / len(logs)))
    assert result.mean_ratio == pytest.approx(result.new / result.old)
    if standard_error > 1e-9 and max(map(abs, logs)) < 20:
        low, high = stats.t.interval(0.90, len(logs) - 1, loc=sum(logs) / len(logs), scale=standard_error)
        assert result.lower_bound_ratio == pytest.approx(math.exp(low), rel=1e-6)
        assert result.upper_bound_ratio == pytest.approx(math.exp(min(high, 700.0)), rel=1e-6)


@QUICK
@given(PAIRS, st.floats(min_value=0.0, max_value=0.5))
def test_a_latency_is_judged_as_the_speed_that_is_its_reciprocal(
    pairs: list[tuple[float, float]], allowed_loss: float
) -> None:
    times = [(1 / old, 1 / new) for old, new in pairs]
    speed = non_inferiority(pairs, allowed_loss=allowed_loss, higher_is_better=True)
    latency = non_inferiority(times, allowed_loss=allowed_loss, higher_is_better=False)
    assert speed.mean_ratio == pytest.approx(1 / latency.mean_ratio)
    margin = 1 - allowed_loss
    assert speed.lower_bound_ratio is not None
    assert speed.upper_bound_ratio is not None
    if all(abs(bound - margin) > 1e-9 for bound in (speed.lower_bound_ratio, speed.upper_bound_ratio)):
        assert speed.outcome == latency.outcome


@QUICK
@given(PAIRS)
def test_the_result_is_json(pairs: list[tuple[float, float]]) -> None:
    result = non_inferiority(pairs, allowed_loss=0.05, higher_is_better=True)
    assert json.loads(json.dumps(result.to_json(), allow_nan=False))["pairs"] == len(pairs)


def test_more_looks_need_more_evidence() -> None:
    ratios = [0.95, 0.975, 0.925]
    once, thrice = judge(ratios), judge(ratios, looks=3)
    assert (once.outcome, thrice.outcome) == ("passed", "inconclusive")
    assert once.look_confidence == pytest.approx(0.95)
    assert thrice.look_confidence == pytest.approx(1 - 0.05 / 3)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_figures_that_cannot_be_compared(bad: float) -> None:
    for pair in ((bad, 1.0), (1.0, bad)):
        with pytest.raises(SampleError, match="finite numbers above zero"):
            non_inferiority([(1.0, 1.0), pair, (1.0, 1.0)], allowed_loss=0.05, higher_is_better=True)


@pytest.mark.parametrize("loss", [-0.1, 1.0, math.nan])
def test_an_allowed_loss_that_makes_no_sense(loss: float) -> None:
    with pytest.raises(TaskError, match="allowed loss"):
        judge([1.0, 1.0, 1.0], allowed_loss=loss)


def test_no_pair_is_no_evidence() -> None:
    with pytest.raises(TaskError, match="no pair"):
        judge([])


@pytest.mark.parametrize(
    ("pairs", "looks"),
    [
        ((3, 8), (3, 6, 8)),
        ((3, 3), (3,)),
        ((3, 4), (3, 4)),
        ((3, 6), (3, 6)),
        ((3, 10), (3, 6, 10)),
        ((3, 24), (3, 6, 12, 24)),
        ((3, 20), (3, 6, 12, 20)),
        ((2, 2), (2,)),
    ],
)
def test_planned_looks(pairs: tuple[int, int], looks: tuple[int, ...]) -> None:
    assert planned_looks(*pairs) == looks


@given(st.integers(2, 40), st.integers(0, 60))
def test_planned_looks_rise_from_the_minimum_to_the_maximum(minimum: int, more: int) -> None:
    looks = planned_looks(minimum, minimum + more)
    assert (looks[0], looks[-1]) == (minimum, minimum + more)
    assert list(looks) == sorted(set(looks))


@pytest.mark.parametrize("pairs", [(1, 3), (0, 0), (5, 4)])
def test_looks_that_cannot_be_planned(pairs: tuple[int, int]) -> None:
    with pytest.raises(TaskError, match="cannot be planned"):
        planned_looks(*pairs)


def simulate(
    true_ratio: float, spread: float, runs: int, seed: int, allowed_loss: float, maximum_pairs: int = 8
) -> dict[Decision, float]:
    """How often each outcome is reached, looking as planned."""
    random_numbers = random.Random(seed)  # noqa: S311 - a repeatable simulation
    looks = planned_looks(3, maximum_pairs)
    counts: dict[Decision, int] = {"passed": 0, "failed": 0, "inconclusive": 0}
    for _ in range(runs):
        ratios = [math.exp(random_numbers.gauss(math.log(true_ratio), spread)) for _ in range(looks[-1])]
        for look in looks:
            outcome = judge(ratios[:look], allowed_loss, looks=len(looks)).outcome
            if outcome != "inconclusive":
                break
        counts[outcome] += 1
    return {outcome: count / runs for outcome, count in counts.items()}


@pytest.mark.parametrize(("spread", "maximum_pairs"), [(0.005, 8), (0.03, 3), (0.03, 8), (0.03, 24), (0.1, 8)])
def test_at_most_5_percent_pass_whose_loss_is_exactly_the_allowed_one(spread: float, maximum_pairs: int) -> None:
    runs = 10_000
    shares = simulate(0.95, spread, runs, 20261201, allowed_loss=0.05, maximum_pairs=maximum_pairs)
    three_standard_errors = 3 * math.sqrt(0.05 * 0.95 / runs)
    assert shares["passed"] <= 0.05 + three_standard_errors
    assert shares["failed"] <= 0.05 + three_standard_errors  # nor is it called a failure more often
    assert shares["passed"] > 0.02  # nor is the correction so strict that nothing could pass


def test_power() -> None:
    """The figures that the module's text states."""
    assert simulate(1.0, 0.02, 1000, seed=1, allowed_loss=0.05)["passed"] > 0.99
    assert 0.94 < simulate(1.0, 0.03, 1000, seed=2, allowed_loss=0.05)["passed"] < 0.995
    assert 0.78 < simulate(1.0, 0.04, 1000, seed=3, allowed_loss=0.05)["passed"] < 0.89
    assert simulate(1.0, 0.04, 1000, seed=5, allowed_loss=0.05, maximum_pairs=24)["passed"] > 0.99
    # The rehearsal's `slow`: a fifth of the speed is lost where a tenth is allowed.
    assert simulate(0.8, 0.03, 1000, seed=4, allowed_loss=0.1)["failed"] > 0.99


@QUICK
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), st.floats(0, 100))
def test_percentiles_are_numpys(values: list[float], percent: float) -> None:
    import numpy

    assert percentile(values, percent) == pytest.approx(float(numpy.percentile(values, percent)), abs=1e-6)
    assert median(values) == pytest.approx(float(numpy.median(values)), abs=1e-6)


def test_no_values_have_no_percentile() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)
