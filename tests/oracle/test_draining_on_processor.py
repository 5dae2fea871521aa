"""What `drain` and `server` rest on, with SGLang's own servers: the load that they tell, and what a SIGTERM does.

As `test_serving_on_processor`: 0.5.9 and 0.5.23 without a GPU, from environments that are only read.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path

import pytest
from tests.oracle.test_serving_stacks import SERVING
from tests.support.native import have_gcc
from tests.support.sglang_on_processor import prepare

from crossgrade.bench.draining import InFlight, in_flight, wait_until_idle
from crossgrade.bench.listening import get
from crossgrade.bench.server_info import ask_for_info
from crossgrade.bench.server_process import RunningServer, ServerEndedError, keep_stacks, launch

pytestmark = [
    pytest.mark.slow,
    pytest.mark.alone,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not have_gcc(), reason="gcc makes the stand-in for the driver"),
]

SILENCE_SECONDS = 60.0


class Stream(threading.Thread):
    """A request for many tokens; `text` is what came of it, `problem` how it ended early."""

    def __init__(self, server: RunningServer, tokens: int) -> None:
        super().__init__()
        self.begun = threading.Event()
        self.text, self.problem = "", ""
        body = {"model": "m", "prompt": "after again air", "max_tokens": tokens, "ignore_eos": True, "stream": True}
        headers = {"Content-Type": "application/json"}
        address = f"{server.base_url}/v1/completions"
        self.request = urllib.request.Request(address, json.dumps(body).encode(), headers)
        self.start()
        assert self.begun.wait(120)

    def run(self) -> None:
        try:
            with urllib.request.urlopen(self.request, timeout=SILENCE_SECONDS) as answer:
                for line in answer:
                    self.begun.set()
                    self.text += line.decode()
        except (OSError, HTTPException) as error:
            self.problem = repr(error)

    @property
    def whole(self) -> bool:
        self.join()
        return self.text.endswith("data: [DONE]\n\n") and '"error"' not in self.text


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


@pytest.mark.parametrize("name", SERVING)
def test_sigterm_to_the_main_process_lets_requests_finish_and_to_all_it_does_not(name: str, tmp_path: Path) -> None:
    stack = prepare(name, tmp_path)
    ended = pytest.raises(ServerEndedError)
    with ended, launch(stack.spec(), tmp_path / "first.log") as server:
        port = int(server.base_url.rpartition(":")[2])

        def ask() -> InFlight:
            return in_flight("127.0.0.1", port)

        assert ask() == InFlight(0, "/v1/loads?include=core", "sglang")
        info, told = ask_for_info(server.base_url)
        assert info is not None, told
        assert info["info"]["model_path"] == str(stack.model)
        stacks = keep_stacks(stack.spec(), server.process)
        assert "sglang/srt/managers/scheduler.py" in stacks.file.read_text(), stacks.file.read_text()
        stream = Stream(server, 600)
        until(lambda: ask().requests == 1)
        os.kill(server.pid, signal.SIGTERM)
        until(lambda: get("127.0.0.1", port, "/health", 10.0) == "503", 30.0)
        drained = wait_until_idle(ask, lambda: server.alive, 600.0, print)
        print(f"{name}: {drained}")  # noqa: T201
        assert stream.whole, stream.problem or stream.text[-300:]
        assert (drained.why, drained.first, drained.left) in (("idle", 1, 0), ("ended", 1, 0))
        until(lambda: not server.alive)
    # Its schedulers are gone, and the main process may wait for the request for good: then it is killed at the end.
    with contextlib.suppress(ServerEndedError), launch(stack.spec(), tmp_path / "second.log") as server:
        stream = Stream(server, 600)
        for pid in server.process.members():  # as `systemctl stop` does, with KillMode=control-group
            os.kill(pid, signal.SIGTERM)
        assert not stream.whole
        print(f"{name}: {stream.problem or stream.text[-200:]}")  # noqa: T201
