"""`drain` with real servers that have requests. `systemctl` is a script that stops a process, but for the slow test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.booted_systemd import booted, why_not
from tests.support.gate_host import activate, add_generation
from tests.support.module_host import ModuleHost, plan_module, run_module, undo_all

from crossgrade.bench.server_process import ask_for_health, free_port
from crossgrade.errors import TaskError
from crossgrade.modules import drain
from crossgrade.modules.contract import Change, Unchanged

SERVER = Path(__file__).parents[1] / "support" / "openai_server.py"
# One unit, whose process it starts and kills as systemd does: all of it at once.
SYSTEMCTL = """#!/bin/sh
for word in "$@"; do case "$word" in
  show) printf 'LoadState=loaded\\nActiveState='; cat FOLDER/state; exit 0 ;;
  stop) kill -KILL "$(cat FOLDER/pid)" 2>/dev/null; echo inactive >FOLDER/state ;;
  start) echo active >FOLDER/state ;;
esac; done
echo "$@" >>FOLDER/asked
"""


class Service:
    """A server that serves on a port, with the script that stops it."""

    def __init__(self, folder: Path, *options: str) -> None:
        programs = folder / "bin"
        programs.mkdir()
        (programs / "systemctl").write_text(SYSTEMCTL.replace("FOLDER", str(folder)))
        (programs / "systemctl").chmod(0o755)
        self.folder, self.port = folder, free_port("127.0.0.1")
        command = [sys.executable, str(SERVER), "--port", str(self.port), *options]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        (folder / "pid").write_text(str(self.process.pid))
        (folder / "state").write_text("active\n")
        deadline = time.monotonic() + 20
        while ask_for_health("127.0.0.1", self.port, ("/v1/models",), 1.0)[1] != "200":
            assert time.monotonic() < deadline
            time.sleep(0.05)
        self.host = ModuleHost(folder, environment={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"})
        self.answers: list[str] = []
        self.threads: list[threading.Thread] = []

    def arguments(self, **others: Any) -> drain.Arguments:
        return drain.Arguments(unit="sglang.service", port=self.port, **others)

    def request(self, tokens: int) -> None:
        """A streamed request, beside this thread; its text goes to `answers`."""
        thread = threading.Thread(target=self._request, args=(tokens,))
        thread.start()
        self.threads.append(thread)
        time.sleep(0.3)

    def _request(self, tokens: int) -> None:
        body = json.dumps({"prompt": "x", "max_tokens": tokens, "stream": True}).encode()
        address = f"http://127.0.0.1:{self.port}/v1/completions"
        try:
            with urllib.request.urlopen(urllib.request.Request(address, body), timeout=30) as answer:
                self.answers.append(answer.read().decode())
        except OSError as error:
            self.answers.append(f"cut off: {error}")
        except Exception as error:  # noqa: BLE001 - http.client's own, for a connection that ends early
            self.answers.append(f"cut off: {error!r}")

    def whole(self) -> list[bool]:
        for thread in self.threads:
            thread.join()
        return [answer.endswith("data: [DONE]\n\n") for answer in self.answers]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def service(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Service]:
    made = Service(tmp_path, *getattr(request, "param", ("--drain", "--pace", "0.02")))
    try:
        yield made
    finally:
        made.close()


def test_requests_are_done_before_the_unit_is_stopped(service: Service) -> None:
    add_generation(service.host.store, 1)
    activate(service.host.store, 1)
    service.request(60)
    service.request(80)
    planned = plan_module(drain.MODULE, service.arguments(), service.host)
    assert isinstance(planned, Change)
    assert planned.summary == "stop sglang.service once its requests are done, after 300 s at the latest"
    began = time.time()
    outcome = run_module(drain.MODULE, service.arguments(), service.host)
    assert began <= outcome.values[drain.CLOSED_AT] <= time.time()
    assert service.whole() == [True, True]
    assert outcome.values["cut_off"] == 0
    assert outcome.values["signalled"] is True
    assert outcome.values["told_by"] == "/v1/loads?include=core"
    assert outcome.values["ended_by"] in ("idle", "ended")  # it ends by itself, once it has none
    assert "SIGTERM to process" in " ".join(service.host.messages)
    # what the working server said of itself is kept with its generation, without its key
    info = service.host.store.server_info(1)
    assert info is not None
    assert info["info"] == {"version": "0", "api_key": "***", "tp_size": 8}
    assert (service.host.store.folder(1) / "server_info.json").stat().st_mode & 0o077 == 0
    assert isinstance(plan_module(drain.MODULE, service.arguments(), service.host), Unchanged)
    # and back
    assert undo_all(drain.MODULE, service.host) == ["started sglang.service again"]
    assert (service.folder / "state").read_text() == "active\n"


def test_a_server_that_is_only_waited_for(service: Service) -> None:
    service.request(60)
    outcome = run_module(drain.MODULE, service.arguments(signal="never"), service.host)
    assert service.whole() == [True]
    assert (outcome.values["signalled"], outcome.values["ended_by"]) == (False, "idle")
    assert "1 request finished within" in outcome.message


def test_the_deadline_passes(service: Service) -> None:
    service.request(100_000)
    outcome = run_module(drain.MODULE, service.arguments(timeout=1.0), service.host)
    assert service.whole() == [False]
    assert outcome.values["cut_off"] == 1
    assert "1 request not finished within 1 s: cut off" in outcome.message


@pytest.mark.parametrize("service", [("--pace", "0.01")], indirect=True)
def test_a_server_that_does_not_tell_its_load(service: Service) -> None:
    outcome = run_module(drain.MODULE, service.arguments(), service.host)
    assert outcome.values["requests"] is None
    assert "does not tell how many requests it has: none was waited for" in outcome.message


def test_what_cannot_be_drained(service: Service) -> None:
    (service.folder / "state").write_text("inactive\n")
    with pytest.raises(TaskError, match=r"sglang.service is inactive, and pid \d+ since \d+ listens on port"):
        plan_module(drain.MODULE, service.arguments(), service.host)
    service.close()
    assert isinstance(plan_module(drain.MODULE, service.arguments(), service.host), Unchanged)
    systemctl = service.folder / "bin" / "systemctl"
    systemctl.write_text("#!/bin/sh\nprintf 'LoadState=not-found\\nActiveState=inactive\\n'\n")
    with pytest.raises(TaskError, match="there is no such unit"):
        plan_module(drain.MODULE, service.arguments(), service.host)
    systemctl.write_text("#!/bin/sh\necho 'System has not been booted with systemd' >&2; exit 1\n")
    with pytest.raises(TaskError, match="System has not been booted with systemd"):
        plan_module(drain.MODULE, service.arguments(), service.host)


UNDER_SYSTEMD = """
import sys
from pathlib import Path
from tests.support.module_host import ModuleHost, run_module, undo_all
from crossgrade.modules import drain
host = ModuleHost(Path(sys.argv[1]))
outcome = run_module(drain.MODULE, drain.Arguments(unit="sglang.service", port=int(sys.argv[2])), host)
print(outcome.message, outcome.values)
print(undo_all(drain.MODULE, host))
"""


@pytest.mark.slow
@pytest.mark.skipif(bool(why_not()), reason=why_not())
@pytest.mark.parametrize("restart", ["no", "always"])
def test_under_systemd(tmp_path: Path, restart: str) -> None:
    """The server ends by itself when its requests are done; `Restart=always` then starts it, and it is stopped."""
    with booted(tmp_path / "machine") as machine:
        port = free_port("127.0.0.1")
        unit = f"[Service]\nExecStart={sys.executable} {SERVER} --drain --pace 0.02 --port {port}\nRestart={restart}\n"
        (tmp_path / "machine" / "etc" / "sglang.service").write_text(unit)
        assert machine.call(["systemctl", "daemon-reload"]).returncode == 0
        assert machine.call(["systemctl", "start", "sglang.service"]).returncode == 0
        service = object.__new__(Service)
        service.port, service.answers, service.threads = port, [], []
        while ask_for_health("127.0.0.1", port, ("/v1/models",), 1.0)[1] != "200":
            time.sleep(0.1)
        service.request(100)
        folder = tmp_path / "host"
        folder.mkdir()
        done = machine.call(
            [sys.executable, "-c", UNDER_SYSTEMD, str(folder), str(port)],
            {"PYTHONPATH": str(Path(__file__).parents[2])},
        )
        assert done.returncode == 0, done.stderr
        assert service.whole() == [True]
        assert "'cut_off': 0" in done.stdout
        assert "started sglang.service again" in done.stdout
        assert machine.property_of("sglang.service", "ActiveState") == "active"
