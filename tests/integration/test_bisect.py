"""Bisects with real generations and real launches of a server that sleeps: what slows it down must be found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.bisecting import Bisected, PartDist, bisected, name_of
from tests.support.commands import snapshot

from crossgrade.bench.delta_debugging import most_tests

pytestmark = pytest.mark.slow


def parts(count: int, **others: PartDist) -> dict[str, PartDist]:
    return {name_of(number): PartDist() for number in range(count)} | {
        name.replace("_", "-"): part for name, part in others.items()
    }


def rejected(made: Bisected) -> None:
    """The upgrade to the new versions, which its benchmark fails."""
    answer = made.run("upgrade", "--yes")
    assert answer.code == 2, answer.stdout + answer.stderr
    assert made.store.active() == 2
    assert made.store.generation(3).state == "rejected"


def test_one_slow_dist_among_thirty(tmp_path: Path) -> None:
    with bisected(tmp_path, parts(30), parts(30, part_17=PartDist(factor=1.25))) as made:
        rejected(made)
        before = snapshot(made.store.venv(2)), snapshot(made.store.venv(3))
        dry = json.loads(made.bisect("--dry-run").stdout)
        assert len(dry["groups"]) == 30
        assert dry["tests_for_one_cause"] == 6
        assert made.store.numbers() == [1, 2, 3], "a dry run builds nothing"
        result = made.result()
        assert result["outcome"] == "found"
        assert result["changes"] == ["part-17 1 -> 2"]
        assert not result["unseparated"]
        # log2 of 30, rounded up, and one to see that what is left fails by itself
        assert result["builds"] <= most_tests(30) == 6
        assert (snapshot(made.store.venv(2)), snapshot(made.store.venv(3))) == before
        assert made.store.active() == 2
        built = [made.store.generation(number) for number in made.store.numbers() if number > 3]
        assert len(built) == result["builds"]
        assert {(one.state, one.contents["trial"]) for one in built} == {("rejected", "bisect 2..3")}
        # the same question again: everything is on record
        again = made.result()
        assert (again["changes"], again["builds"]) == (result["changes"], 0)
        # what was built for it goes with gc, and the answers stay
        assert made.run("gc").code == 0
        assert made.store.numbers() == [1, 2]
