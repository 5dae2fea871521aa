"""flashinfer_jit where something is wrong: with a small package in FlashInfer's place, real ninja, real compiler."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.support import small_flashinfer
from tests.support.gate_host import activate, make_venv
from tests.support.module_host import ModuleHost, plan_module, run_module, undo_all

from crossgrade.errors import TaskError
from crossgrade.modules.contract import Change, Unchanged
from crossgrade.modules.flashinfer_jit import MODULE, default_jobs
from crossgrade.store.generation import Generation

pytestmark = pytest.mark.skipif(shutil.which("ninja") is None, reason="ninja is not there")

NORM = {"generation": 1, "modules": ["norm"], "architectures": ["12.0f"]}


def toolkit(host: ModuleHost, digest: str = "abc") -> Path:
    """What a toolkit of the store is to this module: a record, an nvcc, and the driver's header."""
    place = host.store.toolkit(digest)
    home = place / "cuda_home"
    (home / "bin").mkdir(parents=True)
    (home / "include").mkdir()
    (home / "bin" / "nvcc").touch()
    (home / "include" / "cuda.h").write_text("CUresult CUDAAPI cuInit(unsigned int Flags);\n")
    (place / "toolkit.json").write_text("{}")
    return home


def record(host: ModuleHost, **environment: str) -> Generation:
    dists = {"flashinfer-python": "0.7.2"}
    generation = Generation(1, "x", "built", "ready", "2026-12-01T00:00:00Z", "", environment, {"dists": dists}, "m")
    host.store.write_generation(generation)
    return generation


@pytest.fixture
def host(tmp_path: Path) -> ModuleHost:
    """A store with generation 1, whose FlashInfer is the small one."""
    host = ModuleHost(tmp_path)
    record(host, CUDA_HOME=str(toolkit(host)))
    small_flashinfer.install(make_venv(host.store.venv(1)))
    return host


def cached_ops(host: ModuleHost) -> Path:
    return host.store.folder(1) / "caches/flashinfer/.cache/flashinfer/0.7.2/120f/cached_ops"


def test_a_module_that_fails_is_told_with_its_output_and_the_others_are_kept(host: ModuleHost) -> None:
    both = {**NORM, "modules": ["wrong", "norm"]}
    with pytest.raises(TaskError, match=r"could not build wrong:\n(.|\n)*this is no C\+\+") as failure:
        run_module(MODULE, both, host)
    assert str(host.log_directory / "flashinfer_jit.log") in failure.value.remedy
    assert "this is no C++" not in (host.log_directory / "flashinfer_jit.log").read_text().splitlines()[0]
    assert isinstance(plan_module(MODULE, NORM, host), Unchanged)
    planned = plan_module(MODULE, both, host)
    assert isinstance(planned, Change)
    assert [one.subject for one in planned.differences] == ["FlashInfer module wrong"]
    assert undo_all(MODULE, host) == ["removed 1 module of FlashInfer, not finished"]
    assert not (cached_ops(host) / "wrong").exists()
    assert (cached_ops(host) / "norm/norm.so").is_file()


def test_what_a_killed_build_left_half_made_is_removed_and_what_is_whole_stays(host: ModuleHost) -> None:
    folder = cached_ops(host).parent
    for name in ("whole", "half", "not_ours"):
        (cached_ops(host) / name).mkdir(parents=True)
    said: list[dict[str, Any]] = [
        {"kind": "found", "names": {"whole": "whole", "half": "half"}, "missing": [], "errors": {}},
        {"kind": "module", "name": "whole", "state": "built"},
    ]
    (folder / "crossgrade-answers.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in said))
    undo = {"work": str(host.store.temporary / "flashinfer-1"), "folder": str(folder)}
    assert MODULE.undo(undo, host) == "removed 1 module of FlashInfer, not finished"
    assert sorted(one.name for one in cached_ops(host).iterdir()) == ["not_ours", "whole"]
    assert MODULE.undo(undo, host) == ""


def test_a_library_that_does_not_load_fails_the_task_and_is_not_on_record(host: ModuleHost) -> None:
    with pytest.raises(TaskError, match=r"unloadable\.so does not load: .*undefined symbol: _Z7nowherev"):
        run_module(MODULE, {**NORM, "modules": ["unloadable"]}, host)
    assert isinstance(plan_module(MODULE, {**NORM, "modules": ["unloadable"]}, host), Change)


def test_all_that_is_listed_and_a_generator_that_fails(host: ModuleHost) -> None:
    outcome = run_module(MODULE, {"generation": 1, "all": True, "architectures": ["12.0f"]}, host)
    assert outcome.values["modules"] == ["norm", "attention_64_stride_equal"]
    assert "not listed by FlashInfer: gen_broken_module failed" in outcome.message
    assert "without device code: " in outcome.message


def test_names_of_an_old_cache_that_became_longer_or_are_gone(host: ModuleHost) -> None:
    old = host.directory / "old/cached_ops"
    for name in ("attention_64", "gone"):
        (old / name).mkdir(parents=True)
        (old / name / f"{name}.so").touch()
    arguments = {"generation": 1, "from_cache": str(old), "architectures": ["12.0f"]}
    outcome = run_module(MODULE, arguments, host)
    assert outcome.values["modules"] == ["attention_64_stride_equal"]
    assert outcome.values["unknown"] == ["gone"]
    assert "attention_64 is attention_64_stride_equal now" in outcome.message
    again = plan_module(MODULE, arguments, host)
    assert isinstance(again, Unchanged)
    assert again.summary == "2 modules there; FlashInfer has no gone"


def test_what_another_toolkit_compiled_is_not_counted_and_is_removed(host: ModuleHost) -> None:
    run_module(MODULE, NORM, host)
    path = cached_ops(host).parent / "crossgrade.json"
    path.write_text(path.read_text().replace('"abc"', '"another"'))
    (cached_ops(host) / "stale").mkdir()
    planned = plan_module(MODULE, NORM, host)
    assert isinstance(planned, Change)
    assert planned.summary.endswith("(those there are of another toolkit)")
    assert "1 module, 1 commands run" in run_module(MODULE, NORM, host).message
    assert not (cached_ops(host) / "stale").exists()


def test_an_active_generation_is_not_built_into(host: ModuleHost) -> None:
    run_module(MODULE, NORM, host)
    activate(host.store, 1)
    assert isinstance(plan_module(MODULE, NORM, host), Unchanged)
    with pytest.raises(TaskError, match="generation 1 is active"):
        plan_module(MODULE, {**NORM, "modules": ["wrong"]}, host)


def test_a_generation_that_a_plan_foresees(tmp_path: Path) -> None:
    host = ModuleHost(tmp_path, check_mode=True)
    home = toolkit(host)
    generation = Generation(
        1, "x", "built", "ready", "2026-12-01T00:00:00Z", "", {"CUDA_HOME": str(home)},
        {"dists": {"flashinfer-python": "0.7.2"}},
    )  # fmt: skip
    host.predictions["generation", "1"] = generation.to_json()
    planned = plan_module(MODULE, {**NORM, "jobs": 3}, host)
    assert isinstance(planned, Change)
    assert planned.summary == "build 1 module of FlashInfer 0.7.2 for 12.0f with 3 jobs"
    assert not host.store.folder(1).exists()


@pytest.mark.parametrize(
    ("environment", "arguments", "message"),
    [
        ({}, {}, "no toolkit is named, and generation 1 has no CUDA_HOME"),
        ({"CUDA_HOME": "/other"}, {"cuda_home": "/usr/local/cuda"}, "generation 1 runs with CUDA_HOME=/other"),
        ({"FLASHINFER_CUDA_ARCH_LIST": "12.0a"}, {}, "generation 1 runs with FLASHINFER_CUDA_ARCH_LIST=12.0a"),
        ({}, {"architectures": []}, "no architecture is named"),
        ({"FLASHINFER_WORKSPACE_BASE": "/shared", "CUDA_HOME": "HERE"}, {}, "a cache that others may share"),
        ({"CUDA_HOME": "HERE"}, {"modules": []}, "`modules` is empty"),
    ],
)
def test_what_does_not_fit_the_generation_fails_in_the_plan(
    host: ModuleHost, environment: dict[str, str], arguments: dict[str, Any], message: str
) -> None:
    home = str(host.store.toolkit("abc") / "cuda_home")
    record(host, **{name: home if value == "HERE" else value for name, value in environment.items()})
    with pytest.raises(TaskError, match=message):
        plan_module(MODULE, {**NORM, **arguments}, host.planning())


def test_a_toolkit_without_nvcc_and_a_machine_without_a_compiler(host: ModuleHost) -> None:
    host.environment = {**os.environ, "PATH": "/nowhere"}
    with pytest.raises(TaskError, match=r"there is no C\+\+ compiler c\+\+"):
        run_module(MODULE, NORM, host)
    (host.store.toolkit("abc") / "cuda_home/bin/nvcc").unlink()
    with pytest.raises(TaskError, match=r"there is no .*/bin/nvcc"):
        run_module(MODULE, NORM, host)


def test_jobs_by_memory_and_cores() -> None:
    assert default_jobs(64, 512_000_000_000) == 64
    assert default_jobs(64, 64_000_000_000) == 12
    assert default_jobs(2, 1_000_000_000) == 1
