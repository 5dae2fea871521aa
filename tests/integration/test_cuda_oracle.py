"""What the CUDA gate relies on, against NVIDIA's own tools (nvcc, ptxas and fatbinary from PyPI)."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from tests.support.native import have_gcc
from tests.support.ptx_payload import ptx_of_fatbin, ptx_versions
from tests.support.toolkits import Toolkits, toolkits

from crossgrade.gates.cuda import judge_cuda
from crossgrade.inspect.cuda_consistency import CudaFacts, TorchBuild
from crossgrade.inspect.elf import FileSource
from crossgrade.inspect.toolkit_parts import read_parts
from crossgrade.knowledge import table

pytestmark = pytest.mark.skipif(not have_gcc(), reason="gcc is not installed")

CODE = "__global__ void scale(float *values) { values[threadIdx.x] *= 2.0f; }\n"
WITH_STANDARD_LIBRARY = f"#include <cuda/std/utility>\n{CODE}"


@pytest.fixture(scope="module")
def both() -> Toolkits:
    return toolkits()


def compiled(home: Path, folder: Path, code: str, *options: str) -> subprocess.CompletedProcess[str]:
    source = folder / "code.cu"
    source.write_text(code)
    environment = {**os.environ, "CUDA_HOME": str(home)}
    command = [str(home / "bin" / "nvcc"), *options, str(source)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=folder)


# ---- PTX


@pytest.mark.parametrize("mode", ["none", "speed", "size", "default"])
def test_the_header_states_the_version_in_the_ptx(both: Toolkits, tmp_path: Path, mode: str) -> None:
    options = ["-shared", "-Xcompiler", "-fPIC", "-arch=compute_90", f"--compress-mode={mode}", "-o", "kernels.so"]
    answer = compiled(both.cuda_13_0, tmp_path, CODE, *options)
    assert answer.returncode == 0, answer.stderr
    ((entry, stated),) = ptx_versions(tmp_path / "kernels.so")
    assert entry.version == stated == (9, 0)
    assert entry.compression == {"none": "", "speed": "lz4", "size": "zstd", "default": "zstd"}[mode]


def test_the_header_follows_the_ptx_and_not_the_compiler(both: Toolkits, tmp_path: Path) -> None:
    assert compiled(both.cuda_13_0, tmp_path, CODE, "-ptx", "-arch=compute_90", "-o", "code.ptx").returncode == 0
    ptx = tmp_path / "code.ptx"
    ptx.write_text(re.sub(r"(?m)^\.version .*$", ".version 8.1", ptx.read_text()))
    fatbin = tmp_path / "code.fatbin"
    image = f"--image3=kind=ptx,sm=90,file={ptx}"
    subprocess.run([str(both.cuda_13_0 / "bin" / "fatbinary"), f"--create={fatbin}", "-64", image], check=True)
    with FileSource(str(fatbin)) as source:
        ((entry, stated),) = ptx_of_fatbin(source, 0, fatbin.stat().st_size)
    assert entry.version == stated == (8, 1)


@pytest.mark.parametrize("release", ["12.8", "13.0"])
def test_ptxas_knows_what_the_table_says(both: Toolkits, tmp_path: Path, release: str) -> None:
    """It refuses a later version, and says which is its own."""
    home = both.cuda_12_8 if release == "12.8" else both.cuda_13_0
    (ptxas,) = {*home.rglob("ptxas")} or {next(home.parent.rglob("ptxas"))}
    (version,) = [str(row["ptx"]) for row in table("ptx_isa") if row["cuda"] == release]
    major, minor = map(int, version.split("."))
    answers = {}
    for tried in (version, f"{major}.{minor + 1}"):
        source = tmp_path / "empty.ptx"
        source.write_text(f".version {tried}\n.target sm_80\n.address_size 64\n")
        command = [str(ptxas), "-arch=sm_80", str(source), "-o", str(tmp_path / "empty.cubin")]
        answers[tried] = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answers[version].returncode == 0
    refused = answers[f"{major}.{minor + 1}"]
    assert refused.returncode != 0
    assert f"current version is '{version}'" in refused.stderr + refused.stdout


# ---- toolkits


def with_headers_of(home: Path, place: Path, number: int) -> Path:
    """The toolkit again, with headers that say another CUDART_VERSION."""
    for folder in ("bin", "lib64", "nvvm", "include"):
        (place / folder).mkdir(parents=True)
        for entry in (home / folder).iterdir():
            (place / folder / entry.name).symlink_to(entry.resolve())
    header = place / "include" / "cuda_runtime_api.h"
    text = header.read_text()
    header.unlink()
    header.write_text(re.sub(r"(#define CUDART_VERSION\s+)\d+", rf"\g<1>{number}", text))
    return place


def messages(home: Path) -> list[str]:
    torch = TorchBuild("torch 2.11.0", "13.0")
    facts = CudaFacts(torch, named=read_parts(home), compilers=("flashinfer-python 0.6.8",))
    return [finding.message for finding in judge_cuda(facts, driver="580.95.05").of_level("warning")]


def test_headers_of_another_release_stop_a_compilation(both: Toolkits, tmp_path: Path) -> None:
    matched, mixed = both.cuda_13_0, with_headers_of(both.cuda_13_0, tmp_path / "mixed", 13010)
    assert compiled(matched, tmp_path, WITH_STANDARD_LIBRARY, "-c").returncode == 0
    assert messages(matched) == []
    answer = compiled(mixed, tmp_path, WITH_STANDARD_LIBRARY, "-c")
    assert answer.returncode != 0
    (message,) = messages(mixed)
    assert message.startswith("mixes nvcc 13.0.88 with headers of CUDA 13.1: a compilation stops with `")
    assert message.partition("`")[2].partition("`")[0] in answer.stderr
    assert "flashinfer-python 0.6.8 compile" in message


def test_what_a_toolkit_lacks_is_said(both: Toolkits, tmp_path: Path) -> None:
    home = with_headers_of(both.cuda_13_0, tmp_path / "poor", 13000)
    (home / "nvvm" / "bin").unlink()
    (home / "nvvm" / "libdevice").unlink()
    assert compiled(home, tmp_path, CODE, "-c").returncode != 0
    said = " | ".join(messages(home))
    assert "has no cicc that states its release, which nvcc 13.0.88 needs beside it" in said
    assert "has no nvvm/libdevice" in said
    (home / "bin" / "nvcc").unlink()
    assert messages(home) == ["not judged: it has no bin/nvcc"]


def test_nothing_of_a_toolkit_is_started(both: Toolkits, tmp_path: Path) -> None:
    """A program that says its release in its bytes, and would leave a trace if it ran."""
    trace = tmp_path / "trace"
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text(f"#!/bin/sh\ntouch {trace}\n# Cuda compilation tools, release 13.3, V13.3.73\n")
    nvcc.chmod(0o755)
    assert read_parts(tmp_path).nvcc == "13.3.73"
    assert not trace.exists()
    assert read_parts(both.cuda_13_0).nvcc == "13.0.88"
