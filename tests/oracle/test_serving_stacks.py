"""Two whole SGLang environments that serve: the loader refuses dozens of their files, and none that counts."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.oracle.test_real_stacks import KEPT, made, uv
from tests.support.toolkits import uv_program

from crossgrade.gates.abi import judge_abi
from crossgrade.gates.reachability import refused, sorted_by_reach
from crossgrade.gates.verdict import Verdict
from crossgrade.inspect.native import inspect_native
from crossgrade.inspect.reach import followed_from, reach_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

SERVING = {
    "sglang-CUDA-12.8": ("sglang==0.5.9", "flashinfer-cubin==0.6.3"),
    "sglang-CUDA-13": ("sglang==0.5.23",),
}


def served(name: str) -> Path:
    import subprocess
    import sys

    venv = KEPT / name
    if not next(venv.glob("lib/python3*/site-packages/sglang"), None):
        KEPT.mkdir(parents=True, exist_ok=True)
        subprocess.run([uv_program(), "venv", "--quiet", "--clear", "--python", sys.executable, str(venv)], check=True)
        uv(venv, "install", "--prerelease=allow", *SERVING[name])
    return venv


def judged(venv: Path, entries: tuple[str, ...] | None = None) -> Verdict:
    with followed_from(venv, entries) as ahead:
        report = inspect_native(venv)
        verdict = judge_abi(report)
        reaches = reach_of(report, refused(verdict), ahead)
    return sorted_by_reach(verdict, report, reaches)


@pytest.mark.parametrize("name", SERVING)
def test_what_serves_passes(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    verdict = judged(served(name))
    counts = {level: len(verdict.of_level(level)) for level in ("failure", "warning", "note")}
    with capsys.disabled():
        print(f"\n{name}: {verdict.outcome}, {verdict.figures['not_reached']} refusals set aside, {counts}")  # noqa: T201
    assert verdict.outcome == "passed", verdict.reason
    assert int(str(verdict.figures["not_reached"])) > 25


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("old kernels on torch of CUDA 13", "libcudart.so.12"),
        ("torch one minor newer", "c10_cuda_check_implementation"),
        ("new kernels on torch of CUDA 12", "libnvrtc.so.13"),
    ],
)
def test_what_a_server_loads_first_still_fails(name: str, missing: str) -> None:
    verdict = judged(made(name), ("sgl_kernel",))
    assert verdict.outcome == "failed"
    failures = [finding for finding in verdict.of_level("failure") if "common_ops" in finding.subject]
    assert failures
    assert any(missing in finding.message for finding in verdict.of_level("failure"))


def test_torch_cut_short_is_what_the_server_loads() -> None:
    verdict = judged(made("a library truncated"), ("torch",))
    assert verdict.outcome == "failed"
    failures = {finding.subject.rpartition("/")[2] for finding in verdict.of_level("failure")}
    assert {"libtorch_python.so", "_C.cpython-311-x86_64-linux-gnu.so"} <= failures
