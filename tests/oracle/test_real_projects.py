"""Real projects from their own sources: SGLang, FlashInfer, and a CUDA extension against the candidate's torch.

    pytest -m slow tests/oracle/test_real_projects.py

Takes some ten minutes and, in uv's cache, the wheels of torch (5 GB). sgl-kernel is not among them: it has no source
distribution on PyPI, its repository and the nine that it clones are on GitHub.
"""

from __future__ import annotations

import re
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest
from tests.support.module_host import plan_module, run_module
from tests.support.small_project import commit_all
from tests.support.store_host import StoreHost, planned_change

from crossgrade.errors import TaskError
from crossgrade.inspect.device_code import read_device_code
from crossgrade.inspect.elf import FileSource, parse_elf
from crossgrade.modules import cuda_toolkit, extension_build, flashinfer_build, sgl_kernel_build, sglang_build
from crossgrade.modules.contract import Unchanged
from crossgrade.modules.wheels import metadata_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
TORCH = "2.14.1"


def wheel_of(values: Any) -> Path:
    return next(Path(values["wheel"]).glob("*.whl"))


def members(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_sglang_from_its_source_distribution(tmp_path: Path) -> None:
    host = StoreHost(tmp_path)
    arguments = {"sdist": "sglang==0.5.9", "torch": "2.9.1"}
    assert planned_change(sglang_build.MODULE, arguments, host).summary.startswith("build sglang 0.5.9 with")
    wheel = wheel_of(run_module(sglang_build.MODULE, arguments, host).values)
    assert wheel.name == "sglang-0.5.9-py3-none-any.whl"
    assert "torch==2.9.1" in metadata_of(wheel)["Requires-Dist"]
    assert "sglang/srt/server_args.py" in members(wheel)
    assert isinstance(plan_module(sglang_build.MODULE, arguments, host), Unchanged)
    with pytest.raises(TaskError, match=r"asks for torch==2\.9\.1, and was built for torch 2\.14\.1"):
        run_module(sglang_build.MODULE, {**arguments, "torch": TORCH}, host)


def test_sglang_of_cuda_13_has_no_source_distribution(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"no source distribution of sglang==0\.5\.23"):
        plan_module(sglang_build.MODULE, {"sdist": "sglang==0.5.23", "torch": TORCH}, StoreHost(tmp_path))


def test_flashinfer_from_its_source_distribution(tmp_path: Path) -> None:
    host = StoreHost(tmp_path)
    arguments = {"sdist": "flashinfer-python==0.6.3", "torch": TORCH, "architectures": ["12.0f"]}
    wheel = wheel_of(run_module(flashinfer_build.MODULE, arguments, host).values)
    assert wheel.name == "flashinfer_python-0.6.3-py3-none-any.whl"
    assert {"flashinfer/data/csrc/norm.cu", "flashinfer/data/cutlass/include/cutlass/cutlass.h"} <= members(wheel)
    assert isinstance(plan_module(flashinfer_build.MODULE, arguments, host), Unchanged)


def test_the_kernels_of_sglang_say_why_they_cannot_be_built_here(tmp_path: Path) -> None:
    host = StoreHost(tmp_path)
    if (
        subprocess.run(["git", "ls-remote", "https://github.com/sgl-project/sglang", "HEAD"], check=False).returncode
        == 0
    ):
        pytest.skip("GitHub answers: build them")
    arguments = {"git": "https://github.com/sgl-project/sglang", "revision": "v0.5.9", "torch": TORCH}
    with pytest.raises(TaskError, match=r"git cannot read https://github\.com/sgl-project/sglang"):
        plan_module(sgl_kernel_build.MODULE, arguments, host.planning())
    with pytest.raises(TaskError, match=r"needs repositories of hosts that do not answer \(github\.com"):
        plan_module(sgl_kernel_build.MODULE, {**arguments, "revision": "0" * 40}, host.planning())


EXTENSION = """\
#include <torch/extension.h>
#include <c10/cuda/CUDAException.h>
__global__ void twice(float* x, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] *= 2; }
void run(at::Tensor x) {
  twice<<<(x.numel() + 127) / 128, 128>>>(x.data_ptr<float>(), x.numel());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &run); }
"""
SETUP = """\
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CUDAExtension
setup(name="twice", version="1.0", ext_modules=[CUDAExtension("twice", ["twice.cu"])],
      cmdclass={"build_ext": BuildExtension}, install_requires=["torch"])
"""
PYPROJECT = '[build-system]\nrequires = ["setuptools", "torch"]\nbuild-backend = "setuptools.build_meta"\n'


def test_a_cuda_extension_against_the_torch_of_the_candidate(tmp_path: Path) -> None:
    host = StoreHost(tmp_path)
    request = {"version": "13.0", "components": ["nvcc", "nvvm", "crt", "cccl", "cudart", "nvrtc"]}
    request["components"] += ["cublas", "cusparse", "cusolver", "curand", "cufft"]  # type: ignore[operator]
    toolkit = run_module(cuda_toolkit.MODULE, request, host).values["cuda_home"]
    source = tmp_path / "source"
    source.mkdir()
    for name, text in (("twice.cu", EXTENSION), ("setup.py", SETUP), ("pyproject.toml", PYPROJECT)):
        (source / name).write_text(text)
    commit = commit_all(source)
    arguments = {
        "git": str(source), "revision": commit, "cuda_home": toolkit, "architectures": ["12.0"], "torch": TORCH,
    }  # fmt: skip
    values = run_module(extension_build.MODULE, arguments, host).values
    library = next(name for name in members(wheel_of(values)) if name.endswith(".so"))
    with zipfile.ZipFile(wheel_of(values)) as archive:
        built = Path(archive.extract(library, tmp_path))
    with FileSource(str(built)) as code:
        device = read_device_code(code, parse_elf(code))
    assert device is not None
    assert set(device.by_name) == {"sm_120"}
    shown = [message for message in host.messages if re.match(r"\[\d+/\d+\]", message)]
    assert any("twice.cu" in message for message in shown), shown
    symbols = subprocess.run(
        ["nm", "-D", "--undefined-only", str(built)], capture_output=True, text=True, check=True
    ).stdout
    assert "c10_cuda_check_implementationEiPKcS2_jb" in symbols, "torch 2.11 and newer: unsigned line numbers"
    assert isinstance(plan_module(extension_build.MODULE, arguments, host), Unchanged)
