"""Servers that misbehave, each before `server` and before `benchmark`: a reason, in time, and nothing left of them.

Every server has a worker with a session of its own, as a daemon has. What is in the table of docs/validation.md is
what these tests print with `-rP`.
"""

from __future__ import annotations

import contextlib
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.support.gate_host import activate, make_venv, run_gate
from tests.support.module_host import ModuleHost

from crossgrade.modules import benchmark, server
from crossgrade.modules.contract import Outcome
from crossgrade.store.generation import Generation

SERVER = Path(__file__).parents[1] / "support" / "openai_server.py"
REQUEST = {"path": "/v1/completions", "body": {"model": "echo", "prompt": "hello", "max_tokens": 24}, "timeout": 10}
PASSED = "healthy after "


@dataclass(frozen=True)
class Broken:
    """A server's options, and what the reason of each gate must say; "" for a gate that is not asked."""

    options: tuple[str, ...]
    server: str
    benchmark: str = ""
    stream: bool = False


BROKEN = {
    "hangs, and answers nothing any more": Broken(
        ("--fault", "freeze"), "/v1/completions: silent for 1.5 s", "the server hangs: no token for 1.5 s"
    ),
    "never answers a request": Broken(
        ("--fault", "silent"), "/v1/completions: silent for 1.5 s", "the server hangs: no token for 1.5 s"
    ),
    "stops sending without closing": Broken(
        ("--fault", "hang"), "/v1/completions: silent for 1.5 s, ", "the server hangs: no token for 1.5 s", stream=True
    ),
    "dies in the middle of a stream": Broken(
        ("--fault", "die"),
        "the server ended by itself while it was in use (exit code 3, ",
        "the server ended by itself while it was in use (exit code 3, ",
        stream=True,
    ),
    "closes the connection in the middle": Broken(
        ("--fault", "cut"), "the connection ended in the middle of the answer, after", "truncated_stream", stream=True
    ),
    "answers 500 every twentieth time": Broken(("--fault", "http_500_sometimes"), PASSED, "failed requests: "),
    "answers 500 always": Broken(("--fault", "http_500"), "status 500 instead of status 200", "failed requests: "),
    "streams garbage": Broken(("--fault", "garbage"), "malformed_stream", "malformed_stream", stream=True),
    "text that is not a number": Broken(
        ("--fault", "not_a_number"), "the answer has numbers that are none: 24 of 24 words", "nonsense_output"
    ),
    "one token again and again": Broken(
        ("--fault", "nonsense"), "the answer repeats itself without end", "nonsense_output"
    ),
    "never becomes healthy": Broken(
        ("--fault", "never_healthy"),
        "the server was not healthy within 1.5 s (last answer of /health: 503)",
        "the server was not healthy within 1.5 s (last answer of /health: 503)",
    ),
    "never listens": Broken(
        ("--start-delay", "600"), "the server was not healthy within 1.5 s", "the server was not healthy within 1.5 s"
    ),
    "is ill after the first request": Broken(
        ("--fault", "sick"), "it was healthy, and after the request /health answered 503"
    ),
}
STACKS = {"freeze", "hang", "silent", "never_healthy", "sick"}


class Bench:
    """A host with two generations whose servers are the test's; `mark` is in the environment of all that they start."""

    def __init__(self, folder: Path) -> None:
        self.host = ModuleHost(folder)
        self.mark = uuid.uuid4().hex
        for number in (1, 2):
            generation = Generation(
                number, f"identity-{number}", "built", "ready", "2026-12-01T00:00:00Z", manifest="m"
            )
            self.host.store.write_generation(generation)
            make_venv(self.host.store.venv(number))
        activate(self.host.store, 1)

    def common(self, *options: str, start_timeout: float) -> dict[str, Any]:
        return {
            "command": ("{python}", str(SERVER), "--port", "{port}", "--worker", *options),
            "environment": {"MARK": self.mark},
            "start_timeout": start_timeout,
            "stop_grace": 2.0,
            "stall_timeout": 1.5,
        }

    def ask_server(self, *options: str, stream: bool = False, start_timeout: float = 20.0) -> Outcome:
        request = {**REQUEST, "body": {**REQUEST["body"], "stream": stream}}  # type: ignore[dict-item]
        common = self.common(*options, start_timeout=start_timeout)
        return run_gate(server.MODULE, server.Arguments(**common, generation=2, request=request), self.host)

    def measure(self, *options: str, start_timeout: float = 20.0) -> Outcome:
        common = self.common(*options, start_timeout=start_timeout)
        arguments = benchmark.Arguments(
            server=common,
            baseline_command=self.common(start_timeout=start_timeout)["command"],
            generation=2,
            concurrency=2,
            requests=24,
            max_tokens=8,
            timeout=30.0,
            allowed_loss=0.9,
        )
        return run_gate(benchmark.MODULE, arguments, self.host)

    def left(self) -> list[str]:
        """Processes that one of the servers started and that are still there."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it ended meanwhile
                if self.mark.encode() in (folder / "environ").read_bytes():
                    found.append((folder / "cmdline").read_text())
        return found


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    assert made.left() == []


def told(name: str, gate: str, outcome: Outcome, began: float) -> None:
    print(f"| {name} | {gate} | {time.monotonic() - began:.1f} s | {outcome.message} |")  # noqa: T201 - the table


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", [*BROKEN])
def test_before_server(bench: Bench, name: str) -> None:
    broken, began = BROKEN[name], time.monotonic()
    soon = broken.benchmark.startswith("the server was not healthy")
    outcome = bench.ask_server(*broken.options, stream=broken.stream, start_timeout=1.5 if soon else 20.0)
    told(name, "server", outcome, began)
    assert broken.server in outcome.message
    assert outcome.message.count("it said nothing") <= 1
    assert outcome.failed == (broken.server != PASSED)
    if broken.options[1] in STACKS or soon:
        assert "the stacks of 2 of its 2 processes: " in outcome.message
        stacks = Path(outcome.message.rpartition(": ")[2])
        text = stacks.read_text()
        assert "openai_server.py" in text  # a frame of the server
        assert "Process" in text
        assert bench.mark not in text
        assert stacks.stat().st_mode & 0o077 == 0


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", [name for name, broken in BROKEN.items() if broken.benchmark])
def test_before_benchmark(bench: Bench, name: str) -> None:
    broken, began = BROKEN[name], time.monotonic()
    soon = broken.benchmark.startswith("the server was not healthy")
    outcome = bench.measure(*broken.options, start_timeout=1.5 if soon else 20.0)
    told(name, "benchmark", outcome, began)
    assert outcome.failed
    assert broken.benchmark in outcome.message
    assert outcome.message.count("\n") == 0


@pytest.mark.timeout(60)
def test_a_worker_that_is_replaced_is_told(bench: Bench) -> None:
    outcome = bench.ask_server("--fault", "replace_worker")
    words = "1 of its processes ended while it was in use (python"
    assert not outcome.failed
    assert words in outcome.message
    assert "1 of them started again" in outcome.message
    began = time.monotonic()
    measured = bench.measure("--fault", "replace_worker")
    told("replaces a worker that ended", "benchmark", measured, began)
    assert not measured.failed
    lost = [finding for finding in measured.values["findings"] if words in finding["message"]]
    assert {finding["subject"] for finding in lost} >= {"new server, pair 1", "new server, pair 2"}


@pytest.mark.timeout(60)
def test_a_slow_start_is_waited_for(bench: Bench) -> None:
    outcome = bench.ask_server("--start-delay", "3")
    assert not outcome.failed
    assert outcome.values["figures"]["start_seconds"] > 3


@pytest.mark.slow
@pytest.mark.timeout(480)
def test_a_start_of_five_minutes_is_waited_for(bench: Bench) -> None:
    began = time.monotonic()
    outcome = bench.ask_server("--start-delay", "300", start_timeout=360.0)
    told("needs 5 minutes to start", "server", outcome, began)
    assert not outcome.failed
    assert outcome.values["figures"]["start_seconds"] > 300


@pytest.mark.timeout(60)
def test_without_pyspy_the_kernels_view_is_kept(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crossgrade.bench.server_process.find_pyspy", lambda *_: None)
    outcome = bench.ask_server("--fault", "hang", stream=True)
    assert "what the kernel says of its 2 processes, without stacks (py-spy is neither" in outcome.message
    assert "(python" in Path(outcome.message.rpartition(": ")[2]).read_text()


def test_pyspy_is_there_for_these_tests() -> None:
    assert Path(sys.prefix, "bin", "py-spy").exists()
