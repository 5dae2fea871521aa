"""crossgrade's gates on SGLang's own servers, 0.5.9 of CUDA 12.8 and 0.5.23 of CUDA 13, on a machine without a GPU.

The environments are those of `test_serving_stacks` and only read; the model is random and made on the spot. What is
measured here is how the gates deal with a real server, not how fast SGLang is.
"""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from tests.oracle.test_serving_stacks import SERVING
from tests.support.gate_host import activate, run_gate
from tests.support.module_host import ModuleHost
from tests.support.native import have_gcc
from tests.support.sglang_on_processor import Stack, add_generation_of, prepare, start_once

from crossgrade.bench.server_process import launch
from crossgrade.modules import benchmark, server

pytestmark = [
    pytest.mark.slow,
    pytest.mark.alone,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not have_gcc(), reason="gcc makes the stand-in for the driver"),
]

OLD, NEW = SERVING
REQUEST = {
    "path": "/v1/completions",
    "body": {"model": "m", "prompt": "after again air", "max_tokens": 8},
    "timeout": 120,
}


@pytest.fixture(scope="module")
def stacks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Stack]:
    """Both, started once: bytecode and what they compile are there, as in an installed generation."""
    made = {name: prepare(name, tmp_path_factory.mktemp(name)) for name in SERVING}
    for name, stack in made.items():
        print(f"{name}: first start {start_once(stack):.0f} s")  # noqa: T201
    return made


@pytest.fixture
def host(tmp_path: Path) -> ModuleHost:
    return ModuleHost(tmp_path)


def arguments(stack: Stack, command: tuple[str, ...] = (), **environment: str) -> server.Arguments:
    return server.Arguments(
        path=stack.venv,
        command=stack.command + command,
        environment={**stack.environment, **environment},
        health=("/health_generate",),
        start_timeout=600,
        stop_grace=30,
        request=REQUEST,
    )


@pytest.mark.parametrize("name", SERVING)
def test_it_starts_answers_and_writes_nothing(stacks: dict[str, Stack], name: str, host: ModuleHost) -> None:
    """`run_gate` asserts that the verdict holds afterwards: no file of the environment has changed."""
    outcome = run_gate(server.MODULE, arguments(stacks[name]), host)
    print(f"{name}: {outcome.message}")  # noqa: T201
    assert not outcome.failed, outcome.message
    assert outcome.values["figures"]["status"] == 200
    assert "/v1/completions answered status 200" in outcome.message


@pytest.mark.parametrize("name", SERVING)
def test_a_failed_child_is_told_by_its_own_words(stacks: dict[str, Stack], name: str, host: ModuleHost) -> None:
    """Without its switch for processors SGLang's scheduler wants vLLM, dies, and SGLang kills itself."""
    outcome = run_gate(server.MODULE, arguments(stacks[name], SGLANG_USE_CPU_ENGINE="0"), host)
    assert outcome.failed
    assert "ended while starting (killed by SIGKILL" in outcome.message
    assert outcome.message.endswith("ModuleNotFoundError: No module named 'vllm'")


def test_an_option_that_the_new_one_does_not_know(stacks: dict[str, Stack], host: ModuleHost) -> None:
    outcome = run_gate(server.MODULE, arguments(stacks[NEW], ("--no-such-option",)), host)
    assert outcome.failed
    assert "unrecognized arguments: --no-such-option" in outcome.message


def test_both_give_the_same_greedy_answer(stacks: dict[str, Stack], tmp_path: Path) -> None:
    answers = []
    for stack in stacks.values():
        with launch(stack.spec(), tmp_path / f"{stack.name}.log") as running:
            body = json.dumps({**REQUEST["body"], "max_tokens": 24, "temperature": 0})  # type: ignore[dict-item]
            asked = urllib.request.Request(
                f"{running.base_url}/v1/completions", body.encode(), {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(asked, timeout=120) as answer:
                answers.append(json.load(answer)["choices"][0]["text"])
    assert len(answers[0].split()) == 24
    assert answers[0] == answers[1]


def benchmarked(host: ModuleHost, stacks: dict[str, Stack], old: str, new: str, **extra: Any) -> Any:
    """Generation 2 from `new` against generation 1 from `old`; prints what the run would tell."""
    add_generation_of(host.store, 1, stacks[old])
    add_generation_of(host.store, 2, stacks[new])
    for number, settings in ((1, ""), (2, extra.pop("of_new", ""))):
        (host.store.venv(number) / "launch.yaml").write_text("served-model-name: m\n" + settings)
    activate(host.store, 1)
    command = [*stacks[old].command, "--config", "{venv}/launch.yaml"]
    launched = {"command": command, "health": "/health_generate", "start_timeout": 600, "stop_grace": 30}
    asked = {"requests": 48, "warmup_requests": 12, "concurrency": 4, "max_tokens": 48, "minimum_pairs": 3, **extra}
    outcome = run_gate(benchmark.MODULE, benchmark.Arguments(server=launched, generation=2, **asked), host)
    print("\n".join([*(line for line in host.messages if "ratio" in line), outcome.message]))  # noqa: T201
    return outcome


def test_the_same_twice_is_no_loss(stacks: dict[str, Stack], host: ModuleHost) -> None:
    outcome = benchmarked(host, stacks, OLD, OLD, allowed_loss=0.5, maximum_pairs=6)
    assert not outcome.failed, outcome.message
    assert outcome.values["figures"]["metrics"]["output_tokens_per_second"]["lower_bound_ratio"] > 0.5


def test_one_request_at_a_time_is_a_loss(stacks: dict[str, Stack], host: ModuleHost) -> None:
    """The candidate takes one request at a time where the old one takes four: SGLang's own slow setting."""
    outcome = benchmarked(host, stacks, OLD, OLD, allowed_loss=0.2, maximum_pairs=6, of_new="max-running-requests: 1\n")
    assert outcome.failed
    assert outcome.values["verdict"] == "failed"
    assert "inconclusive" not in outcome.message


def test_from_one_release_to_the_other(stacks: dict[str, Stack], host: ModuleHost) -> None:
    """No claim on which is faster here: each launch was measured, and the verdict follows from the figures."""
    outcome = benchmarked(host, stacks, OLD, NEW, allowed_loss=0.3, maximum_pairs=4)
    figures = outcome.values["figures"]
    header, *pairs = [json.loads(line) for line in Path(figures["samples"]).read_text().splitlines()]
    assert header["sides"]["old"]["generation"] == 1
    assert [pair["first"] for pair in pairs[:3]] == ["old", "new", "old"]
    for pair in pairs:
        for side in ("old", "new"):
            samples = pair[side]["result"]["samples"]
            assert len(samples) == 48
            assert {(each["output_tokens"], each["counted_by"], each["error"]) for each in samples} == {
                (48, "usage", None)
            }
    judged = figures["metrics"]["output_tokens_per_second"]
    assert (outcome.values["verdict"] == "passed") == (judged["lower_bound_ratio"] >= 0.7)
