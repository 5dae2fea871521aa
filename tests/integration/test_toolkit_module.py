"""cuda_toolkit, on real wheels from PyPI."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.support.module_host import plan_module, run_module
from tests.support.store_host import (
    KilledError,
    StoreHost,
    planned_change,
    undo_steps,
)

from crossgrade.errors import TaskError
from crossgrade.inspect.toolkit import ToolkitError
from crossgrade.modules import cuda_toolkit
from crossgrade.modules.contract import Change, Unchanged
from crossgrade.modules.cuda_home import unify

TOOLKIT = cuda_toolkit.MODULE


@pytest.fixture
def host(tmp_path: Path) -> StoreHost:
    return StoreHost(tmp_path)


# ---- cuda_toolkit


def test_a_toolkit_from_wheels_is_made_once(host: StoreHost) -> None:
    arguments = {"version": "13.0", "components": ["cudart"]}
    plan = host.planning()
    foreseen = planned_change(TOOLKIT, arguments, plan)
    assert isinstance(plan_module(TOOLKIT, {**arguments, "components": ["cudart", "cudart"]}, plan), Change | Unchanged)
    values = run_module(TOOLKIT, arguments, host).values
    assert values == foreseen.values
    home = Path(values["cuda_home"])
    assert (home / "lib64" / "libcudart.so").resolve().name == "libcudart.so.13"
    assert (home / "include" / "cuda_runtime.h").is_file()
    assert values["version"].startswith("13.0.")
    later = host.in_run("later")
    later.locks = {}
    assert isinstance(plan_module(TOOLKIT, arguments, later), Unchanged)
    assert (later.resolved, later.started) == ([], [])
    assert undo_steps(TOOLKIT, host) == [""], "a complete toolkit is shared and stays"
    assert home.is_dir()


def test_a_kill_while_a_toolkit_is_installed(host: StoreHost, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = {"version": "13.0", "components": ["cudart"]}
    plan_module(TOOLKIT, arguments, host)

    def killed(*_: object) -> bool:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(cuda_toolkit, "_prove", killed)
        with pytest.raises(KilledError):
            run_module(TOOLKIT, arguments, host)
    assert undo_steps(TOOLKIT, host) == ["removed the half-made toolkit"]
    assert list(host.store.temporary.iterdir()) == []
    assert isinstance(plan_module(TOOLKIT, arguments, host), Change)


def test_wheels_of_cuda_12_become_one_tree(tmp_path: Path) -> None:
    for name in (
        "cuda_nvcc/bin/ptxas", "cuda_nvcc/nvvm/libdevice/libdevice.10.bc", "cuda_nvcc/include/fatbinary_section.h",
        "cuda_runtime/include/cuda_runtime.h", "cuda_runtime/lib/libcudart.so.12", "cuda_runtime/__init__.py",
        "cuda_nvrtc/lib/libnvrtc.so.12", "cuda_nvrtc/lib/libnvrtc-builtins.so.12.8", "cuda_nvrtc/lib/__init__.py",
    ):  # fmt: skip
        file = tmp_path / "site" / "nvidia" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)
    unify(tmp_path / "site", tmp_path / "cuda_home")
    moved = tmp_path / "moved"
    moved.mkdir()
    for part in ("site", "cuda_home"):
        (tmp_path / part).rename(moved / part)
    home = moved / "cuda_home"
    assert (home / "bin" / "ptxas").read_text() == "cuda_nvcc/bin/ptxas"
    assert (home / "bin" / ".." / "lib64" / "libcudart.so").read_text() == "cuda_runtime/lib/libcudart.so.12"
    assert (home / "lib" / "libnvrtc.so").readlink() == Path("libnvrtc.so.12")
    assert (home / "nvvm" / "libdevice" / "libdevice.10.bc").is_file()
    assert sorted(entry.name for entry in (home / "include").iterdir()) == ["cuda_runtime.h", "fatbinary_section.h"]


def test_an_existing_toolkit_that_is_not_there(host: StoreHost) -> None:
    with pytest.raises(ToolkitError, match="is not a directory"):
        plan_module(TOOLKIT, {"method": "existing", "version": "13.0", "path": "/nowhere"}, host)


@pytest.mark.slow
def test_nvcc_from_wheels_compiles_and_links_and_counts_as_existing(host: StoreHost) -> None:
    values = run_module(TOOLKIT, {"version": "13.0", "components": ["nvcc", "cccl", "cudart"]}, host).values
    source = host.directory / "main.cu"
    source.write_text(
        "#include <cuda_runtime.h>\n#include <cuda/std/array>\n__global__ void k() {}\n"
        "int main() { int v = 0; cudaRuntimeGetVersion(&v); k<<<1, 1>>>(); return v / 1000 == 13 ? 0 : 1; }\n"
    )
    program = host.directory / "main"
    subprocess.run([values["nvcc"], "-arch=sm_120", "-cudart", "shared", "-o", str(program), str(source)], check=True)
    environment = {"LD_LIBRARY_PATH": f"{values['cuda_home']}/lib64"}
    assert subprocess.run([str(program)], env=environment, check=False).returncode == 0
    existing = {"method": "existing", "version": "13.0", "path": values["cuda_home"]}
    found = plan_module(TOOLKIT, existing, host)
    assert isinstance(found, Unchanged)
    assert found.values["nvcc"] == values["nvcc"]
    with pytest.raises(TaskError, match=r"holds CUDA 13\.0, CUDA 12\.8 is asked for"):
        plan_module(TOOLKIT, {**existing, "version": "12.8"}, host)
