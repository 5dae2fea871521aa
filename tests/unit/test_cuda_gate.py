"""The rules of the CUDA gate, on facts: no file is read."""

from __future__ import annotations

import pytest

from crossgrade.gates.cuda import judge_cuda
from crossgrade.gates.gpu_arch import judge_gpu_arch
from crossgrade.gates.verdict import Verdict
from crossgrade.inspect.cuda_consistency import (
    CudaDist,
    CudaFacts,
    CudaFile,
    Overwritten,
    TorchBuild,
    read_torch_build,
    stated_major,
)
from crossgrade.inspect.cuda_libraries import CudaLibrary, cuda_library
from crossgrade.inspect.gpu_architecture import DeviceCode, DeviceImage, jit_ptx
from crossgrade.inspect.native import NativeFile, NativeReport
from crossgrade.inspect.ptx import compiles, ptx_need
from crossgrade.inspect.toolkit_parts import ToolkitParts
from crossgrade.knowledge import table

TORCH_12 = TorchBuild("torch 2.9.1", "12.8")
TORCH_13 = TorchBuild("torch 2.11.0", "13.0")
NEW = "580.95.05"


def libraries(*names: str) -> tuple[CudaLibrary, ...]:
    found = tuple(library for name in names if (library := cuda_library(name)) is not None)
    assert len(found) == len(names)
    return found


def a_file(
    path: str, *needs: str, brings: tuple[str, ...] = (), dist: str = "k 1", with_torch: bool = True
) -> CudaFile:
    return CudaFile(path, dist, libraries(*needs), libraries(*(brings or needs)), with_torch)


def said(verdict: Verdict, level: str = "failure") -> list[str]:
    return [f"{each.subject} {each.message}" for each in verdict.findings if each.level == level]


# ---- sonames


@pytest.mark.parametrize(
    ("name", "soname", "cuda"),
    [
        ("libcudart.so.12", "libcudart.so.12", 12),
        ("libcudart.so.11.0", "libcudart.so.11.0", 11),
        ("libcudart.3eda8113.so.13", "libcudart.so.13", 13),  # as auditwheel names copies
        ("libnvjpeg-1a359ba7.so.13.0.1.86", "libnvjpeg.so.13", 13),
        ("libcufft.so.12", "libcufft.so.12", 13),  # the number is cuFFT's own
        ("libcusparse.so.12", "libcusparse.so.12", None),  # CUDA 12 and 13
        ("libnccl.so.2", "libnccl.so.2", None),
    ],
)
def test_the_release_is_that_of_the_map(name: str, soname: str, cuda: int | None) -> None:
    library = cuda_library(name)
    assert library is not None
    assert (library.soname, library.cuda) == (soname, cuda)


@pytest.mark.parametrize(
    "name", ["libcufft.so.13", "libcudart.so", "libcudart.so.14", "libm.so.6", "libnvfatbin.so.13"]
)
def test_what_the_map_does_not_know_is_not_guessed(name: str) -> None:
    assert cuda_library(name) is None


def test_the_names_of_dists_that_state_a_release() -> None:
    assert [
        stated_major(name) for name in ("nvidia-nccl-cu13", "nvidia_cudnn_cu12", "cupy-cuda12x", "nvidia-nccl")
    ] == [
        13,
        12,
        None,
        None,
    ]


# ---- torch/version.py


def test_the_release_of_torch_is_read_from_the_text() -> None:
    real = "from typing import Optional\n__version__ = '2.9.1+cu128'\ncuda: Optional[str] = '12.8'\nhip = None\n"
    assert read_torch_build(real) == "12.8"
    assert read_torch_build("cuda = None\n") is None
    assert read_torch_build("cuda = '12.8'\ncuda = '13.0'\n") == "13.0"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("__version__ = '2.9'", "does not state `cuda`"),
        ("cuda = '12' + '.8'", "no plain text"),
        ("cuda: str", "no plain text"),
        ("cuda = 12.8", "no plain text"),
        ("this is no Python", "no Python"),
        ("cuda = '1\0", "no Python"),
    ],
)
def test_what_torch_does_not_say_is_an_error(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_torch_build(text)


def test_an_unreadable_torch_fails() -> None:
    verdict = judge_cuda(CudaFacts(TorchBuild("torch 2.9.1", None, "torch/version.py cannot be read: gone")))
    assert said(verdict) == [
        "torch 2.9.1 does not say which CUDA it is built for: torch/version.py cannot be read: gone"
    ]


# ---- native files


def test_what_is_built_for_another_release_than_torch_fails() -> None:
    files = (
        a_file("k/ops.so", "libcudart.so.12", "libcublas.so.12"),
        a_file("torch/c.so", "libcudart.so.13", dist=TORCH_13.dist),
    )
    verdict = judge_cuda(CudaFacts(TORCH_13, files), driver=NEW)
    assert verdict.outcome == "failed"
    assert verdict.reason == (
        "k 1 was built for CUDA 12 (needs libcublas.so.12, libcudart.so.12); torch 2.11.0 is built for CUDA 13.0. "
        "Install its build for CUDA 13.0, or rebuild it"
    )
    assert judge_cuda(CudaFacts(TORCH_13, files), driver=NEW, ignore=["k"]).outcome == "passed"
    assert judge_cuda(CudaFacts(TORCH_12, files[:1]), driver=NEW).outcome == "passed"


def test_what_never_meets_torch_is_a_warning() -> None:
    files = (a_file("alone/ops.so", "libcudart.so.12", with_torch=False),)
    verdict = judge_cuda(CudaFacts(TORCH_13, files), driver=NEW)
    assert verdict.outcome == "passed"
    assert "was built for CUDA 12" in said(verdict, "warning")[0]


def test_half_of_a_package_that_was_built_anew() -> None:
    files = (a_file("k/old.so", "libcudart.so.12"), a_file("k/new.so", "libcudart.so.13"))
    (message,) = said(judge_cuda(CudaFacts(TORCH_13, files), driver=NEW))
    assert "(needs libcudart.so.12: 1 of its 2 native files)" in message


@pytest.mark.parametrize(
    ("other", "ours"),
    [
        ("hook_cu12.abi3.so", "hook_cu13.abi3.so"),
        ("hook.abi3.so", "hook_cu13.abi3.so"),
        ("cuda/core/cu12/_linker.so", "cuda/core/cu13/_linker.so"),
        ("libbnb_cuda128.so", "libbnb_cuda130.so"),
        ("_ir.cu12.cpython-311.so", "_ir.cu13.cpython-311.so"),
    ],
)
def test_variants_that_lie_side_by_side_are_chosen_at_run_time(other: str, ours: str) -> None:
    files = (a_file(other, "libcudart.so.12"), a_file(ours, "libcudart.so.13"))
    for torch in (TORCH_12, TORCH_13):
        verdict = judge_cuda(CudaFacts(torch, files), driver=NEW)
        assert verdict.outcome == "passed", verdict.reason
        assert "chooses at run time" in said(verdict, "note")[0]
    # … but not where there is none for torch
    assert judge_cuda(CudaFacts(TORCH_13, files[:1]), driver=NEW).outcome == "failed"


@pytest.mark.parametrize("torch", [TORCH_13, None])
def test_one_process_with_two_releases_of_a_library(torch: TorchBuild | None) -> None:
    """It needs 13 itself, and what it loads brings 12."""
    file = a_file("k/ops.so", "libcudart.so.13", brings=("libcudart.so.12", "libcudart.so.13", "libcublas.so.12"))
    (message,) = said(judge_cuda(CudaFacts(torch, (file,)), driver=NEW))
    assert message.startswith("k 1 brings libcudart.so.12 and libcudart.so.13 into one process, by loading ops.so")
    other = a_file("k/ops.so", "libcudart.so.12", brings=("libcudart.so.12", "libcudart.so.13"))
    if torch:
        (message,) = said(judge_cuda(CudaFacts(torch, (other,)), driver=NEW))
        assert "One process would hold libcudart.so.12 and libcudart.so.13" in message


def test_torch_whose_files_are_of_another_build() -> None:
    file = a_file("torch/lib/libtorch_cuda.so", "libcudart.so.12", dist=TORCH_13.dist)
    (message,) = said(judge_cuda(CudaFacts(TORCH_13, (file,)), driver=NEW))
    assert "its torch/version.py says CUDA 13.0" in message


def test_torch_without_cuda_and_no_torch_at_all() -> None:
    file = a_file("k/ops.so", "libcudart.so.12")
    (message,) = said(judge_cuda(CudaFacts(TorchBuild("torch 2.9.1", None), (file,))))
    assert "torch 2.9.1 is built without CUDA" in message
    other = a_file("l/ops.so", "libcudart.so.13", dist="l 1")
    verdict = judge_cuda(CudaFacts(None, (file, other)))
    assert verdict.outcome == "passed"
    assert said(verdict, "warning")[0].endswith("there is no torch: k 1 for CUDA 12; l 1 for CUDA 13")
    assert not said(judge_cuda(CudaFacts(None, (file,))), "warning")
    variants = (a_file("a_cu12.so", "libcudart.so.12"), a_file("a_cu13.so", "libcudart.so.13", dist="l 1"))
    assert not said(judge_cuda(CudaFacts(None, variants)), "warning")


def test_nothing_of_cuda_is_not_run() -> None:
    assert judge_cuda(CudaFacts(None)).outcome == "not run"


# ---- dists that bring libraries

PATHS = ("nvidia/nccl/lib/libnccl.so.2",)
NCCL = {"nvidia-nccl-cu12 2.27": 12, "nvidia-nccl-cu13 2.30": 13}


@pytest.mark.parametrize(
    ("torch", "current", "level"),
    [
        (TORCH_12, "nvidia-nccl-cu13 2.30", "failure"),
        (TORCH_12, "nvidia-nccl-cu12 2.27", "warning"),
        (TORCH_13, "nvidia-nccl-cu12 2.27", "failure"),
        (TORCH_12, "", "failure"),
        (None, "nvidia-nccl-cu12 2.27", "warning"),
    ],
)
def test_libraries_of_two_releases_at_one_path(torch: TorchBuild | None, current: str, level: str) -> None:
    case = Overwritten(PATHS, NCCL, (current,) if current else ())
    dists = tuple(CudaDist(name, major, ("libnccl.so.2",)) for name, major in NCCL.items())
    verdict = judge_cuda(CudaFacts(torch, (), dists, (case,), torch_needs=frozenset({"libnccl.so.2"})), driver=NEW)
    for name in NCCL:
        ignored = judge_cuda(CudaFacts(torch, (), dists, (case,)), driver=NEW, ignore=[name.partition(" ")[0]])
        assert not said(ignored, level)
    (message,) = said(verdict, level)
    assert message.startswith(
        "nvidia-nccl-cu12 2.27 (CUDA 12) and nvidia-nccl-cu13 2.30 (CUDA 13) write the same 1 library"
    )


def test_a_library_of_another_release_that_torch_loads() -> None:
    dist = CudaDist("nvidia-cudnn-cu13 9.24", 13, ("libcudnn.so.9",))
    used = CudaFacts(TORCH_12, (), (dist,), torch_needs=frozenset({"libcudnn.so.9"}))
    (message,) = said(judge_cuda(used, driver=NEW))
    assert message.startswith("nvidia-cudnn-cu13 9.24 brings libcudnn.so.9 for CUDA 13, which torch 2.9.1 loads")
    idle = CudaFacts(TORCH_12, (), (dist,))
    assert said(judge_cuda(idle, driver=NEW), "note")[0].endswith("is for CUDA 13; torch 2.9.1 does not load it")


# ---- the driver


def test_the_driver_is_judged_or_it_is_said_that_there_is_none() -> None:
    old = judge_cuda(CudaFacts(TORCH_13), driver="570.86.15")
    assert old.outcome == "failed"
    assert "driver 570.86.15 is too old for CUDA 13.0, which needs 580 or newer" in old.reason
    assert judge_cuda(CudaFacts(TORCH_12), driver="525.60.13").outcome == "passed"
    none = judge_cuda(CudaFacts(TORCH_13))
    assert none.outcome == "passed"
    assert none.reason.endswith("driver not judged: no driver here")


def test_every_release_with_ptx_of_its_own_has_a_source() -> None:
    for row in table("ptx_isa"):
        assert row["source"]
    versions = [str(row["ptx"]) for row in table("ptx_isa")]
    assert len(set(versions)) == len(versions)


@pytest.mark.parametrize(
    ("driver", "version", "answer"),
    [
        ("570.26", "8.7", True),
        ("570.25", "8.7", False),
        ("570.86.15", "8.8", False),
        ("575.51.03", "8.8", True),
        ("580.95.05", "9.0", True),
        ("580.95.05", "9.1", False),
        ("580", "9.0", True),  # a branch: its newest driver
        ("580.64", "9.0", False),
        ("535.54.03", "7.1", True),
        ("470.57.02", "7.1", None),  # the drivers of CUDA 11 are not in the table
        ("570.00", "8.6", None),  # neither is that of 12.7
        ("570.26", "8.6", True),
        ("580.95.05", "9.5", False),  # 13.5 is newer than every driver in the table …
        ("999.1", "9.5", None),  # … but this driver is newer still
        ("580.95.05", "99.0", False),
        ("999.1", "99.0", None),
        ("580.95.05", "1.0", None),
    ],
)
def test_which_driver_compiles_which_ptx(driver: str, version: str, answer: bool | None) -> None:
    assert compiles(driver, version) is answer


def test_what_ptx_needs_in_words() -> None:
    assert ptx_need("9.0").words == "a driver of 580.65.06 or newer (PTX 9.0, CUDA 13.0)"
    assert ptx_need("9.5").words == "the driver of CUDA 13.5 or newer (PTX 9.5)"
    assert "is not known" in ptx_need("99.0").words


def code(*units: str, versions: tuple[tuple[str, str], ...] = ()) -> DeviceCode:
    """Units of names with a space between; `versions` are the PTX images in the file: name and version."""
    names = dict.fromkeys(name for unit in units for name in unit.split())
    images = [DeviceImage(n, "sass", int(n[3:]), "", "", None, 1, 9) for n in names if n.startswith("sm_")]
    images += [DeviceImage(n, "ptx", int(n.removeprefix("compute_")), "", "", v, 1, 9) for n, v in versions]
    return DeviceCode(tuple(images), tuple((tuple(unit.split()), 1) for unit in units))


def judged(device_code: DeviceCode, driver: str | None, *, allow_ptx: bool = True) -> Verdict:
    file = NativeFile("k.so", "library", "x86_64", 9, device_code=device_code)
    report = NativeReport("/env", "x86_64", "2.36", None, (), (), (), (file,), 0.0)
    return judge_gpu_arch(report, "12.0", allow_ptx=allow_ptx, driver=driver)


def test_ptx_that_the_verdict_relies_on_is_judged_for_the_driver() -> None:
    only = code("sm_80 compute_80 compute_90", versions=(("compute_80", "8.4"), ("compute_90", "8.8")))
    assert jit_ptx(only, (12, 0)) == (("8.8", 1),)
    assert judged(only, "575.51.03").outcome == "passed"
    old = judged(only, "570.86.15")
    assert old.outcome == "failed"
    assert old.reason.endswith(
        "needs a driver of 575.51.03 or newer (PTX 8.8, CUDA 12.9); driver 570.86.15 does not compile it"
    )
    none = judged(only, None)
    assert none.outcome == "passed"
    assert said(none, "warning")[0].endswith("whether the driver does is not judged: no driver here")
    assert judged(only, None, allow_ptx=False).outcome == "failed"


def test_ptx_beside_machine_code_is_not_relied_on() -> None:
    native = code("sm_120 compute_120", versions=(("compute_120", "9.3"),))
    assert jit_ptx(native, (12, 0)) == ()
    assert judged(native, "570.86").findings == ()
    partly = code("sm_120 compute_120", "compute_90", versions=(("compute_120", "9.3"), ("compute_90", "9.1")))
    assert jit_ptx(partly, (12, 0)) == (("9.1", 1),)
    verdict = judged(partly, "570.86")
    assert verdict.outcome == "passed"
    assert "1 of its 2 translation units hold only PTX" in said(verdict, "warning")[0]
    assert not said(judged(partly, "590.44.01"), "warning")


# ---- toolkits

MIXED = ToolkitParts("nvidia/cu13", "13.5.37", "13.5.37", "13.5.37", "13.0", checked=True, libdevice=True)
MATCHED = ToolkitParts("/opt/cuda", "13.0.88", "13.0.88", "13.0.88", "13.0", checked=True, libdevice=True)


def test_a_toolkit_that_cannot_compile_is_a_warning_where_something_compiles() -> None:
    facts = CudaFacts(TORCH_13, toolkits=(MIXED,), compilers=("flashinfer-python 0.7.2",))
    verdict = judge_cuda(facts, driver=NEW)
    assert verdict.outcome == "passed"
    (message,) = said(verdict, "warning")
    assert message.startswith("nvidia/cu13 mixes nvcc 13.5.37 with headers of CUDA 13.0: a compilation stops with")
    assert not said(judge_cuda(CudaFacts(TORCH_13, toolkits=(MIXED,)), driver=NEW), "warning")
    named = CudaFacts(TORCH_13, toolkits=(MIXED,), named=MATCHED, compilers=facts.compilers)
    assert not said(judge_cuda(named, driver=NEW), "warning")


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        (
            ToolkitParts("/t", "12.8.93", "12.8.93", "12.8.93", "12.8", checked=True, libdevice=True),
            "is CUDA 12.8, and torch",
        ),
        (
            ToolkitParts("/t", "13.0.88", "13.1.80", "13.0.88", "13.0", checked=True, libdevice=True),
            "with cicc 13.1.80",
        ),
        (
            ToolkitParts("/t", "13.0.88", "13.0.88", "13.1.80", "13.0", checked=True, libdevice=True),
            "with ptxas 13.1.80",
        ),
        (ToolkitParts("/t", "13.0.88", "13.0.88", "13.0.88", None, libdevice=True), "no headers that state a release"),
        (ToolkitParts("/t", "13.0.88", "13.0.88", "13.0.88", "13.1", libdevice=True), "nobody promises that they fit"),
        (ToolkitParts("/t", problem="it has no bin/nvcc"), "not judged: it has no bin/nvcc"),
    ],
)
def test_what_does_not_fit_in_a_toolkit(parts: ToolkitParts, words: str) -> None:
    facts = CudaFacts(TORCH_13, named=parts, compilers=("flashinfer-python 0.7.2",))
    (message,) = said(judge_cuda(facts, driver=NEW), "warning")
    assert words in message


def test_unknown_sonames_are_said() -> None:
    verdict = judge_cuda(CudaFacts(TORCH_13, unknown=(("libnvfatbin.so.13", ("k 1",)),)), driver=NEW)
    assert "libnvfatbin.so.13 is not in the table of sonames: its CUDA release is not known (needed by k 1)" in said(
        verdict, "note"
    )
    assert verdict.figures["unknown_sonames"] == ["libnvfatbin.so.13"]
    assert Verdict.from_json(verdict.to_json()) == verdict
