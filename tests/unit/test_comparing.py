"""Comparing launches on record: pairs as pairs, others as groups, and only like with like."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path

import pytest
from scipy import stats
from tests.support.launches import MACHINE, PROFILE, ready_generation, write_samples

from crossgrade.bench.comparing import UnlikeError, compare_launches
from crossgrade.bench.history import read_history, stored_launches
from crossgrade.bench.samples import LoadProfile
from crossgrade.store.layout import Store

SPEED = "output_tokens_per_second"
HIGHER = {SPEED: True}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(tmp_path / "store")
    made.create()
    for number in (1, 2, 3):
        ready_generation(made, number)
    return made


def test_what_was_paired_is_compared_as_pairs(store: Store) -> None:
    # the machine gets slower from pair to pair: groups would tell nothing, pairs do
    pairs = [{"old": 100.0 / n, "new": 99.0 / n} for n in range(1, 6)]
    write_samples(store, "run-a", {"old": 1, "new": 2}, pairs)
    (found,) = compare_launches(stored_launches(store, 1), stored_launches(store, 2), HIGHER)
    assert found.paired
    assert found.launches == (5, 5)
    assert found.results[SPEED].mean_ratio == pytest.approx(0.99)
    assert found.results[SPEED].outcome == "passed"
    assert found.notes == ()
    (back,) = compare_launches(stored_launches(store, 2), stored_launches(store, 1), HIGHER)
    assert back.results[SPEED].mean_ratio == pytest.approx(1 / 0.99)


def test_launches_of_different_runs_are_two_groups(store: Store) -> None:
    chance = random.Random(3)  # noqa: S311 - a simulation
    for run, new in (("run-a", 2), ("run-b", 3)):
        pairs = [{"old": chance.gauss(100, 1), "new": chance.gauss(80 if new == 3 else 100, 3)} for _ in range(5)]
        write_samples(store, run, {"old": 1, "new": new}, pairs, at=1e6 if new == 2 else 2e6)
    (found,) = compare_launches(stored_launches(store, 2), stored_launches(store, 3), HIGHER)
    result = found.results[SPEED]
    assert not found.paired
    assert result.outcome == "failed"
    logs = [[math.log(one.metrics[SPEED]) for one in stored_launches(store, number)] for number in (3, 2)]
    interval = stats.ttest_ind(*logs, equal_var=False).confidence_interval(0.90)  # two-sided 90%: one-sided 95% each
    assert result.lower_bound_ratio == pytest.approx(math.exp(interval.low))
    assert result.upper_bound_ratio == pytest.approx(math.exp(interval.high))


@pytest.mark.parametrize(
    ("profile", "machine", "words"),
    [
        (replace(PROFILE, concurrency=64), MACHINE, "the loads differ"),
        (PROFILE, {**MACHINE, "processors": 64}, "the machines differ"),
        (replace(PROFILE, max_tokens=7), {**MACHINE, "machine": "n"}, "the loads differ and the machines differ"),
    ],
)
def test_unlike_things_are_refused_unless_forced(
    store: Store, profile: LoadProfile, machine: dict[str, object], words: str
) -> None:
    write_samples(store, "run-a", {"old": 1}, [{"old": 100.0}, {"old": 101.0}, {"old": 99.0}])
    write_samples(
        store, "run-b", {"new": 2}, [{"new": 90.0}, {"new": 91.0}, {"new": 89.0}], profile=profile, machine=machine
    )
    sides = stored_launches(store, 1), stored_launches(store, 2)
    with pytest.raises(UnlikeError, match=words):
        compare_launches(*sides, HIGHER)
    (found,) = compare_launches(*sides, HIGHER, forced=True)
    assert found.notes[0] == f"{words}: compared all the same"
    assert found.results[SPEED].mean_ratio == pytest.approx(0.9, abs=0.01)


def test_several_loads_are_compared_each_by_itself(store: Store) -> None:
    wide = replace(PROFILE, concurrency=8)
    for run, profile, factor in (("run-a", PROFILE, 1.0), ("run-b", wide, 4.0)):
        pairs = [{"old": 100 * factor, "new": 95 * factor}, {"old": 101 * factor, "new": 96 * factor}]
        write_samples(store, run, {"old": 1, "new": 2}, pairs, profile=profile)
    write_samples(store, "run-c", {"old": 1}, [{"old": 1.0}], profile=replace(PROFILE, seed=5))
    found = compare_launches(stored_launches(store, 1), stored_launches(store, 2), HIGHER)
    assert [one.asked["concurrency"] for one in found] == [2, 8]
    assert [round(one.results[SPEED].old) for one in found] == [100, 402]


def test_what_else_differs_is_said(store: Store) -> None:
    one = [{"old": 100.0}, {"old": 101.0}]
    write_samples(store, "run-a", {"old": 1}, one, machine={**MACHINE, "driver": "570"})
    write_samples(store, "run-b", {"old": 2}, one, machine={**MACHINE, "driver": "595", "kernel": "7"}, starts="other")
    (found,) = compare_launches(stored_launches(store, 1), stored_launches(store, 2), HIGHER)
    assert found.notes == (
        "the servers were started by different launch lines",
        "the driver was 570, then 595",
        "the kernel was 6, then 7",
    )


def test_nothing_on_record(store: Store) -> None:
    with pytest.raises(UnlikeError, match="no launch that counts"):
        compare_launches(read_history(store).launches, [], HIGHER)
