"""The benchmark gate with real launches of a small server of exact speed: it waits instead of computing.

What is to pass is as fast, what is to fail takes four times as long, and the limit lies between: a machine that
stands still now and then changes no verdict, and where it widens the bounds there are more pairs to come.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.gate_host import activate, add_generation, run_gate, tree
from tests.support.module_host import ModuleHost, plan_module

from crossgrade.errors import TaskError
from crossgrade.modules import benchmark
from crossgrade.modules.contract import Change, Unchanged
from crossgrade.store.layout import Store

pytestmark = pytest.mark.usefixtures("store")

SERVER = {"command": ["{python}", "-m", "small_server", "{port}"], "start_timeout": 30}
QUICK: dict[str, Any] = {
    "requests": 4,
    "warmup_requests": 1,
    "max_tokens": 20,
    "minimum_pairs": 3,
    "maximum_pairs": 20,
    "allowed_loss": 0.5,
}


def arguments(number: int, **others: Any) -> benchmark.Arguments:
    return benchmark.Arguments(**{"server": SERVER, "generation": number, **QUICK, **others})


@pytest.fixture
def host(tmp_path: Path) -> ModuleHost:
    return ModuleHost(tmp_path)


@pytest.fixture
def store(host: ModuleHost) -> Store:
    """Three generations, the third at a quarter of the speed; the first is active."""
    for number, seconds in {1: "0.005", 2: "0.005", 3: "0.020"}.items():
        add_generation(host.store, number, environment={"SMALL_TOKEN_SECONDS": seconds})
    activate(host.store, 1)
    return host.store


def test_as_fast_passes_and_stays_on_record(store: Store, host: ModuleHost) -> None:
    planned = plan_module(benchmark.MODULE, arguments(2), host)
    assert isinstance(planned, Change)
    assert planned.summary == (
        "benchmark generation 2: against generation 1, 3 to 20 pairs of launches; "
        "what it can tell is not known: no launches on record"
    )
    before = tree(store.venv(1)), tree(store.venv(2))
    outcome = run_gate(benchmark.MODULE, arguments(2), host)
    assert not outcome.failed, outcome.message
    assert (tree(store.venv(1)), tree(store.venv(2))) == before
    figures = outcome.values["figures"]
    assert figures["baseline"] == 1
    assert figures["metrics"]["output_tokens_per_second"]["mean_ratio"] == pytest.approx(1, abs=0.5)
    # every sample is kept, and every pair was told
    header, *pairs = [json.loads(line) for line in Path(figures["samples"]).read_text().splitlines()]
    old = header["sides"]["old"]
    assert (old["generation"], old["manifest"]) == (1, "manifest-1")
    assert len(pairs) == figures["pairs"]
    assert [pair["first"] for pair in pairs[:3]] == ["old", "new", "old"]
    assert len(pairs[0]["new"]["result"]["samples"]) == 4
    assert "pair 1 of at most 20: measuring the old server" in host.messages
    told = [line for line in host.messages if "ratio" in line]
    assert len(told) == len(pairs)
    assert told[-1].startswith(f"pair {len(pairs)} of at most 20: old ")
    assert "bounds" in told[-1]
    # activated: there is nothing left to compare it with, and the verdict stands
    activate(store, 2)
    assert isinstance(plan_module(benchmark.MODULE, arguments(2), host), Unchanged)
    # rolled back to the same baseline: it stands as well
    activate(store, 1)
    assert isinstance(plan_module(benchmark.MODULE, arguments(2), host), Unchanged)
    # against something else it says nothing
    activate(store, 3)
    planned = plan_module(benchmark.MODULE, arguments(2), host)
    assert isinstance(planned, Change)
    assert "against generation 3" in planned.summary
    assert isinstance(plan_module(benchmark.MODULE, arguments(2, baseline=1), host), Unchanged)


def test_slower_fails_with_the_numbers(host: ModuleHost) -> None:
    outcome = run_gate(benchmark.MODULE, arguments(3), host)
    assert outcome.failed
    assert outcome.values["verdict"] == "failed"
    assert outcome.message.startswith("output ")
    assert "tokens/s (ratio 0." in outcome.message
    assert "`crossgrade bisect --from 1 --to 3 --metric output_tokens_per_second` finds" in outcome.message
    assert "allowed loss 50%" in outcome.message
    planned = plan_module(benchmark.MODULE, arguments(3), host)
    assert isinstance(planned, Change)
    assert "benchmark generation 3 again (failed on 20" in planned.summary


@pytest.mark.parametrize(("number", "failed"), [(2, False), (3, True)])
def test_side_by_side(host: ModuleHost, number: int, failed: bool) -> None:
    outcome = run_gate(benchmark.MODULE, arguments(number, side_by_side=True), host)
    assert outcome.failed is failed, outcome.message
    assert "tokens/s (ratio" in outcome.message
    file = Path(str(outcome.values["figures"]["samples"]))
    pairs = [json.loads(line) for line in file.read_text().splitlines()][1:]
    for side in ("old", "new"):
        requests = pairs[0][side]["result"]["samples"]
        assert [request["index"] for request in requests] == list(range(arguments(2).requests))
    assert [pair["first"] for pair in pairs[:2]] == ["old", "new"]


def test_other_metrics(host: ModuleHost) -> None:
    outcome = run_gate(benchmark.MODULE, arguments(3, metrics={"end_to_end_median": 0.5, "ttft_p90": 0.9}), host)
    assert outcome.failed
    assert "end-to-end latency (median)" in outcome.message
    assert set(outcome.values["figures"]["metrics"]) == {"end_to_end_median", "ttft_p90"}


def test_nothing_to_compare_with(store: Store, host: ModuleHost) -> None:
    activate(store, 2)
    outcome = run_gate(benchmark.MODULE, arguments(2), host)
    assert outcome.failed
    assert outcome.values["verdict"] == "not run"
    assert "generation 2 is itself the active one" in outcome.message
    outcome = run_gate(benchmark.MODULE, arguments(2, baseline=2, on_not_run="warn"), host)
    assert not outcome.failed
    assert "cannot be compared with itself" in outcome.message
    # as soon as there is something to compare with, the question is open again
    activate(store, 1)
    assert isinstance(plan_module(benchmark.MODULE, arguments(2, on_not_run="warn"), host), Change)
    link = store.active_link
    assert link is not None
    link.unlink()
    planned = plan_module(benchmark.MODULE, arguments(3), host)
    assert planned.summary.startswith("benchmark generation 3: it will not run, no generation is active yet")
    outcome = run_gate(benchmark.MODULE, arguments(3), host)
    assert outcome.failed
    assert "no generation is active yet" in outcome.message


def test_servers_that_do_not_start(store: Store, host: ModuleHost) -> None:
    add_generation(store, 4, environment={"SMALL_START": "fail"})
    outcome = run_gate(benchmark.MODULE, arguments(4), host)
    assert outcome.failed
    assert outcome.values["verdict"] == "failed"
    assert outcome.message.startswith("pair 1: the new server: the server ended while starting")
    assert outcome.message.endswith("libcudart.so.13: cannot open shared object file")
    outcome = run_gate(benchmark.MODULE, arguments(2, baseline=4), host)
    assert outcome.failed
    assert outcome.values["verdict"] == "not run", "a broken baseline says nothing about the candidate"
    assert "the old server" in outcome.message


def test_failed_requests_fail_the_gate(store: Store, host: ModuleHost) -> None:
    add_generation(store, 4, environment={"SMALL_FAIL_REQUESTS": "1"})
    outcome = run_gate(benchmark.MODULE, arguments(4), host)
    assert outcome.failed
    assert outcome.message.startswith("the new server made its launch void 2 times: failed requests: ")
    assert outcome.message.endswith(" http_status")


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ({"server": {**SERVER, "healt": "/health"}}, ("benchmark: server", "healt", "health")),
        ({"server": {"command": ["{python}"]}}, ("does not say where {port} goes",)),
        ({"minimum_pairs": 1}, ("1 to 20 pairs cannot be planned",)),
        ({"metrics": {"speed": 0.1}}, ("there is no metric speed", "output_tokens_per_second")),
        ({"allowed_loss": 1.5}, ("allowed loss",)),
        ({"concurrency": 0}, ("concurrency is 0",)),
        ({"baseline": 9}, ("there is no generation 9",)),
    ],
)
def test_arguments_are_checked_when_planning(host: ModuleHost, others: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(TaskError) as caught:
        plan_module(benchmark.MODULE, arguments(2, **others), host)
    for word in words:
        assert word in str(caught.value)


def test_without_a_driver_a_server_for_gpus_is_not_measured(
    store: Store, host: ModuleHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crossgrade.inspect.machine.driver_version", lambda *_: None)
    asked = arguments(2, server={**SERVER, "needs_gpu": True}, on_not_run="warn")
    planned = plan_module(benchmark.MODULE, asked, host)
    assert isinstance(planned, Change)
    assert planned.summary == "benchmark generation 2: it will not run, no NVIDIA driver on this machine"
    outcome = run_gate(benchmark.MODULE, asked, host)
    assert outcome.message == "not run: no NVIDIA driver on this machine"
    assert not outcome.failed
    # activated by that policy, it stays as it was judged
    activate(store, 2)
    assert isinstance(plan_module(benchmark.MODULE, asked, host), Unchanged)
    assert run_gate(benchmark.MODULE, arguments(3, server={**SERVER, "needs_gpu": True}), host).failed
