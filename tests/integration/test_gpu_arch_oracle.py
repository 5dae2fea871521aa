"""The architecture check against its oracle, cuobjdump (from PyPI), on files made by nvcc 13.0."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.cuobjdump import counted_images, device_code, listed
from tests.support.native import have_gcc
from tests.support.toolkits import toolkits

from crossgrade.gates.gpu_arch import judge_gpu_arch
from crossgrade.gates.verdict import Verdict
from crossgrade.inspect.gpu_architecture import DeviceCode, coverage, parse_compute_capability
from crossgrade.inspect.native import inspect_native

pytestmark = pytest.mark.skipif(not have_gcc(), reason="gcc is not installed")

CODE = """
__global__ void scale(float *values) { values[threadIdx.x] *= 2.0f; }
extern "C" void run(float *values) { scale<<<1, 32>>>(values); }
"""
SASS, PTX, BOTH = "code=sm_{0}", "code=compute_{0}", "code=[compute_{0},sm_{0}]"


@pytest.fixture(scope="module")
def nvcc() -> Path:
    return toolkits().cuda_13_0 / "bin" / "nvcc"


def compile_for(nvcc: Path, target: Path, *generate: str, options: tuple[str, ...] = ()) -> Path:
    source = target.with_suffix(".cu")
    source.write_text(CODE)
    wanted = [f"-gencode=arch=compute_{item.split('=')[0]},{item.split('=', 1)[1]}" for item in generate]
    home = nvcc.parent.parent
    command = [str(nvcc), "-shared", "-Xcompiler", "-fPIC", *wanted, *options, "-o", str(target), str(source)]
    environment = {**os.environ, "CUDA_HOME": str(home)}
    subprocess.run([*command, "-cudart", "shared"], check=True, capture_output=True, env=environment)
    source.unlink()
    return target


def architectures(*items: str) -> Iterator[str]:
    for item in items:
        number, _, form = item.partition(" ")
        yield f"{number}={ {'': SASS, 'ptx': PTX, 'both': BOTH}[form].format(number) }"


def read(path: Path) -> DeviceCode:
    code = device_code(path)
    assert code is not None
    return code


CASES = {
    "plain": (["120"], (), "native", "native"),
    "specific": (["120a"], (), "native", "none"),
    "family": (["120f"], (), "native", "native"),
    "hopper": (["90"], (), "none", "none"),
    "hopper specific": (["90a"], (), "none", "none"),
    "ptx": (["120 ptx"], (), "jit", "jit"),
    "ptx specific": (["120a ptx"], (), "jit", "none"),
    "ptx family": (["120f ptx"], (), "jit", "jit"),
    "old with ptx": (["90 both"], (), "jit", "jit"),
    "several": (["80", "90a", "100f", "120 both"], (), "native", "native"),
    "not compressed": (["90 both", "120 both"], ("--compress-mode=none",), "native", "native"),
    "small": (["90 both", "120 both"], ("--compress-mode=size",), "native", "native"),
    "lz4": (["90 both", "120 both"], ("--compress-mode=speed",), "native", "native"),
    "debug": (["120"], ("-G",), "native", "native"),
    "relocatable": (["120"], ("-rdc=true",), "native", "native"),
}


@pytest.mark.parametrize("name", CASES)
def test_entries_and_verdicts(nvcc: Path, tmp_path: Path, name: str) -> None:
    generate, options, on_120, on_121 = CASES[name]
    path = compile_for(nvcc, tmp_path / "kernels.so", *architectures(*generate), options=options)
    code = read(path)
    assert counted_images(code) == listed(path)
    assert coverage(code, parse_compute_capability("12.0")) == on_120
    assert coverage(code, parse_compute_capability("12.1")) == on_121


def test_device_code_is_found_without_section_headers(nvcc: Path, tmp_path: Path) -> None:
    path = compile_for(nvcc, tmp_path / "kernels.so", *architectures("90 both", "120"))
    before = read(path)
    raw = bytearray(path.read_bytes())
    raw[40:48], raw[58:64] = bytes(8), bytes(6)
    path.write_bytes(raw)
    assert read(path) == before


def test_code_for_a_later_device_link_is_no_code(nvcc: Path, tmp_path: Path) -> None:
    """An object file's LTO code: listed apart, and not judged as something that runs."""
    source = tmp_path / "part.cu"
    source.write_text(CODE)
    options = ["-c", "-rdc=true", "-gencode=arch=compute_120,code=lto_120", "-o", str(tmp_path / "part.o")]
    subprocess.run([str(nvcc), *options, str(source)], check=True, capture_output=True)
    report = inspect_native(tmp_path, interpreter=Path(sys.executable))
    assert [(file.path, file.kind) for file in report.files] == [("part.o", "object")]
    assert judge_gpu_arch(report).outcome == "not run"


def judge(root: Path, **options: bool) -> Verdict:
    return judge_gpu_arch(inspect_native(root, interpreter=Path(sys.executable)), "12.0", **options)  # type: ignore[arg-type]  # one flag


def test_the_gate_on_real_files(nvcc: Path, tmp_path: Path) -> None:
    compile_for(nvcc, tmp_path / "good.so", *architectures("120 both"))
    assert judge(tmp_path).outcome == "passed"
    wrong = compile_for(nvcc, tmp_path / "wrong.so", *architectures("90"))
    verdict = judge(tmp_path)
    assert verdict.outcome == "failed"
    assert verdict.reason.startswith("wrong.so: holds no device code that runs on sm_120: it holds sm_90.")
    wrong.write_bytes(wrong.read_bytes()[:-2000])
    assert "wrong.so: cannot be read" in judge(tmp_path).reason
    compile_for(nvcc, wrong, *architectures("90 ptx"))
    assert judge(tmp_path).outcome == "failed"
    assert judge(tmp_path, allow_ptx=True).outcome == "passed"
