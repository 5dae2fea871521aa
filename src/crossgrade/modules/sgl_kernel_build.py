"""sgl_kernel_build: a wheel of SGLang's own kernels (sgl-kernel, later sglang-kernel), from a checkout or a tag.

Its CMakeLists.txt decides what it compiles for (8.0 to 10.3a and 12.0a where CUDA is 12.8 or newer) and clones nine
repositories while it configures. Its own default of 32 threads for each nvcc exhausts the memory of most servers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from crossgrade.modules.build_module import build_module
from crossgrade.modules.building import BuildArguments, Project
from crossgrade.playbook.arguments import argument


@dataclass(frozen=True)
class Arguments(BuildArguments):
    """Needs `torch` and `cuda_home`; `cmake_sources` or `mirrors` where GitHub cannot be reached."""

    below_sm90: bool = argument(doc="Compile for 8.0 and 8.9 too (ENABLE_BELOW_SM90).", default=True)


def variables(arguments: Arguments) -> dict[str, str]:
    """What decides what is compiled; CMake 4 refuses the minimum that some of the cloned projects state."""
    found = {"CMAKE_POLICY_VERSION_MINIMUM": "3.5"}
    if not arguments.below_sm90:
        found["CROSSGRADE_BELOW_SM90"] = "OFF"  # for the key: CMake is told in CMAKE_ARGS
    return found


def cmake_options(arguments: Arguments) -> Sequence[str]:
    """Its own use of ccache is switched off, since the launcher of CMake is used."""
    options = [f"-DSGL_KERNEL_COMPILE_THREADS={arguments.nvcc_threads}", "-DENABLE_CCACHE=OFF"]
    return options if arguments.below_sm90 else [*options, "-DENABLE_BELOW_SM90=OFF"]


MODULE = build_module(
    "sgl_kernel_build",
    Arguments,
    Project[Arguments]("sgl-kernel", own_environment=True, variables=variables, cmake_options=cmake_options),
    "A wheel of SGLang's kernels, from a git revision or a checkout.",
)
