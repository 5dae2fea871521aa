"""Each fault of an environment by its name: small real venvs, one fault in each."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.mixed_environment import FAULTS, add, healthy, info_of, put, site_of
from tests.support.module_host import ModuleHost, plan_module, run_module
from tests.support.native import build, have_gcc

from crossgrade.errors import TaskError
from crossgrade.facts.environment import read_environment
from crossgrade.gates.environment import fault_names, judge_environment, judge_leftovers
from crossgrade.gates.verdict import Finding, Verdict
from crossgrade.inspect.query import run_query
from crossgrade.modules import environment_check
from crossgrade.modules.contract import Change

DOCS = Path(__file__).resolve().parents[2] / "docs"
# Which need native files that were built against something else: tests/unit/test_builds.py makes those
NATIVE = {"torch-mismatch", "limited-api"}


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    return healthy(tmp_path)


def look(venv: Path, *, ignore: tuple[str, ...] = (), fail_on: tuple[str, ...] = ()) -> Verdict:
    environment = {"PATH": os.environ["PATH"], "HOME": str(venv.parent)}
    facts = read_environment(venv, environment, runner=run_query)
    return judge_environment(facts, ignore=ignore, fail_on=fail_on)


def test_a_healthy_environment_has_none(venv: Path) -> None:
    verdict = look(venv)
    assert (verdict.outcome, verdict.reason) == ("passed", "0 faults in 6 dists")
    assert verdict.of_level("warning") == ()
    assert verdict.figures["faults"] == {}


@pytest.mark.parametrize("fault", FAULTS)
def test_one_fault_has_its_name_and_no_other(fault: str, venv: Path) -> None:
    FAULTS[fault](venv)
    verdict = look(venv)
    assert set(verdict.figures["faults"]) == {fault}, verdict.findings  # type: ignore[arg-type]
    assert verdict.outcome == "passed"
    found = [finding for finding in verdict.findings if finding.fault]
    assert [finding.level for finding in found] == ["warning"] * len(found)
    for finding in found:
        assert finding.to_json()["fault"] == fault
        assert Finding.from_json(finding.to_json()) == finding
        assert re.search(r"\. [A-Z`]", finding.message), "what to do about it is not said"
        assert finding.evidence["carried"] in ("no", "patches", "outside")
    assert look(venv, fail_on=("nothing-*", fault)).outcome == "failed"
    ignored = look(venv, ignore=(fault,), fail_on=("*",))
    assert (ignored.outcome, ignored.figures["faults"]) == ("passed", {})
    assert ignored.figures["ignored"] == len(found)


def test_every_name_is_made_here_and_stands_in_the_docs() -> None:
    assert {*fault_names()} == {*FAULTS} | NATIVE
    section = (DOCS / "gates.md").read_text(encoding="utf-8").partition("## environment_check")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `([a-z-]+)` \|", section, re.MULTILINE) == [*fault_names()]


def test_what_is_said(venv: Path) -> None:
    for make in FAULTS.values():
        make(venv)
    verdict = look(venv)
    said = {finding.fault: f"{finding.subject}: {finding.message}" for finding in verdict.findings}
    assert [*dict.fromkeys(f.fault for f in verdict.findings if f.fault)] == [
        name for name in fault_names() if name not in NATIVE
    ]
    assert "torch 2.9.1 is built for CUDA 12.8" in said["cuda-majors-mixed"]
    assert "flashinfer-cubin 0.6.13" in said["stale-flashinfer-cubin"]
    assert "needs sgl-kernel==0.3.21" in said["version-pair"]
    assert "sglang-kernel 0.4.10" in said["version-pair"]
    assert "needs aiohttp" in said["requirement-unmet"]
    assert "needs uvloop>=0.2" in said["requirement-unmet"]
    assert "commits of its own: 1" in said["editable"]
    assert "changed: 1" in said["editable"]
    assert "engine/ours.py (added)" in said["edited-by-hand"]
    assert "/nowhere/old-tool, which is gone" in said["leftover-pth"]
    assert "~orch" in said["interrupted-install"]
    assert "-rch-2.8.0.dist-info" in said["interrupted-install"]
    assert "`local_patches` decides on no-record, editable, edited-by-hand" in verdict.reason
    assert "`base: clone` copies them" in verdict.reason


def test_what_a_shell_and_pyvenv_cfg_let_in(venv: Path, tmp_path: Path) -> None:
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    user = tmp_path / "home/.local/lib" / version / "site-packages"
    user.mkdir(parents=True)
    configuration = venv / "pyvenv.cfg"
    variables = {"HOME": str(tmp_path / "home"), "PYTHONPATH": "/srv/modules::/srv/more"}
    facts = read_environment(venv, variables, processes=None)
    assert [(leak.origin, leak.folders, leak.inside) for leak in facts.leaks] == [
        ("PYTHONPATH of this shell", ("/srv/modules", "/srv/more"), False)
    ]
    (finding,) = judge_environment(facts).of_level("warning")
    assert (finding.fault, finding.evidence["carried"]) == ("import-leak", "outside")
    put(configuration, configuration.read_bytes().replace(b"packages = false", b"packages = true"))
    (_, more) = read_environment(venv, variables, processes=None).leaks
    assert (more.inside, more.folders[0]) == (True, str(user))
    (leak,) = read_environment(venv, {**variables, "PYTHONPATH": "", "PYTHONNOUSERSITE": "1"}, processes=None).leaks
    assert str(user) not in leak.folders


def test_what_a_process_of_the_environment_imports_from_elsewhere(venv: Path, tmp_path: Path) -> None:
    variables = {**os.environ, "PYTHONPATH": str(tmp_path / "mine")}
    program = [str(venv / "bin/python"), "-c", "input()"]
    with subprocess.Popen(program, stdin=subprocess.PIPE, env=variables) as process:
        try:
            leaks = read_environment(venv, {}).leaks
        finally:
            process.kill()
    assert [(leak.origin, leak.folders) for leak in leaks] == [
        (f"PYTHONPATH of process {process.pid}", (str(tmp_path / "mine"),))
    ]


def test_what_could_not_be_looked_at_is_said(venv: Path) -> None:
    FAULTS["editable"](venv)
    facts = read_environment(venv, {"PATH": "/nowhere"}, runner=run_query)
    verdict = judge_environment(facts)
    assert verdict.outcome == "not run"
    assert "the checkout of placed could not be looked at; 1 fault" in verdict.reason
    assert "not run: git is not on PATH" in [finding.message for finding in verdict.findings]


def test_a_pth_file_that_cannot_be_read_is_no_hang(venv: Path) -> None:
    os.mkfifo(site_of(venv) / "pipe.pth")
    verdict = look(venv)
    assert any(finding.message.startswith("not run: cannot be read") for finding in verdict.findings)
    assert verdict.outcome == "not run"


def test_a_torch_that_does_not_say_its_cuda_is_not_judged(venv: Path) -> None:
    FAULTS["cuda-majors-mixed"](venv)
    put(site_of(venv) / "torch/version.py", b"cuda = some_function()\n")
    verdict = look(venv)
    assert (verdict.outcome, verdict.reason[:33]) == ("not run", "torch 2.9.1 could not be looked a")
    mixed = [finding for finding in verdict.findings if finding.fault == "cuda-majors-mixed"]
    assert [finding.subject for finding in mixed] == ["nvidia-nccl-cu12 2.27.5", "nvidia-cublas 13.1.0"]


def test_files_that_two_dists_share_and_nobody_runs_are_no_fault(venv: Path) -> None:
    add(venv, "cg-one", "1.0", {"one/__init__.py": b"", "LICENSE": b"one"})
    add(venv, "cg-two", "1.0", {"two/__init__.py": b"", "LICENSE": b"two"})
    assert look(venv).figures["faults"] == {}


def test_beside_the_other_reports_only_the_rest_is_told(venv: Path) -> None:
    for make in FAULTS.values():
        make(venv)
    facts = read_environment(venv, {}, compare_files=False, processes=None)
    assert set(judge_leftovers(facts).figures["faults"]) == {  # type: ignore[arg-type]
        "interrupted-install", "two-versions", "editable", "leftover-pth", "import-leak"
    }  # fmt: skip


def test_the_module_says_it_in_a_plan_and_in_a_run(venv: Path, tmp_path: Path) -> None:
    FAULTS["cuda-majors-mixed"](venv)
    host = ModuleHost(tmp_path)
    for at in (host, host.planning()):
        outcome = run_module(environment_check.MODULE, {"path": str(venv)}, at)
        assert (outcome.failed, outcome.changed) == (False, False)
        assert "1 fault in 7 dists: cuda-majors-mixed" in outcome.message
        assert outcome.values["figures"]["faults"] == {"cuda-majors-mixed": 1}
    assert run_module(environment_check.MODULE, {"path": str(venv), "fail_on": ["cuda-*"]}, host).failed
    ignoring = run_module(environment_check.MODULE, {"path": str(venv), "ignore": ["nvidia_cublas"]}, host)
    assert ignoring.values["figures"]["faults"] == {}


def test_the_module_needs_to_know_which(tmp_path: Path) -> None:
    host = ModuleHost(tmp_path)
    with pytest.raises(TaskError, match="no generation is active"):
        plan_module(environment_check.MODULE, {}, host)
    with pytest.raises(TaskError, match="no directory"):
        plan_module(environment_check.MODULE, {"path": "/nowhere"}, host)


def test_a_deep_plan_opens_native_files(venv: Path, tmp_path: Path) -> None:
    if not have_gcc():
        pytest.skip("gcc is not installed")
    source = 'const char *told(void) { return "numpy.core._multiarray_umath"; }'
    build(site_of(venv) / "engine/fast.abi3.so", source)
    record = info_of(venv, "cg_engine") / "RECORD"
    put(record, record.read_bytes() + b"engine/fast.abi3.so,,\n")
    host = ModuleHost(tmp_path)
    planned = plan_module(environment_check.MODULE, {"path": str(venv)}, host)
    assert isinstance(planned, Change)
    assert planned.payload["verdict"].figures["faults"] == {}
    host.deep = True
    deep = plan_module(environment_check.MODULE, {"path": str(venv)}, host)
    assert isinstance(deep, Change)
    assert set(deep.payload["verdict"].figures["faults"]) == {"numpy-mismatch"}
