"""What two real SGLang environments say of the old dead ends on compute capability 12.0; nothing is executed."""

from __future__ import annotations

import os
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version
from tests.support.commands import crossgrade
from tests.support.toolkits import uv_program

from crossgrade.gates.experiment_probes import Target
from crossgrade.gates.experiments import Sources, StaticAnswer, ask_sources, experiments, parser_question
from crossgrade.inspect.dists import installed_dists, site_packages
from crossgrade.modules.experiment import cuda_of

KEPT = Path("~/.cache/crossgrade/oracle").expanduser()
OLD, NEW = KEPT / "sglang-CUDA-12.8", KEPT / "sglang-CUDA-13"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (OLD.is_dir() and NEW.is_dir()), reason="tests/oracle/test_serving_stacks.py makes the two environments"
    ),
]


@cache
def answers(venv: Path, major: int = 12, gpus: int | None = 8, nvlink: bool | None = False) -> dict[str, StaticAnswer]:
    site = site_packages(venv)
    versions = {dist.name: dist.version for dist in installed_dists(venv)}
    known = list(experiments().values())
    question = parser_question(site, known, versions["sglang"])
    target = Target(major, 0, gpus, nvlink, cuda_of(site))
    return {each.experiment.name: each for each in ask_sources(known, Sources(site), target, versions, question)}


def refused(venv: Path, **others: Any) -> set[str]:
    return {name for name, answer in answers(venv, **others).items() if answer.answer == "refused"}


def quoted(answer: StaticAnswer) -> list[str]:
    return [str(quote) for reading in answer.reasons for quote in reading.quotes]


def test_no_answer_is_left_open() -> None:
    for venv in (OLD, NEW):
        unknown = {name for name, answer in answers(venv).items() if answer.answer == "not known"}
        assert unknown == set()


def test_what_each_refuses() -> None:
    blocked = {"flashinfer_allreduce_fusion", "custom_allreduce", "torch_symmetric_memory"}
    assert refused(OLD) == {*blocked, "pcie_ipc_allreduce"}
    assert refused(NEW) == blocked
    # with two GPUs custom allreduce was never refused; on a Hopper server nothing is
    assert "custom_allreduce" not in refused(NEW, gpus=2)
    assert refused(NEW, major=9, nvlink=True) == set()


def test_allreduce_fusion_is_now_refused_by_sglang_alone() -> None:
    old, new = answers(OLD)["flashinfer_allreduce_fusion"], answers(NEW)["flashinfer_allreduce_fusion"]
    assert "flashinfer/jit/comm.py:61: supported_major_versions=[9, 10]" in quoted(old)
    assert any(line.startswith("sglang/srt/layers/communicator.py:95:") for line in quoted(old))
    assert not [line for line in quoted(new) if line.startswith("flashinfer/")]
    assert any(line.startswith("sglang/srt/layers/layer_boundary/residual/add_norm.py:146:") for line in quoted(new))
    allowed = [str(quote) for each in new.readings if each.answer == "allows" for quote in each.quotes]
    assert "flashinfer/jit/comm.py:198: supported_major_versions=[9, 10, 12]" in allowed
    assert 'flashinfer/compilation_context.py:104: raise RuntimeError("SM 120 requires CUDA >= 12.8")' in allowed
    assert new.flags == ("--flashinfer-allreduce-fusion-backend", "auto")


def test_symmetric_memory_ends_with_a_key_error_or_a_refusal() -> None:
    old, new = answers(OLD)["torch_symmetric_memory"], answers(NEW)["torch_symmetric_memory"]
    assert "9.x, 10.x only, not 12.0; the server ends with KeyError: 12" in old.reasons[0].text
    assert "9.x, 10.x only, not 12.0; it is not in use then" in new.reasons[0].text
    for answer in (old, new):
        assert quoted(answer)[0].split(":")[1] == "3"


def test_flashinfer_a2a_may_be_tried_under_conditions() -> None:
    old, new = (answers(venv)["expert_parallelism_flashinfer"] for venv in (OLD, NEW))
    assert old.answer == new.answer == "can be tried"
    for answer in (old, new):
        said = " ".join(reading.text for reading in answer.conditions)
        assert "the expert parallel size becomes the tensor parallel size" in said
        assert "NVFP4" in said
    assert "--attn-dp-size" in new.flags
    assert "--attn-dp-size" not in old.flags


def test_pcie_allreduce_is_new() -> None:
    assert answers(NEW)["pcie_ipc_allreduce"].answer == "can be tried"
    assert "this version has none" in answers(OLD)["pcie_ipc_allreduce"].reasons[0].text


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("version", ["0.5.10", "0.5.13", "0.5.14", "0.5.17", "0.5.20", "0.5.21", "0.5.22"])
def test_the_probes_know_the_places_of_every_version_between(version: str, tmp_path: Path) -> None:
    """SGLang and the FlashInfer that it asks for, as sources only."""
    fetch(tmp_path, f"sglang=={version}")
    metadata = (tmp_path / f"sglang-{version}.dist-info" / "METADATA").read_text()
    asked = re.search(r"^Requires-Dist: flashinfer[-_]python(?:\[\w+\])? ?==([\w.]+)", metadata, re.MULTILINE)
    assert asked is not None
    fetch(tmp_path, f"flashinfer-python=={asked[1]}")
    known = list(experiments().values())
    target = Target(12, 0, 8, False, "13.0")
    versions = {"sglang": version, "nvidia-nccl-cu13": "2.28.9"}
    said = ask_sources(known, Sources(tmp_path), target, versions, parser_question(tmp_path, known, version))
    refusals = {each.experiment.name for each in said if each.answer == "refused"}
    new = Version(version) >= Version("0.5.22")  # 0.5.21 knows it, and asks for a FlashInfer without it
    blocked = {"flashinfer_allreduce_fusion", "custom_allreduce", "torch_symmetric_memory"}
    assert refusals == (blocked if new else {*blocked, "pcie_ipc_allreduce"})
    unknown = [
        (each.experiment.name, reading.text)
        for each in said
        for reading in each.readings
        if reading.answer == "unknown" and (new or each.experiment.name != "pcie_ipc_allreduce")
    ]
    assert unknown == []
    attention = [reading for each in said for reading in each.conditions if reading.text.startswith("attention: ")]
    assert bool(attention) == (Version(version) >= Version("0.5.13"))


def fetch(folder: Path, requirement: str) -> None:
    argv = [uv_program(), "pip", "install", "--quiet", "--no-deps", "--prerelease=allow", "--target", str(folder)]
    subprocess.run([*argv, requirement], check=True, env={**os.environ, "UV_CACHE_DIR": str(KEPT / "downloads")})


def test_the_command_reads_and_changes_nothing(tmp_path: Path) -> None:
    said = crossgrade(
        *("experiments", "--dry-run", "--venv", NEW, "--for", "12.0", "--gpus", "8", "--pcie"),
        *("--folder", tmp_path / "out", "--root", tmp_path / "root"),
    )
    assert said.code == 0, said.stderr
    assert "3 refused, 7 can be tried" in said.stdout
    plan = (tmp_path / "out" / "plan.md").read_text()
    assert "sglang/srt/distributed/device_communicators/custom_all_reduce_utils.py:492" in plan
    assert not (tmp_path / "root").exists()
