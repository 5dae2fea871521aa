"""The verdict on one start of a server; and the pure parts of looking after it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from crossgrade.bench.gpu_release import GpuMemoryHeldError, GpuUse, GpuWatch, still_held, used_by_server
from crossgrade.bench.one_request import Answer
from crossgrade.bench.server_info import CONCEALED, without_secrets
from crossgrade.bench.workers import Worker, losses
from crossgrade.gates.server import Asked, Observed, judge_server

GIB = 1 << 30
COMPLETIONS = Asked("/v1/completions")


def answered(body: Any, asked: Asked = COMPLETIONS) -> str:
    text = body if isinstance(body, str) else json.dumps(body)
    verdict = judge_server(Observed(answer=Answer(200, text, 0.1)), asked)
    return "" if verdict.passed else verdict.reason


@pytest.mark.parametrize(
    ("body", "asked", "words"),
    [
        ({"choices": [{"text": "Paris."}]}, COMPLETIONS, ""),
        ({"choices": [{"message": {"content": "Paris."}}]}, Asked("/v1/chat/completions"), ""),
        ({"text": "Paris.", "meta_info": {}}, Asked("/generate"), ""),
        ({"choices": [{"message": {"content": None}}]}, Asked("/v1/chat/completions"), "the answer is empty"),
        ({"choices": [{"text": "nan nan nan"}]}, COMPLETIONS, "the answer has numbers that are none"),
        ({"choices": [{"text": "!" * 64, "finish_reason": "length"}]}, COMPLETIONS, "the answer repeats itself"),
        ({"object": "error"}, COMPLETIONS, "no answer of this interface"),
        ("<html>", COMPLETIONS, "no answer of this interface"),
        ("<html>", Asked("/metrics"), ""),  # a path whose answers are not looked at
        ('data: {"choices": [{"text": "Pa"}]}\n\ndata: [DONE]\n\n', Asked("/v1/completions", stream=True), ""),
        (
            'data: {"choices": [{"text": "Pa"}]}\n\n',
            Asked("/v1/completions", stream=True),
            "truncated_stream: 1 chunks, then",
        ),
        ("data: {broken\n\n", Asked("/v1/completions", stream=True), "malformed_stream: an event is not JSON"),
    ],
)
def test_answers(body: Any, asked: Asked, words: str) -> None:
    reason = answered(body, asked)
    assert words in reason
    assert bool(words) == bool(reason)


def test_a_status_that_was_expected_is_not_looked_into() -> None:
    observed = Observed(answer=Answer(400, "no such model", 0.1))
    assert judge_server(observed, Asked("/v1/completions", expect_status=400)).passed
    assert judge_server(observed, COMPLETIONS).reason == "/v1/completions: status 400 instead of status 200"


def test_ill_health_after_the_request_fails_and_lost_processes_warn() -> None:
    good = Answer(200, json.dumps({"choices": [{"text": "fine"}]}), 0.1)
    ill = judge_server(Observed(answer=good, health_path="/health", unhealthy="503", stacks="stacks: /x"), COMPLETIONS)
    assert ill.reason == "it was healthy, and after the request /health answered 503; stacks: /x"
    assert ill.outcome == "failed"
    lost = judge_server(Observed(answer=good, ended_workers="1 of its processes ended"), COMPLETIONS)
    assert lost.passed
    assert [finding.level for finding in lost.findings] == ["warning"]


def test_workers_that_ended_and_were_started_again() -> None:
    before = {1: Worker(10, 7, "rank 0"), 2: Worker(11, 8, "rank 1"), 3: Worker(12, 9, "helper")}
    now = {1: Worker(10, 7, "rank 0"), 2: Worker(90, 8, "rank 1"), 4: Worker(91, 5, "other")}
    assert losses(before, now).words() == (
        "2 of its processes ended while it was in use (rank 1, helper), 1 of them started again"
    )
    assert losses(before, {**before, 4: Worker(91, 7, "one more")}).words() == ""


def test_secrets_are_taken_out_of_what_a_server_says() -> None:
    said = {
        "api_key": "correct horse",
        "admin_api_key": None,
        "max_total_tokens": 8192,
        "launch_command": "python -m sglang.launch_server --api-key battery --port 30000 --admin-api-key=staple",
        "launch_words": ["sglang", "--api-key", "battery", "--tp", "8"],
        "internal_states": [{"hf_token": "hf_" + "a" * 30, "memory_usage": {"kvcache": 1.5}}],
        "model_path": "/models/m",
    }
    found = without_secrets(said)
    text = json.dumps(found)
    assert not [word for word in ("horse", "battery", "staple", "hf_aaa") if word in text]
    assert found["api_key"] == CONCEALED
    assert found["max_total_tokens"] == 8192
    assert found["launch_command"] == (
        f"python -m sglang.launch_server --api-key {CONCEALED} --port 30000 --admin-api-key={CONCEALED}"
    )
    assert found["launch_words"] == ["sglang", "--api-key", CONCEALED, "--tp", "8"]
    assert found["internal_states"][0]["memory_usage"] == {"kvcache": 1.5}


IDLE = (GpuUse(0, GIB // 2), GpuUse(1, GIB // 2, frozenset({50})), GpuUse(2, None))


def test_the_gpus_that_a_server_used() -> None:
    running = (GpuUse(0, 60 * GIB, frozenset({100})), GpuUse(1, 40 * GIB, frozenset({50})), GpuUse(2, None))
    assert used_by_server(IDLE, running, {100, 101}) == {0, 1}  # 1: in a container the driver counts otherwise
    assert used_by_server(IDLE, IDLE, {100}) == frozenset()
    after = (GpuUse(0, 60 * GIB, frozenset({100})), GpuUse(1, GIB // 2, frozenset({50})), GpuUse(2, None))
    (held,) = still_held(IDLE, after, {0, 1})
    assert (held.index, held.processes) == (0, (100,))
    assert still_held(IDLE, after, {1}) == ()  # whatever fills a GPU that the server did not use is not its


def watch_through(*readings: tuple[GpuUse, ...] | str, timeout: float = 60.0) -> GpuWatch:
    answers = iter(readings)
    watch = GpuWatch(lambda: next(answers), timeout)
    watch.begin()
    watch.running({100})
    watch.wait(lambda pid: f"process {pid}", sleep=lambda _: None)
    return watch


def test_waiting_until_the_memory_is_back() -> None:
    full = (GpuUse(0, 60 * GIB, frozenset({100})),)
    assert watch_through(IDLE, full, full, full, IDLE).note.startswith("given back after ")
    assert watch_through(IDLE, IDLE).note == "it held no GPU memory"
    assert watch_through("no NVIDIA driver on this machine").note == "not watched: no NVIDIA driver on this machine"
    assert watch_through(IDLE, full, "NVML: lost").note == "not watched: NVML: lost"
    assert GpuWatch(None).note == ""
    with pytest.raises(GpuMemoryHeldError, match=r"GPU 0 holds 59.5 GiB more than before \(process 100\)"):
        watch_through(IDLE, full, full, timeout=0.0)
