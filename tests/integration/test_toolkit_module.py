"""cuda_toolkit, on real wheels from PyPI."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.support.module_host import plan_module, run_module, snapshot
from tests.support.store_host import (
    KilledError,
    StoreHost,
    planned_change,
    undo_steps,
)

from crossgrade.errors import TaskError
from crossgrade.inspect.toolkit import ToolkitError
from crossgrade.modules import cuda_toolkit, toolkit_wheels
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
        patch.setattr(toolkit_wheels, "_start", killed)
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


# ---- the proof, on whole toolkits


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[StoreHost, dict[str, Any]]:
    """A host with the default toolkit in its store, and the values that the module returned for it."""
    host = StoreHost(tmp_path_factory.mktemp("whole"))
    return host, dict(run_module(TOOLKIT, {"version": "13.0"}, host).values)


def test_nvcc_from_wheels_is_proved_and_builds_find_all_of_it(whole: tuple[StoreHost, dict[str, Any]]) -> None:
    host, values = whole
    assert (values["proved"], values["not_proved"]) == (["12.0f"], "")
    home = Path(values["cuda_home"])
    source = host.directory / "plain.cpp"
    source.write_text(
        "#include <cuda_runtime_api.h>\n#include <cuda/std/array>\n#include <thrust/version.h>\n"
        "#include <cub/version.cuh>\nint main() { int v = 0; return cudaRuntimeGetVersion(&v); }\n"
    )
    command = ["g++", "-std=c++17", f"-I{home}/include", str(source), f"-L{home}/lib64", "-lcudart", "-o"]
    subprocess.run([*command, str(host.directory / "plain")], check=True)
    later = host.in_run("later")
    again = plan_module(TOOLKIT, {"version": "13.0"}, later)
    assert isinstance(again, Unchanged)
    assert (dict(again.values), later.started) == (values, []), "what is on record is not proved again"


def test_an_existing_toolkit_is_proved_without_writing_into_it(whole: tuple[StoreHost, dict[str, Any]]) -> None:
    host, values = whole
    home = Path(values["cuda_home"])
    before = snapshot(home)
    existing = {"method": "existing", "version": "13.0", "path": str(home), "prove_for": ["12.0a", "9.0+PTX"]}
    found = plan_module(TOOLKIT, existing, host.planning())
    assert isinstance(found, Unchanged)
    assert (found.values["nvcc"], found.values["proved"]) == (values["nvcc"], ["12.0a", "9.0+PTX"])
    assert snapshot(home) == before
    with pytest.raises(TaskError, match=r"holds CUDA 13\.0, CUDA 12\.8 is asked for"):
        plan_module(TOOLKIT, {**existing, "version": "12.8"}, host)
    with pytest.raises(TaskError, match=r"(?s)does not compile a small program for 6\.0.*Unsupported gpu architecture"):
        plan_module(TOOLKIT, {**existing, "prove_for": ["6.0"]}, host)


def test_a_compiler_that_compiles_for_something_else_is_found(
    whole: tuple[StoreHost, dict[str, Any]], tmp_path: Path
) -> None:
    """As one would that took 12.0 for 12.0f: only the fatbin tells."""
    host, values = whole
    fake = tmp_path / "cuda"
    shutil.copytree(values["cuda_home"], fake, symlinks=True, ignore=shutil.ignore_patterns("nvcc", "lib"))
    for folder in ("include", "lib64", "nvvm"):
        shutil.rmtree(fake / folder)
        (fake / folder).symlink_to(Path(values["cuda_home"]) / folder)
    nvcc = fake / "bin" / "nvcc"
    nvcc.write_text(f'#!/bin/bash\nexec {values["nvcc"]} "${{@//120f/120}}"\n')
    nvcc.chmod(0o755)
    with pytest.raises(TaskError, match=r"was asked for sm_120f, and its program holds sm_120$"):
        plan_module(TOOLKIT, {"method": "existing", "version": "13.0", "path": str(fake)}, host)


def test_without_a_host_compiler_it_says_so(whole: tuple[StoreHost, dict[str, Any]], tmp_path: Path) -> None:
    host, values = whole
    bare = StoreHost(host.directory, environment={**host.environment, "PATH": str(tmp_path)})
    existing = {"method": "existing", "version": "13.0", "path": values["cuda_home"]}
    with pytest.raises(TaskError, match=r"needs g\+\+ and there is none on PATH"):
        plan_module(TOOLKIT, existing, bare)
    left_out = plan_module(TOOLKIT, {**existing, "prove_for": []}, bare)
    assert left_out.values["not_proved"] == "not run: `prove_for` is empty"


def test_wheels_of_a_venv_are_not_taken_for_a_toolkit_to_build_with(whole: tuple[StoreHost, dict[str, Any]]) -> None:
    host, values = whole
    wheels = Path(values["cuda_home"]).parent / "site"
    venv = host.directory / "venv/lib/python3.11/site-packages"
    venv.parent.mkdir(parents=True)
    shutil.copytree(wheels, venv, copy_function=os.link)
    (venv / "nvidia/cu13/nvvm/bin/cicc").unlink()
    existing = {"method": "existing", "version": "13.0", "path": str(venv / "nvidia/cu13")}
    with pytest.raises(TaskError, match="belongs to a venv and cannot be built with: it lacks ") as caught:
        plan_module(TOOLKIT, existing, host)
    lacks = caught.value.message.partition("it lacks ")[2]
    assert lacks == (
        "nvvm/bin/cicc (nvidia-nvvm brings it); lib64 (no wheel brings it); lib64/libcudart.so (no wheel brings it)"
    )
    os.link(wheels / "nvidia/cu13/nvvm/bin/cicc", venv / "nvidia/cu13/nvvm/bin/cicc")
    (venv / "nvidia/cu13/lib64").symlink_to("lib")
    (venv / "nvidia/cu13/lib/libcudart.so").symlink_to("libcudart.so.13")
    assert plan_module(TOOLKIT, existing, host).values["proved"] == ["12.0f"]


def test_a_lock_that_mixes_releases_is_refused_in_the_plan(host: StoreHost) -> None:
    """uv's own overrides mix a real lock, as the newest stacks do: nvcc of one release, headers of another."""
    overrides = host.directory / "overrides.txt"
    overrides.write_text("nvidia-cuda-nvcc==13.2.*\n")
    mixing = StoreHost(host.directory, check_mode=True, environment={**host.environment, "UV_OVERRIDE": str(overrides)})
    with pytest.raises(TaskError, match=r"mixes CUDA releases: .*nvidia-cuda-nvcc 13\.2\..*nvidia-cuda-runtime 13\.0"):
        plan_module(TOOLKIT, {"version": "13.0"}, mixing)


def test_what_cannot_be_proved_is_said(host: StoreHost) -> None:
    planned = planned_change(TOOLKIT, {"version": "13.0", "components": ["cudart"]}, host)
    assert (planned.values["proved"], planned.values["not_proved"]) == ([], "not run: it has no nvcc")
    with pytest.raises(TaskError, match=r"cannot compile for 12.0f: it has no nvcc"):
        planned_change(TOOLKIT, {"version": "13.0", "components": ["cudart"], "prove_for": ["12.0f"]}, host)
    with pytest.raises(TaskError, match="'sm120' is no architecture"):
        planned_change(TOOLKIT, {"version": "13.0", "prove_for": ["sm120"]}, host)
