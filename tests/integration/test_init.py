"""`init` on a real process that looks like SGLang's, from a real venv; what it writes is checked and planned."""

from __future__ import annotations

import functools
import http.server
import os
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support.commands import Answer, crossgrade
from tests.support.launch_parser import server_files
from tests.support.tiny_wheels import tiny_venv, tiny_wheel

LAUNCH_SERVER = b"""
import http.server, sys
port = int(sys.argv[sys.argv.index("--port") + 1])
server = http.server.HTTPServer(("127.0.0.1", port), http.server.BaseHTTPRequestHandler)
print("listening", flush=True)
server.serve_forever()
"""
SECRETS = ("key-of-the-server", "token-of-the-hub")


@dataclass(frozen=True)
class Place:
    """A folder with an environment `ml-env` of SGLang 0.5.9, and an index that holds what the target resolves to."""

    folder: Path
    index: str

    @property
    def venv(self) -> Path:
        return self.folder / "ml-env"

    @property
    def new(self) -> Path:
        return self.folder / "new"

    def crossgrade(self, *arguments: str | Path) -> Answer:
        """The program, for which there is no other index."""
        variables = {"UV_DEFAULT_INDEX": self.index, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
        return crossgrade(*arguments, cwd=self.folder, environment=variables)

    def written(self) -> list[str | Path]:
        return ["--playbook", self.new / "playbook.yml", "-i", self.new / "inventory.yml"]


class Index(http.server.SimpleHTTPRequestHandler):
    """A package index: the listing of a folder is what PEP 503 asks for."""

    def log_message(self, *arguments: object) -> None:
        """Nothing is logged."""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    engine = {"sglang/__init__.py": b"", "sglang/launch_server.py": LAUNCH_SERVER}
    old = [
        tiny_wheel(wheels, "sglang", "0.5.9", engine, ["torch==2.9.1"]),
        tiny_wheel(wheels, "torch", "2.9.1"),
        tiny_wheel(wheels, "datasets", "4.0.0"),
    ]
    tiny_venv(tmp_path / "ml-env", *old)
    for name, version, requires in (
        ("sglang", "0.5.23", ["torch==2.14.1"]),
        ("torch", "2.14.1", []),
        ("cuda-toolkit", "13.0.3.0", []),
    ):
        folder = tmp_path / "index" / "simple" / name
        folder.mkdir(parents=True)
        tiny_wheel(folder, name, version, server_files() if name == "sglang" else None, requires)
    handler = functools.partial(Index, directory=str(tmp_path / "index"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        yield Place(tmp_path, f"http://127.0.0.1:{listening.server_address[1]}/simple/")
        listening.shutdown()
        thread.join()


@contextmanager
def running(venv: Path, *more: str, environment: Mapping[str, str] | None = None) -> Iterator[int]:
    """The server as people start it, from a folder that is not its own; gives its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    argv: list[str | Path] = [
        venv / "bin" / "python",
        "-m",
        "sglang.launch_server",
        "--model-path",
        "/models/q",
        "--port",
        str(port),
        *more,
    ]
    variables = {**os.environ, **(environment or {})}
    with subprocess.Popen(argv, cwd=venv.parent, env=variables, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "listening\n"
            yield port
        finally:
            process.kill()


def test_options_that_the_target_calls_otherwise_are_translated(place: Place) -> None:
    changed = "--cuda-graph-max-bs 128 -> --cuda-graph-max-bs-decode 128"
    with running(place.venv, "--tp-size", "2", "--cuda-graph-max-bs", "128", "--draft-token", SECRETS[0]):
        answer = place.crossgrade("init", "new", "--venv", place.venv)
    assert f"{changed} in sglang 0.5.23: launch_check translates it" in answer.stdout
    text = (place.new / "playbook.yml").read_text()
    assert changed in " ".join(text.replace("\n#", "").split())
    given = f"server_draft_token={SECRETS[0]}"
    deep = place.crossgrade("plan", "--deep", "--json", "-e", given, *place.written())
    task = next(each for each in deep.of_kind("plan")[-1]["plan"]["tasks"] if each["module"] == "launch_check")
    assert changed in task["summary"]
    assert task["foreseen"]["outcome"] == "would pass"
    assert task["foreseen"]["reason"].startswith(
        "sglang 0.5.23's source, read and not executed, declares 5 of 6 options"
    )
    messages = [each["message"] for each in task["foreseen"]["verdict"]["findings"]]
    assert any(message.startswith("--draft-token was not found in the source") for message in messages)
    for secret in SECRETS:
        assert secret not in text + answer.stdout + answer.stderr + deep.stdout + deep.stderr


def test_what_runs_becomes_a_playbook_that_plans(place: Place) -> None:
    variables = {"HF_TOKEN": SECRETS[1], "NCCL_P2P_DISABLE": "1", "CUDA_HOME": "/usr/local/cuda-12.8"}
    with running(place.venv, "--tp", "2", "--api-key", SECRETS[0], environment=variables) as port:
        answer = place.crossgrade("init", "new", "--venv", place.venv)
        assert answer.code == 0, answer.stderr
    assert f"port {port}, model /models/q" in answer.stdout
    assert f"environment {place.venv}: sglang 0.5.9, torch 2.9.1" in answer.stdout
    assert "datasets==4.0.0" in answer.stdout
    assert f"next: crossgrade plan --playbook {place.new / 'playbook.yml'}" in answer.stdout
    text = (place.new / "playbook.yml").read_text()
    for secret in SECRETS:
        assert secret not in text + answer.stdout + answer.stderr
    for words in (
        '"NCCL_P2P_DISABLE": "1"',
        'HF_TOKEN": "{{ hf_token }}"',
        '- "--tp"\n        - "2"',
        "CUDA_HOME is not",
    ):
        assert words in text
    assert "--api-key" not in text.partition("---")[2]
    for name in ("playbook.yml", "inventory.yml"):
        assert (place.new / name).stat().st_mode & 0o777 == 0o600

    checked = place.crossgrade("upgrade", "--syntax-check", *place.written())
    assert checked.code == 0, checked.stderr
    planned = place.crossgrade("plan", "--json", *place.written())
    assert planned.code == 0, planned.stderr
    assert "build generation 2: 2 dists" in planned.stderr
    if not Path("/proc/driver/nvidia/version").exists():
        assert "not run: " in planned.result("This server can take the target")["message"]
    tasks = planned.of_kind("plan")[-1]["plan"]["tasks"]
    assert "0.5.9 -> 0.5.23" in place.crossgrade("plan", "--diff", *place.written()).stdout
    assert len(tasks) > 12
    assert not (place.folder / "crossgrade-ml-env").exists()
    assert not place.venv.is_symlink()


def test_of_several_servers_one_is_chosen(place: Place) -> None:
    with running(place.venv) as one, running(place.venv) as other:
        for arguments in (["--venv", str(place.venv)], list[str]()):
            answer = place.crossgrade("init", "new", *arguments)
            assert answer.code == 5
            for words in ("servers run here", "--port PORT", f"on port {one}", f"on port {other}"):
                assert words in answer.stderr
        assert not place.new.exists()
        assert place.crossgrade("init", "new", "--port", str(other)).code == 0
        assert f"on port {other}" in (place.new / "playbook.yml").read_text()
        assert place.crossgrade("init", "elsewhere", "--port", "1").code == 5


def test_without_a_server_a_plan_says_what_is_missing(place: Place) -> None:
    answer = place.crossgrade("init", "--venv", place.venv, "new", "--json")
    assert answer.code == 0, answer.stderr
    assert answer.events[0]["pid"] is None
    assert place.crossgrade("upgrade", "--syntax-check", *place.written()).code == 0
    planned = place.crossgrade("plan", *place.written())
    assert planned.code == 1
    assert "write the model in place of MODEL" in planned.stderr
    playbook = place.new / "playbook.yml"
    playbook.write_text(playbook.read_text().replace('- "MODEL"', '- "/models/q"'))
    assert place.crossgrade("plan", *place.written()).code == 0


def test_what_is_there_is_kept_without_force(place: Place) -> None:
    place.new.mkdir()
    (place.new / "inventory.yml").symlink_to(place.folder / "somewhere")
    refused = place.crossgrade("init", "new", "--venv", place.venv)
    assert refused.code == 1
    assert "inventory.yml is there already" in refused.stderr
    assert not (place.new / "playbook.yml").exists()
    assert place.crossgrade("init", "new", "--venv", place.venv, "--force").code == 0
    assert not (place.new / "inventory.yml").is_symlink()
    assert not (place.folder / "somewhere").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--cuda", "thirteen"], 5, "--cuda names a release"),
        (["--venv", "wheels"], 1, "is no environment"),
        (["--port", "x"], 5, "--port needs a whole number"),
    ],
)
def test_wrong_options_of_init(place: Place, arguments: list[str], code: int, words: str) -> None:
    answer = place.crossgrade("init", "new", *arguments)
    assert (answer.code, words in answer.stderr) == (code, True), answer.stderr
    assert not place.new.exists()


def test_a_cuda_that_no_table_knows(place: Place) -> None:
    assert place.crossgrade("init", "new", "--venv", place.venv, "--cuda", "13.9").code == 0
    planned = place.crossgrade("plan", *place.written())
    assert planned.code == 1
    assert "which one is built for CUDA 13.9 is not known" in planned.stderr
