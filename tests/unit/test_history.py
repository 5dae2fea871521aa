"""The launches of a store: read from samples of the form that benchmarks write, and kept in an index."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.launches import MACHINE, PROFILE, launch, ready_generation, write_samples

from crossgrade.bench.history import (
    INDEX,
    host_digest,
    profile_digest,
    read_history,
    stored_launches,
    this_machine,
    update_index,
)
from crossgrade.store.layout import Store

SPEED = "output_tokens_per_second"
PAIRS = [{"old": 100.0, "new": 90.0}, {"old": 101.0, "new": 91.0}]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(tmp_path / "store")
    made.create()
    for number in (1, 2):
        ready_generation(made, number)
    return made


def test_every_launch_is_found_with_what_it_depends_on(store: Store) -> None:
    write_samples(store, "run-a", {"old": 1, "new": 2}, PAIRS)
    history = read_history(store)
    assert not history.problems
    assert [(one.side, one.pair, one.metrics[SPEED]) for one in history.launches] == [
        ("old", 1, 100.0), ("new", 1, 90.0), ("old", 2, 101.0), ("new", 2, 91.0),
    ]  # fmt: skip
    first = history.launches[0]
    assert (first.run, first.generation, first.manifest) == ("run-a", 1, "manifest-1")
    assert first.profile == profile_digest(PROFILE)
    assert first.host == host_digest(MACHINE)
    assert first.samples == "runs/run-a/benchmark.jsonl"
    assert history.launches[0].pair_key == history.launches[1].pair_key
    assert [one.metrics[SPEED] for one in stored_launches(store, 2, PROFILE)] == [90.0, 91.0]
    assert [one.metrics[SPEED] for one in stored_launches(store, 1)] == [100.0, 101.0]
    assert stored_launches(store, 1, host="another") == []
    assert stored_launches(store, 7) == []


def test_the_name_and_the_patience_of_a_profile_are_no_part_of_it() -> None:
    assert profile_digest(replace(PROFILE, name="eight", timeout=5.0, error_limit=1)) == profile_digest(PROFILE)
    assert profile_digest(replace(PROFILE, concurrency=3)) != profile_digest(PROFILE)


def test_the_driver_and_the_kernel_are_no_part_of_a_machine() -> None:
    assert host_digest({**MACHINE, "driver": "595.1", "kernel": "7", "hostname": "renamed"}) == host_digest(MACHINE)
    assert host_digest({**MACHINE, "gpus": [{"name": "B", "uuid": "1"}]}) != host_digest(MACHINE)
    assert host_digest({}) == ""
    here = this_machine()
    assert here["processors"] > 0
    assert host_digest(here) == host_digest(this_machine())
    assert Path("/etc/machine-id").read_text().strip() not in json.dumps(here)


def test_what_another_generation_of_the_same_number_did_is_not_its_own(store: Store) -> None:
    write_samples(store, "run-a", {"old": 1, "new": 2}, PAIRS, manifests={"new": "of a generation that gc took"})
    assert stored_launches(store, 2) == []
    assert len(read_history(store).launches) == 4


def test_the_index_holds_what_was_measured_when_the_samples_are_gone(store: Store) -> None:
    path = write_samples(store, "run-a", {"old": 1, "new": 2}, PAIRS[:1])
    before = read_history(store).launches
    assert not (store.root / INDEX).exists(), "reading writes nothing"
    assert update_index(store) == 2
    assert update_index(store) == 0
    assert read_history(store).launches == before
    with path.open("a") as file:  # the run goes on
        file.write(json.dumps({"number": 2, "old": launch("old", {SPEED: 5.0}, 2e6)}) + "\n")
    assert [one.metrics[SPEED] for one in stored_launches(store, 1)] == [100.0, 5.0]
    assert update_index(store) == 1
    shutil.rmtree(store.run_folder("run-a"))
    assert [one.metrics[SPEED] for one in read_history(store).launches] == [100.0, 90.0, 5.0]


def test_damage_is_said_and_the_rest_is_read(store: Store) -> None:
    path = write_samples(store, "run-a", {"old": 1, "new": 2}, PAIRS)
    update_index(store)
    index = store.root / INDEX
    index.write_text(index.read_text().replace('"schema"', "schema", 1) + '{"torn": ')
    path.write_text(path.read_text() + '{"number": 3, "ol')
    (store.run_folder("run-b")).mkdir()
    (store.run_folder("run-b") / "benchmark.jsonl").write_text("no header\n")
    history = read_history(store)
    assert len(history.launches) == 3
    said = "\n".join(history.problems)
    assert "2 of 5 rows of" in said
    assert "its last line is cut off" in said
    assert "run-b/benchmark.jsonl is unreadable: its header" in said
    # what is added after a torn row is whole
    write_samples(store, "run-c", {"old": 1, "new": 2}, PAIRS[:1])
    assert update_index(store) == 2
    assert len(read_history(store).launches) == 5
    path.write_text("{}\n")
    assert "run-a/benchmark.jsonl is shorter than it was" in "\n".join(read_history(store).problems)
    assert len(read_history(store).launches) == 5


def test_void_and_failed_launches_are_on_record_and_do_not_count(store: Store) -> None:
    path = write_samples(store, "run-a", {"old": 1, "new": 2}, PAIRS[:1])
    void = {"void": 2, "causes": [{"side": "new", "kind": "throttled", "detail": "clocks held down"}]}
    with path.open("a") as file:
        row = {**void, "launches": [launch("new", {SPEED: 50.0}, 2e6)]}
        file.write(json.dumps(row) + "\n")
        failed = launch("new", {SPEED: 60.0}, 3e6, errors={"timeout": 2})
        file.write(json.dumps({"number": 2, "new": failed}) + "\n")
    kept = [(one.void, one.errors, one.counts) for one in read_history(store).launches if one.side == "new"]
    assert kept == [("", 0, True), ("clocks held down", 0, False), ("", 2, False)]
    assert [one.metrics[SPEED] for one in stored_launches(store, 2)] == [90.0]
    assert update_index(store) == 4
    assert len(read_history(store).launches) == 4


def test_a_launch_under_several_profiles_is_one_for_each(store: Store) -> None:
    path = write_samples(store, "run-a", {"old": 1, "new": 2}, [])
    wide = replace(PROFILE, concurrency=8, name="eight")
    further = launch("new", {SPEED: 400.0}, 1e6, profile=wide)["result"]
    with path.open("a") as file:
        row = {"number": 1, "new": launch("new", {SPEED: 90.0}, 1e6, further_results=[further])}
        file.write(json.dumps(row) + "\n")
    assert [one.metrics[SPEED] for one in stored_launches(store, 2, wide)] == [400.0]
    assert [one.metrics[SPEED] for one in stored_launches(store, 2, PROFILE)] == [90.0]
