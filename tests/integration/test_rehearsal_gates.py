"""The ABI and architecture gates on the rehearsal's real environments: old, new, and broken on purpose.

The loader, `ldd -r`, `nm`, `readelf` and cuobjdump say the same, file by file.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.support.engine_wheel import Installed, build_wheel, install
from tests.support.native import dlopen, have_gcc
from tests.support.toolkits import Toolkits, toolkits, uv_program

from crossgrade.gates.abi import judge_abi
from crossgrade.gates.gpu_arch import judge_gpu_arch
from crossgrade.inspect.elf_index import ElfIndex
from crossgrade.inspect.native import NativeReport, inspect_native

pytestmark = pytest.mark.skipif(not have_gcc(), reason="gcc is not installed")

EXTENSION = "rehearsal_engine/_kernels.abi3.so"


@pytest.fixture(scope="module")
def homes() -> Toolkits:
    return toolkits()


@pytest.fixture(scope="module")
def old(homes: Toolkits, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    place = tmp_path_factory.mktemp("old")
    return install(build_wheel(place / "wheel", homes.cuda_12_8, "12.0"), place / "venv")


@pytest.fixture(scope="module")
def new(homes: Toolkits, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    place = tmp_path_factory.mktemp("new")
    return install(build_wheel(place / "wheel", homes.cuda_13_0, "12.0"), place / "venv")


def loader_agrees(environment: Installed) -> NativeReport:
    """Every file of the environment, judged by us and by dlopen and ldd in the environment's own Python."""
    report = inspect_native(environment.venv)
    for file in report.files:
        if file.kind not in ("extension", "library"):
            continue
        path = Path(report.root, file.path)
        opened = dlopen(path, python=environment.python)
        assert opened.loads == file.resolves, (file, opened)
        answer = subprocess.run(["ldd", str(path)], capture_output=True, text=True, check=False)
        absent = sorted(line.split()[0] for line in answer.stdout.splitlines() if line.endswith("=> not found"))
        assert absent == sorted(missing.soname for missing in file.missing_libraries)
    return report


def test_the_old_environment_passes(old: Installed) -> None:
    report = loader_agrees(old)
    verdict = judge_abi(report)
    assert verdict.outcome == "passed"
    assert not verdict.of_level("failure")
    architecture = judge_gpu_arch(report, "12.0")
    assert architecture.outcome == "passed"


def test_the_new_environment_passes(new: Installed) -> None:
    report = loader_agrees(new)
    assert judge_abi(report).outcome == "passed"
    assert judge_gpu_arch(report, "12.0", require=[f"*{EXTENSION}"]).outcome == "passed"
    stated = subprocess.run(["readelf", "-d", str(new.extension)], capture_output=True, text=True, check=True).stdout
    (file,) = [file for file in report.files if file.path.endswith(EXTENSION)]
    assert all(f"[{name}]" in stated for name in file.needed)
    assert "libcudart.so.13" in file.needed
    wanted = subprocess.run(
        ["nm", "-D", "--undefined-only", str(new.extension)], capture_output=True, text=True, check=True
    ).stdout
    theirs = {name for kind, name in (line.split()[-2:] for line in wanted.splitlines()) if kind == "U"}
    undefined = ElfIndex().undefined(str(new.extension))
    ours = {*undefined.plain, *undefined.versioned}
    assert {name.decode() for name in ours} == theirs


def test_the_old_extension_in_the_new_environment_fails(old: Installed, tmp_path: Path, homes: Toolkits) -> None:
    """What `rehearsal_fault=old_extension` does."""
    assert homes
    subprocess.run([uv_program(), "venv", "--quiet", "--python", str(old.python), str(tmp_path / "venv")], check=True)
    broken = Installed(old.wheel, tmp_path / "venv")
    into = [uv_program(), "pip", "install", "--quiet", "--python", str(broken.python)]
    subprocess.run([*into, "numpy", "nvidia-cuda-runtime==13.0.*"], check=True)
    subprocess.run([*into, "--no-deps", str(old.wheel)], check=True)
    verdict = judge_abi(loader_agrees(broken))
    assert verdict.outcome == "failed"
    assert EXTENSION in verdict.reason
    assert "needs libcudart.so.12, which is nowhere on its search path" in verdict.reason
    assert verdict.reason.endswith(
        "libcudart.so.13 is installed → built against CUDA 12; rebuild it, or install its build for CUDA 13"
    )
    assert len(verdict.of_level("failure")) == 1


def test_an_extension_for_another_gpu_fails(homes: Toolkits, tmp_path: Path) -> None:
    """What `rehearsal_fault=wrong_arch` does."""
    wheel = build_wheel(tmp_path / "wheel", homes.cuda_13_0, "9.0")
    verdict = judge_gpu_arch(inspect_native(install(wheel, tmp_path / "venv").venv), "12.0")
    assert verdict.outcome == "failed"
    assert EXTENSION in verdict.reason
    assert "sm_120: it holds sm_90" in verdict.reason
