"""The gate modules on real venvs, ELF files and servers: verdicts, records, policies; nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support import native
from tests.support.gate_host import activate, add_generation, build_with_device_code, make_venv, run_gate, tree
from tests.support.module_host import ModuleHost, plan_module

from crossgrade.errors import CrossgradeError, TaskError
from crossgrade.modules import abi_check, benchmark, consistency_check, gpu_arch_check, server, smoke_check
from crossgrade.modules.contract import Change, Unchanged
from crossgrade.playbook.arguments import parse_arguments
from crossgrade.store.generation import Generation
from crossgrade.store.layout import Store

pytestmark = pytest.mark.skipif(not native.have_gcc(), reason="gcc makes the native files")

COMMAND = ("{python}", "-m", "small_server", "{port}")


@pytest.fixture
def host(tmp_path: Path) -> ModuleHost:
    return ModuleHost(tmp_path)


@pytest.fixture
def store(host: ModuleHost) -> Store:
    return host.store


def library(folder: Path, name: str, code: str = "", needs: tuple[Path, ...] = ()) -> Path:
    return native.build(folder / name, code, libraries=needs, options=(f"-Wl,-soname,{name}",))


def test_arguments_as_a_playbook_writes_them() -> None:
    capability = parse_arguments(
        gpu_arch_check.Arguments, {"generation": 2, "compute_capability": 12.0, "require": "a*,b*"}
    )
    assert (capability.compute_capability, capability.require) == ("12.0", ("a*", "b*"))
    launch = {"command": list(COMMAND), "health": "/health", "start_timeout": 60}
    started = parse_arguments(server.Arguments, {**launch, "path": "~/ml-env", "environment": {"N": 1}})
    assert (started.command, started.start_timeout, started.path) == (COMMAND, 60.0, Path.home() / "ml-env")
    compared = parse_arguments(
        benchmark.Arguments, {"generation": "2", "server": launch, "prompt": "one", "metrics": {"itl_p90": "0.1"}}
    )
    assert (compared.generation, compared.prompts, compared.metrics) == (2, ("one",), {"itl_p90": 0.1})
    assert parse_arguments(smoke_check.Arguments, {"path": "x", "imports": "numpy"}).imports == ("numpy",)
    for wrong in ({}, {"generation": 2, "path": "x"}, {"generation": 2, "on_not_run": "pass"}):
        with pytest.raises(CrossgradeError):
            parse_arguments(abi_check.Arguments, wrong)


# ---- abi_check


def test_abi_passes_and_is_on_record(store: Store, host: ModuleHost) -> None:
    site = add_generation(store, 2)
    library(site / "kernels", "libkernels.so.1")
    before = tree(store.venv(2))
    arguments = abi_check.Arguments(generation=2)
    planned = plan_module(abi_check.MODULE, arguments, host)
    assert isinstance(planned, Change)
    assert planned.summary == "check the libraries and symbols of generation 2"
    outcome = run_gate(abi_check.MODULE, arguments, host)
    assert not outcome.failed
    assert outcome.values["verdict"] == "passed"
    assert tree(store.venv(2)) == before
    again = plan_module(abi_check.MODULE, arguments, host)
    assert isinstance(again, Unchanged)
    assert again.summary.startswith("generation 2 passed on 20")
    # another question is another verdict
    other = plan_module(abi_check.MODULE, abi_check.Arguments(generation=2, ignore=("*x*",)), host)
    assert isinstance(other, Change)


def test_abi_beside_the_working_generation(store: Store, host: ModuleHost) -> None:
    for number in (1, 2):
        site = add_generation(store, number)
        runtime = library(site / "lib", "libmpi.so.40")
        library(site / "plugin", f"transport.so.{number}", needs=(runtime,))
        runtime.unlink()
    assert run_gate(abi_check.MODULE, abi_check.Arguments(generation=2), host).failed
    arguments = abi_check.Arguments(generation=2, compare_with=1)
    outcome = run_gate(abi_check.MODULE, arguments, host)
    assert not outcome.failed
    assert [finding["level"] for finding in outcome.values["findings"]] == ["note"]
    assert isinstance(plan_module(abi_check.MODULE, arguments, host), Unchanged)
    # activated, the backup is the generation itself: a second run of the playbook checks nothing again
    itself = abi_check.Arguments(generation=2, compare_with=2)
    assert isinstance(plan_module(abi_check.MODULE, itself, host), Unchanged)
    assert isinstance(plan_module(abi_check.MODULE, abi_check.Arguments(generation=1, compare_with=1), host), Change)
    with pytest.raises(TaskError, match="there is no generation 7"):
        plan_module(abi_check.MODULE, abi_check.Arguments(generation=2, compare_with=7), host)


def test_consistency_is_judged_and_on_record(store: Store, host: ModuleHost) -> None:
    site = add_generation(store, 2)
    for name in ("one", "other"):
        folder = site / f"{name}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Name: {name}\nVersion: 1.0\n")
        (folder / "RECORD").write_text(f"shared.py,sha256={name},\n")
    (site / "shared.py").write_text("whose?\n")
    arguments = consistency_check.Arguments(generation=2)
    outcome = run_gate(consistency_check.MODULE, arguments, host)
    assert outcome.failed
    assert "one 1.0 and other 1.0 both write 1 file (shared.py) with different bytes" in outcome.message
    ignoring = consistency_check.Arguments(generation=2, ignore=("other",))
    assert not run_gate(consistency_check.MODULE, ignoring, host).failed
    assert isinstance(plan_module(consistency_check.MODULE, ignoring, host), Unchanged)


def test_abi_names_the_library_and_the_file(store: Store, host: ModuleHost) -> None:
    site = add_generation(store, 2)
    runtime = library(site / "lib", "libcudart.so.12")
    library(site / "kernels", "libkernels.so", needs=(runtime,))
    runtime.unlink()
    arguments = abi_check.Arguments(generation=2)
    outcome = run_gate(abi_check.MODULE, arguments, host)
    assert outcome.failed
    assert "libcudart.so.12" in outcome.message
    assert "kernels/libkernels.so" in outcome.message
    assert [finding["level"] for finding in outcome.values["findings"]] == ["failure"]
    planned = plan_module(abi_check.MODULE, arguments, host)
    assert isinstance(planned, Change), "a failed verdict is never final"
    assert "again (failed on 20" in planned.summary
    ignoring = abi_check.Arguments(generation=2, ignore=("*/libkernels.so",))
    assert not run_gate(abi_check.MODULE, ignoring, host).failed


def test_abi_uses_the_library_path_of_the_generation(store: Store, host: ModuleHost, tmp_path: Path) -> None:
    runtime = library(tmp_path / "elsewhere", "libruntime.so.13")
    for number, environment in ((2, {}), (3, {"LD_LIBRARY_PATH": f":{runtime.parent}"})):
        site = add_generation(store, number, environment=environment)
        library(site, "libkernels.so", needs=(runtime,))
    assert run_gate(abi_check.MODULE, abi_check.Arguments(generation=2), host).failed
    assert not run_gate(abi_check.MODULE, abi_check.Arguments(generation=3), host).failed


def test_a_path_is_checked_but_not_recorded(store: Store, host: ModuleHost) -> None:
    site = make_venv(host.playbook_directory / "ml-env")
    arguments = abi_check.Arguments(path=Path("ml-env"))  # from the playbook's directory
    assert not run_gate(abi_check.MODULE, arguments, host).failed
    library(site, "libnew.so")  # what was judged is no longer what is there
    assert isinstance(plan_module(abi_check.MODULE, arguments, host), Change)
    assert not list(store.root.rglob("verdicts"))


def test_what_cannot_be_judged_is_refused(store: Store, host: ModuleHost) -> None:
    add_generation(store, 2, state="building")
    change = plan_module(abi_check.MODULE, abi_check.Arguments(generation=2), host)
    assert isinstance(change, Change)
    with pytest.raises(TaskError, match="generation 2 is still being built"):
        abi_check.MODULE.apply(abi_check.Arguments(generation=2), change, host)
    with pytest.raises(TaskError, match=r"no generation 7 in .* \(there: 2\)"):
        plan_module(abi_check.MODULE, abi_check.Arguments(generation=7), host)
    with pytest.raises(TaskError, match="either `generation` or `path`"):
        plan_module(abi_check.MODULE, abi_check.Arguments(), host)
    absent = abi_check.Arguments(path=Path("absent"))
    with pytest.raises(TaskError, match="there is no directory"):
        plan_module(abi_check.MODULE, absent, host)
    host.predictions["path", str(host.playbook_directory / "absent")] = "directory"
    assert isinstance(plan_module(abi_check.MODULE, absent, host), Change)


def test_a_generation_that_is_only_planned_gets_a_planned_check(host: ModuleHost) -> None:
    generation = Generation(number=2, identity="x", origin="built", state="ready", created="2026-12-01T00:00:00Z")
    host.predictions["generation", "2"] = generation.to_json()
    for planned in (
        plan_module(abi_check.MODULE, abi_check.Arguments(generation=2), host),
        plan_module(server.MODULE, server.Arguments(command=COMMAND, generation=2), host),
    ):
        assert isinstance(planned, Change)
        assert not planned.values_known


# ---- gpu_arch_check


def test_gpu_arch(store: Store, host: ModuleHost) -> None:
    site = add_generation(store, 2)
    build_with_device_code(site / "libgood.so", 120)
    arguments = gpu_arch_check.Arguments(compute_capability="12.0", generation=2)
    assert not run_gate(gpu_arch_check.MODULE, arguments, host).failed
    site = add_generation(store, 3)
    build_with_device_code(site / "libgood.so", 120)
    build_with_device_code(site / "libold.so", 90)
    arguments = gpu_arch_check.Arguments(compute_capability="12.0", generation=3)
    outcome = run_gate(gpu_arch_check.MODULE, arguments, host)
    assert outcome.failed
    assert "sm_120" in outcome.message
    assert "libold.so" in outcome.message
    arguments = gpu_arch_check.Arguments(compute_capability="12.0", generation=3, require=("*/libgood.so",))
    assert not run_gate(gpu_arch_check.MODULE, arguments, host).failed


def test_a_gate_that_did_not_run_did_not_pass(store: Store, host: ModuleHost) -> None:
    site = add_generation(store, 2)
    library(site, "libplain.so")
    arguments = gpu_arch_check.Arguments(compute_capability="12.0", generation=2)
    outcome = run_gate(gpu_arch_check.MODULE, arguments, host)
    assert outcome.failed
    assert outcome.values["verdict"] == "not run"
    assert "on_not_run: warn" in outcome.message
    assert isinstance(plan_module(gpu_arch_check.MODULE, arguments, host), Change)
    lenient = gpu_arch_check.Arguments(compute_capability="12.0", generation=2, on_not_run="warn")
    planned = plan_module(gpu_arch_check.MODULE, lenient, host)
    assert isinstance(planned, Unchanged), "the record is of the check; the policy is the playbook's"
    assert planned.summary.startswith("not run on 20")
    assert planned.values["verdict"] == "not run"


# ---- smoke_check


def test_smoke(store: Store, host: ModuleHost, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    site = add_generation(store, 2, environment={"NEEDED": "yes"})
    (site / "engine").mkdir()
    (site / "engine" / "__init__.py").write_text("import os; assert os.environ['NEEDED'] == 'yes'\n")
    (site / "broken.py").write_text("from engine import missing_function\n")
    before = tree(store.venv(2))
    arguments = smoke_check.Arguments(imports=("json", "engine"), generation=2)
    assert not run_gate(smoke_check.MODULE, arguments, host).failed
    outcome = run_gate(smoke_check.MODULE, smoke_check.Arguments(imports=("engine", "broken"), generation=2), host)
    assert outcome.failed
    assert outcome.message.startswith("import broken: ImportError: cannot import name 'missing_function'")
    assert tree(store.venv(2)) == before
    # what lies on the PYTHONPATH of crossgrade's own shell is no part of the candidate …
    (tmp_path / "stray.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    host.environment = dict(os.environ)
    stray = smoke_check.Arguments(imports=("stray",), generation=2)
    assert run_gate(smoke_check.MODULE, stray, host).failed
    # … but what the playbook's `environment` says is
    host.environment["PYTHONPATH"] = f"{tmp_path}:/nowhere"
    assert not run_gate(smoke_check.MODULE, stray, host).failed


# ---- server


def environment_seen(host: ModuleHost) -> dict[str, Any]:
    """What the small server of generation 2 says of itself."""
    from crossgrade.bench.server_process import launch
    from crossgrade.modules.gate import find_candidate

    arguments = server.Arguments(command=COMMAND, environment={"COUNT": 3, "FLAG": True})
    candidate = find_candidate(2, None, host)
    spec = server.server_spec(candidate, host, arguments, host.log_directory)
    with launch(spec, host.log_directory / "seen.log") as running:
        answer = server.ask(running, server.Request(path="/environment", timeout=10.0))
    assert answer.status == 200
    return dict(json.loads(answer.text))


def test_the_server_gets_the_generations_environment(store: Store, host: ModuleHost) -> None:
    add_generation(store, 2, environment={"CUDA_HOME": "/somewhere"})
    seen = environment_seen(host)
    assert seen["prefix"] == str(store.venv(2))
    variables = seen["environment"]
    assert variables["CUDA_HOME"] == "/somewhere"
    assert (variables["COUNT"], variables["FLAG"]) == ("3", "true")
    assert variables["TRITON_CACHE_DIR"] == str(store.folder(2) / "caches" / "triton")
    assert variables["PATH"].split(":")[0] == str(store.venv(2) / "bin")


def test_server_starts_answers_and_is_gone(store: Store, host: ModuleHost, tmp_path: Path) -> None:
    add_generation(store, 2)
    pid_file = tmp_path / "pid"
    before = tree(store.venv(2))
    arguments = server.Arguments(
        command=COMMAND,
        generation=2,
        environment={"SMALL_CHILD": str(pid_file)},
        request={"path": "/v1/completions", "body": {"prompt": "hello", "max_tokens": 4}},
    )
    outcome = run_gate(server.MODULE, arguments, host)
    assert not outcome.failed
    assert "healthy after" in outcome.message
    assert "/v1/completions answered status 200" in outcome.message
    assert outcome.values["figures"]["status"] == 200
    assert tree(store.venv(2)) == before
    assert gone(int(pid_file.read_text()))


def test_server_for_gpus_is_not_started_without_a_driver(
    store: Store, host: ModuleHost, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    add_generation(store, 2)
    pid_file = tmp_path / "pid"
    arguments = server.Arguments(
        command=COMMAND, generation=2, needs_gpu=True, environment={"SMALL_CHILD": str(pid_file)}, on_not_run="warn"
    )
    driver: list[str | None] = [None]
    monkeypatch.setattr("crossgrade.inspect.machine.driver_version", lambda: driver[0])
    planned = plan_module(server.MODULE, arguments, host)
    assert isinstance(planned, Change)
    assert planned.summary.endswith("it will not run, no NVIDIA driver on this machine")
    outcome = run_gate(server.MODULE, arguments, host)
    assert not outcome.failed
    assert outcome.message == "not run: no NVIDIA driver on this machine"
    assert not pid_file.exists()
    assert isinstance(plan_module(server.MODULE, arguments, host), Unchanged)
    assert run_gate(server.MODULE, replace(arguments, on_not_run="fail"), host).failed
    # once there is a driver, what was not run is no verdict any more
    driver[0] = "580.95.05"
    assert isinstance(plan_module(server.MODULE, arguments, host), Change)
    outcome = run_gate(server.MODULE, arguments, host)
    assert outcome.values["verdict"] == "passed"
    assert pid_file.exists()


UNIT = """[Service]
Environment=NCCL_DEBUG=WARN
ExecStart=/srv/ml-env/bin/python -m sglang.launch_server --api-key correct-horse --host 0.0.0.0 --port 30000
"""


def test_a_server_as_a_unit_starts_the_working_one(
    store: Store, host: ModuleHost, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On a free port, from the candidate, without the key that the gates' own requests do not carry."""
    site = add_generation(store, 2)
    (site / "sglang").mkdir()
    code = "import runpy, sys\nassert '--api-key' not in sys.argv\nsys.argv = sys.argv[:1] + sys.argv[-1:]\n"
    (site / "sglang" / "launch_server.py").write_text(code + "runpy.run_module('small_server', run_name='__main__')\n")
    units = tmp_path / "home" / ".config" / "systemd" / "user"
    units.mkdir(parents=True)
    (units / "sglang.service").write_text(UNIT)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    request = {"path": "/environment"}
    settings = {"SMALL_INFO": json.dumps({"api_key": "correct-horse", "tp_size": 8})}
    arguments = server.Arguments(
        unit="sglang", user_unit=True, generation=2, request=request, environment=settings, start_timeout=20.0
    )
    outcome = run_gate(server.MODULE, arguments, host)
    assert not outcome.failed
    figures = outcome.values["figures"]
    assert (figures["health_path"], figures["server_info"]) == ("/health", "kept, from /server_info")
    assert store.server_info(2) == {"schema": 1, "path": "/server_info", "info": {"api_key": "***", "tp_size": 8}}
    (units / "sglang.service").write_text(UNIT + "ExecStart=\nExecStart=/usr/bin/true\n")
    with pytest.raises(TaskError, match="how that starts a server is not known here"):
        plan_module(server.MODULE, arguments, host)


def test_server_that_fails_gives_its_last_words(store: Store, host: ModuleHost) -> None:
    add_generation(store, 2, environment={"SMALL_START": "fail"})
    outcome = run_gate(server.MODULE, server.Arguments(command=COMMAND, generation=2), host)
    assert outcome.failed
    assert "exit code 1" in outcome.message
    assert outcome.message.endswith("libcudart.so.13: cannot open shared object file")
    evidence = outcome.values["findings"][0]["evidence"]
    assert "loading the weights" in evidence["last_words"]
    assert Path(evidence["log"]).is_file()
    # a second start has a log of its own: the words of the first are not its
    hanging = server.Arguments(command=COMMAND, generation=2, environment={"SMALL_START": "hang"}, start_timeout=1.0)
    outcome = run_gate(server.MODULE, hanging, host)
    assert outcome.failed
    assert "not healthy within 1 s (last answer of /health: 503)" in outcome.message
    assert outcome.values["findings"][0]["evidence"]["last_words"] == ["loading the weights"]


def test_server_with_a_wrong_answer(store: Store, host: ModuleHost) -> None:
    add_generation(store, 2, environment={"SMALL_FAIL_REQUESTS": "1"})
    request = {"path": "/v1/completions", "body": {"prompt": "hello"}}
    arguments = server.Arguments(command=COMMAND, generation=2, request=request)
    outcome = run_gate(server.MODULE, arguments, host)
    assert outcome.failed
    assert outcome.message == "/v1/completions: status 500 instead of status 200"
    assert "out of memory" in outcome.values["findings"][0]["evidence"]["answer"]
    expected = server.Arguments(command=COMMAND, generation=2, request={**request, "expect_status": 500})
    assert not run_gate(server.MODULE, expected, host).failed


def test_server_program_that_is_not_there(store: Store, host: ModuleHost) -> None:
    add_generation(store, 2)
    arguments = server.Arguments(command=("{venv}/bin/sglang", "{port}"), generation=2)
    outcome = run_gate(server.MODULE, arguments, host)
    assert outcome.failed
    assert f"cannot start {store.venv(2)}/bin/sglang" in outcome.message


@pytest.mark.parametrize(
    ("command", "request_", "words"),
    [
        ((), {}, "command is empty"),
        (("{python}", "-m", "small_server"), {}, "does not say where {port} goes"),
        (("{pyton}", "{port}"), {}, "{pyton}, which is not one of {python}, {venv}, {host}, {port}"),
        (COMMAND, {"path": "health"}, "path must begin with a slash"),
        (COMMAND, {"path": "/health", "statu": 3}, "statu"),
    ],
)
def test_server_arguments_are_checked_when_planning(
    store: Store, host: ModuleHost, command: tuple[str, ...], request_: dict[str, Any], words: str
) -> None:
    add_generation(store, 2)
    arguments = server.Arguments(command=command, generation=2, request=request_)
    with pytest.raises(TaskError) as caught:
        plan_module(server.MODULE, arguments, host)
    assert words in str(caught.value)


KILLED = """
import sys
from pathlib import Path
from tests.support.module_host import ModuleHost
from crossgrade.modules import server
from crossgrade.modules.contract import Change
arguments = server.Arguments(
    command=("{python}", "-m", "small_server", "{port}"), generation=2,
    environment={"SMALL_START": "hang", "SMALL_CHILD": sys.argv[2]},
)
server.MODULE.apply(arguments, Change(""), ModuleHost(Path(sys.argv[1])))
"""


def test_a_killed_run_leaves_no_server(store: Store, tmp_path: Path) -> None:
    add_generation(store, 2)
    pid_file = tmp_path / "pid"
    run = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path), str(pid_file)], cwd=Path(__file__).parents[2])
    try:
        wait_for(lambda: pid_file.exists() and pid_file.read_text() != "")
        child = int(pid_file.read_text())
        assert not gone(child)
        run.send_signal(signal.SIGKILL)
    finally:
        run.kill()
        run.wait()
    wait_for(lambda: gone(child))


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}/cmdline").exists() or not Path(f"/proc/{pid}/cmdline").read_bytes()


def wait_for(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_an_active_generation_can_be_checked_by_its_link(store: Store, host: ModuleHost) -> None:
    add_generation(store, 1)
    activate(store, 1)
    link = store.active_link
    assert link is not None
    outcome = run_gate(smoke_check.MODULE, smoke_check.Arguments(imports=("json",), path=link), host)
    assert not outcome.failed
