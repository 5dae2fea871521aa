"""The rehearsal's native package, built by both real toolkits, installed in real venvs and served."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.support.engine_wheel import ENGINE, Installed, build, build_wheel, install
from tests.support.toolkits import Toolkits, toolkits

CUOBJDUMP = "nvidia/cu13/bin/cuobjdump"


@pytest.fixture(scope="session")
def cuda() -> Toolkits:
    return toolkits()


@pytest.fixture(scope="session")
def old(cuda: Toolkits, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    place = tmp_path_factory.mktemp("old")
    return install(build_wheel(place / "dist", cuda.cuda_12_8, "12.0"), place / "venv")


@pytest.fixture(scope="session")
def new(cuda: Toolkits, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    place = tmp_path_factory.mktemp("new")
    return install(build_wheel(place / "dist", cuda.cuda_13_0, "12.0+PTX"), place / "venv")


def tree(directory: Path) -> dict[str, str]:
    """Every file below ``directory`` with its hash."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def run_python(installed: Installed, code: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(
        [str(installed.python), "-c", code], env=environment, capture_output=True, text=True, check=False
    )


def dynamic_entries(extension: Path) -> list[tuple[str, str]]:
    text = subprocess.run(["readelf", "-dW", str(extension)], capture_output=True, text=True, check=True).stdout
    return re.findall(r"\((NEEDED|RUNPATH|RPATH)\).*\[(.*)\]", text)


def device_code(extension: Path) -> tuple[set[str], set[str]]:
    """The architectures of SASS and of PTX, as NVIDIA's cuobjdump lists them."""
    program = next(Path(entry) / CUOBJDUMP for entry in sys.path if (Path(entry) / CUOBJDUMP).is_file())
    found = []
    for option in ("--list-elf", "--list-ptx"):
        text = subprocess.run(
            [str(program), option, str(extension)], capture_output=True, text=True, check=False
        ).stdout
        found.append(set(re.findall(r"\b(sm_\w+)\.(?:cubin|ptx)", text)))
    return found[0], found[1]


@pytest.mark.parametrize("kind", ["old", "new"])
def test_extension_needs_its_own_cuda_runtime(kind: str, request: pytest.FixtureRequest) -> None:
    installed: Installed = request.getfixturevalue(kind)
    soname, folder = ("libcudart.so.12", "cuda_runtime") if kind == "old" else ("libcudart.so.13", "cu13")
    entries = dynamic_entries(installed.extension)
    needed = {value for name, value in entries if name == "NEEDED"}
    assert {value for value in needed if "cuda" in value} == {soname}
    assert [entry for entry in entries if entry[0] != "NEEDED"] == [("RUNPATH", f"$ORIGIN/../nvidia/{folder}/lib")]

    done = run_python(installed, "import rehearsal_engine; print(open('/proc/self/maps').read())")
    assert done.returncode == 0, done.stderr
    loaded = {Path(path).resolve() for path in re.findall(r"\S*libcudart\S*", done.stdout)}
    assert loaded == {(installed.package.parent / "nvidia" / folder / "lib" / soname).resolve()}


def test_cuobjdump_sees_the_device_code_of_both_routes(old: Installed, new: Installed) -> None:
    assert device_code(old.extension) == ({"sm_120"}, set())
    assert device_code(new.extension) == ({"sm_120"}, {"sm_120"})


def test_architecture_list_decides_what_is_in_the_file(cuda: Toolkits, tmp_path: Path) -> None:
    for number, (home, architectures, sass, ptx) in enumerate(
        [
            (cuda.cuda_13_0, "9.0", {"sm_90"}, set()),
            (cuda.cuda_13_0, "9.0;12.0f+PTX", {"sm_90", "sm_120"}, {"sm_120"}),
            (cuda.cuda_12_8, "9.0+PTX;12.0+PTX", {"sm_90", "sm_120"}, {"sm_90", "sm_120"}),
        ]
    ):
        wheel = build_wheel(tmp_path / str(number), home, architectures)
        with zipfile.ZipFile(wheel) as archive:
            extension = Path(archive.extract("rehearsal_engine/_kernels.abi3.so", tmp_path / f"x{number}"))
        seen_sass, seen_ptx = device_code(extension)
        # cuobjdump prints some variants with their letter and some without.
        assert {name.rstrip("af") for name in seen_sass} == sass
        assert {name.rstrip("af") for name in seen_ptx} == ptx


def test_metadata_follows_the_toolkit(old: Installed, new: Installed) -> None:
    for installed, local, requirement in (
        (old, "cu128", "nvidia-cuda-runtime-cu12==12.8.*"),
        (new, "cu130", "nvidia-cuda-runtime==13.0.*"),
    ):
        assert installed.wheel.name == f"rehearsal_engine-1.0.0+{local}-cp310-abi3-linux_x86_64.whl"
        with zipfile.ZipFile(installed.wheel) as archive:
            metadata = archive.read(f"rehearsal_engine-1.0.0+{local}.dist-info/METADATA").decode()
        assert re.findall("^Requires-Dist: (.*)$", metadata, re.MULTILINE) == ["numpy>=2.2", requirement]
    information = json.loads((old.package / "build_info.json").read_text())
    assert information["device_compiler"].startswith("NVRTC 12.8 and ptxas 12.8.")
    assert (information["sass"], information["ptx"]) == (["sm_120"], [])
    assert json.loads((new.package / "build_info.json").read_text())["device_compiler"].startswith("nvcc 13.0.")


def test_build_is_reproducible_and_leaves_the_sources_alone(
    cuda: Toolkits, old: Installed, new: Installed, tmp_path: Path
) -> None:
    before = tree(ENGINE)
    assert not [name for name in before if "__pycache__" in name]
    again_old = build_wheel(tmp_path / "old", cuda.cuda_12_8, "12.0", TMPDIR=str(tmp_path))
    again_new = build_wheel(tmp_path / "new", cuda.cuda_13_0, "12.0+PTX", TMPDIR=str(tmp_path), MAX_JOBS="1")
    assert again_old.read_bytes() == old.wheel.read_bytes()
    assert again_new.read_bytes() == new.wheel.read_bytes()
    assert tree(ENGINE) == before
    for wheel in (again_old, again_new):
        with zipfile.ZipFile(wheel) as archive:
            extension = archive.read("rehearsal_engine/_kernels.abi3.so")
        assert str(tmp_path).encode() not in extension
        assert b"rehearsal-engine-" not in extension  # the temporary directory's prefix


def test_both_builds_and_any_extra_work_give_the_same_tokens(old: Installed, new: Installed) -> None:
    code = (
        "from rehearsal_engine.model import Model, tokenize\n"
        "import rehearsal_engine\n"
        "whole = list(Model().generate(tokenize('what is a generation'), 20))\n"
        "assert list(Model(extra_work=1.5).generate(tokenize('what is a generation'), 20)) == whole\n"
        "print(whole)\n"
    )
    outputs = []
    for installed in (old, new):
        done = run_python(installed, code)
        assert done.returncode == 0, done.stderr
        outputs.append(json.loads(done.stdout))
    assert outputs[0] == outputs[1]
    assert len(set(outputs[0])) > 10


def test_device_code_computes_what_the_processor_path_computes(new: Installed, tmp_path: Path) -> None:
    """The kernel's logic, run on the processor thread by thread: needs no GPU, proves nothing about one."""
    weights = tmp_path / "weights"
    done = run_python(
        new,
        "from pathlib import Path\nimport numpy as np\nfrom rehearsal_engine import _kernels, model\n"
        "source = np.random.PCG64(model.SEED)\n"
        "parts = [model._matrix(source, rows) for rows in (256, 1024, 1024)]\n"
        f"Path({str(weights)!r}).write_bytes(b''.join(parts))\n"
        "handle = _kernels.load(*parts, 256, 1024, 'cpu')\nstate, token = bytes(512), 7\n"
        "for _ in range(20):\n"
        "    state, token = _kernels.step(handle, state, token, 9, 3)\n    print(token, end=' ')\n",
    )
    assert done.returncode == 0, done.stderr
    source = Path(__file__).resolve().parents[1] / "support" / "block_on_processor.cpp"
    program = tmp_path / "block"
    compile_it = [
        "g++",
        "-std=c++17",
        "-O2",
        "-pthread",
        f"-I{ENGINE / 'native'}",
        str(source),
        "-o",
        str(program),
    ]
    subprocess.run(compile_it, check=True)
    output = subprocess.run([str(program), str(weights)], capture_output=True, text=True, check=True).stdout
    assert output == done.stdout
    assert len(set(output.split())) > 10


def test_device_path_without_a_device_is_refused_in_words(new: Installed) -> None:
    done = run_python(new, "import rehearsal_engine as r; print(r.device_count(), r.runtime_version())")
    assert done.returncode == 0, done.stderr
    devices, version = done.stdout.split()
    assert version.startswith("1300")
    if devices != "0":
        pytest.skip("this machine has a CUDA device")
    served = subprocess.run(
        [str(new.python), "-m", "rehearsal_engine.server", "--port", "0", "--device", "cuda"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert served.returncode == 1
    assert served.stderr.startswith("cannot start: cannot place the model on the CUDA device: ")
    assert "Traceback" not in served.stderr


def test_wrong_arguments_raise_and_never_crash(new: Installed) -> None:
    code = """
from rehearsal_engine import _kernels as k
from rehearsal_engine.model import Model
handle = Model()._handle
calls = [
    (k.step, (3, b'', 0, 0, 0)),
    (k.step, (handle, b'x', 0, 1, 0)),
    (k.step, (handle, bytes(512), 1024, 1, 0)),
    (k.step, (handle, bytes(512), 0, -1, 0)),
    (k.step, (handle,)),
    (k.load, (b'', b'', b'', 256, 1024, 'cpu')),
    (k.load, (b'', b'', b'', 0, 1, 'cpu')),
    (k.load, (b'', b'', b'', 1, 1, 'tpu')),
    (k.load, ('', b'', b'', 1, 1, 'cpu')),
]
for function, arguments in calls:
    try:
        function(*arguments)
    except (TypeError, ValueError):
        continue
    raise SystemExit(f'accepted: {arguments}')
"""
    done = run_python(new, code)
    assert done.returncode == 0, done.stderr


def test_broken_import_fails_with_a_telling_last_line(cuda: Toolkits, tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path / "dist", cuda.cuda_13_0, "12.0", REHEARSAL_FAULT="broken_import")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert len(names) == len(set(names))
    done = run_python(install(wheel, tmp_path / "venv"), "import rehearsal_engine")
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: cannot import name 'fused_step' from 'rehearsal_engine._kernels' (")


@pytest.mark.parametrize(
    ("architectures", "extra", "message", "remedy"),
    [
        ("12.0", {"CUDA_HOME": ""}, "CUDA_HOME is not set", "set it to a CUDA toolkit"),
        (
            "12.0",
            {"CUDA_HOME": "/nowhere"},
            "cannot read /nowhere/include/cuda_runtime_api.h",
            "complete toolkit",
        ),
        ("", {}, "CROSSGRADE_CUDA_ARCHITECTURES is empty", "9.0;12.0+PTX"),
        ("12.0,9.0", {}, "'12.0,9.0' is not a CUDA architecture", "9.0;12.0+PTX"),
        ("12.0f", {}, "NVRTC could not compile device.cuh", "12.0f needs CUDA 12.9"),
        ("12.0", {"MAX_JOBS": "many"}, "MAX_JOBS is 'many'", "whole number"),
        ("12.0", {"CXX": "g++-no-such"}, "g++-no-such is not on PATH", "apt install build-essential"),
        ("12.0", {"REHEARSAL_FAULT": "brokn"}, "REHEARSAL_FAULT is 'brokn'", "broken_import"),
    ],
)
def test_build_errors_say_what_to_do(
    cuda: Toolkits, tmp_path: Path, architectures: str, extra: dict[str, str], message: str, remedy: str
) -> None:
    done = build(tmp_path, cuda.cuda_12_8, architectures, **extra)
    assert done.returncode != 0
    assert re.search(rf"rehearsal-engine: .*{re.escape(message)}", done.stderr), done.stdout + done.stderr
    assert re.search(rf"What to do: .*{re.escape(remedy)}", done.stderr)
    assert "Traceback" not in done.stdout + done.stderr


def test_missing_compiler_half_and_missing_nvrtc_are_named(cuda: Toolkits, tmp_path: Path) -> None:
    # A g++ that cannot find its compiler proper: the state of a machine with gcc only.
    tools = tmp_path / "tools"
    tools.mkdir()
    broken = tools / "g++"
    broken.write_text("#!/bin/sh\necho \"g++: fatal error: cannot execute 'cc1plus': No such file\" >&2\nexit 1\n")
    broken.chmod(0o755)
    done = build(tmp_path / "a", cuda.cuda_13_0, "12.0", PATH=f"{tools}:/usr/bin:/bin")
    assert "its C++ half (cc1plus) is not" in done.stderr
    assert "apt install build-essential" in done.stderr

    home = tmp_path / "home"
    shutil.copytree(cuda.cuda_12_8, home, symlinks=False, ignore=shutil.ignore_patterns("libnvrtc*", "nvvm"))
    done = build(tmp_path / "b", home, "12.0")
    assert "libnvrtc.so.12 is neither in" in done.stderr
    assert "install nvidia-cuda-nvrtc-cu12==12.8.*" in done.stderr


@dataclass
class Served:
    process: subprocess.Popen[str]
    port: int

    @contextmanager
    def request(self, path: str, body: dict[str, Any] | None = None) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        data = json.dumps(body) if body is not None else None
        with closing(connection):
            connection.request("POST" if data else "GET", path, data, {"Content-Type": "application/json"})
            with connection.getresponse() as response:
                yield response

    def json(self, path: str, body: dict[str, Any] | None = None) -> Any:
        with self.request(path, body) as response:
            assert response.status == 200, response.read()
            return json.loads(response.read())

    def events(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """The stream's JSON chunks, after checking its form and its end."""
        with self.request(path, {**body, "stream": True}) as response:
            assert response.status == 200
            assert response.headers["Content-Type"] == "text/event-stream"
            lines = [line for line in response.read().decode().split("\n\n") if line]
        assert all(line.startswith("data: ") for line in lines)
        assert lines[-1] == "data: [DONE]"
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


@contextmanager
def serve(installed: Installed, **environment: str) -> Iterator[Served]:
    process = subprocess.Popen(
        [str(installed.python), "-m", "rehearsal_engine.server", "--host", "127.0.0.1", "--port", "0"],
        env={**os.environ, **environment},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        line = process.stderr.readline()
        found = re.search(r"ready on http://127\.0\.0\.1:(\d+)$", line.strip())
        assert found is not None, line + process.stderr.read()
        yield Served(process, int(found[1]))
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


@pytest.fixture(scope="module")
def server(new: Installed) -> Iterator[Served]:
    with serve(new) as served:
        yield served


def test_server_answers_as_openai_servers_do(server: Served) -> None:
    assert server.json("/health") == {"status": "ok"}
    assert server.json("/v1/models")["data"][0]["id"] == "rehearsal"
    assert server.json("/server_info")["needs"] == "libcudart.so.13"
    whole = server.json("/v1/completions", {"prompt": "one two three", "max_tokens": 5})
    assert whole["usage"] == {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}
    assert whole["choices"][0]["finish_reason"] == "length"

    events = server.events(
        "/v1/completions",
        {"prompt": "one two three", "max_tokens": 5, "stream_options": {"include_usage": True}},
    )
    *tokens, last, usage = events
    assert len(tokens) == 5
    assert "".join(event["choices"][0]["text"] for event in tokens) == whole["choices"][0]["text"]
    assert last["choices"][0]["finish_reason"] == "length"
    assert (usage["choices"], usage["usage"]) == ([], whole["usage"])

    chat = {"messages": [{"role": "user", "content": "one two three"}], "max_tokens": 5}
    message = server.json("/v1/chat/completions", chat)["choices"][0]["message"]
    assert message == {"role": "assistant", "content": whole["choices"][0]["text"]}
    *pieces, last = server.events("/v1/chat/completions", chat)
    assert "".join(piece["choices"][0]["delta"]["content"] for piece in pieces) == message["content"]
    assert last["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/completions", {"prompt": 3}, 400),
        ("/v1/completions", {"prompt": ["a", "b"]}, 400),
        ("/v1/completions", {"prompt": "a", "max_tokens": 0}, 400),
        ("/v1/completions", {"prompt": "a", "n": 2}, 400),
        ("/v1/chat/completions", {"messages": []}, 400),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": 1}]}, 400),
        ("/v1/embeddings", {"input": "a"}, 404),
    ],
)
def test_server_refuses_wrong_requests(server: Served, path: str, body: dict[str, Any], status: int) -> None:
    with server.request(path, body) as response:
        assert response.status == status
        assert json.loads(response.read())["error"]["message"]
    assert server.json("/health") == {"status": "ok"}


def test_server_stops_cleanly_in_the_middle_of_streams(new: Installed) -> None:
    with serve(new) as served:
        idle = socket.create_connection(("127.0.0.1", served.port))
        with served.request("/v1/completions", {"prompt": "a", "max_tokens": 4000, "stream": True}) as response:
            assert response.readline().startswith(b"data: ")
            started = time.monotonic()
            served.process.send_signal(signal.SIGTERM)
            text = response.read()
        assert served.process.wait(timeout=10) == 0
        assert time.monotonic() - started < 5
        assert b'"finish_reason": "abort"' in text
        assert text.endswith(b"data: [DONE]\n\n")
        assert served.process.stderr is not None
        assert served.process.stderr.read() == ""
        idle.close()


def test_extra_work_takes_a_fifth_of_the_speed(new: Installed) -> None:
    # CPU time of interleaved runs: wall time would measure the other processes of the machine as well.
    code = (
        "import time\n"
        "from rehearsal_engine.model import Model\n"
        "models = [Model(), Model(extra_work=1.25)]\n"
        "ratios = []\n"
        "for _ in range(9):\n"
        "    spent = []\n"
        "    for model in models:\n"
        "        started = time.thread_time()\n"
        "        list(model.generate([1], 40))\n"
        "        spent.append(time.thread_time() - started)\n"
        "    ratios.append(spent[0] / spent[1])\n"
        "print(sorted(ratios)[4])\n"
    )
    done = run_python(new, code)
    assert done.returncode == 0, done.stderr
    assert 0.7 < float(done.stdout) < 0.9
    with serve(new, REHEARSAL_EXTRA_WORK="1.25") as served:
        assert served.json("/server_info")["extra_work"] == 1.25
