"""What two real SGLang environments say of the old dead ends on compute capability 12.0; nothing is executed."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.support.commands import crossgrade

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
