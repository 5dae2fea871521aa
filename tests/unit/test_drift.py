"""Drift between runs: a server that got slower is flagged, stable noise rarely."""

from __future__ import annotations

import math
import random

import pytest

from crossgrade.bench.drift import Drift, alike, drift_of, spread_within
from crossgrade.bench.history import StoredLaunch

SPEED, FIRST = "output_tokens_per_second", "ttft_median"


def launch(run: int, number: int, speed: float, **others: object) -> StoredLaunch:
    values: dict[str, object] = {
        "run": f"run-{run}", "samples": f"runs/run-{run}/benchmark.jsonl", "end": number, "pair": number, "side": "old",
        "generation": 1, "manifest": "m", "profile": "p", "starts": "s", "host": "h",
        "started_at": 1000.0 * run + number, "metrics": {SPEED: speed, FIRST: 10 / speed}, **others,
    }  # fmt: skip
    return StoredLaunch(**values)  # type: ignore[arg-type]


def runs_of(*runs: list[float]) -> list[StoredLaunch]:
    return [launch(run, number, speed) for run, speeds in enumerate(runs) for number, speed in enumerate(speeds)]


def simulated(chance: random.Random, runs: int, launches: int, within: float, between: float) -> list[StoredLaunch]:
    made = []
    for _ in range(runs):
        of_run = chance.gauss(0, between)
        made.append([100 * math.exp(of_run + chance.gauss(0, within)) for _ in range(launches)])
    return runs_of(*made)


def test_a_slower_run_is_flagged_and_does_not_become_the_measure() -> None:
    found = drift_of(runs_of([100, 101, 99, 100], [101, 99, 100], [85, 86, 84], [86, 85, 85]), {SPEED: True})
    assert [one.flagged for one in found] == [False, True, True]
    assert found[1].ratio == pytest.approx(0.85, abs=0.01)
    assert found[1].earlier_runs == found[2].earlier_runs == 2
    assert found[1].bound is not None
    assert 0.01 < found[1].bound < 0.1


def test_faster_is_no_drift_and_for_times_more_is_worse() -> None:
    assert not any(one.flagged for one in drift_of(runs_of([100, 101, 99, 100], [150, 151, 149]), {SPEED: True}))
    slower = drift_of(runs_of([100, 101, 99, 100], [80, 81, 79]), {FIRST: False})
    assert slower[0].flagged
    assert slower[0].ratio == pytest.approx(1.25, abs=0.01)


def test_too_little_is_not_judged() -> None:
    (found,) = drift_of(runs_of([100.0], [50.0]), {SPEED: True})
    assert found == Drift("run-1", SPEED, 1, 1, found.ratio, None, False)
    assert found.ratio == pytest.approx(0.5)
    assert drift_of(runs_of([100.0, 100.0]), {SPEED: True}) == []


def test_less_than_a_hundredth_is_nothing() -> None:
    found = drift_of(runs_of([100.0] * 5, [99.5] * 5), {SPEED: True})
    assert [one.flagged for one in found] == [False]
    assert found[0].bound == pytest.approx(0.01, abs=1e-4)


def test_a_slow_change_within_a_run_is_no_spread() -> None:
    steady = [math.log(100 + number) for number in range(10)]
    spread, differences = spread_within([steady])
    assert differences == 9
    assert spread < 0.008


def test_only_what_is_alike_is_compared() -> None:
    launches = [launch(0, 1, 1.0), launch(0, 2, 1.0, profile="q"), launch(0, 3, 1.0, host="other")]
    assert {key[1:]: len(found) for key, found in alike(launches).items()} == {
        ("p", "s", "h"): 1, ("q", "s", "h"): 1, ("p", "s", "other"): 1,
    }  # fmt: skip
    broken = launch(1, 4, 1.0, void="throttled")
    assert drift_of([*runs_of([100, 101, 99, 100]), broken], {SPEED: True}) == []


@pytest.mark.parametrize(
    ("within", "between", "launches", "most"),
    [
        (0.02, 0.0, 3, 0.010),
        (0.02, 0.01, 4, 0.012),
        (0.02, 0.02, 3, 0.015),
        (0.02, 0.02, 8, 0.015),
        (0.005, 0.005, 6, 0.015),
        (0.02, 0.04, 8, 0.07),
    ],
)
def test_stable_noise_is_rarely_flagged(within: float, between: float, launches: int, most: float) -> None:
    chance = random.Random(7)  # noqa: S311 - a simulation
    judged = flagged = 0
    for _ in range(500):
        for one in drift_of(simulated(chance, 6, launches, within, between), {SPEED: True}):
            judged += one.bound is not None
            flagged += one.flagged
    assert judged > 2000
    assert flagged / judged <= most


def test_a_loss_beyond_the_noise_is_seen() -> None:
    chance = random.Random(8)  # noqa: S311 - a simulation
    seen = 0
    for _ in range(200):
        stable = simulated(chance, 4, 4, 0.01, 0.005)
        slow = [launch(9, number, 92 * math.exp(chance.gauss(0, 0.01))) for number in range(4)]
        seen += drift_of([*stable, *slow], {SPEED: True})[-1].flagged
    assert seen >= 190
