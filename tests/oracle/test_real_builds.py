"""What real wheels were compiled against, beside what happens when they are imported or loaded."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.oracle.test_real_stacks import made, uv
from tests.support.loader_oracle import opened, stand_for_the_driver
from tests.support.native import have_gcc
from tests.support.toolkits import uv_program

from crossgrade.gates.consistency import judge_consistency
from crossgrade.gates.verdict import Finding
from crossgrade.inspect.consistency import read_consistency
from crossgrade.inspect.dists import site_packages
from crossgrade.inspect.native import inspect_native

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not have_gcc(), reason="gcc is not installed"),
]

# By its file, without its package: the package's other modules would hide what this one says.
_BY_FILE = (
    "import importlib.util as u, sys, numpy\n"
    "spec = u.spec_from_file_location(sys.argv[1], sys.argv[2]); spec.loader.exec_module(u.module_from_spec(spec))\n"
)
# Of scipy 1.16.3: imports itself by way of scipy.linalg._matfuncs_sqrtm, with every numpy.
_CIRCULAR = "scipy.linalg._matfuncs_sqrtm_triu"
_BY_NAME = "import importlib, sys\n[importlib.import_module(name) for name in sys.argv[1:]]\n"


def findings(venv: Path, kind: str) -> list[Finding]:
    """The findings that name the installed numpy (or torch) as evidence."""
    return [finding for finding in judge_consistency(read_consistency(venv)).findings if kind in finding.evidence]


def said(venv: Path, code: str, *arguments: str) -> str:
    """The last line of the error; empty where there was none."""
    done = subprocess.run(
        [venv / "bin/python", "-B", "-c", code, *arguments], capture_output=True, text=True, check=False
    )
    return done.stderr.strip().rpartition("\n")[2] or "refused" if done.returncode else ""


def dotted(path: str) -> str:
    return path.partition(".")[0].replace("/", ".")


@pytest.mark.parametrize(
    ("wheels", "named"),
    [
        (("numpy==2.2.6", "pandas==2.1.4", "scipy==1.10.1"), {"pandas 2.1.4", "scipy 1.10.1"}),
        (("numpy==2.4.6", "pandas==2.1.4"), {"pandas 2.1.4"}),
        (("numpy==1.26.4", "ml_dtypes==0.7.0"), {"ml-dtypes 0.7.0"}),
        (("numpy==1.26.4", "pandas==2.1.4", "scipy==1.10.1"), set()),
        (("numpy==1.26.4", "pandas==2.3.3", "scipy==1.16.3"), set()),
        (("numpy==2.2.6", "pandas==2.3.3", "scipy==1.16.3", "ml_dtypes==0.7.0"), set()),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_numpy(wheels: tuple[str, ...], named: set[str], tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    subprocess.run([uv_program(), "venv", "--quiet", "--python", sys.executable, venv], check=True)
    uv(venv, "install", "--no-build", "--no-deps", *wheels, "python-dateutil", "six", "pytz", "tzdata")
    found = findings(venv, "numpy")
    assert {finding.subject for finding in found} == named
    assert all(finding.level == "failure" for finding in found)
    for finding in found:
        paths = [str(path) for path in finding.evidence["files"]]  # type: ignore[union-attr]
        for path in paths:
            message = said(venv, _BY_FILE, dotted(path).rpartition(".")[2], str(site_packages(venv) / path))
            assert message, f"{path} can be imported"
    if not found:
        modules = sorted({dotted(b.path) for b in read_consistency(venv).builds if b.numpy and b.module})
        modules = [name for name in modules if not name.startswith("numpy.") and "tests" not in name]
        assert len(modules) > 70
        modules = [name for name in modules if name != _CIRCULAR]
        assert said(venv, _BY_NAME, *modules) == ""


def test_modules_that_load_on_another_torch_abort(tmp_path: Path) -> None:
    venv = made("torch one minor older")
    (finding,) = findings(venv, "torch")
    assert (finding.level, finding.subject) == ("failure", "sgl-kernel 0.3.21")
    assert "was compiled against torch 2.9.1 or newer" in finding.message
    driver = stand_for_the_driver(inspect_native(venv), tmp_path / "driver")
    site = site_packages(venv)
    kinds = {"files": "undefined symbol", "may_abort": f"signal {int(signal.SIGABRT)}"}
    for evidence, answer in kinds.items():
        listed = finding.evidence[evidence]
        assert isinstance(listed, list)
        assert listed
        heard = opened(venv, [f"{site}/{path}" for path in listed], ("torch",), driver, tmp_path)
        assert [said for said in heard.values() if answer not in said] == []


@pytest.mark.parametrize("name", ["CUDA 12.8", "CUDA 13"])
def test_stacks_that_serve_have_no_such_failure(name: str) -> None:
    found = judge_consistency(read_consistency(made(name)))
    # Files that two dists write ("dists") are another matter.
    assert [finding.message for finding in found.of_level("failure") if "dists" not in finding.evidence] == []


@pytest.mark.parametrize(("stack", "level"), [("CUDA 12.8", "failure"), ("CUDA 13", "warning")])
@pytest.mark.parametrize("package", ["flashinfer-cubin", "flashinfer-jit-cache"])
def test_flashinfer_refuses_another_version(stack: str, level: str, package: str, tmp_path: Path) -> None:
    from crossgrade.inspect.dists import InstalledDist, installed_dists
    from crossgrade.inspect.version_pairs import mismatched

    venv = made(stack)
    other = InstalledDist(package, "0.6.13", tmp_path)
    (found,) = mismatched([*installed_dists(venv), other])
    assert found.refuses == (level == "failure")
    module = tmp_path / package.replace("-", "_") / "__init__.py"
    module.parent.mkdir()
    module.write_text("__version__ = '0.6.13'\ndef get_jit_cache_providers(): return ()\n")
    done = subprocess.run(
        [venv / "bin/python", "-B", "-c", "import flashinfer"],
        env={**os.environ, "PYTHONPATH": str(tmp_path), "HOME": str(tmp_path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert f"{package} version (0.6.13) does not match flashinfer version" in done.stderr
    assert ("RuntimeError" in done.stderr and done.returncode == 1) == found.refuses
