"""The benchmark gate with several loads, limits, void launches, and the launches of another day: real launches.

The speeds and limits lie as far apart as in test_benchmark_module, for a machine that stands still now and then.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.support.gate_host import activate, add_generation, run_gate
from tests.support.module_host import ModuleHost, plan_module

from crossgrade.errors import TaskError
from crossgrade.modules import benchmark
from crossgrade.modules.contract import Change
from crossgrade.store.layout import Store

SERVER = {"command": ["{python}", "-m", "small_server", "{port}"], "start_timeout": 30}
QUICK: dict[str, Any] = {
    "requests": 4, "warmup_requests": 1, "max_tokens": 20, "minimum_pairs": 3, "maximum_pairs": 20, "allowed_loss": 0.5,
}  # fmt: skip
LOADS: tuple[dict[str, Any], ...] = (
    {"name": "alone", "concurrency": 1, "max_tokens": 10},
    {"name": "four", "concurrency": 4, "requests": 8, "max_tokens": 10},
)


def arguments(number: int, **others: Any) -> benchmark.Arguments:
    return benchmark.Arguments(**{"server": SERVER, "generation": number, **QUICK, **others})


@pytest.fixture
def host(tmp_path: Path) -> ModuleHost:
    return ModuleHost(tmp_path)


@pytest.fixture
def store(host: ModuleHost) -> Store:
    """The second as fast as the first, which is active; the third a quarter as fast. A stream makes 200 tokens/s."""
    for number, seconds in {1: "0.005", 2: "0.005", 3: "0.020"}.items():
        add_generation(host.store, number, environment={"SMALL_TOKEN_SECONDS": seconds})
    activate(host.store, 1)
    return host.store


def test_each_load_is_judged_by_itself_in_one_launch(store: Store, host: ModuleHost) -> None:
    outcome = run_gate(benchmark.MODULE, arguments(2, profiles=LOADS), host)
    assert not outcome.failed, outcome.message
    for name in ("alone", "four"):
        assert name in json.dumps(outcome.values["figures"])
    lines = [json.loads(line) for line in Path(outcome.values["figures"]["samples"]).read_text().splitlines()]
    starts = [message for message in host.messages if "measuring the" in message]
    pairs = [line for line in lines if "first" in line]
    assert len(starts) == 2 * len(pairs), "one launch of each server measures all loads"

    # one load that loses too much is enough: this one does so with four streams only
    add_generation(store, 4, environment={"SMALL_TOKEN_SECONDS": "0.005", "SMALL_SLOW_FROM": "3"})
    outcome = run_gate(benchmark.MODULE, arguments(4, profiles=LOADS), host)
    assert outcome.failed
    assert outcome.message.startswith("four: output ")
    by_profile = outcome.values["figures"]["profiles"]
    assert by_profile["alone"]["metrics"]["output_tokens_per_second"]["outcome"] != "failed"
    strict = ({**LOADS[0], "allowed_loss": 0.9}, LOADS[1])
    outcome = run_gate(benchmark.MODULE, arguments(3, profiles=strict), host)
    assert outcome.failed
    assert "four" in outcome.message


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(("floor", "verdict"), [(20.0, "passed"), (1000.0, "failed")])
def test_a_floor_needs_no_old_server(host: ModuleHost, floor: float, verdict: str) -> None:
    asked = arguments(2, baseline="none", concurrency=1, floors={"output_tokens_per_second": floor})
    outcome = run_gate(benchmark.MODULE, asked, host)
    assert outcome.values["verdict"] == verdict, outcome.message
    assert not [message for message in host.messages if "old server" in message]


@pytest.mark.usefixtures("store")
def test_a_floor_counts_beside_the_old_server(host: ModuleHost) -> None:
    outcome = run_gate(benchmark.MODULE, arguments(2, concurrency=1, floors={"output_tokens_per_second": 1000.0}), host)
    assert outcome.failed
    assert "1000" in outcome.message.replace(",", "")


@pytest.mark.usefixtures("store")
def test_what_is_wrongly_asked_for_is_told_in_the_plan(host: ModuleHost) -> None:
    with pytest.raises(TaskError, match="no metric"):
        plan_module(benchmark.MODULE, arguments(2, floors={"speed": 1.0}), host)
    for floors, profiles, words in (
        ({"ttft_median": 0.1}, (), "ttft_median is a time, which has no floor"),
        ({}, ("many",), "is a mapping"),
        ({}, ({"floors": {"speed": 1}},), "no metric speed"),
    ):
        with pytest.raises(TaskError, match=words):
            plan_module(benchmark.MODULE, arguments(2, floors=floors, profiles=profiles), host)
    with pytest.raises(TaskError, match="no metric to judge"):
        plan_module(benchmark.MODULE, arguments(2, baseline="none"), host)
    with pytest.raises(TaskError, match="concurency"):
        plan_module(benchmark.MODULE, arguments(2, profiles=({"name": "x", "concurency": 1},)), host)


@pytest.mark.usefixtures("store")
def test_the_plan_says_what_the_spread_of_this_host_lets_it_tell(host: ModuleHost) -> None:
    assert not run_gate(benchmark.MODULE, arguments(2), host).failed
    planned = plan_module(benchmark.MODULE, arguments(3), host)
    assert isinstance(planned, Change)
    assert "not known" not in planned.summary
    assert "in 9 of 10 cases" in planned.summary


def test_launches_that_fail_by_the_candidate_are_void_then_a_failure(store: Store, host: ModuleHost) -> None:
    add_generation(store, 4, environment={"SMALL_FAIL_REQUESTS": "1"})
    outcome = run_gate(benchmark.MODULE, arguments(4), host)
    assert outcome.failed
    assert "void 2 times" in outcome.message
    assert [message for message in host.messages if "void" in message]


def test_a_failing_baseline_says_nothing_about_the_candidate(store: Store, host: ModuleHost) -> None:
    add_generation(store, 4, environment={"SMALL_FAIL_REQUESTS": "1"})
    outcome = run_gate(benchmark.MODULE, arguments(2, baseline=4, maximum_void=1), host)
    assert outcome.failed
    assert outcome.values["verdict"] == "not run"
    assert outcome.message.startswith("not run: 2 void launches, the last because of the old server: failed requests: ")


@pytest.mark.usefixtures("store")
def test_stored_launches_stand_for_the_old_server(host: ModuleHost) -> None:
    asked = arguments(3, baseline="stored")
    planned = plan_module(benchmark.MODULE, asked, host)
    assert "generation 1 has no launches on record under this load" in planned.summary
    assert run_gate(benchmark.MODULE, arguments(2), host).failed is False
    planned = plan_module(benchmark.MODULE, asked, host)
    assert re.search(r"against \d+ stored launches of generation 1 \(20", planned.summary)
    assert "launches it can tell a loss of" in planned.summary
    host.messages.clear()
    outcome = run_gate(benchmark.MODULE, asked, host)
    assert outcome.failed
    assert outcome.values["verdict"] == "failed"
    assert "which is weaker than pairs" in outcome.message
    assert not any("old server" in line for line in host.messages), "it is not started"
    # a load of its own has no launches on record, nor has a server that is started in another way
    for other in ({"concurrency": 1}, {"server": {**SERVER, "environment": {"A": "b"}}}):
        assert (
            "has no launches on record"
            in plan_module(benchmark.MODULE, arguments(3, baseline="stored", **other), host).summary
        )
