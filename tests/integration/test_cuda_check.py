"""The CUDA gate on real ELF files in real venvs: by `crossgrade inspect` and as a task."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.support.commands import crossgrade
from tests.support.gate_host import add_generation, make_venv, run_gate
from tests.support.module_host import ModuleHost, plan_module
from tests.support.native import build, have_gcc
from tests.support.tiny_wheels import tiny_venv, tiny_wheel, uv_pip

from crossgrade.errors import TaskError
from crossgrade.gates.cuda import judge_cuda
from crossgrade.gates.verdict import Verdict
from crossgrade.inspect.cuda_consistency import CudaFacts, read_cuda
from crossgrade.inspect.dists import site_packages
from crossgrade.inspect.native import inspect_native
from crossgrade.inspect.ownership import conflicts
from crossgrade.modules import cuda_check, gpu_arch_check
from crossgrade.modules.contract import Unchanged

pytestmark = pytest.mark.skipif(not have_gcc(), reason="gcc is not installed")


def soname(folder: Path, name: str, *needs: Path) -> Path:
    return build(folder / name, libraries=needs, options=[f"-Wl,-soname,{name}", "-Wl,-rpath,$ORIGIN"])


def torch_of(site: Path, release: str | None) -> Path:
    """A package `torch` whose library needs the runtime of its CUDA release; gives that library."""
    package = site / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("import nothing_of_this_is_ever_executed\n")
    (package / "version.py").write_text(
        f"from typing import Optional\ncuda: Optional[str] = {release!r}\nraise OSError\n"
    )
    major = (release or "12").partition(".")[0]
    return soname(package / "lib", "libc10_cuda.so", soname(package / "lib", f"libcudart.so.{major}"))


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return make_venv(tmp_path / "env")


def facts_of(venv: Path) -> CudaFacts:
    return read_cuda(inspect_native(venv), conflicts(venv))


def judge(site: Path, driver: str | None = "580.95.05") -> Verdict:
    return judge_cuda(facts_of(site.parents[2]), driver=driver)


def said(verdict: Verdict, level: str) -> list[str]:
    return [f"{each.subject} {each.message}" for each in verdict.findings if each.level == level]


def inspected_cuda(venv: Path, *options: str) -> tuple[int, dict[str, Any]]:
    answer = crossgrade("inspect", venv, *options, "--json")
    (found,) = json.loads(answer.stdout)["inspected"]
    return answer.code, next(each for each in found["verdicts"] if each["gate"] == "cuda")


def test_kernels_of_another_release_than_torch(site: Path, tmp_path: Path) -> None:
    c10 = torch_of(site, "13.0")
    other = soname(tmp_path / "elsewhere", "libcudart.so.12")
    build(site / "kernels" / "ops.abi3.so", libraries=[c10, other], options=["-Wl,-rpath,$ORIGIN/../torch/lib"])
    verdict = judge(site)
    assert verdict.outcome == "failed"
    (message,) = said(verdict, "failure")
    assert "was built for CUDA 12 (needs libcudart.so.12); torch is built for CUDA 13.0" in message
    # the loader finds none of 12, and 13 comes with torch's own library
    assert "One process would hold libcudart.so.12 and libcudart.so.13" in message
    answer = crossgrade("inspect", site.parents[2], "--driver", "580")
    assert answer.code == 2
    assert "  CUDA: failed: 1 failure" in answer.stdout
    assert "was built for CUDA 12 (needs libcudart.so.12); torch is built for CUDA 13.0" in answer.stdout


def test_what_is_loaded_counts_and_not_only_what_is_named(site: Path, tmp_path: Path) -> None:
    """It names the runtime of 13 itself; that of 12 comes with a library in between."""
    torch_of(site, "13.0")
    new, old = site / "torch" / "lib" / "libcudart.so.13", soname(tmp_path / "elsewhere", "libcudart.so.12")
    between = soname(site / "kernels", "libbetween.so.1", old)
    build(site / "kernels" / "ops.so", libraries=[new, between], options=["-Wl,-rpath,$ORIGIN:$ORIGIN/../torch/lib"])
    failures = said(judge(site), "failure")
    assert any("ops.so brings libcudart.so.12 and libcudart.so.13 into one process" in each for each in failures)


def test_a_package_that_imports_torch_shares_its_process(site: Path, tmp_path: Path) -> None:
    torch_of(site, "13.0")
    old = soname(tmp_path / "elsewhere", "libcudart.so.12")
    for name, code in (("with_torch", "import torch\n"), ("alone", "")):
        build(site / name / "ops.so", libraries=[old, site / "torch" / "lib" / "libc10_cuda.so"] if code else [old])
        (site / name / "__init__.py").write_text(code)
    verdict = judge(site)
    assert [each.partition(" ")[0].split("/")[-2] for each in said(verdict, "failure")] == ["with_torch"]
    assert [each.partition(" ")[0].split("/")[-2] for each in said(verdict, "warning")] == ["alone"]


@pytest.mark.parametrize("release", ["12.8", "13.0"])
def test_variants_for_both_releases(site: Path, tmp_path: Path, release: str) -> None:
    c10 = torch_of(site, release)
    for major in ("12", "13"):
        runtime = soname(tmp_path / "elsewhere", f"libcudart.so.{major}")
        build(site / f"saver_cu{major}.abi3.so", libraries=[runtime, c10])
        build(site / "core" / f"cu{major}" / "_linker.so", libraries=[runtime])
    verdict = judge(site)
    assert verdict.outcome == "passed", verdict.reason
    assert len([each for each in said(verdict, "note") if "chooses at run time" in each]) == 2
    (site / f"saver_cu{release[:2]}.abi3.so").unlink()
    assert judge(site).outcome == "failed"


def test_a_copy_with_a_hash_in_its_name(site: Path) -> None:
    """As auditwheel makes them: a CUDA runtime of its own beside torch's."""
    c10 = torch_of(site, "13.0")
    copy = soname(site / "vision.libs", "libcudart.e8e8b82a.so.12")
    build(site / "vision" / "_C.so", libraries=[copy, c10], options=["-Wl,-rpath,$ORIGIN/../vision.libs"])
    assert "was built for CUDA 12 (needs libcudart.so.12)" in said(judge(site), "failure")[0]


def test_a_file_that_cannot_be_read_is_said(site: Path) -> None:
    c10 = torch_of(site, "13.0")
    kernels = build(site / "kernels.abi3.so", libraries=[c10])
    kernels.write_bytes(kernels.read_bytes()[:4000])
    verdict = judge(site)
    assert verdict.outcome == "passed"
    (warning,) = said(verdict, "warning")
    assert "kernels.abi3.so cannot be read: which CUDA release it needs is not known" in warning


def test_an_unknown_soname_is_said(site: Path, tmp_path: Path) -> None:
    torch_of(site, "13.0")
    build(site / "kernels" / "ops.so", libraries=[soname(tmp_path / "elsewhere", "libnvsomething.so.13")])
    verdict = judge(site)
    assert verdict.outcome == "passed"
    assert any(each.startswith("libnvsomething.so.13 is not in the table") for each in said(verdict, "note"))


@pytest.mark.parametrize("text", ["cuda = unknown()\n", "\xff not Python", "(" * 60_000, "a pipe", None])
def test_a_torch_that_does_not_say_its_release(site: Path, text: str | None) -> None:
    torch_of(site, "13.0")
    path = site / "torch" / "version.py"
    path.unlink()
    if text == "a pipe":
        os.mkfifo(path)
    elif text is not None:
        path.write_bytes(text.encode("latin-1"))
    (message,) = said(judge(site), "failure")
    assert "torch does not say which CUDA it is built for: torch/version.py " in message


def test_wheels_of_two_releases_that_write_one_library(tmp_path: Path) -> None:
    """Whose bytes are there decides: the one that was installed last."""
    place = "nvidia/nccl/lib/libnccl.so.2"
    built = {major: soname(tmp_path / major, "libnccl.so.2").read_bytes() + major.encode() for major in ("12", "13")}
    wheels = {
        major: tiny_wheel(tmp_path, f"nvidia-nccl-cu{major}", "2.27", {place: data}) for major, data in built.items()
    }
    torch = tiny_wheel(tmp_path, "torch", "2.9.1", {"torch/version.py": b"cuda = '12.8'\n", "torch/__init__.py": b""})
    venv = tiny_venv(tmp_path / "env", torch, wheels["12"], wheels["13"])
    verdict = judge_cuda(facts_of(venv), driver="580.95.05")
    (message,) = said(verdict, "failure")
    assert "those there are of nvidia-nccl-cu13 2.27, and torch 2.9.1 is built for CUDA 12.8" in message
    uv_pip(venv, "install", "--no-deps", "--reinstall", str(wheels["12"]))
    verdict = judge_cuda(facts_of(venv), driver="580.95.05")
    assert verdict.outcome == "passed"
    assert "those there are for CUDA 12, as torch 2.9.1 is" in said(verdict, "warning")[0]


def test_a_library_of_the_other_release_alone(tmp_path: Path) -> None:
    nccl = soname(tmp_path / "build", "libnccl.so.2")
    library = build(
        tmp_path / "build" / "libtorch_cuda.so",
        libraries=[nccl],
        options=["-Wl,-soname,libtorch_cuda.so", "-Wl,-rpath,$ORIGIN/../../nvidia/nccl/lib"],
    )
    files = {"torch/version.py": b"cuda = '12.8'\n", "torch/lib/libtorch_cuda.so": library.read_bytes()}
    venv = tiny_venv(
        tmp_path / "env",
        tiny_wheel(tmp_path, "torch", "2.9.1", files),
        tiny_wheel(tmp_path, "nvidia-nccl-cu13", "2.30", {"nvidia/nccl/lib/libnccl.so.2": nccl.read_bytes()}),
    )
    (message,) = said(judge_cuda(facts_of(venv), driver="580.95.05"), "failure")
    assert message.startswith("nvidia-nccl-cu13 2.30 brings libnccl.so.2 for CUDA 13, which torch 2.9.1 loads")


def test_a_toolkit_of_mixed_parts_beside_what_compiles(tmp_path: Path) -> None:
    """The programs are texts that say their release, as nvcc does in its bytes; none is started."""
    parts = {
        "nvidia/cu13/bin/nvcc": b"\0Cuda compilation tools, release 13.5, V13.5.37\0",
        "nvidia/cu13/bin/ptxas": b"\0Cuda compilation tools, release 13.5, V13.5.37\0",
        "nvidia/cu13/nvvm/bin/cicc": b"\0Cuda compilation tools, release 13.5, V13.5.37\0",
        "nvidia/cu13/nvvm/libdevice/libdevice.10.bc": b"BC",
        "nvidia/cu13/include/cuda_runtime_api.h": b"#define CUDART_VERSION  13000\n",
        "nvidia/cu13/include/cccl/cuda/std/__cccl/cuda_toolkit.h": b"",
        "nvidia/cu13/include/cccl/cuda/std/utility": b"",
        "nvidia/cu13/lib64/libcudart.so": build(tmp_path / "libcudart.so").read_bytes(),
    }
    torch = tiny_wheel(tmp_path, "torch", "2.11.0", {"torch/version.py": b"cuda = '13.0'\n"})
    venv = tiny_venv(tmp_path / "env", torch, tiny_wheel(tmp_path, "nvidia-cuda-nvcc", "13.5.37", parts))
    verdict = judge_cuda(facts_of(venv), driver="580.95.05")
    assert not said(verdict, "warning"), "nothing here compiles"
    uv_pip(venv, "install", "--no-deps", str(tiny_wheel(tmp_path, "flashinfer-python", "0.7.2")))
    code, found = inspected_cuda(venv, "--driver", "580.95.05")
    assert code == 0
    (warning,) = [each for each in found["findings"] if each["level"] == "warning"]
    assert warning["subject"].endswith("site-packages/nvidia/cu13")
    assert "mixes nvcc 13.5.37 with headers of CUDA 13.0: a compilation stops with" in warning["message"]
    # another toolkit that is named takes its place; this one cannot be used either
    code, found = inspected_cuda(venv, "--driver", "580.95.05", "--cuda-home", str(tmp_path))
    assert [each["message"] for each in found["findings"] if each["level"] == "warning"] == [
        "not judged: it has no bin/nvcc"
    ]


@pytest.mark.parametrize(
    ("lacking", "said_of_it"),
    [
        ("nvidia/cu13/lib64/libcudart.so", "a build stops with `cannot find -lcudart`"),  # flashinfer issue 5064
        ("nvidia/cu13/include/cccl/cuda/std/utility", "`cuda/std/utility: No such file`"),  # FlashMLA issue 121
    ],
)
def test_what_a_toolkit_of_wheels_lacks(tmp_path: Path, lacking: str, said_of_it: str) -> None:
    parts = {
        "nvidia/cu13/bin/nvcc": b"\0Cuda compilation tools, release 13.0, V13.0.88\0",
        "nvidia/cu13/bin/ptxas": b"\0Cuda compilation tools, release 13.0, V13.0.88\0",
        "nvidia/cu13/nvvm/bin/cicc": b"\0Cuda compilation tools, release 13.0, V13.0.88\0",
        "nvidia/cu13/nvvm/libdevice/libdevice.10.bc": b"BC",
        "nvidia/cu13/include/cuda_runtime_api.h": b"#define CUDART_VERSION  13000\n",
        "nvidia/cu13/include/cccl/cuda/std/utility": b"",
        "nvidia/cu13/lib64/libcudart.so": build(tmp_path / "libcudart.so").read_bytes(),
    }
    wheels = [
        tiny_wheel(tmp_path, "torch", "2.11.0", {"torch/version.py": b"cuda = '13.0'\n"}),
        tiny_wheel(tmp_path, "flashinfer-python", "0.7.2"),
        tiny_wheel(tmp_path, "nvidia-cuda-nvcc", "13.0.88", parts),
    ]
    venv = tiny_venv(tmp_path / "env", *wheels)
    assert said(judge_cuda(facts_of(venv), driver="580.95.05"), "warning") == []
    (site_packages(venv) / lacking).unlink()
    (warning,) = said(judge_cuda(facts_of(venv), driver="580.95.05"), "warning")
    assert said_of_it in warning


def test_the_driver_that_is_named(site: Path) -> None:
    torch_of(site, "13.0")
    code, found = inspected_cuda(site.parents[2], "--driver", "570.86")
    assert (code, found["outcome"]) == (2, "failed")
    assert found["reason"].startswith("torch cannot run: driver 570.86 is too old for CUDA 13.0, which needs 580")
    code, found = inspected_cuda(site.parents[2], "--driver", "580.95.05")
    assert (code, found["outcome"]) == (0, "passed")
    answer = crossgrade("inspect", site.parents[2], "--driver", "newest")
    assert answer.code == 5
    assert "'newest' is not a driver's version" in answer.stderr


# ---- as a task


def test_cuda_check(tmp_path: Path) -> None:
    host = ModuleHost(tmp_path)
    site = add_generation(host.store, 2)
    torch_of(site, "13.0")
    arguments = cuda_check.Arguments(generation=2, driver="580.95.05")
    assert not run_gate(cuda_check.MODULE, arguments, host).failed
    assert isinstance(plan_module(cuda_check.MODULE, arguments, host), Unchanged)
    # another driver is another question
    old = run_gate(cuda_check.MODULE, cuda_check.Arguments(generation=2, driver="570.86"), host)
    assert old.failed
    assert "driver 570.86 is too old" in old.message
    site = add_generation(host.store, 3)
    build(site / "kernels.abi3.so", libraries=[torch_of(site, "13.0"), soname(tmp_path / "other", "libcudart.so.12")])
    outcome = run_gate(cuda_check.MODULE, cuda_check.Arguments(generation=3, driver="580"), host)
    assert outcome.failed
    assert "was built for CUDA 12 (needs libcudart.so.12); torch is built for CUDA 13.0" in outcome.message
    with pytest.raises(TaskError, match="'new' is not a driver's version"):
        cuda_check.inspect(cuda_check.Arguments(generation=2, driver="new"), host)
    capability = gpu_arch_check.Arguments(compute_capability="12.0", generation=2, driver="new")
    with pytest.raises(TaskError, match="'new' is not a driver's version"):
        gpu_arch_check.inspect(capability, host)


def test_the_toolkit_of_a_generation_is_that_of_its_variables(tmp_path: Path) -> None:
    host = ModuleHost(tmp_path)
    home = tmp_path / "toolkit"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "nvcc").write_bytes(b"Cuda compilation tools, release 12.8, V12.8.93")
    site = add_generation(host.store, 2, environment={"CUDA_HOME": str(home)})
    torch_of(site, "13.0")
    info = site / "flashinfer_python-0.7.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: flashinfer-python\nVersion: 0.7.2\n\n")
    (info / "RECORD").write_text("")
    outcome = run_gate(cuda_check.MODULE, cuda_check.Arguments(generation=2, driver="580"), host)
    warnings = [each["message"] for each in outcome.values["findings"] if each["level"] == "warning"]
    assert any(each.startswith("is CUDA 12.8, and torch is built for CUDA 13.0") for each in warnings)


def test_nothing_for_cuda(tmp_path: Path) -> None:
    host = ModuleHost(tmp_path)
    add_generation(host.store, 2)
    outcome = run_gate(cuda_check.MODULE, cuda_check.Arguments(generation=2), host)
    assert outcome.failed
    assert outcome.message.startswith("not run: nothing here is built for CUDA")
