"""Libraries for each CUDA release, of which a dist opens one by name: on facts."""

from __future__ import annotations

import pytest

from crossgrade.gates.cuda import judge_cuda
from crossgrade.inspect.cuda_consistency import CudaFacts, CudaFile, TorchBuild
from crossgrade.inspect.cuda_libraries import cuda_library

# What the wheels hold
OLD = ("bitsandbytes 0.45.5", (117, 118, 120, 121, 122, 123, 124, 125, 126, 128))
LATER = ("bitsandbytes 0.49.2", (118, 120, 121, 122, 123, 124, 125, 126, 128, 129, 130))
NEW = ("bitsandbytes 0.50.2", (118, 121, 124, 126, 128, 130, 132))


def warnings(dist: tuple[str, tuple[int, ...]], cuda: str | None, **environment: str) -> list[str]:
    files = []
    for number in dist[1]:
        library = cuda_library(f"libcudart.so.{number // 10 if number > 119 else '11.0'}")
        assert library is not None
        path = f"lib/python3.11/site-packages/bitsandbytes/libbitsandbytes_cuda{number}.so"
        files.append(CudaFile(path, dist[0], (library,), (library,), with_torch=False))
    facts = CudaFacts(torch=TorchBuild("torch 2.14.1", cuda), files=tuple(files))
    verdict = judge_cuda(facts, driver="595.45.04", environment=environment)
    return [each.message for each in verdict.of_level("warning") if "library" in each.message]


@pytest.mark.parametrize(
    ("dist", "cuda", "said"),
    [
        (OLD, "12.8", ""),
        (OLD, "12.9", "or set BNB_CUDA_VERSION=128"),
        (OLD, "13.0", "has no library for CUDA 13.0"),
        (LATER, "13.0", ""),
        (LATER, "13.1", "or set BNB_CUDA_VERSION=130"),  # issue 1848
        (NEW, "13.1", ""),  # the nearest one
        (NEW, None, ""),
    ],
)
def test_the_library_for_torchs_cuda(dist: tuple[str, tuple[int, ...]], cuda: str | None, said: str) -> None:
    found = warnings(dist, cuda)
    assert len(found) == bool(said), found
    assert all(said in message for message in found)


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("130", ""),
        ("132", ""),
        ("128", "makes it open its library for CUDA 12.8, and torch 2.14.1 is built for CUDA 13.0"),
        ("131", "names a library that it does not have"),
        ("12.8", "names a library that it does not have"),
    ],
)
def test_a_variable_left_over_opens_the_wrong_library(version: str, said: str) -> None:
    found = warnings(NEW, "13.0", BNB_CUDA_VERSION=version)
    assert len(found) == bool(said), found
    assert all(said in message for message in found)
