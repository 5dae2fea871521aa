"""`plan --deep`: gates judge an environment that is not there yet, and then say the same of the one that is built."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.support.commands import Answer, crossgrade, snapshot
from tests.support.gate_host import build_with_device_code
from tests.support.native import build, have_gcc
from tests.support.tiny_wheels import tiny_venv, tiny_wheel

from crossgrade.engine.plan import load_plan

pytestmark = pytest.mark.skipif(not have_gcc(), reason="gcc is not installed")

GATES: dict[str, dict[str, Any]] = {
    "abi_check": {"generation": "{{ candidate.generation }}"},
    "gpu_arch_check": {"generation": "{{ candidate.generation }}", "compute_capability": "12.0", "on_not_run": "warn"},
    "consistency_check": {"generation": "{{ candidate.generation }}"},
    "smoke_check": {"generation": "{{ candidate.generation }}", "imports": ["json"]},
}


@dataclass(frozen=True)
class Server:
    """A server to be: a playbook whose lock comes from the folder `wheels`, and uv without a network."""

    folder: Path

    @property
    def root(self) -> Path:
        return self.folder / "root"

    @property
    def wheels(self) -> Path:
        return self.folder / "wheels"

    @property
    def environment(self) -> dict[str, str]:
        cache = self.folder / "cache"
        (cache / "tmp").mkdir(parents=True, exist_ok=True)
        return {"UV_OFFLINE": "1", "UV_CACHE_DIR": str(cache / "uv"), "TMPDIR": str(cache / "tmp")}

    def wheel(self, name: str, *files: Path, version: str = "1.0", requires: tuple[str, ...] = ()) -> None:
        content = {f"{name}/{file.name}": file.read_bytes() for file in files}
        tiny_wheel(self.wheels, name, version, {f"{name}/__init__.py": b"", **content}, requires)

    def play(self, *tasks: Mapping[str, Any]) -> None:
        play = [{"name": "Deep", "hosts": "localhost", "tasks": list(tasks)}]
        (self.folder / "play.yml").write_text(json.dumps(play))

    def run(self, command: str, *arguments: str, **environment: str) -> Answer:
        where: list[str | Path] = ["--playbook", self.folder / "play.yml", "--root", self.root]
        return crossgrade(command, *where, *arguments, environment={**self.environment, **environment})

    def left_over(self) -> list[str]:
        return [path.name for path in (self.folder / "cache" / "tmp").rglob("deep-*")]


@pytest.fixture
def server(tmp_path: Path) -> Server:
    found = Server(tmp_path)
    for folder in (found.wheels, found.folder / "built", found.root):
        folder.mkdir()
    return found


def candidate(*requirements: str, **arguments: Any) -> dict[str, Any]:
    asked = {"requirements": list(requirements), "find_links": ["{{ playbook_dir }}/wheels"], **arguments}
    return {"name": "Candidate", "python_env": asked, "register": "candidate"}


def gates(**changes: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"name": name, name: {**arguments, **changes.get(name, {})}} for name, arguments in GATES.items()]


def foreseen(answer: Answer) -> dict[str, dict[str, Any]]:
    """What a deep plan says of each gate, by the name of its module."""
    tasks = answer.of_kind("plan")[-1]["plan"]["tasks"]
    return {task["module"]: task["foreseen"] for task in tasks if task["foreseen"]}


def outcomes(answer: Answer) -> dict[str, str]:
    return {module: found["outcome"] for module, found in foreseen(answer).items()}


def without_time(verdict: Mapping[str, Any]) -> dict[str, Any]:
    figures = {name: value for name, value in verdict["figures"].items() if name not in ("judged_at", "seconds")}
    return {**verdict, "figures": figures}


def broken(server: Server) -> Path:
    """An extension that needs a library of CUDA 12, and nobody brings it."""
    library = build(server.folder / "libcudart.so.12", "int made(void) { return 1; }",
                    options=["-Wl,-soname,libcudart.so.12"])  # fmt: skip
    code = "int made(void); void *PyInit_kernels(void) { return (void *)(long)made(); }"
    return build(server.folder / "built" / "kernels.so", code, libraries=[library])


def test_a_lock_that_will_fail_is_said_to_and_then_does(server: Server) -> None:
    server.wheel("tiny_kernels", broken(server))
    server.play(candidate("tiny-kernels"), *gates(), {"activate": {"generation": "{{ candidate.generation }}"}})
    before = snapshot(server.root)
    plan = server.run("plan", "--deep", "--json")
    assert plan.code == 3, plan.stderr
    assert snapshot(server.root) == before
    assert server.left_over() == []
    found = foreseen(plan)["abi_check"]
    assert found["outcome"] == "would fail"
    assert "libcudart.so.12" in found["reason"]
    assert "built against CUDA 12" in found["reason"] or "CUDA 12 runtime" in found["reason"]
    assert outcomes(plan)["smoke_check"] == "not run"

    upgrade = server.run("upgrade", "--json")
    assert upgrade.code == 2
    assert upgrade.ended["reason"] == f"task 'abi_check' failed: {found['reason']}"
    assert without_time(upgrade.result("abi_check")["verdict"]) == without_time(found["verdict"])

    people = server.run("plan", "--deep")
    assert people.code == 3
    assert f"would fail: {found['reason']}" in people.stdout
    assert "Nothing was changed" in people.stdout
    assert server.run("plan").code == 0, "without --deep nothing is judged"


def test_what_a_deep_plan_says_is_what_the_gates_say(server: Server) -> None:
    """A lock that passes, whose library is found by LD_LIBRARY_PATH in the generation's own folder."""
    library = build(server.folder / "built" / "libhelp.so.3", "int help_me(void) { return 1; }",
                    options=["-Wl,-soname,libhelp.so.3"])  # fmt: skip
    code = "int help_me(void); void *PyInit_kernels(void) { return (void *)(long)help_me(); }"
    kernels = build(server.folder / "built" / "kernels.so", code, libraries=[library])
    device = build_with_device_code(server.folder / "built" / "device.so", 120)
    server.wheel("helping", library)
    server.wheel("tiny_kernels", kernels, device, requires=("helping",))
    site = "{{ crossgrade_store }}/generations/1/venv/lib/python" + ".".join(map(str, _python())) + "/site-packages"
    server.play(candidate("tiny-kernels", environment={"LD_LIBRARY_PATH": f"{site}/helping"}), *gates())
    plan = server.run("plan", "--deep", "--json")
    assert plan.code == 0, plan.stderr
    assert outcomes(plan) == {
        "abi_check": "would pass",
        "gpu_arch_check": "would pass",
        "consistency_check": "would pass",
        "smoke_check": "not run",
    }
    assert server.run("plan", "--deep", "--detailed-exitcode").code == 2
    upgrade = server.run("upgrade", "--json")
    assert upgrade.code == 0, upgrade.stderr
    for module, found in foreseen(plan).items():
        if module != "smoke_check":
            assert without_time(upgrade.result(module)["verdict"]) == without_time(found["verdict"]), module
    assert str(server.folder / "cache") not in plan.stdout, "the temporary folder is nobody's business"


def _python() -> tuple[int, int]:
    import sys

    return sys.version_info[:2]


def test_the_wrong_architecture_and_an_unmet_requirement_are_foreseen(server: Server) -> None:
    server.wheel("tiny_kernels", build_with_device_code(server.folder / "built" / "device.so", 90))
    server.wheel("asking", requires=("tiny-kernels>=2",))
    server.play(candidate("tiny-kernels", "asking", overrides=["tiny-kernels==1.0"]), *gates())
    plan = server.run("plan", "--deep", "--json")
    assert plan.code == 3, plan.stderr
    found = foreseen(plan)
    assert "sm_120: it holds sm_90" in found["gpu_arch_check"]["reason"]
    assert "needs tiny-kernels>=2" in found["consistency_check"]["reason"]
    assert found["abi_check"]["outcome"] == "would pass"


def test_a_wheel_that_the_run_builds_is_not_judged_before_it_is_there(server: Server) -> None:
    server.wheel("harmless")
    built = server.folder / "source"
    built.mkdir()
    (built / "pyproject.toml").write_text('[project]\nname = "own-kernels"\n')
    content = {"own_kernels/__init__.py": b"", "own_kernels/kernels.so": broken(server).read_bytes()}
    tiny_wheel(built, "own-kernels", "1.0", content)
    copy = "import shutil, sys; shutil.copy('own_kernels-1.0-py3-none-any.whl', sys.argv[1])"
    server.play(
        {
            "extension_build": {"source": str(built), "build_command": ["{python}", "-c", copy, "{out}"]},
            "register": "own",
        },
        candidate("harmless", wheels=["{{ own.wheel }}"]),
        *gates(abi_check={"on_not_run": "warn"}),
    )
    plan = server.run("plan", "--deep", "--json")
    assert plan.code == 0, plan.stderr
    for module in ("abi_check", "gpu_arch_check", "consistency_check"):
        assert foreseen(plan)[module]["outcome"] == "not run"
        assert foreseen(plan)[module]["reason"].startswith("own-kernels is built by this run")
    assert server.run("upgrade").code == 2
    again = server.run("plan", "--deep", "--json")
    assert again.code == 3, "the wheel is in the store now"
    assert "libcudart.so.12" in foreseen(again)["abi_check"]["reason"]


@pytest.mark.parametrize("keyword", ["ignore_errors", "rescue", "failed_when"])
def test_a_failure_that_the_playbook_goes_on_after_is_no_failure_of_the_plan(server: Server, keyword: str) -> None:
    server.wheel("tiny_kernels", broken(server))
    gate = gates()[0]
    around: dict[str, Callable[[], dict[str, Any]]] = {
        "ignore_errors": lambda: {**gate, "ignore_errors": True},
        "failed_when": lambda: {**gate, "failed_when": False},
        "rescue": lambda: {"block": [gate], "rescue": [{"debug": {"msg": "so be it"}}]},
    }
    server.play(candidate("tiny-kernels"), around[keyword]())
    plan = server.run("plan", "--deep", "--json")
    assert plan.code == 0, plan.stderr
    assert foreseen(plan)["abi_check"]["outcome"] == "would fail"
    assert keyword in foreseen(plan)["abi_check"]["tolerated"]
    assert server.run("upgrade").code == 0


def test_the_working_environment_is_compared_with_before_it_is_adopted(server: Server) -> None:
    server.wheel("tiny_kernels", broken(server))
    env = tiny_venv(server.root / "env", server.wheels / "tiny_kernels-1.0-py3-none-any.whl")
    server.play(
        {"venv_backup": {"path": str(env)}, "register": "backup"},
        candidate("tiny-kernels"),
        *gates(abi_check={"compare_with": "{{ backup.generation }}"}),
    )
    before = snapshot(server.root)
    plan = server.run("plan", "--deep", "--json")
    assert plan.code == 0, plan.stderr
    found = foreseen(plan)["abi_check"]
    assert found["outcome"] == "would pass"
    assert "it does not load in generation 1 either" in json.dumps(found["verdict"])
    assert snapshot(server.root) == before
    upgrade = server.run("upgrade", "--json")
    assert without_time(upgrade.result("abi_check")["verdict"]) == without_time(found["verdict"])


@pytest.mark.parametrize("mended", [False, True])
def test_a_clone_is_judged_with_what_it_keeps_and_gets(server: Server, mended: bool) -> None:
    """What it keeps does not load, or comes in a version that does. Nothing of the original is touched meanwhile."""
    server.wheel("tiny_kernels", broken(server))
    env = tiny_venv(server.root / "env", server.wheels / "tiny_kernels-1.0-py3-none-any.whl")
    whole = build(server.folder / "built" / "kernels.so", "void *PyInit_kernels(void) { return 0; }")
    server.wheel("tiny_kernels", whole, version="2.0")
    server.wheel("harmless")
    asked = "tiny-kernels==2.0" if mended else "harmless"
    server.play({"venv_backup": {"path": str(env)}}, candidate(asked, base="clone"), *gates())
    before = snapshot(server.root)
    plan = server.run("plan", "--deep", "--json")
    assert plan.code == (0 if mended else 3), plan.stderr
    assert snapshot(server.root) == before
    upgrade = server.run("upgrade", "--json")
    for module in ("abi_check", "consistency_check") if mended else ("abi_check",):
        found = foreseen(plan)[module]["verdict"]
        assert without_time(upgrade.result(module)["verdict"]) == without_time(found)


def test_a_saved_plan_keeps_the_verdict_and_is_not_carried_out(server: Server) -> None:
    server.wheel("tiny_kernels", broken(server))
    server.play(candidate("tiny-kernels"), *gates())
    file = server.folder / "plan.json"
    assert server.run("plan", "--deep", "--out", str(file)).code == 3
    saved = load_plan(file)
    (task,) = saved.would_fail
    assert task.module == "abi_check"
    assert task.foreseen is not None
    assert task.foreseen.verdict is not None
    assert task.foreseen.verdict["outcome"] == "failed"
    before = snapshot(server.root)
    refused = server.run("upgrade", "--plan", str(file))
    assert refused.code == 1
    assert "abi_check" in refused.stderr
    assert snapshot(server.root) == before


def test_what_cannot_be_laid_out_is_not_run(server: Server) -> None:
    """uv needs a cache to link to; a gate without an environment did not pass."""
    server.wheel("harmless")
    server.play(candidate("harmless"), *gates())
    plan = server.run("plan", "--deep", "--json", UV_NO_CACHE="1")
    assert plan.code == 0, plan.stderr
    assert set(outcomes(plan).values()) == {"not run"}
    assert "no-cache" in foreseen(plan)["abi_check"]["reason"]


class Index(http.server.BaseHTTPRequestHandler):
    """A package index of the wheels in `folder`: PEP 691, with the sizes of PEP 700 and the metadata of PEP 658."""

    folder = Path()

    def do_GET(self) -> None:
        name = self.path.strip("/").rpartition("/")[2]
        wheel = self.folder / name
        found = [path for path in sorted(self.folder.glob("*.whl")) if path.name.startswith(name.replace("-", "_"))]
        if wheel.is_file():
            self.answer("application/zip", wheel.read_bytes())
        elif name.endswith(".metadata"):
            with zipfile.ZipFile(wheel.with_suffix("")) as archive:
                place = next(each for each in archive.namelist() if each.endswith("/METADATA"))
                self.answer("text/plain", archive.read(place))
        elif found:
            files = [
                {
                    "filename": path.name,
                    "url": f"/files/{path.name}",
                    "size": path.stat().st_size,
                    "core-metadata": True,
                    "hashes": {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()},
                }
                for path in found
            ]
            page = {"meta": {"api-version": "1.1"}, "name": name, "versions": ["1.0"], "files": files}
            self.answer("application/vnd.pypi.simple.v1+json", json.dumps(page).encode())
        else:
            self.send_error(404)

    def answer(self, kind: str, content: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@pytest.fixture
def index(server: Server) -> Iterator[str]:
    """Its URL."""
    handler = type("Handler", (Index,), {"folder": server.wheels})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{listening.server_address[1]}/simple"
        listening.shutdown()
        thread.join()


def test_it_says_what_it_fetches_and_fetches_it_once(server: Server, index: str) -> None:
    noise = server.folder / "built" / "noise"
    noise.write_bytes(os.urandom(3_000_000))
    server.wheel("tiny_kernels", noise)
    task = {"requirements": ["tiny-kernels"], "index_url": index}
    server.play({"name": "Candidate", "python_env": task, "register": "candidate"}, *gates())
    online = {"UV_OFFLINE": "0", "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    plan = server.run("plan", "--deep", "--json", **online)
    assert plan.code == 0, plan.stderr
    (said,) = [event["message"] for event in plan.of_kind("warning")]
    assert "fetching 1 wheel, 3 MB" in said
    assert outcomes(plan)["abi_check"] == "would pass"
    again = server.run("plan", "--deep", "--json", **online)
    assert again.code == 0
    assert again.of_kind("warning") == []
    assert outcomes(again) == outcomes(plan)
