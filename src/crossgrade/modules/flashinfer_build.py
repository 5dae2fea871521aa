"""flashinfer_build: a wheel of flashinfer-python, from a checkout, a tag or a source distribution.

The wheel holds FlashInfer's Python and its CUDA sources; the kernels themselves are compiled where they are used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from crossgrade.modules.build_module import build_module
from crossgrade.modules.building import BuildArguments, Project
from crossgrade.playbook.arguments import argument


@dataclass(frozen=True)
class Arguments(BuildArguments):
    """A checkout needs its submodules (CUTLASS, spdlog, CCCL); a source distribution has them."""

    local_version: str = argument(
        doc="A suffix of the version, `+TEXT`, that tells this build from the published one.", default=""
    )
    nixl: bool = argument(
        doc="Build the NIXL back end of expert parallelism too (0.7 and newer; needs meson, nvcc and UCX).",
        default=False,
    )


def variables(arguments: Arguments) -> Mapping[str, str]:
    """Read by FlashInfer's own build_backend.py, which by default only warns where a part of NIXL is missing."""
    found = {"BUILD_NIXL_EP": "1" if arguments.nixl else "0"}
    if arguments.local_version:
        found["FLASHINFER_LOCAL_VERSION"] = arguments.local_version
    return found


MODULE = build_module(
    "flashinfer_build",
    Arguments,
    Project[Arguments]("flashinfer-python", own_environment=True, variables=variables),
    "A wheel of flashinfer-python, from a git revision, a source distribution or a checkout.",
)
