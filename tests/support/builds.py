"""Builds with extension_build, for tests that need one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.module_host import ModuleHost, run_module

from crossgrade.modules import extension_build


def built(arguments: dict[str, Any], host: ModuleHost) -> dict[str, Any]:
    return dict(run_module(extension_build.MODULE, arguments, host).values)


def in_git(repository: Path, **more: Any) -> dict[str, Any]:
    """Arguments for the small project in the folder `kernels` of a repository."""
    return {
        "git": f"file://{repository}",
        "subdirectory": "kernels",
        "build_requirements": ["setuptools>=61", "ninja"],
        **more,
    }
