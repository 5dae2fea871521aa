"""The CUDA gate on real environments from PyPI: silent where they serve, and by name where two CUDA releases meet."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.oracle.test_real_stacks import KEPT, made
from tests.support.ptx_payload import ptx_versions

from crossgrade.gates.cuda import judge_cuda
from crossgrade.gates.verdict import Verdict
from crossgrade.inspect.cuda_consistency import read_cuda
from crossgrade.inspect.native import inspect_native
from crossgrade.inspect.ownership import conflicts

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


def judge(venv: Path, driver: str = "580.95.05") -> Verdict:
    return judge_cuda(read_cuda(inspect_native(venv), conflicts(venv)), driver=driver)


def said(verdict: Verdict, level: str) -> list[str]:
    return [f"{each.subject} {each.message}" for each in verdict.findings if each.level == level]


@pytest.mark.parametrize("name", ["CUDA 12.8", "CUDA 13", "torch one minor older", "torch one minor newer"])
def test_what_is_of_one_release_passes(name: str) -> None:
    verdict = judge(made(name))
    assert said(verdict, "failure") == []
    assert verdict.figures["unknown_sonames"] == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "old kernels on torch of CUDA 13",
            "sgl-kernel 0.3.21 was built for CUDA 12 (needs libcublas.so.12, libcublasLt.so.12, libcudart.so.12, "
            "libnvrtc.so.12); torch 2.11.0 is built for CUDA 13.0",
        ),
        ("new kernels on torch of CUDA 12", "sglang-kernel 0.4.10 was built for CUDA 13"),
        ("new kernels on torch of CUDA 12", "torch 2.9.1 is built for CUDA 12.8"),
        ("new kernels on torch of CUDA 12", "One process would hold libcudart.so.12 and libcudart.so.13"),
        ("wheels of both CUDA majors", "write the same 1 library (libnccl.so.2); those there are of nvidia-nccl-cu13"),
        ("wheels of both CUDA majors", "and torch 2.9.1 is built for CUDA 12.8"),
        (
            "the other major removed again",
            "write the same 1 library (libnccl.so.2); those there are of nvidia-nccl-cu13",
        ),
    ],
)
def test_two_releases_are_named(name: str, words: str) -> None:
    verdict = judge(made(name))
    assert verdict.outcome == "failed"
    assert any(words in each for each in said(verdict, "failure")), said(verdict, "failure")


def test_an_old_driver_under_cuda_13() -> None:
    (failure,) = said(judge(made("CUDA 13"), "570.86.15"), "failure")
    assert failure.startswith("torch 2.14.1 cannot run: driver 570.86.15 is too old for CUDA 13.0")


def full(name: str) -> Path:
    """The whole of SGLang, which is kept beside the others where it has been made."""
    venv = KEPT / name
    if not (venv / "pyvenv.cfg").is_file():
        pytest.skip(f"there is no {venv}: `crossgrade bench inspect` is measured on it")
    return venv


def test_all_of_sglang_on_cuda_12_passes() -> None:
    verdict = judge(full("sglang-CUDA-12.8"), "570.86.15")
    assert (said(verdict, "failure"), said(verdict, "warning")) == ([], [])


def test_all_of_sglang_on_cuda_13_passes_with_its_mixed_toolkit() -> None:
    verdict = judge(full("sglang-CUDA-13"))
    assert said(verdict, "failure") == []
    warning, link_names = said(verdict, "warning")
    assert "has no lib64/libcudart.so" in link_names
    assert "nvidia/cu13 mixes nvcc 13.5.37 with headers of CUDA 13.0" in warning
    assert "flashinfer-python 0.7.2" in warning
    assert "torch-memory-saver 0.0.10 brings files for CUDA 12 beside those for CUDA 13" in " | ".join(
        said(verdict, "note")
    )


@pytest.mark.parametrize("name", ["CUDA 12.8", "CUDA 13"])
def test_headers_of_ptx_agree_with_the_ptx(name: str) -> None:
    """Of every piece of PTX in NVIDIA's own libraries, compressed by zstd and by LZ4."""
    counts: dict[str, int] = {}
    for path in made(name).glob("lib/python3*/site-packages/nvidia/**/*.so*"):
        if path.is_file() and path.read_bytes()[:4] == b"\x7fELF":
            for entry, stated in ptx_versions(path):
                assert entry.version == stated, (path, entry, stated)
                counts[entry.compression] = counts.get(entry.compression, 0) + 1
    assert counts["zstd"] > 200
    assert counts["lz4"] > (200 if name == "CUDA 12.8" else 0)
