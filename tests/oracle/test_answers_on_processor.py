"""The accuracy gate on SGLang's own servers, 0.5.9 of CUDA 12.8 and 0.5.23 of CUDA 13, on a machine without a GPU.

The environments are only read; the model is random and made on the spot, so that its answers mean nothing: what counts
is whether they are the same. They are given in float32 by one thread, where a GPU's are not the same to the last bit.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.oracle.test_serving_stacks import SERVING
from tests.support.gate_host import activate, run_gate
from tests.support.module_host import ModuleHost
from tests.support.native import have_gcc
from tests.support.sglang_on_processor import Stack, add_generation_of, prepare, start_once
from tests.support.tiny_model import write_tiny_model

from crossgrade.modules import accuracy
from crossgrade.modules.contract import Outcome

pytestmark = [
    pytest.mark.slow,
    pytest.mark.alone,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not have_gcc(), reason="gcc makes the stand-in for the driver"),
]

OLD, NEW = SERVING


@pytest.fixture(scope="module")
def stacks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Stack]:
    """Both, started once: bytecode and what they compile are there, as in an installed generation."""
    made = {name: prepare(name, tmp_path_factory.mktemp(name)) for name in SERVING}
    for name, stack in made.items():
        print(f"{name}: first start {start_once(stack):.0f} s")  # noqa: T201
    return made


@pytest.fixture
def host(tmp_path: Path, stacks: dict[str, Stack]) -> ModuleHost:
    """Generation 1 is the old stack and active, 2 the new one."""
    host = ModuleHost(tmp_path)
    add_generation_of(host.store, 1, stacks[OLD])
    add_generation_of(host.store, 2, stacks[NEW])
    activate(host.store, 1)
    return host


def words(host: ModuleHost) -> str:
    """Prompts of the words that the model's vocabulary has."""
    from crossgrade.bench.load import WORDS

    vocabulary = WORDS.split()
    lines = [" ".join(vocabulary[(7 * n + 3 * k) % len(vocabulary)] for k in range(4 + n % 9)) for n in range(32)]
    (host.playbook_directory / "prompts.txt").write_text("\n".join(lines))
    return "prompts.txt"


def judged(host: ModuleHost, stack: Stack, **others: Any) -> Outcome:
    asked: dict[str, Any] = {
        "server": {
            "command": list(stack.command),
            "health": "/health_generate",
            "start_timeout": 600,
            "stop_grace": 30,
        },
        "generation": 2,
        "prompts_file": Path(words(host)),
        "max_tokens": 32,
        "concurrencies": (1, 4),
        **others,
    }
    outcome = run_gate(accuracy.MODULE, accuracy.Arguments(**asked), host)
    criteria = outcome.values["figures"].get("criteria", {})
    figures = {name: {key: each.get(key) for key in ("own", "mean", "old", "new")} for name, each in criteria.items()}
    print(f"{outcome.values['verdict']}: {outcome.message}\n{json.dumps(figures, indent=1)}")  # noqa: T201
    return outcome


@pytest.mark.parametrize("endpoint", ["completions", "generate"])
def test_from_one_release_to_the_other(stacks: dict[str, Stack], host: ModuleHost, endpoint: str) -> None:
    outcome = judged(host, stacks[OLD], endpoint=endpoint)
    assert not outcome.failed, outcome.message
    criteria = outcome.values["figures"]["criteria"]
    for at in (1, 4):
        assert criteria[f"same_answers_at_{at}"]["new"] == 1.0
        assert criteria[f"distance_on_prefix_at_{at}"]["mean"] < 1e-3
        assert criteria[f"distance_on_reference_at_{at}"]["mean"] < 1e-3
        assert criteria[f"distance_on_reference_at_{at}"]["prompts"] == 32
    assert not [each for each in outcome.values["findings"] if each["level"] == "failure"]


def test_other_weights_are_seen(stacks: dict[str, Stack], host: ModuleHost, tmp_path: Path) -> None:
    """The new release serves another model: a stand-in for kernels that compute wrong."""
    write_tiny_model(tmp_path / "other", seed=1)
    other = [str(tmp_path / "other") if word == str(stacks[OLD].model) else word for word in stacks[OLD].command]
    server = {"command": other, "health": "/health_generate", "start_timeout": 600, "stop_grace": 30}
    outcome = judged(host, stacks[OLD], server=server, baseline_command=stacks[OLD].command)
    assert outcome.values["verdict"] == "failed"
    criteria = outcome.values["figures"]["criteria"]
    assert (criteria["same_answers_at_1"]["old"], criteria["same_answers_at_1"]["new"]) == (1.0, 0.0)
    assert criteria["distance_on_reference_at_1"]["outcome"] == "failed"


def test_sglangs_own_tool(stacks: dict[str, Stack], host: ModuleHost) -> None:
    """Each server is asked by the tool of its own release. The model knows nothing, which is no pass."""
    lines = [json.dumps({"question": f"What is {n} and {n}?", "answer": f"It is\n#### {2 * n}"}) for n in range(70)]
    (host.playbook_directory / "questions.jsonl").write_text("\n".join(lines))
    tool = {
        "name": "few_shot_gsm8k",
        "questions": 60,
        "shots": 2,
        "parallel": 4,
        "max_tokens": 16,
        "data_file": "questions.jsonl",
    }
    outcome = judged(host, stacks[OLD], tool=tool, concurrencies=(4,))
    assert "criteria" in outcome.values["figures"], outcome.message
    score = outcome.values["figures"]["criteria"]["tool"]
    assert score["asked"] == 60
    assert score["old"] == score["new"] == 0
    assert outcome.message.endswith("the old server is right too seldom for this task to show a loss")
