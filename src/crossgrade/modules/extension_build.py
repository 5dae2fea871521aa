"""extension_build: a wheel of any project from source, built against a CUDA toolkit for a list of architectures.

How a build works is in `building.py`, for all modules that build. Without `torch` and `build_requirements`, uv makes
the build environment itself, as it does for everybody.
"""

from __future__ import annotations

from dataclasses import dataclass

from crossgrade.modules.build_inputs import (
    default_jobs,
    memory_bytes,
    python_identity,
    python_program,
    toolkit_identity,
)
from crossgrade.modules.build_module import build_module
from crossgrade.modules.building import BuildArguments, Project
from crossgrade.playbook.arguments import argument

__all__ = [
    "MODULE",
    "Arguments",
    "default_jobs",
    "memory_bytes",
    "python_identity",
    "python_program",
    "toolkit_identity",
]


@dataclass(frozen=True)
class Arguments(BuildArguments):
    """Builds once for each key; the same inputs find the wheel that is there."""

    build_command: tuple[str, ...] = argument(
        doc="The command, as a list. {python}, {source}, {out} and {jobs} are filled in; it works in {source}. It "
        "must leave one wheel in {out} or in dist/. By default `uv build --wheel`.",
        default=(),
    )


MODULE = build_module(
    "extension_build",
    Arguments,
    Project[Arguments](command=lambda arguments: arguments.build_command),
    "Native code built from source against a CUDA toolkit.",
)
