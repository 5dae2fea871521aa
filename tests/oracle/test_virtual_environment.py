"""What a deep plan sees against what is installed: SGLang's whole stacks for CUDA 12.8 and 13, laid out and installed.

The installed ones lie below ~/.cache/crossgrade/oracle, made once; the others are laid out from the same versions and
the same cache, without a network.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.oracle.test_real_stacks import KEPT, uv
from tests.support.toolkits import uv_program

from crossgrade.engine.view import Machine, TaskView
from crossgrade.gates.abi import judge_abi
from crossgrade.gates.consistency import judge_consistency
from crossgrade.gates.gpu_arch import judge_gpu_arch
from crossgrade.gates.verdict import Verdict
from crossgrade.inspect.consistency import read_consistency
from crossgrade.inspect.native import inspect_native
from crossgrade.modules.contract import LockRequest, Space
from crossgrade.modules.filling import Recipe
from crossgrade.modules.locks import lock_of
from crossgrade.modules.virtual_env import lay_out_recipe
from crossgrade.store.layout import Store

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

STACKS = {"sglang-CUDA-12.8": "sglang==0.5.9", "sglang-CUDA-13": "sglang==0.5.23"}


@dataclass
class Offline:
    """A `Laying` that nothing is fetched through."""

    host: TaskView
    fetched: list[str] = field(default_factory=list)

    def progress(self, message: str) -> None:
        """Nobody watches."""

    def fetching(self, message: str) -> None:
        self.fetched.append(message)

    def require(self, space: Sequence[Space]) -> None:
        """There is room."""


def installed(name: str) -> Path:
    venv = KEPT / name
    if not (venv / "bin" / "python").exists():
        part = KEPT / f"{name}.part"
        subprocess.run([uv_program(), "venv", "--quiet", "--clear", "--python", sys.executable, str(part)], check=True)
        uv(part, "install", "--no-build", "--prerelease=allow", STACKS[name])
        part.rename(venv)
    return venv


def locked(venv: Path, folder: Path, environment: dict[str, str]) -> str:
    """The text of a lock of exactly what is installed, with the hashes that the index gave when it was."""
    python = str(venv / "bin" / "python")
    frozen = folder / "frozen.txt"

    def ask(*arguments: str) -> str:
        argv = [uv_program(), "--quiet", "pip", *arguments, "--python", python]
        return subprocess.run(argv, env=environment, check=True, capture_output=True, text=True).stdout

    frozen.write_text(ask("freeze"))
    options = ("--no-deps", "--generate-hashes", "--no-header", "--no-annotate", "--prerelease", "allow", "--offline")
    return ask("compile", str(frozen), *options)


def look(venv: Path) -> tuple[dict[str, Any], list[Verdict], float]:
    """All that is read, as data, all that is judged from it, and the seconds that it took."""
    began = time.perf_counter()
    report = inspect_native(venv)
    verdicts = [
        judge_abi(report),
        judge_gpu_arch(report, "12.0"),
        judge_consistency(read_consistency(venv)),
    ]
    return report.to_json(), verdicts, time.perf_counter() - began


def told(data: Any, root: Path) -> Any:
    """Without times, without where it lies, and without whose bytes stay of two dists that write one file.

    That is chance: uv installs many wheels at once.
    """
    text = json.dumps(data).replace(str(root), "VENV")
    text = re.sub(r"the bytes there are those of .*?\. Uninstall", "Uninstall", text)
    plain = json.loads(re.sub(r'"bytes_of": \[[^]]*\]', '"bytes_of": []', text))
    for holder in (plain, plain.get("figures", {})):
        holder.pop("seconds", None)
    return plain


@pytest.mark.parametrize("name", STACKS)
def test_the_virtual_environment_is_the_installed_one(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    venv = installed(name)
    environment = {**os.environ, "UV_CACHE_DIR": str(KEPT / "downloads")}
    lock = lock_of(locked(venv, tmp_path, environment))
    request = LockRequest(
        tuple(f"{dist.name}=={dist.version}" for dist in lock.dists), os.path.realpath(sys.executable)
    )
    laying = Offline(TaskView(Machine(Store(tmp_path / "store"), tmp_path, True), environment, _never, _never))
    place = tmp_path / "laid out" / "venv"
    place.parent.mkdir()
    began = time.perf_counter()
    missing = lay_out_recipe(Recipe(request.python, request, lock, (), "venv"), None, place, 0, laying)
    laid = time.perf_counter() - began
    assert missing == ()
    assert laying.fetched == [], "everything is in the cache"

    theirs, their_verdicts, their_seconds = look(venv)
    ours, our_verdicts, our_seconds = look(place)
    files = [(file["path"], file) for file in told(theirs, venv).pop("files")]
    assert len(files) > 500
    assert dict(files) == {file["path"]: file for file in told(ours, place).pop("files")}
    assert told(ours, place) == told(theirs, venv)
    for one, other in zip(our_verdicts, their_verdicts, strict=True):
        assert told(one.to_json(), place) == told(other.to_json(), venv)
    assert any(verdict.findings for verdict in their_verdicts)
    with capsys.disabled():
        print(  # noqa: T201 - the table
            f"\n{name}: {len(lock.dists)} dists, {len(files)} native files, "
            f"{sum(len(verdict.findings) for verdict in their_verdicts)} findings; laid out in {laid:.1f} s, "
            f"read and judged in {our_seconds:.1f} s (installed: {their_seconds:.1f} s)"
        )


def _never(*_: object) -> Any:
    raise AssertionError("a lock needs no template")
