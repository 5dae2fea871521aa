"""The load client against a real server over real HTTP: times, counts, and everything that can go wrong."""

from __future__ import annotations

import json
import os
import re
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from crossgrade.bench.ceiling import measure_client_ceiling
from crossgrade.bench.load import LoadError, LoadProfile, LoadResult, prompts, run_load
from crossgrade.bench.machine import processor_times, share_of_others
from crossgrade.bench.planned import shared_prefix
from crossgrade.bench.profiles import parse_profiles, run_profiles
from crossgrade.bench.server_process import (
    RunningServer,
    ServerEndedError,
    ServerSpec,
    ServerStalledError,
    free_port,
    launch,
)
from crossgrade.errors import TaskError
from crossgrade.process import start_process

SERVER = Path(__file__).parents[1] / "support" / "openai_server.py"


@contextmanager
def server(tmp_path: Path, *options: str) -> Iterator[RunningServer]:
    spec = ServerSpec(
        command=(sys.executable, str(SERVER), "--port", "{port}", *options),
        environment={"PATH": os.environ["PATH"]},
        start_timeout=20.0,
        stop_grace=1.0,
    )
    with launch(spec, tmp_path / "log") as running:
        yield running


def measure(tmp_path: Path, *options: str, **profile: Any) -> LoadResult:
    settings: dict[str, Any] = {"requests": 4, "warmup_requests": 1, "max_tokens": 10, "timeout": 5.0}
    with server(tmp_path, *options) as running:
        return run_load(running.base_url, LoadProfile(**{**settings, **profile}))


def seen(running: RunningServer) -> dict[str, Any]:
    with urllib.request.urlopen(f"{running.base_url}/seen") as answer:
        found: dict[str, Any] = json.loads(answer.read())
        return found


def test_times_and_counts_of_a_paced_server(tmp_path: Path) -> None:
    result = measure(
        tmp_path, "--pace", "0.01", "--first", "0.1", concurrency=4, requests=8, warmup_requests=4, max_tokens=20
    )
    assert result.failed == ()
    assert len(result.samples) == 8
    assert [sample.index for sample in result.samples] == list(range(8))
    for sample in result.samples:
        assert (sample.output_tokens, sample.chunks, sample.counted_by) == (20, 20, "usage")
        assert len(sample.inter_token_latencies) == 19
        assert sample.time_to_first_token is not None
        assert 0.1 <= sample.time_to_first_token < 1.0
        assert 0.29 <= sample.end_to_end < 2.0
    metrics = result.metrics()
    assert metrics["itl_median"] == pytest.approx(0.01, rel=0.5)
    # 4 streams of 20 tokens in 0.29 s each: 276 tokens/s, less what a busy machine costs, and a few tokens more
    # of warm-up requests that end just after the window has begun.
    assert 70 < metrics["output_tokens_per_second"] < 290
    assert result.notes() == []
    assert json.loads(json.dumps(result.to_json(), allow_nan=False))["metrics"]["itl_median"] > 0


def test_concurrency_is_the_same_from_the_first_measured_request_to_the_last(tmp_path: Path) -> None:
    with server(tmp_path, "--pace", "0.005") as running:
        profile = LoadProfile(concurrency=3, requests=20, warmup_requests=3, max_tokens=10)
        result = run_load(running.base_url, profile)
        found = seen(running)
    assert result.failed == ()
    # The server may count a request as ended a moment after the client has its last byte.
    assert max(found["concurrencies"]) <= 4
    # Warm-up, measured, and one more that keeps the third stream busy until the last measured one has ended.
    assert len(found["bodies"]) >= 24
    mean = sum(sample.end_to_end for sample in result.samples[:18]) / max(
        sample.started + sample.end_to_end - result.samples[0].started for sample in result.samples[:18]
    )
    assert 2.4 < mean <= 3.0


def test_requests_are_the_same_for_the_same_seed(tmp_path: Path) -> None:
    asked = []
    for seed in (1, 1, 2):
        with server(tmp_path) as running:
            run_load(running.base_url, LoadProfile(concurrency=1, requests=3, warmup_requests=1, seed=seed))
            asked.append([body["prompt"] for body in seen(running)["bodies"][:4]])
            body = seen(running)["bodies"][0]
    assert asked[0] == asked[1]
    assert asked[0] != asked[2]
    assert len(set(asked[0])) == 4
    assert (body["model"], body["stream"], body["temperature"], body["ignore_eos"]) == ("echo", True, 0, True)


def test_given_prompts_are_each_used_before_any_is_used_again() -> None:
    profile = LoadProfile(prompts=("a", "b", "c"))
    made = prompts(profile)
    rounds = [{next(made) for _ in range(3)} for _ in range(3)]
    assert rounds == [{"a", "b", "c"}] * 3


def test_sglangs_own_endpoint(tmp_path: Path) -> None:
    with server(tmp_path, "--pace", "0.001", "--accept-length", "1.5") as running:
        result = run_load(running.base_url, LoadProfile(endpoint="generate", requests=4, max_tokens=10))
        body = seen(running)["bodies"][0]
    assert result.failed == ()
    assert {(sample.output_tokens, sample.chunks) for sample in result.samples} == {(10, 10)}
    assert {(sample.input_tokens, sample.cached_tokens) for sample in result.samples} == {(8, 3)}
    assert body["sampling_params"] == {"max_new_tokens": 10, "temperature": 0, "ignore_eos": True}
    assert result.acceptance is not None
    # Of the measured requests: 10 tokens in 5 steps, whatever the server says of all since its start.
    assert (result.metrics()["accept_length"], result.acceptance.source) == (2.0, "requests")


def test_acceptance_length_where_only_the_server_tells_it(tmp_path: Path) -> None:
    result = measure(tmp_path, "--accept-length", "2.75")
    assert result.acceptance is not None
    assert (result.metrics()["accept_length"], result.acceptance.source) == (2.75, "server_info")
    assert json.loads(json.dumps(result.to_json()))["acceptance"] == {"length": 2.75, "source": "server_info"}


def test_input_tokens_are_counted_too(tmp_path: Path) -> None:
    result = measure(tmp_path, "--pace", "0.002")
    metrics = result.metrics()
    assert metrics["total_tokens_per_second"] == pytest.approx(
        metrics["output_tokens_per_second"] + 4 * 8 / result.window_seconds
    )
    assert "accept_length" not in metrics


def test_the_chat_endpoint(tmp_path: Path) -> None:
    result = measure(tmp_path, endpoint="chat")
    assert result.failed == ()
    assert [sample.output_tokens for sample in result.samples] == [10] * 4


def test_an_odd_but_correct_wire_is_understood(tmp_path: Path) -> None:
    result = measure(tmp_path, "--fault", "odd_wire")
    assert result.failed == ()
    assert [sample.chunks for sample in result.samples] == [10] * 4


def test_several_tokens_in_a_chunk_are_counted_by_usage_and_noted(tmp_path: Path) -> None:
    result = measure(tmp_path, "--fault", "pairs_of_tokens", "--pace", "0.001")
    assert [(sample.output_tokens, sample.chunks) for sample in result.samples] == [(10, 5)] * 4
    assert result.count_mismatches == 4
    assert result.window_tokens >= 40
    assert "usage differs from the number of chunks" in result.notes()[0]


def test_without_usage_chunks_are_counted(tmp_path: Path) -> None:
    result = measure(tmp_path, "--fault", "no_usage")
    assert [(sample.output_tokens, sample.counted_by) for sample in result.samples] == [(10, "chunks")] * 4


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        ("http_500", "http_status", "500 OK: .*out of memory"),
        ("garbage", "malformed_stream", "."),
        ("not_json", "malformed_stream", "an event is not JSON: {broken"),
        ("not_utf8", "malformed_stream", "utf-8"),
        ("no_done", "truncated_stream", r"10 chunks, then the end without \[DONE\]"),
        ("cut", "truncated_stream", "5 chunks, then: "),
        ("error_event", "server_error", "illegal memory access"),
        ("abort", "server_error", "aborted the generation"),
        ("empty", "empty_output", "no token"),
        ("nonsense", "nonsense_output", "like '!!!!!!!!!!': numbers that are none"),
    ],
)
def test_what_goes_wrong_is_named(tmp_path: Path, fault: str, kind: str, words: str) -> None:
    result = measure(tmp_path, "--fault", fault)
    assert set(result.errors_by_kind) == {kind}
    assert len(result.failed) >= 4
    assert all(re.search(words, sample.detail) for sample in result.failed)


def test_now_and_then_a_500(tmp_path: Path) -> None:
    result = measure(tmp_path, "--fault", "http_500_sometimes", requests=45, concurrency=1)
    assert result.errors_by_kind == {"http_status": 2}
    assert len(result.succeeded) == 43


@pytest.mark.parametrize("fault", ["hang", "silent"])
def test_a_hang_is_bounded_by_the_time_limit(tmp_path: Path, fault: str) -> None:
    started = time.monotonic()
    result = measure(tmp_path, "--fault", fault, timeout=0.5, requests=1000, concurrency=2, error_limit=4)
    assert time.monotonic() - started < 5
    assert result.errors_by_kind == {"timeout": 4}
    assert "within 0.5 s" in result.failed[0].detail
    assert re.search("stopped after 4 failed requests: 3 of 1000", result.notes()[0])


def test_an_open_loop_sends_at_its_rate_whatever_the_server_does(tmp_path: Path) -> None:
    """Each answer takes 0.2 s and a request is due every 10 ms: some 20 are in flight, far more than one."""
    with server(tmp_path, "--first", "0.2") as running:
        profile = LoadProfile(rate=100.0, arrivals="constant", requests=60, warmup_requests=10, max_tokens=2)
        result = run_load(running.base_url, profile)
        found = seen(running)
    assert result.failed == ()
    assert [sample.index for sample in result.samples] == list(range(60))
    starts = [sample.started for sample in result.samples]
    assert starts == pytest.approx([0.1 + number / 100 for number in range(60)])
    assert max(found["concurrencies"]) >= 10
    assert all(sample.time_to_first_token and sample.time_to_first_token >= 0.2 for sample in result.samples)
    assert all(sample.sent_late >= 0 for sample in result.samples)


def test_a_stall_is_seen_by_every_request_that_was_due_in_it(tmp_path: Path) -> None:
    """Coordinated omission: the server stands still for 1 s at its 20th request, and 50 are due in a second.

    A closed loop of one stream waits with the server and sees one slow request. In the open loop all that were due
    meanwhile have waited, each for what was left of that second.
    """
    with server(tmp_path, "--fault", "stall") as running:
        rate = LoadProfile(rate=50.0, arrivals="constant", requests=100, warmup_requests=0, max_tokens=2)
        opened = run_load(running.base_url, rate)
    with server(tmp_path, "--fault", "stall") as running:
        closed = run_load(running.base_url, LoadProfile(requests=100, warmup_requests=0, max_tokens=2))
    assert (opened.failed, closed.failed) == ((), ())
    slow = [sample for sample in opened.samples if sample.end_to_end > 0.1]
    assert len(slow) >= 40
    waits = [sample.end_to_end for sample in slow[:40]]
    assert waits[0] > 0.9
    assert sum(waits) / len(waits) > 0.4  # about half a second: they fall from 1 s to 0.1 s
    assert opened.metrics()["end_to_end_p90"] > 0.5
    assert sum(sample.end_to_end > 0.9 for sample in closed.samples) == 1
    assert closed.metrics()["end_to_end_p90"] < 0.5


def test_what_cannot_be_sent_in_time_is_reported(tmp_path: Path) -> None:
    """3 in flight and 2 waiting, answers of 0.3 s, 100 due in a second."""
    with server(tmp_path, "--first", "0.3") as running:
        profile = LoadProfile(
            rate=100.0, arrivals="constant", requests=40, warmup_requests=0, max_tokens=2, most_in_flight=3,
            queue_limit=2, error_limit=20,
        )  # fmt: skip
        result = run_load(running.base_url, profile)
        found = seen(running)
    assert max(found["concurrencies"]) <= 3
    assert result.errors_by_kind == {"not_sent": 20}
    assert "3 requests were in flight and 2 waited when it was due" in result.failed[0].detail
    assert any("20 requests could not be sent" in note for note in result.notes())
    assert any("sent late" in note for note in result.notes()) == any(s.sent_late > 0.01 for s in result.samples)


def test_those_that_waited_count_from_when_they_were_due(tmp_path: Path) -> None:
    with server(tmp_path, "--first", "0.1") as running:
        profile = LoadProfile(
            rate=200.0, arrivals="constant", requests=5, warmup_requests=0, max_tokens=1, most_in_flight=1
        )
        result = run_load(running.base_url, profile)
    assert result.failed == ()
    waited = [sample.sent_late for sample in result.samples]
    assert waited == sorted(waited)
    assert waited[4] >= 0.35
    assert result.samples[4].end_to_end >= 0.45
    assert "4 of 5 requests were sent late" in result.notes()[0]


def test_an_open_loop_on_a_server_that_hangs_ends(tmp_path: Path) -> None:
    started = time.monotonic()
    result = measure(tmp_path, "--fault", "hang", rate=50.0, requests=1000, timeout=0.5, error_limit=4)
    assert time.monotonic() - started < 5
    assert result.errors_by_kind["timeout"] >= 4


def test_prompts_and_lengths_reach_the_server(tmp_path: Path) -> None:
    path = tmp_path / "share.json"
    path.write_text(json.dumps([{"conversations": [{"from": "human", "value": f"q{n}"}]} for n in range(6)]))
    (profile,) = parse_profiles(
        [{"prompt_set": str(path), "output_lengths": {"uniform": [2, 9]}, "shared_prefix_words": 3, "requests": 6}],
        LoadProfile(warmup_requests=0),
    )
    with server(tmp_path) as running:
        result = run_load(running.base_url, profile)
        bodies = seen(running)["bodies"][:6]
    prefix = shared_prefix(profile)
    assert {body["prompt"] for body in bodies} == {f"{prefix} q{n}" for n in range(6)}
    assert [sample.output_tokens for sample in result.samples] == [body["max_tokens"] for body in bodies]
    assert len({body["max_tokens"] for body in bodies}) > 1


@pytest.mark.parametrize("fault", ["hang", "silent"])
def test_a_hang_is_a_stall_when_all_streams_are_silent(tmp_path: Path, fault: str) -> None:
    profile = LoadProfile(requests=1000, warmup_requests=1, max_tokens=10, timeout=60.0, concurrency=2)
    message = r"the server hangs: no token for 0.6 s, while 2 requests were under way"
    with pytest.raises(ServerStalledError, match=message) as caught, server(tmp_path, "--fault", fault) as running:
        run_load(running.base_url, profile, 0.6)
    assert caught.value.stacks is not None
    assert f"process {running.pid} (python" in caught.value.stacks.file.read_text()
    assert caught.value.stacks.file.stat().st_mode & 0o077 == 0


def test_slow_streams_are_no_stall(tmp_path: Path) -> None:
    with server(tmp_path, "--pace", "0.5") as running:
        result = run_load(running.base_url, LoadProfile(requests=2, warmup_requests=0, max_tokens=3), 0.8)
    assert not result.failed


def test_a_server_that_dies_in_the_middle(tmp_path: Path) -> None:
    profile = LoadProfile(requests=50, warmup_requests=1, max_tokens=10, timeout=5.0)
    ended = pytest.raises(ServerEndedError, match=r"ended by itself while it was in use \(exit code 3, ")
    with ended, server(tmp_path, "--fault", "die") as running:
        result = run_load(running.base_url, profile)
    assert set(result.errors_by_kind) <= {"truncated_stream", "connect", "disconnected"}
    assert "truncated_stream" in result.errors_by_kind
    assert len(result.failed) >= 5


def test_the_processor_time_of_others_is_seen(tmp_path: Path) -> None:
    with server(tmp_path) as running:
        before = processor_times(running.process.members())
        with start_process([sys.executable, "-c", "while True: pass"], env=dict(os.environ), log=tmp_path / "other"):
            time.sleep(1.0)
            after = processor_times(running.process.members())
    share = share_of_others(before, after)
    assert share is not None
    assert share > 0.4 / (os.cpu_count() or 1)
    assert share_of_others(before, before) is None


def test_nobody_listens() -> None:
    result = run_load(f"http://127.0.0.1:{free_port('127.0.0.1')}", LoadProfile(model="any"))
    assert set(result.errors_by_kind) == {"connect"}
    assert result.metrics() == {}
    with pytest.raises(LoadError, match="does not say which model") as caught:
        run_load(f"http://127.0.0.1:{free_port('127.0.0.1')}", LoadProfile())
    assert isinstance(caught.value, TaskError)


def test_the_clients_own_ceiling_is_far_above_the_rehearsals_speed() -> None:
    """About 50,000 tokens/s on two cores of 2026; the rehearsal's server makes about 1,000."""
    ceiling = measure_client_ceiling(concurrency=4, tokens=2000)
    assert ceiling.tokens_per_second > 5_000
    assert ceiling.to_json()["concurrency"] == 4


def test_several_profiles_on_one_server(tmp_path: Path) -> None:
    profiles = parse_profiles([{"concurrency": 1, "requests": 3}, {"concurrency": 4, "requests": 8, "max_tokens": 5}])
    told: list[str] = []
    with server(tmp_path) as running:
        results = run_profiles(running.base_url, profiles, lambda profile: told.append(profile.name))
    assert told == ["concurrency-1", "concurrency-4"]
    assert [(result.profile.name, len(result.succeeded)) for result in results] == [
        ("concurrency-1", 3),
        ("concurrency-4", 8),
    ]
    assert {sample.output_tokens for sample in results[1].samples} == {5}


def test_the_clients_own_ceiling_is_told_with_every_result(tmp_path: Path) -> None:
    result = measure(tmp_path, "--pace", "0.002")
    assert result.client_ceiling is not None
    assert result.client_ceiling > 5_000
    assert not any("client itself" in note for note in result.notes())
    near = replace(result, client_ceiling=result.output_tokens_per_second * 1.5)
    assert "near what the client itself can take in" in near.notes()[0]
