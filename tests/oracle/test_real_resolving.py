"""What a plan says of the way from SGLang 0.5.9 on CUDA 12.8 to 0.5.23 on CUDA 13, and of ways that go wrong.

The environment lies below ~/.cache/crossgrade/oracle and is only read. The index is asked as it was on 2026-12-01.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.oracle.test_real_stacks import KEPT
from tests.support.commands import crossgrade

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

ENV = KEPT / "sglang-CUDA-12.8"
STATE = "2026-12-01T00:00:00Z"


def planned(folder: Path, requirements: Sequence[str], **more: Any) -> dict[str, Any]:
    if not (ENV / "pyvenv.cfg").is_file():
        pytest.skip(f"{ENV} is not there: tests/oracle/test_real_stacks.py makes it")
    arguments = {"requirements": list(requirements), "exclude_newer": STATE, "local_patches": "drop", **more}
    tasks = [{"venv_backup": {"path": str(ENV)}}, {"python_env": arguments}]
    (folder / "play.yml").write_text(json.dumps([{"hosts": "localhost", "tasks": tasks}]))
    root = KEPT / "no-root-of-a-test"  # on the filesystem of the environment; a plan makes nothing
    answer = crossgrade(
        "plan", "--json", "--playbook", folder / "play.yml", "--root", root, "-e", "crossgrade_ignore_space=true",
        environment={"UV_CACHE_DIR": str(KEPT / "downloads")},
    )  # fmt: skip
    assert answer.code == 0, answer.stderr
    assert not root.exists()
    task: dict[str, Any] = answer.of_kind("plan")[0]["plan"]["tasks"][-1]
    return task


def names(task: dict[str, Any]) -> list[tuple[str, str]]:
    return [(one["name"], one["subject"]) for one in task["warnings"]]


def test_from_cuda_12_8_to_13(tmp_path: Path) -> None:
    task = planned(tmp_path, ["sglang==0.5.23"], prerelease="allow")
    assert "207 dists" in task["summary"]
    assert "23 upgraded, 5 downgraded, 59 new, 21 removed, from pypi.org" in task["summary"]
    first, *_ = task["differences"]
    assert (first["subject"], first["before"], first["after"]) == ("sglang", "0.5.9", "0.5.23")
    assert first["why"] == "asked for by the playbook"
    rows = {one["subject"]: one for one in task["differences"]}
    assert (rows["torch"]["before"], rows["torch"]["after"]) == ("2.9.1", "2.14.1")
    assert "sglang" in rows["flashinfer-python"]["why"]
    assert rows["sgl-kernel"]["after"] == ""
    found = names(task)
    assert ("prerelease-beside-final", "lxml") in found
    assert ("downgraded", "numpy") in found
    assert not [name for name, _ in found if name.startswith("cuda") or name in ("ancient", "held-back")], found


def test_final_releases_are_enough(tmp_path: Path) -> None:
    found = names(planned(tmp_path, ["sglang==0.5.23"]))
    assert [subject for name, subject in found if name == "prerelease-beside-final"] == []
    assert ("prerelease-only", "flash-attn-4") in found


def test_a_resolver_that_goes_back_is_told(tmp_path: Path) -> None:
    found = names(planned(tmp_path, ["sglang", "torch==2.4.0"], prerelease="allow"))
    assert ("held-back", "sglang") in found
    assert ("downgraded", "nvidia-cublas-cu12") in found


def test_cuda_12_and_13_mixed(tmp_path: Path) -> None:
    asked = ["sglang==0.5.23", "nvidia-nccl-cu12", "sgl-kernel==0.3.21"]
    found = names(planned(tmp_path, asked, prerelease="allow"))
    assert found[:2] == [("cuda-same-files", "nvidia-nccl-cu12"), ("cuda-mixed", "sgl-kernel")]
