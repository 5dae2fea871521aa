"""Facts of this machine and of real things on it: venvs, processes, compilers, indexes; and a stand-in for NVML."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from tests.support.booted_systemd import booted, why_not
from tests.support.commands import crossgrade
from tests.support.nvml_stub import build_nvml
from tests.support.toolkits import toolkits, uv_program

from crossgrade.facts import gpu_reading
from crossgrade.facts.gpus import GpuFacts, GpuPair, GpuProcess
from crossgrade.facts.indexes import IndexAnswer, ask_indexes
from crossgrade.facts.server import SECTIONS, Server
from crossgrade.facts.units import SHOWN_PROPERTIES, parse_shown
from crossgrade.inspect.query import run_query

GIT = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]


# ---- NVML


def read_stub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> GpuFacts:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))
    return gpu_reading.read_gpus({"PATH": "", "LD_LIBRARY_PATH": str(folder)}, run_query)


def test_nvml_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = read_stub(build_nvml(tmp_path, pid=4242), monkeypatch)
    assert (found.source, found.driver, found.cuda) == ("nvml", "580.95.05", "13.0")
    first, second = found.gpus
    assert (first.name, first.uuid, first.pci_bus, first.minor) == ("stub 0", "GPU-0", "0000:c1:00.0", 1)
    assert (first.compute_capability, first.memory_bytes, first.memory_used_bytes) == ("12.0", 1000, 100)
    assert (first.bar1_bytes, first.utilization, first.performance_state) == (2000, 37, "P8")
    assert (first.persistence, second.persistence) == (False, True)
    assert first.clock_reasons == ("hw_slowdown", "hw_thermal_slowdown")
    assert second.clock_reasons == ()
    assert (first.processes, second.processes) == ((GpuProcess(4242, "", 64),), ())
    link = first.link
    assert (link.generation, link.generation_limit, link.width, link.width_limit) == (1, 5, 8, 16)
    assert found.pairs == (GpuPair(0, 1, "NODE", "CNS"),)
    assert (first.recovery, second.recovery) == ("Drain and Reset", None)
    assert first.mig is None
    assert "Not Supported" in found.unknown["mig"]
    assert found.nvml_library == str(tmp_path / "libnvidia-ml.so.580.95.05")


def test_a_library_that_does_not_fit_the_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = read_stub(build_nvml(tmp_path, "MISMATCH"), monkeypatch)
    assert found.gpus == ()
    assert "version mismatch" in found.unknown["gpus"]  # by these words preflight knows it


def test_a_driver_that_hangs_does_not_hang_us(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_reading, "DRIVER_SECONDS", 1.0)
    found = read_stub(build_nvml(tmp_path, "HANGS"), monkeypatch)
    assert found.gpus == ()
    assert "its time limit" in found.unknown["gpus"]


def test_an_older_library_lacks_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "nvml.c"
    source.write_text(
        "int nvmlInitWithFlags(unsigned f) { return 0; } int nvmlShutdown(void) { return 0; }\n"
        "int nvmlDeviceGetCount_v2(unsigned *n) { *n = 1; return 0; }\n"
        "int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **g) { *g = (void *)1; return 0; }\n"
    )
    subprocess.run(
        ["gcc", "-w", "-shared", "-fPIC", "-o", str(tmp_path / "libnvidia-ml.so.1"), str(source)], check=True
    )
    found = read_stub(tmp_path, monkeypatch)
    (gpu,) = found.gpus
    assert (gpu.name, gpu.compute_capability, gpu.processes) == ("unknown", None, None)
    assert "Function Not Found" in found.unknown["compute_capability"]


# ---- environments


@pytest.fixture(scope="module")
def uv_venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A venv by uv with an editable checkout that lies in a git repository."""
    place = tmp_path_factory.mktemp("venv")
    venv, checkout = place / "env", place / "kernels"
    subprocess.run([uv_program(), "venv", "-q", "--python", sys.executable, str(venv)], check=True)
    (checkout / "src/kernels").mkdir(parents=True)
    (checkout / "src/kernels/__init__.py").write_text("x = 1\n")
    (checkout / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
        '[project]\nname = "kernels"\nversion = "1.0"\n'
    )
    subprocess.run([*GIT, "init", "-q", "-b", "sm120", str(checkout)], check=True)
    subprocess.run([*GIT, "-C", str(checkout), "add", "-A"], check=True)
    subprocess.run([*GIT, "-C", str(checkout), "commit", "-q", "-m", "first"], check=True)
    command = [uv_program(), "pip", "install", "-q", "--python", str(venv / "bin/python"), "-e", str(checkout)]
    subprocess.run(command, check=True)
    (checkout / "src/kernels/__init__.py").write_text("x = 2\n")
    (checkout / "notes.txt").write_text("")
    return venv


def test_a_venv_by_uv_and_its_checkout(uv_venv: Path) -> None:
    facts = Server(venv=uv_venv).venv_facts
    assert facts is not None
    version = subprocess.run([uv_program(), "--version"], check=True, capture_output=True, text=True).stdout.split()[1]
    assert (facts.kind, facts.maker, facts.has_pip) == ("uv", version, False)
    assert facts.python == ".".join(map(str, sys.version_info[:3]))
    assert [(dist.name, dist.version, dist.installer) for dist in facts.dists] == [("kernels", "1.0", "uv")]
    (checkout,) = facts.checkouts
    folder = uv_venv.parent / "kernels"
    head = subprocess.run([*GIT, "-C", str(folder), "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    assert (checkout.commit, checkout.branch, checkout.path) == (head.stdout.strip(), "sm120", str(folder))
    assert (checkout.changed, checkout.untracked) == (("src/kernels/__init__.py",), 1)


def test_a_repository_does_not_choose_what_runs(uv_venv: Path, tmp_path: Path) -> None:
    """`core.fsmonitor` of a repository is a program that `git status` would start."""
    folder, trace = uv_venv.parent / "kernels", tmp_path / "ran"
    program = tmp_path / "monitor"
    program.write_text(f"#!/bin/sh\ntouch {trace}\n")
    program.chmod(0o755)
    subprocess.run([*GIT, "-C", str(folder), "config", "core.fsmonitor", str(program)], check=True)
    try:
        subprocess.run([*GIT, "-C", str(folder), "status"], check=True, capture_output=True)
        assert trace.exists(), "git itself does not start it: this test shows nothing"
        trace.unlink()
        facts = Server(venv=uv_venv).venv_facts
        assert facts is not None
        assert facts.checkouts[0].branch == "sm120"
        assert not trace.exists()
    finally:
        subprocess.run([*GIT, "-C", str(folder), "config", "--unset", "core.fsmonitor"], check=True)


def test_a_venv_by_the_standard_library(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "env")], check=True)
    facts = Server(venv=tmp_path / "env").venv_facts
    assert facts is not None
    assert (facts.kind, facts.maker, facts.has_pip, facts.dists) == ("venv", "", False, ())
    assert facts.base == str(Path(sys.base_prefix) / "bin")


@contextmanager
def running(*argv: str | Path, **variables: str) -> Iterator[int]:
    """A process that has said that it is up."""
    with subprocess.Popen([*map(str, argv)], stdout=subprocess.PIPE, env={**os.environ, **variables}) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        try:
            yield process.pid
        finally:
            process.kill()


WAITS = "print('up', flush=True); import time; time.sleep(600)"


def test_processes_of_an_environment(uv_venv: Path, tmp_path: Path) -> None:
    link = tmp_path / "ml-env"
    link.symlink_to(uv_venv)
    other = (sys.executable, "-c", WAITS)
    with (
        running(link / "bin/python", "-c", WAITS) as by_link,
        running(uv_venv / "bin/python", "-c", WAITS) as by_path,
        running("sh", "-c", "echo up; exec sleep 600", VIRTUAL_ENV=str(link)) as shell,
        running(*other) as stranger,
    ):
        holders = Server(venv=link).holders.holders
        found = {holder.pid: holder for holder in holders}
        assert set(found) & {by_link, by_path, shell, stranger} == {by_link, by_path}
        assert found[by_link].why == "its command line names it"
        assert WAITS[:20] in found[by_path].command
    assert {by_link, by_path}.isdisjoint(holder.pid for holder in Server(venv=link).holders.holders)


# ---- toolkits and compilers


def test_a_real_toolkit_and_the_real_compiler() -> None:
    home = toolkits().cuda_13_0
    server = Server(environment={"PATH": os.environ["PATH"], "CUDA_HOME": str(home)})
    first = server.toolkits.toolkits[0]
    assert (first.origins[0], first.facts.release, first.facts.header_version) == ("CUDA_HOME", "13.0", "13.0")
    assert first.manager == ""
    version = subprocess.run(["g++", "-dumpfullversion"], check=True, capture_output=True, text=True).stdout.strip()
    compiler = next(each for each in server.compilers.compilers if each.command == "g++")
    assert compiler.version == version
    limit = server.compilers.toolkits[0]
    refuses = f"#if __GNUC__ > {limit.newest_gcc}" in (home / "include/crt/host_config.h").read_text()
    assert (limit.toolkit, refuses) == (str(home), True)
    assert limit.fits == (int(version.split(".")[0]) <= int(limit.newest_gcc or 0))


# ---- indexes


class Index(BaseHTTPRequestHandler):
    """An index that answers by its path: /simple/ 200, /secret/ 401 without a password, /broken/ 503."""

    seen: ClassVar[list[str]] = []

    def do_HEAD(self) -> None:
        self.seen.append(f"{self.command} {self.path} {self.headers.get('Authorization', '')}".strip())
        path = self.path.partition("//")[2].partition("/")[2] if "//" in self.path else self.path.lstrip("/")
        allowed = self.headers.get("Authorization") is not None
        codes = {"simple/": 200, "secret/": 200 if allowed else 401, "broken/": 503}
        self.send_response(codes.get(path, 404))
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name that it has there
        """Say nothing."""


@contextmanager
def index_server() -> Iterator[tuple[str, list[str]]]:
    class Handler(Index):
        seen: ClassVar[list[str]] = []

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", Handler.seen
        finally:
            server.shutdown()
            thread.join()


def statuses(answers: tuple[IndexAnswer, ...]) -> list[int | None]:
    return [answer.status for answer in answers]


def test_indexes_are_asked(tmp_path: Path) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password secret\n")
    netrc.chmod(0o600)
    with index_server() as (url, seen):
        secret = url.replace("//", "//me:secret@")
        urls = [f"{url}/simple/", f"{url}/secret/", f"{secret}/secret/", f"{url}/broken/", f"{url}/gone/"]
        answers = ask_indexes(urls, {})
        assert statuses(answers) == [200, 401, 200, 503, 404]
        assert all(line.startswith("HEAD ") for line in seen)
        assert not any("secret@" in answer.url for answer in answers)
        assert statuses(ask_indexes([f"{url}/secret/"], {"NETRC": str(netrc)})) == [200]
    (gone,) = ask_indexes([f"{url}/simple/"], {})
    assert gone.status is None
    assert "refused" in gone.problem


def test_a_proxy_is_used_and_named() -> None:
    with index_server() as (proxy, seen):
        environment = {"http_proxy": proxy, "no_proxy": "internal"}
        assert statuses(ask_indexes(["http://index.example/simple/"], environment)) == [200]
        assert seen == ["HEAD http://index.example/simple/"]
        (direct,) = ask_indexes(["http://internal:9/simple/"], environment)
        assert direct.status is None
        assert len(seen) == 1
    (answer,) = ask_indexes(["http://index.example/simple/"], {"http_proxy": proxy})
    assert f"(through the proxy {proxy})" in answer.problem


# ---- the commands


def test_facts_for_programs(uv_venv: Path, tmp_path: Path) -> None:
    answer = crossgrade("facts", "--json", "--venv", uv_venv, "--root", tmp_path / "root")
    said = json.loads(answer.stdout)
    assert (answer.code, said.pop("schema"), tuple(said)) == (0, 2, SECTIONS)
    libc = subprocess.run(["getconf", "GNU_LIBC_VERSION"], check=True, capture_output=True, text=True).stdout.split()[1]
    assert said["system"]["glibc"] == libc
    assert said["system"]["kernel"] == os.uname().release
    (disk,) = [disk for disk in said["system"]["disks"] if str(tmp_path / "root") in disk["places"]]
    assert disk["size_bytes"] == os.statvfs(tmp_path).f_blocks * os.statvfs(tmp_path).f_frsize
    assert said["venv"]["checkouts"][0]["branch"] == "sm120"
    if not Path("/proc/driver/nvidia/version").exists():
        assert said["gpus"]["gpus"] == []
        assert "kernel_module" in said["gpus"]["unknown"]


def test_facts_for_people(uv_venv: Path, tmp_path: Path) -> None:
    answer = crossgrade("facts", "--venv", uv_venv, "--root", tmp_path / "root")
    assert answer.code == 0, answer.stderr
    assert f"{uv_venv}: uv " in answer.stdout
    assert "kernels is used from" in answer.stdout
    assert "sm120 " in answer.stdout
    only = crossgrade("facts", "--only", "compilers", "--root", tmp_path / "root")
    assert only.stdout.splitlines()[0] == "compilers"
    assert "glibc" not in only.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--only", "gpus,weather"], 5, "no section 'weather'"),
        (["--venv", "/nowhere"], 1, "there is no /nowhere"),
    ],
)
def test_wrong_options_of_facts(tmp_path: Path, arguments: list[str], code: int, words: str) -> None:
    answer = crossgrade("facts", *arguments, "--root", tmp_path)
    assert (answer.code, words in answer.stderr) == (code, True), answer.stderr


def test_facts_without_an_environment(tmp_path: Path) -> None:
    environment = {"VIRTUAL_ENV": ""}
    answer = crossgrade("facts", "--only", "venv,units", "--root", tmp_path, environment=environment)
    assert "none is named: --venv PATH" in answer.stdout
    assert "units not known: no environment is named" in answer.stdout


PLAY = """\
- hosts: localhost
  tasks:
    - preflight:
        cuda: "13.0"
        gpu: 12.0f
        jobs: {jobs}
        job_gigabytes: 0.1
        path: {venv}
        index_url: {index}
        on_not_run: warn
      register: look
    - debug: {{msg: "{{{{ look.verdict }}}}: {{{{ look.figures.failure }}}}"}}
"""


def test_preflight_in_a_plan_and_a_run(uv_venv: Path, tmp_path: Path) -> None:
    play, root = tmp_path / "play.yml", tmp_path / "root"
    with index_server() as (url, seen):
        play.write_text(PLAY.format(jobs=1, venv=uv_venv, index=f"{url}/simple/"))
        answer = crossgrade("upgrade", "--playbook", play, "--root", root, "--json")
        assert answer.code == 0, answer.stderr
        (result,) = [event for event in answer.of_kind("task_result") if event["module"] == "preflight"]
        verdict = result["verdict"]
        assert "failure" not in {finding["level"] for finding in verdict["findings"]}
        assert {"disk", "memory", "indexes", "toolkit"} <= {
            *verdict["figures"]["passed"],
            *verdict["figures"]["warning"],
        }
        if not Path("/proc/driver/nvidia/version").exists():
            assert verdict["outcome"] == "not run"
            assert "driver" in verdict["figures"]["not_run"]
        assert len(seen) == 2  # the run looks anew at what its plan has seen
    play.write_text(PLAY.format(jobs=100_000, venv=uv_venv, index=f"{url}/simple/"))
    refused = crossgrade("upgrade", "--playbook", play, "--root", root)
    assert refused.code == 1
    assert "Nothing was changed" in refused.stderr
    for words in ("failure: memory: ", "MAX_JOBS=", "failure: indexes: ", "cannot be reached"):
        assert words in refused.stdout


@pytest.mark.skipif(bool(why_not()), reason=why_not() or "systemd can be booted")
def test_what_a_real_systemd_says_of_units(tmp_path: Path) -> None:
    with booted(tmp_path / "machine") as machine:
        for name, command in (("sglang", "/bin/sleep 600"), ("idle", "/bin/true")):
            text = f"[Unit]\nDefaultDependencies=no\n[Service]\nExecStart={command}\n"
            (machine.folder / "etc" / f"{name}.service").write_text(text)
        machine.call(["systemctl", "daemon-reload"])
        machine.call(["systemctl", "start", "sglang.service"])
        properties = f"--property={SHOWN_PROPERTIES}"
        answer = machine.call(["systemctl", "show", properties, "sglang.service", "idle.service", "gone.service"])
        shown = parse_shown(answer.stdout)
        assert (shown["sglang.service"]["ActiveState"], shown["sglang.service"]["SubState"]) == ("active", "running")
        assert int(shown["sglang.service"]["MainPID"]) > 1
        assert (shown["idle.service"]["ActiveState"], shown["idle.service"]["MainPID"]) == ("inactive", "0")
        assert shown["gone.service"]["UnitFileState"] == ""


AS_NOBODY = """\
import json, os, sys
from pathlib import Path
from crossgrade.facts.server import Server
closed = sys.argv[1]
places = {"PATH": f"{closed}/bin:/usr/bin", "CUDA_HOME": f"{closed}/cuda", "LD_LIBRARY_PATH": f"{closed}/lib"}
def look():
    environment = {**places, "HOME": f"{closed}/home"}
    return Server(venv=Path(f"{closed}/env"), root=Path(f"{closed}/root"), environment=environment).to_json()
if os.geteuid() == 0:
    look()  # imports what is imported late: the Python of these tests may lie in root's own folder
    os.setegid(65534)
    os.seteuid(65534)
json.dump(look(), sys.stdout)
"""


def test_what_may_not_be_read_is_said(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    for name in ("bin", "cuda/bin", "lib", "env/conda-meta", "root/store/toolkits/a/bin", "home"):
        (closed / name).mkdir(parents=True)
    closed.chmod(0o000)
    try:
        argv = [sys.executable, "-c", AS_NOBODY, str(closed)]
        answer = subprocess.run(argv, check=False, capture_output=True, text=True)
    finally:
        closed.chmod(0o700)
    assert answer.returncode == 0, answer.stderr
    said = json.loads(answer.stdout)
    assert said["toolkits"]["problems"] == [f"CUDA_HOME: {closed}/cuda: Permission denied"]
    assert said["venv"]["kind"] == ""
    assert said["venv"]["unknown"]
    if os.geteuid() == 0:  # then this test's own process is somebody else's
        assert said["holders"]["hidden"] > 0
        assert "could not be looked into; root can" in said["holders"]["unknown"]["holders"]
