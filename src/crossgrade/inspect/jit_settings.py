"""What kernels are compiled with while a server runs: Triton's assembler, the toolkit, the architectures. Only read.

Triton writes PTX and hands it to a ptxas of its own: `triton/backends/nvidia/bin/ptxas`, or `ptxas-blackwell` where its
wheel has one, for compute capability 10.0 and newer. TRITON_PTXAS_PATH and TRITON_PTXAS_BLACKWELL_PATH name another;
one that does not start is passed over. It asks for ``sm_120a``: the suffix ``a`` from 9.0 on. Sources:
`triton/knobs.py` and `triton/backends/nvidia/compiler.py` of the wheels 3.5.1 and 3.8.0.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from crossgrade.inspect.dists import InstalledDist, UnreadableEnvironmentError, installed_dists, site_packages
from crossgrade.inspect.toolkit_parts import ToolkitParts, read_parts, stated_release
from crossgrade.knowledge import table

_BLACKWELL = (10, 0)
# The variables that decide what is compiled with; a gate that judged with others has not judged these
COMPILING = (
    "CUDA_HOME",
    "CUDA_PATH",
    "TRITON_PTXAS_PATH",
    "TRITON_PTXAS_BLACKWELL_PATH",
    "FLASHINFER_CUDA_ARCH_LIST",
)


@dataclass(frozen=True)
class Assembler:
    """The ptxas that Triton takes for a GPU. ``variable`` names it, empty where it is Triton's own.

    ``version`` is a full one (``12.8.93``), None where the program is not there or does not state it.
    """

    triton: str
    path: str
    version: str | None
    variable: str = ""


@dataclass(frozen=True)
class ArchitectureList:
    """A variable that lists what ``dist`` compiles for. ``takes_plain`` is True where ``12.0`` stays ``12.0``."""

    dist: str
    variable: str
    architectures: tuple[str, ...]
    takes_plain: bool


@dataclass(frozen=True)
class JitSettings:
    """``nvcc`` are the parts of the toolkit that CUDA_HOME or CUDA_PATH names, ``compilers`` the dists that use it."""

    assembler: Assembler | None = None
    lists: tuple[ArchitectureList, ...] = ()
    nvcc: ToolkitParts | None = None
    compilers: tuple[str, ...] = ()


def read_jit_settings(
    venv: Path, capability: tuple[int, int], environment: Mapping[str, str], cuda_home: Path | None
) -> JitSettings:
    """Read what a server in ``venv`` would compile with, for a GPU of this compute capability.

    ``environment`` are the variables of the server, ``cuda_home`` is where the toolkit lies that they name.
    """
    try:
        dists, site = installed_dists(venv), site_packages(venv)
    except UnreadableEnvironmentError:
        return JitSettings()
    compiling = {str(row["dist"]) for row in table("jit_compilers")}
    return JitSettings(
        assembler=_assembler(dists, site, capability, environment),
        lists=tuple(_lists(dists, environment)),
        nvcc=read_parts(cuda_home) if cuda_home is not None else None,
        compilers=tuple(str(dist) for dist in dists if dist.name in compiling),
    )


def named_toolkit(environment: Mapping[str, str]) -> str:
    """What CUDA_HOME or CUDA_PATH names; empty where neither does."""
    return environment.get("CUDA_HOME") or environment.get("CUDA_PATH") or ""


def _assembler(
    dists: Sequence[InstalledDist], site: Path, capability: tuple[int, int], environment: Mapping[str, str]
) -> Assembler | None:
    triton = next((dist for dist in dists if dist.name == "triton"), None)
    if triton is None:
        return None
    programs = site / "triton" / "backends" / "nvidia" / "bin"
    own, variable = programs / "ptxas", "TRITON_PTXAS_PATH"
    if capability >= _BLACKWELL and (programs / "ptxas-blackwell").is_file():
        own, variable = programs / "ptxas-blackwell", "TRITON_PTXAS_BLACKWELL_PATH"
    named = environment.get(variable, "")
    if named and os.access(named, os.X_OK) and (version := stated_release(Path(named))):
        return Assembler(str(triton), named, version, variable)
    return Assembler(str(triton), str(own), stated_release(own))


def _lists(dists: Sequence[InstalledDist], environment: Mapping[str, str]) -> list[ArchitectureList]:
    found = []
    for row in table("architecture_lists"):
        dist = next((dist for dist in dists if dist.name == row["dist"]), None)
        value = environment.get(str(row["variable"]), "")
        if dist is not None and value.strip():
            names = tuple(part for part in value.split(str(row["separator"])) if part)
            plain = _is_older(dist.version, str(row["adds_suffix_since"]))
            found.append(ArchitectureList(str(dist), str(row["variable"]), names, plain))
    return found


def _is_older(version: str, than: str) -> bool:
    from packaging.version import InvalidVersion, Version

    try:
        return Version(version) < Version(than)
    except InvalidVersion:
        return False
