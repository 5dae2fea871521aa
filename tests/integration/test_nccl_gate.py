"""The collective gate with real processes. A small torch in files stands in for the real one, but in the slow test."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from tests.support.gate_host import run_gate
from tests.support.module_host import ModuleHost

from crossgrade.gates.collective import Ranks, judge_ranks, run_ranks
from crossgrade.modules.nccl_check import MODULE, Arguments

REAL = Path("~/.cache/crossgrade/oracle/sglang-CUDA-13").expanduser()

# Adds by files beside the store. FAULT is what rank 1 does in the place of its part.
TORCH = """
import os

class Found:
    def __init__(self, count): self.count = count
    def sum(self): return self.count

class Tensor:
    def __init__(self, length, value): self.length, self.value = length, value
    def __ne__(self, other): return Found(0 if self.value == other else self.length)

def full(shape, value, device):
    return Tensor(shape[0], value)

class cuda:
    device_count = staticmethod(lambda: int(os.environ.get("GPUS", "0")))
    set_device = staticmethod(lambda rank: None)
    class nccl:
        version = staticmethod(lambda: (2, 30, 7))
"""
DISTRIBUTED = """
import os, time
state = {}

def init_process_group(backend, init_method, rank, world_size, timeout):
    state.update(store=init_method.removeprefix("file://"), rank=rank, ranks=world_size, round=0)
    print("NCCL INFO Bootstrap", flush=True)
    meet("join", 0.0)

def meet(name, value):
    with open(f"{state['store']}-{name}-{state['rank']}.part", "w") as file:
        file.write(str(value))
    os.rename(file.name, file.name.removesuffix(".part"))
    places = [f"{state['store']}-{name}-{rank}" for rank in range(state["ranks"])]
    while not all(map(os.path.exists, places)):
        time.sleep(0.01)
    return sum(float(open(place).read()) for place in places)

def all_reduce(tensor):
    state["round"] += 1
    fault = os.environ.get("FAULT", "") if state["rank"] == 1 and state["round"] == 2 else ""
    if fault == "hang":
        time.sleep(600)
    if fault == "abort":
        print("NCCL WARN Cuda failure 'an illegal memory access was encountered'", flush=True)
        os.abort()
    tensor.value = meet(f"round{state['round']}", tensor.value) + (0.5 if fault == "wrong" else 0.0)

def destroy_process_group():
    pass
"""


@pytest.fixture
def torch_folder(tmp_path: Path) -> Path:
    package = tmp_path / "modules" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(TORCH)
    (package / "distributed.py").write_text(DISTRIBUTED)
    return package.parent


def run(folder: Path, *, backend: str = "nccl", ranks: int = 2, timeout: float = 60.0, **variables: str) -> Ranks:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(folder), "GPUS": "2", **variables}
    return run_ranks(
        Path(sys.executable), ranks=ranks, backend=backend, environment=environment, timeout=timeout, sizes=(1024, 4096)
    )


def test_ranks_that_add_up(torch_folder: Path) -> None:
    verdict = judge_ranks(run(torch_folder, ranks=3, GPUS="3"))
    assert verdict.passed
    assert verdict.reason == "3 ranks added 2 sizes up to 4 KiB by nccl 2.30.7, with the right sums"


def test_a_rank_that_hangs_is_ended_and_the_verdict_says_where(torch_folder: Path) -> None:
    tried = run(torch_folder, timeout=4, FAULT="hang")
    verdict = judge_ranks(tried)
    assert tried.timed_out
    assert verdict.outcome == "failed"
    assert "rank 1 had added 1 KiB" in verdict.reason
    assert "NCCL_P2P_DISABLE=1" in verdict.reason
    assert "no rollback of software cures it" in verdict.reason


def test_a_rank_that_dies_ends_the_others(torch_folder: Path) -> None:
    tried = run(torch_folder, FAULT="abort")
    verdict = judge_ranks(tried)
    assert not tried.timed_out
    assert verdict.outcome == "failed"
    assert "illegal memory access" in str(verdict.findings[0].evidence["output"])


def test_wrong_sums_fail(torch_folder: Path) -> None:
    verdict = judge_ranks(run(torch_folder, FAULT="wrong"))
    assert verdict.outcome == "failed"
    assert verdict.reason.startswith("rank 1 has 1024 wrong sums of 4 KiB")


def test_fewer_gpus_than_ranks_is_not_run(torch_folder: Path) -> None:
    verdict = judge_ranks(run(torch_folder, ranks=2, GPUS="1"))
    assert (verdict.outcome, verdict.reason) == ("not run", "2 GPUs are needed, and torch sees 1")


def test_an_environment_without_torch_fails(tmp_path: Path) -> None:
    verdict = judge_ranks(run(tmp_path))
    assert verdict.outcome == "failed"
    assert "rank 0 has not imported torch" in verdict.reason
    assert "ModuleNotFoundError" in str(verdict.findings[0].evidence["output"])


def test_the_module_without_a_driver_does_not_start_anything(tmp_path: Path) -> None:
    if Path("/proc/driver/nvidia/version").exists():
        pytest.skip("this machine has an NVIDIA driver")
    host = ModuleHost(tmp_path)
    (tmp_path / "venv" / "bin").mkdir(parents=True)  # no Python: starting one would be an error
    outcome = run_gate(MODULE, Arguments(path=tmp_path / "venv", on_not_run="warn"), host)
    assert outcome.verdict is not None
    assert outcome.verdict.outcome == "not run"
    assert not outcome.failed


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(not REAL.is_dir(), reason="tests/oracle makes this environment")
def test_the_real_torch_by_gloo() -> None:
    environment = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
    tried = run_ranks(
        REAL / "bin/python", ranks=2, backend="gloo", environment=environment, timeout=300, sizes=(1 << 20,)
    )
    assert judge_ranks(tried).passed, tried
    tried = run_ranks(REAL / "bin/python", ranks=2, backend="nccl", environment=environment, timeout=300)
    if not Path("/proc/driver/nvidia/version").exists():
        assert judge_ranks(tried).outcome == "not run", tried
