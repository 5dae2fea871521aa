"""The smoke gate with a real interpreter and real modules: good, broken, crashing, hanging, talkative."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from crossgrade.errors import TaskError
from crossgrade.gates.smoke import ImportOutcome, judge_smoke, run_imports
from crossgrade.gates.verdict import Verdict
from crossgrade.process import StartError

MODULES = {
    "good": "print('hello'); import sys; sys.stderr.write('no line end')",
    "package.__init__": "",
    "package.inner": "import package",
    "missing": "import no_such_module_here",
    "native": "raise ImportError('libcudart.so.12: cannot open shared object file: No such file or directory')",
    "long_message": "raise RuntimeError('first line\\nCould not load any common_ops library')",
    "syntax": "def (",
    "segfault": "import faulthandler; faulthandler._sigsegv()",
    "abort": "import os; os.abort()",
    "leaves": "import os; print('bye', flush=True); os._exit(0)",
    "quits": "raise SystemExit(0)",
    "hangs": "print('waiting', flush=True); import time; time.sleep(60)",
    "late": "import atexit, os; atexit.register(os._exit, 9)",
    "shows_environment": "import os; assert os.environ['MARK'] == 'ours'; assert 'HOME' not in os.environ",
    "shows_directory": "import os; assert os.listdir('.') == [], os.listdir('.')",
}


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    folder = tmp_path / "modules"
    for name, code in MODULES.items():
        path = folder / (name.replace(".", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code + "\n")
    return folder


def run(modules: Path, *names: str, timeout: float = 20.0) -> tuple[ImportOutcome, ...]:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(modules), "MARK": "ours"}
    return run_imports(Path(sys.executable), names, environment=environment, timeout=timeout)


def test_imports_that_succeed(modules: Path) -> None:
    names = ("good", "package", "package.inner", "shows_environment", "shows_directory", "json")
    outcomes = run(modules, *names)
    assert [outcome.error for outcome in outcomes] == [None] * len(names)
    assert all(0 <= outcome.seconds < 20 for outcome in outcomes)
    verdict = judge_smoke(outcomes)
    assert verdict.passed
    assert verdict.reason == f"6 modules imported: {', '.join(names)}"
    assert list(modules.rglob("__pycache__")) == []


@pytest.mark.parametrize(
    ("name", "error", "exception"),
    [
        ("missing", "ModuleNotFoundError: No module named 'no_such_module_here'", "ModuleNotFoundError"),
        (
            "native",
            "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory",
            "ImportError",
        ),
        ("long_message", "Could not load any common_ops library", "RuntimeError"),
        ("syntax", "SyntaxError: invalid syntax", "SyntaxError"),
        ("segfault", "SIGSEGV during the import", None),
        ("abort", "SIGABRT during the import", None),
        ("leaves", "the process ended in the middle of the import (exit code 0)", None),
        ("quits", "SystemExit: 0", "SystemExit"),
        ("late", "the import succeeded, but Python then ended with exit code 9", None),
        ("no.such", "ModuleNotFoundError: No module named 'no'", "ModuleNotFoundError"),
    ],
)
def test_imports_that_fail(modules: Path, name: str, error: str, exception: str | None) -> None:
    [outcome] = run(modules, name)
    assert (outcome.error, outcome.exception) == (error, exception)
    verdict = judge_smoke([outcome])
    assert verdict.outcome == "failed"
    assert verdict.reason == f"import {name}: {error}"
    assert verdict.findings[0].subject == name
    assert verdict.findings[0].evidence["error"] == error


def test_evidence_holds_the_traceback_and_what_was_printed(modules: Path) -> None:
    [native, crash, leaving] = run(modules, "native", "segfault", "leaves")
    assert "Traceback (most recent call last)" in native.output
    assert "native.py" in native.output
    assert "crossgrade-" not in native.output
    assert 'segfault.py", line 1' in crash.output  # by faulthandler
    assert leaving.output == "bye"


def test_a_hanging_import_is_stopped(modules: Path) -> None:
    [outcome] = run(modules, "hangs", timeout=0.7)
    assert outcome.error == "not imported within its time limit (1 s)"
    assert outcome.output == "waiting"


def test_one_failure_among_many(modules: Path) -> None:
    verdict = judge_smoke(run(modules, "good", "native", "package", "missing"))
    assert verdict.outcome == "failed"
    assert verdict.reason.startswith("import native: ImportError: libcudart.so.12")
    assert verdict.reason.endswith("(and 1 module more: missing)")
    assert [finding.subject for finding in verdict.findings] == ["native", "missing"]
    assert Verdict.from_json(json.loads(json.dumps(verdict.to_json()))) == verdict


LOADER = "cannot open shared object file: No such file or directory"


def test_without_a_driver_what_needs_it_is_not_run(tmp_path: Path) -> None:
    texts = {
        "fine": "",
        "driver_by_ctypes": f"raise OSError('libcuda.so.1: {LOADER}')",
        "wrapped": f"raise ImportError('could not load any ops\\n- ImportError: libcuda.so.1: {LOADER}\\n- no module')",
        "more_lacks": f"raise ImportError('libcuda.so.1: {LOADER}\\nlibcudart.so.12: {LOADER}')",
        "symbol": f"raise ImportError('libcuda.so.1: {LOADER}\\n_C.so: undefined symbol: x')",
        "broken": "1 / 0",
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text)
    verdict = judge_smoke(run(tmp_path, "fine", "driver_by_ctypes", "wrapped"), driver=False)
    assert verdict.outcome == "not run"
    assert verdict.reason == (
        "driver_by_ctypes, wrapped: no NVIDIA driver on this machine, and so no libcuda.so.1; imported: fine"
    )
    assert [(finding.level, finding.subject) for finding in verdict.findings] == [
        ("warning", "driver_by_ctypes"), ("warning", "wrapped")
    ]  # fmt: skip
    # where there is a driver, its libraries must be found
    assert judge_smoke(run(tmp_path, "fine", "wrapped"), driver=True).outcome == "failed"
    for name in ("more_lacks", "symbol", "broken"):
        verdict = judge_smoke(run(tmp_path, "wrapped", name), driver=False)
        assert verdict.outcome == "failed", name
        assert verdict.reason.startswith(f"import {name}: ")


def test_without_imports_the_gate_did_not_run(modules: Path) -> None:
    verdict = judge_smoke(run(modules))
    assert (verdict.outcome, verdict.passed) == ("not run", False)


@pytest.mark.parametrize("name", ["", "a-b", "os; print(1)", "a..b", ".a", "--help", "1a"])
def test_names_that_are_no_module(modules: Path, name: str) -> None:
    with pytest.raises(TaskError, match="is not the name of a module"):
        run(modules, name)


def test_an_interpreter_that_does_not_exist() -> None:
    with pytest.raises(StartError, match="/no/such/python"):
        run_imports(Path("/no/such/python"), ["json"], environment={}, timeout=5.0)
