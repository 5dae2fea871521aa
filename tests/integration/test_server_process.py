"""`launch` with real servers: healthy, slow, broken, on a port that somebody takes."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.nvml_stub import build_nvml

from crossgrade.bench import server_process
from crossgrade.bench.gpu_release import GpuMemoryHeldError
from crossgrade.bench.listening import get
from crossgrade.bench.server_process import ServerEndedError, ServerSpec, ServerStartError, free_port, launch, listens
from crossgrade.modules.server import gpus_in_use
from crossgrade.process import StartError

SERVER = Path(__file__).parents[1] / "support" / "openai_server.py"
ENVIRONMENT = {"PATH": os.environ["PATH"]}


def spec(*options: str, start_timeout: float = 20.0, stop_grace: float = 2.0) -> ServerSpec:
    return ServerSpec(
        command=(sys.executable, str(SERVER), "--host", "{host}", "--port", "{port}", *options),
        environment=ENVIRONMENT,
        start_timeout=start_timeout,
        stop_grace=stop_grace,
    )


def script(code: str, start_timeout: float = 20.0) -> ServerSpec:
    return ServerSpec((sys.executable, "-c", code, "{port}"), ENVIRONMENT, start_timeout=start_timeout)


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_a_server_is_started_and_stopped(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with launch(spec("--start-delay", "0.3"), log) as server:
        assert server.start_seconds > 0.3
        with urllib.request.urlopen(f"{server.base_url}/v1/models") as answer:
            assert b"echo" in answer.read()
        assert server.process.poll() is None
        port = int(server.base_url.rpartition(":")[2])
        assert listens(server.process.members(), port)
    assert gone(server.pid)
    assert server.process.poll() == 0
    assert not listens((os.getpid(),), port)
    assert "listening on port" in log.read_text()


def test_two_servers_run_at_once(tmp_path: Path) -> None:
    with launch(spec(), tmp_path / "a") as one, launch(spec(), tmp_path / "b") as two:
        assert one.base_url != two.base_url


def test_a_server_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    with launch(spec("--ignore-sigterm", stop_grace=0.3), tmp_path / "log") as server:
        started = time.monotonic()
    assert time.monotonic() - started < 3
    assert gone(server.pid)
    assert server.process.poll() == -signal.SIGKILL


def test_an_error_in_the_block_stops_the_server(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), launch(spec(), tmp_path / "log") as server:
        raise ZeroDivisionError
    assert gone(server.pid)


def test_a_server_that_ends_while_starting_tells_its_last_words(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("words of an earlier server\n")
    code = "import sys; print('loading'); sys.exit('ImportError: libcudart.so.12: cannot open')"
    started = time.monotonic()
    with pytest.raises(ServerStartError, match=r"ended while starting \(exit code 1, after") as caught:
        launch(script(code), log).__enter__()
    assert time.monotonic() - started < 5
    assert caught.value.last_words == ("ImportError: libcudart.so.12: cannot open", "loading")
    assert "ImportError: libcudart.so.12" in str(caught.value)
    assert str(log) in caught.value.remedy


def test_a_server_that_crashes_while_starting_names_the_signal(tmp_path: Path) -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGABRT)"
    with pytest.raises(ServerStartError, match="killed by SIGABRT"):
        launch(script(code), tmp_path / "log").__enter__()


def test_a_server_that_is_still_dying_when_its_clients_know_has_ended(tmp_path: Path) -> None:
    code = """
import os, socket, sys, time
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    connection, _ = listener.accept()
    asked = connection.recv(999)
    if b"/die" in asked:
        listener.close()
        connection.close()
        time.sleep(0.4)
        os._exit(3)
    connection.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\n\\r\\n")
    connection.close()
"""
    with (
        pytest.raises(ServerEndedError, match=r"ended by itself while it was in use \(exit code 3"),
        launch(script(code), tmp_path / "log") as server,
    ):
        get("127.0.0.1", int(server.base_url.rpartition(":")[2]), "/die", 5.0)


def test_a_server_that_never_listens(tmp_path: Path) -> None:
    code = "import time; print('still loading', flush=True); time.sleep(60)"
    with pytest.raises(ServerStartError, match=r"not healthy within 1 s \(last answer of /health: none"):
        launch(script(code, start_timeout=1.0), tmp_path / "log").__enter__()


def test_a_server_that_never_becomes_healthy(tmp_path: Path) -> None:
    code = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(503); self.end_headers()
print("waiting for a GPU", flush=True)
HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
    with pytest.raises(ServerStartError, match=r"not healthy within 1.5 s \(last answer of /health: 503\)") as caught:
        launch(script(code, start_timeout=1.5), tmp_path / "log").__enter__()
    assert "GET /health " in (tmp_path / "log").read_text()
    assert caught.value.last_words == ("waiting for a GPU",), "not our own questions"


def test_a_server_that_takes_requests_but_never_answers(tmp_path: Path) -> None:
    code = """
import socket, sys, time
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
time.sleep(60)
"""
    started = time.monotonic()
    with pytest.raises(ServerStartError, match="last answer of /health: none within"):
        launch(script(code, start_timeout=1.0), tmp_path / "log").__enter__()
    assert time.monotonic() - started < 5


def paths_server(answers: dict[str, list[int]]) -> str:
    """A server that gives each path its statuses in turn, the last one for good; 404 for all others."""
    return f"""
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
answers = {answers!r}
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        left = answers.get(self.path, [404])
        self.send_response(left.pop(0) if len(left) > 1 else left[0]); self.end_headers()
HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ({"/health_generate": [503, 503, 200], "/health": [200]}, "/health_generate"),  # 503 is waited for
        ({"/health": [503, 200], "/v1/models": [200]}, "/health"),
        ({"/health_generate": [405], "/v1/models": [200]}, "/v1/models"),
    ],
)
def test_the_first_path_that_the_server_knows_counts(
    tmp_path: Path, answers: dict[str, list[int]], expected: str
) -> None:
    paths = ("/health_generate", "/health", "/v1/models")
    with launch(replace(script(paths_server(answers)), health_paths=paths), tmp_path / "log") as server:
        assert server.health_path == expected


def test_a_server_that_knows_none_of_the_paths(tmp_path: Path) -> None:
    asked = replace(script(paths_server({}), start_timeout=1.0), health_paths=("/health", "/v1/models"))
    with pytest.raises(ServerStartError, match=r"last answer of /v1/models: 404"):
        launch(asked, tmp_path / "log").__enter__()


@pytest.fixture
def gpu_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with the bytes that NVML's stand-in says are in use on its first GPU, which holds process 1."""
    folder = build_nvml(tmp_path / "nvml", pid=1)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))
    used = tmp_path / "used"
    used.write_text("1000000000")
    monkeypatch.setenv("NVML_STUB_USED", str(used))
    return used


def test_gpu_memory_that_comes_back_late(tmp_path: Path, gpu_memory: Path) -> None:
    back = threading.Timer(1.0, gpu_memory.write_text, ("1000000000",))
    with launch(replace(spec(), gpus=gpus_in_use), tmp_path / "log") as server:
        gpu_memory.write_text("60000000000")
        back.start()
    assert server.gpu_watch.note.startswith("given back after ")
    assert gpu_memory.read_text() == "1000000000"


def test_gpu_memory_that_does_not_come_back(tmp_path: Path, gpu_memory: Path) -> None:
    watched = replace(spec(), gpus=gpus_in_use, gpu_timeout=0.5)
    message = r"0.5 s after the server was stopped its GPU memory is not given back: GPU 0 holds 54.9 GiB more"
    with pytest.raises(GpuMemoryHeldError, match=message), launch(watched, tmp_path / "log") as server:
        gpu_memory.write_text("60000000000")
    assert gone(server.pid)


def test_without_a_driver_gpus_are_not_watched(tmp_path: Path) -> None:
    with launch(replace(spec(), gpus=lambda: "no NVIDIA driver on this machine"), tmp_path / "log") as server:
        pass
    assert server.gpu_watch.note == "not watched: no NVIDIA driver on this machine"


def test_a_program_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="no-such-server"):
        launch(ServerSpec(("no-such-server",), ENVIRONMENT), tmp_path / "log").__enter__()


def test_another_port_is_tried_when_the_first_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        ports = [other.getsockname()[1], free_port("127.0.0.1")]
        wanted = ports[1]
        monkeypatch.setattr(server_process, "free_port", lambda _: ports.pop(0))
        with launch(spec(), tmp_path / "log") as server:
            assert server.base_url.endswith(f":{wanted}")


def test_a_taken_port_is_noticed_though_the_server_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang says this and asks whoever has its port for two minutes before it ends; here it would never end."""
    code = """
import sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
address = ("127.0.0.1", int(sys.argv[1]))
try:
    HTTPServer.allow_reuse_address = False
    server = HTTPServer(address, Handler)
except OSError as error:
    print(f"[Errno 98] error while attempting to bind on address {address}: address already in use", flush=True)
    time.sleep(600)
server.serve_forever()
"""
    with socket.create_server(("127.0.0.1", 0)) as other:
        ports = [other.getsockname()[1], free_port("127.0.0.1")]
        wanted = ports[1]
        monkeypatch.setattr(server_process, "free_port", lambda _: ports.pop(0))
        with launch(script(code, start_timeout=30.0), tmp_path / "log") as server:
            assert server.base_url.endswith(f":{wanted}")


def test_health_of_another_server_is_not_taken_for_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that listens late could find its port taken by another one, which is healthy."""
    with launch(spec(), tmp_path / "other") as other:
        port = int(other.base_url.rpartition(":")[2])
        monkeypatch.setattr(server_process, "free_port", lambda _: port)
        with pytest.raises(ServerStartError, match="not the server answers on its port, on each of 3 ports"):
            launch(spec("--start-delay", "30"), tmp_path / "log").__enter__()
        assert other.process.poll() is None


def test_braces_in_the_command_that_are_no_placeholder_stay() -> None:
    command = ("serve", "--json", '{"port": {port}, "x": {}}', "--url=http://{host}:{port}")
    assert ServerSpec(command).arguments(8000) == (
        "serve",
        "--json",
        '{"port": 8000, "x": {}}',
        "--url=http://127.0.0.1:8000",
    )
