"""sglang_build: a wheel of SGLang itself, from a checkout, a tag or a source distribution.

Its Python needs no torch to be built; from 0.5.2x on it has Rust extensions, which need cargo and, some, torch. Its
version comes from the tags of its repository (setuptools-scm), so a source without them needs `version`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from crossgrade.modules.build_module import build_module
from crossgrade.modules.building import BuildArguments, Project
from crossgrade.playbook.arguments import argument


@dataclass(frozen=True)
class Arguments(BuildArguments):
    """The wheel must ask for the candidate's torch: name it in `torch`."""

    version: str = argument(
        doc="The version that the wheel is to have, for a source without its tags. By default as git describes it.",
        default="",
    )
    rust_extensions: tuple[str, ...] = argument(
        doc="The Rust extensions to build, by parts of their names; [none] builds without. By default all.",
        default=(),
    )


def variables(arguments: Arguments) -> Mapping[str, str]:
    """sglang's own setup.py reads SGLANG_BUILD_RUST_EXTS, setuptools-scm the other."""
    found = {}
    if arguments.version:
        found["SETUPTOOLS_SCM_PRETEND_VERSION_FOR_SGLANG"] = arguments.version
    if arguments.rust_extensions:
        found["SGLANG_BUILD_RUST_EXTS"] = ",".join(arguments.rust_extensions)
    return found


MODULE = build_module(
    "sglang_build",
    Arguments,
    Project[Arguments]("sglang", own_environment=True, variables=variables),
    "A wheel of SGLang, from a git revision, a source distribution or a checkout.",
)
