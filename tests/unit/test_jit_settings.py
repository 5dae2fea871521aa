"""What a server compiles with: Triton's ptxas, the toolkit, lists of architectures. On installed files."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.tiny_wheels import tiny_venv, tiny_wheel

from crossgrade.gates.jit_settings import judge_jit_settings, with_jit_settings
from crossgrade.gates.verdict import Finding, Verdict
from crossgrade.inspect.gpu_architecture import parse_compute_capability
from crossgrade.inspect.jit_settings import read_jit_settings

PTXAS = "triton/backends/nvidia/bin/ptxas"


def program(version: str) -> bytes:
    """What stands in each program of the toolkit, from ptxas 11.8 to 13.5."""
    release = ".".join(version.split(".")[:2])
    return f"#!/bin/false\n\0Cuda compilation tools, release {release}, V{version}\0".encode()


def make(tmp_path: Path, *, triton: dict[str, str] | None = None, flashinfer: str = "") -> Path:
    """A venv with these programs in triton (path → version) and this flashinfer-python."""
    wheels = []
    if triton is not None:
        files = {path: program(version) for path, version in triton.items()}
        wheels.append(tiny_wheel(tmp_path, "triton", "3.5.1", {"triton/__init__.py": b"", **files}))
    if flashinfer:
        wheels.append(tiny_wheel(tmp_path, "flashinfer-python", flashinfer))
    return tiny_venv(tmp_path / "venv", *wheels)


def toolkit(place: Path, version: str) -> Path:
    for name in ("nvcc", "ptxas"):
        (place / "bin").mkdir(parents=True, exist_ok=True)
        (place / "bin" / name).write_bytes(program(version))
        (place / "bin" / name).chmod(0o755)
    return place


def judge(venv: Path, capability: str, home: Path | None = None, **environment: str) -> list[Finding]:
    settings = read_jit_settings(venv, parse_compute_capability(capability), environment, home)
    return list(judge_jit_settings(settings, capability))


def said(findings: list[Finding], level: str) -> list[str]:
    return [finding.message for finding in findings if finding.level == level]


@pytest.mark.parametrize(
    ("capability", "level"),
    [("12.0", "note"), ("12.1", "failure"), ("9.0", "note")],  # 12.8 has no sm_121a: triton issue 8539
)
def test_tritons_own_ptxas_must_know_the_gpu(tmp_path: Path, capability: str, level: str) -> None:
    (finding,) = judge(make(tmp_path, triton={PTXAS: "12.8.93"}), capability)
    assert finding.level == level
    assert "12.8.93" in finding.message
    if level == "failure":
        assert "does not know sm_121a" in finding.message
        assert "12.9 or newer by TRITON_PTXAS_PATH" in finding.message


def test_a_newer_ptxas_may_be_named_and_one_that_is_not_there_is_passed_over(tmp_path: Path) -> None:
    venv = make(tmp_path, triton={PTXAS: "12.8.93"})
    newer = str(toolkit(tmp_path / "cuda-13.0", "13.0.88") / "bin" / "ptxas")
    (finding,) = judge(venv, "12.1", TRITON_PTXAS_PATH=newer)
    assert (finding.level, finding.evidence["path"]) == ("note", newer)
    (finding,) = judge(venv, "12.1", TRITON_PTXAS_PATH=str(tmp_path / "nowhere"))
    assert finding.level == "failure"


def test_the_ptxas_for_blackwell_counts_from_10_0_on(tmp_path: Path) -> None:
    venv = make(tmp_path, triton={PTXAS: "12.8.93", f"{PTXAS}-blackwell": "13.3.33"})
    assert "13.3.33" in judge(venv, "12.1")[0].message
    assert "12.8.93" in judge(venv, "9.0")[0].message
    older = str(toolkit(tmp_path / "cuda-12.8", "12.8.93") / "bin" / "ptxas")
    (finding,) = judge(venv, "12.1", TRITON_PTXAS_BLACKWELL_PATH=older, TRITON_PTXAS_PATH="/unused")
    assert finding.level == "failure"
    assert "TRITON_PTXAS_BLACKWELL_PATH" in finding.message


def test_a_triton_without_a_ptxas_is_said_and_not_passed(tmp_path: Path) -> None:
    (finding,) = judge(make(tmp_path, triton={}), "12.0")
    assert finding.level == "warning"
    assert "is open" in finding.message


@pytest.mark.parametrize(
    ("flashinfer", "listed", "capability", "warned"),
    [
        ("0.6.3", "12.0", "12.0", True),  # flashinfer issue 1966
        ("0.6.3", "12.0a", "12.0", False),
        ("0.6.3", "8.0 12.0f", "12.0", False),
        ("0.6.3", "8.9", "8.9", False),  # nothing has a suffix there
        ("0.6.7.post2", "12.0", "12.0", False),  # it adds the suffix itself
        ("0.7.2", "12.0", "12.0", False),
    ],
)
def test_a_plain_architecture_is_a_warning_where_it_stays_plain(
    tmp_path: Path, flashinfer: str, listed: str, capability: str, warned: bool
) -> None:
    found = judge(make(tmp_path, flashinfer=flashinfer), capability, FLASHINFER_CUDA_ARCH_LIST=listed)
    assert said(found, "failure") == []
    assert len(said(found, "warning")) == warned
    assert all("Write 12.0a, or 12.0f" in message for message in said(found, "warning"))


def test_a_list_without_this_gpu_is_a_failure_and_nonsense_is_said(tmp_path: Path) -> None:
    venv = make(tmp_path, flashinfer="0.7.2")
    (failure,) = said(judge(venv, "12.0", FLASHINFER_CUDA_ARCH_LIST="9.0a 10.0a"), "failure")
    assert "no code for this GPU" in failure
    found = judge(venv, "12.0", FLASHINFER_CUDA_ARCH_LIST="sm_120 12.0f")
    assert [len(said(found, level)) for level in ("failure", "warning")] == [0, 1]
    assert judge(venv, "12.0", FLASHINFER_CUDA_ARCH_LIST="  ") == []


@pytest.mark.parametrize(
    ("nvcc", "listed", "failures"),
    [
        ("12.8.93", "12.0f", 1),  # vllm issue 50705: the suffix f came with 12.9
        ("12.9.86", "12.0f", 0),
        ("12.8.93", "12.0a", 0),
        ("12.6.85", "", 1),  # without a list it asks for what the GPU is
        ("12.8.93", "", 0),
    ],
)
def test_nvcc_must_know_what_is_asked_for(tmp_path: Path, nvcc: str, listed: str, failures: int) -> None:
    venv = make(tmp_path, flashinfer="0.7.2")
    found = judge(venv, "12.0", toolkit(tmp_path / "cuda", nvcc), FLASHINFER_CUDA_ARCH_LIST=listed)
    assert len(said(found, "failure")) == failures
    assert all(f"nvcc {nvcc} does not compile for sm_120" in message for message in said(found, "failure"))


def test_nobody_compiles_nothing_is_said(tmp_path: Path) -> None:
    venv = make(tmp_path)
    assert judge(venv, "12.0", toolkit(tmp_path / "cuda", "12.6.85"), FLASHINFER_CUDA_ARCH_LIST="12.0") == []


def test_a_failure_fails_the_gate_and_keeps_a_reason_that_it_had(tmp_path: Path) -> None:
    venv = make(tmp_path, triton={PTXAS: "12.8.93"})
    settings = read_jit_settings(venv, (12, 1), {}, None)
    passed = with_jit_settings(Verdict("gpu_arch", "passed", "all of it"), settings, "12.1")
    assert passed.outcome == "failed"
    assert passed.reason.startswith("triton 3.5.1: its ptxas 12.8.93")
    failed = with_jit_settings(Verdict("gpu_arch", "failed", "x.so: nothing"), settings, "12.1")
    assert failed.reason == "x.so: nothing (and 1 failure in JIT settings)"
    assert with_jit_settings(Verdict("gpu_arch", "not run", "no code"), settings, "12.0").outcome == "not run"
