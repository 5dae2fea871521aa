"""Whether the toolkits of an environment can compile what its dists compile while they run. Part of the CUDA gate."""

from __future__ import annotations

from collections.abc import Iterator

from crossgrade.gates.verdict import Finding, Level, joined
from crossgrade.inspect.cuda_consistency import CudaFacts
from crossgrade.inspect.toolkit_parts import ToolkitParts
from crossgrade.jsontype import JSON


def judge_toolkits(facts: CudaFacts) -> Iterator[Finding]:
    """Warnings about toolkits that stop a compilation; notes where no dist is known to compile.

    Those in the environment are notes as well where another one is named. Compiler and headers must be of one minor
    release, as the headers themselves demand, cicc and ptxas of the compiler's, and nvcc of torch's major release, or
    `torch.utils.cpp_extension` refuses it.
    """
    level: Level = "warning" if facts.compilers else "note"
    within: Level = "note" if facts.named else level
    listed = [(within, parts) for parts in facts.toolkits] + ([(level, facts.named)] if facts.named else [])
    for own, parts in listed:
        if parts.problem:
            yield Finding(own, parts.home, f"not judged: {parts.problem}")
            continue
        for message in _problems(parts, facts):
            yield Finding(own, parts.home, f"{message}. {_who(facts)}", parts_evidence(parts))


def _problems(parts: ToolkitParts, facts: CudaFacts) -> Iterator[str]:
    release = minor(parts.nvcc)
    if parts.headers is None:
        yield f"has nvcc {parts.nvcc} and no headers that state a release: install nvidia-cuda-runtime=={release}.*"
    elif parts.headers != release:
        stops = "a compilation stops with `CUDA compiler and CUDA toolkit headers are incompatible`"
        if not parts.checked:
            stops = "nobody promises that they fit"
        yield (
            f"mixes nvcc {parts.nvcc} with headers of CUDA {parts.headers}: {stops}. Install nvidia-cuda-nvcc, "
            f"nvidia-cuda-crt and nvidia-nvvm in release {parts.headers}.*, or name another toolkit by CUDA_HOME"
        )
    for name, version in (("cicc", parts.cicc), ("ptxas", parts.ptxas)):
        if version is None:
            yield f"has no {name} that states its release, which nvcc {parts.nvcc} needs beside it"
        elif minor(version) != release:
            yield f"mixes nvcc {parts.nvcc} with {name} {version}: parts that must be of one release"
    if not parts.libdevice:
        yield f"has no nvvm/libdevice, which nvcc {parts.nvcc} needs: install nvidia-nvvm=={release}.*"
    if not parts.cccl:
        yield (
            f"has no headers of CUDA's C++ library, so that a compilation stops with `cuda/std/utility: No such file`: "
            f"install nvidia-cuda-cccl=={release}.*"
        )
    if not parts.links:
        yield (
            "has no lib64/libcudart.so, so that a build stops with `cannot find -lcudart`: wheels bring numbered names "
            "in lib alone. Let cuda_toolkit make one of wheels, or link to them"
        )
    torch = facts.torch
    if torch is not None and torch.cuda is not None and release.partition(".")[0] != torch.cuda.partition(".")[0]:
        yield (
            f"is CUDA {release}, and {torch.dist} is built for CUDA {torch.cuda}: torch refuses to build extensions "
            "with another major release, and what is built needs its libraries"
        )


def minor(version: str | None) -> str:
    """``13.5`` of ``13.5.37``."""
    return ".".join((version or "").split(".")[:2])


def _who(facts: CudaFacts) -> str:
    if not facts.compilers:
        return "No dist here is known to compile while it runs"
    return f"{joined(facts.compilers, 3)} compile with nvcc while they run, if CUDA_HOME or PATH leads to this one"


def parts_evidence(parts: ToolkitParts) -> dict[str, JSON]:
    """The releases of the parts as plain data."""
    return {"nvcc": parts.nvcc, "cicc": parts.cicc, "ptxas": parts.ptxas, "headers": parts.headers}
