"""`bench history` and `bench compare` as a user types them, on samples of the form that benchmarks write."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.commands import Answer, crossgrade, snapshot
from tests.support.launches import PROFILE, ready_generation, write_samples

from crossgrade.store.layout import Store


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Generation 1 measured in three runs, in the last of them slower; generations 2 and 3 beside it."""
    store = Store(tmp_path / "store")
    store.create()
    for number in (1, 2, 3):
        ready_generation(store, number)
    for day, (old, new) in enumerate([(100.0, 90.0), (100.5, 99.0), (80.0, 79.0)]):
        pairs = [{"old": old + wobble, "new": new + wobble} for wobble in (0.0, 0.5, -0.4, 0.3)]
        write_samples(store, f"run-{day}", {"old": 1, "new": 2 + day % 2}, pairs, at=1_700_000_000 + 86_400 * day)
    return tmp_path


def bench(root: Path, *arguments: str) -> Answer:
    return crossgrade("bench", *arguments, "--root", root)


def test_history_shows_runs_and_flags_drift(root: Path) -> None:
    before = snapshot(root)
    answer = bench(root, "history", "1")
    assert answer.code == 0, answer.stderr
    assert "generation 1 (manifest), concurrency 2, 8 requests of 96 tokens, on h (no GPU)" in answer.stdout
    assert "100.2 (99.6-100.5)" in answer.stdout
    flagged = [line.strip() for line in answer.stdout.splitlines() if "drift" in line]
    assert len(flagged) == 1
    assert flagged[0].startswith("drift: output_tokens/s is 0.79")
    assert "2 earlier runs" in flagged[0]
    assert snapshot(root) == before, "it only reads"
    data = json.loads(bench(root, "history", "--json").stdout)
    assert len(data["launches"]) == 24
    assert [one["run"] for one in data["drift"] if one["flagged"] and one["manifest"] == "manifest-1"] == ["run-2"]
    assert bench(root, "history", "9").code == 1
    assert "no launch of generation 9 is on record" in bench(root, "history", "9").stderr


def test_compare_generations_and_runs(root: Path) -> None:
    answer = bench(root, "compare", "1", "3")
    assert answer.code == 0, answer.stderr
    assert "concurrency 2, 8 requests of 96 tokens: 4 pairs" in answer.stdout
    assert "passed: output 100.6 → 99.1 tokens/s (ratio 0.985" in answer.stdout
    answer = bench(root, "compare", "run-0:old", "run-0", "--allowed-loss", "0.05")
    assert "failed: output 100.1 → 90.1 tokens/s" in answer.stdout
    apart = json.loads(bench(root, "compare", "run-0:old", "run-2:old", "--json").stdout)["compared"][0]
    assert not apart["paired"]
    assert apart["results"]["output_tokens_per_second"]["mean_ratio"] == pytest.approx(0.8, abs=0.01)


def test_unlike_things_are_refused(root: Path) -> None:
    store = Store(root / "store")
    ready_generation(store, 4)
    write_samples(store, "run-9", {"new": 4}, [{"new": 70.0}, {"new": 71.0}], profile=replace(PROFILE, concurrency=9))
    answer = bench(root, "compare", "2", "4")
    assert answer.code == 1
    assert "the loads differ" in answer.stderr
    assert "--force" in answer.stderr
    forced = bench(root, "compare", "2", "4", "--force")
    assert forced.code == 0, forced.stderr
    assert "the loads differ: compared all the same" in forced.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("compare", "1"), "needs two generations or runs"),
        (("compare", "1", "2", "--metric", "speed"), "there is no metric speed"),
        (("compare", "1", "2", "--allowed-loss", "2"), "--allowed-loss goes from 0"),
        (("history", "1", "2"), "about one generation"),
    ],
)
def test_wrong_options(root: Path, arguments: tuple[str, ...], words: str) -> None:
    answer = bench(root, *arguments)
    assert answer.code == 5
    assert words in answer.stderr


def test_a_number_that_several_generations_had(root: Path) -> None:
    store = Store(root / "store")
    for run, manifest in (("run-7", "first"), ("run-8", "second")):
        write_samples(store, run, {"new": 6}, [{"new": 50.0}], manifests={"new": manifest})
    answer = bench(root, "history", "6")
    assert answer.code == 1
    assert "several generations were called 6" in answer.stderr
    assert "run-7, run-8" in answer.stderr
