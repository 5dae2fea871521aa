"""One CUDA_HOME out of CUDA wheels.

The wheels of CUDA 12 put each part in a folder of its own (`nvidia/cuda_nvcc`, `nvidia/cuda_runtime`, …),
those of CUDA 13 all in `nvidia/cu13`. Builds want one tree with bin, include, nvvm and lib64.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

# Folder in a wheel → folder in CUDA_HOME. nvcc.profile links with -L$(TOP)/lib64, the wheels have lib.
_PLACES = (("bin", "bin"), ("include", "include"), ("nvvm", "nvvm"), ("lib", "lib64"), ("lib64", "lib64"))
_NOT_PARTS = frozenset({"__init__.py", "__pycache__"})
_VERSIONED = re.compile(r"(?P<name>lib.+\.so)\.\d+(?:\.\d+)*")


def unify(site: Path, home: Path) -> None:
    """Make the folder `home` of relative links to the wheels installed in `site`, so that both move together.

    Its folders are real ones with a link for each entry: nvcc looks for libraries in `bin/../lib64`, and the
    kernel follows `..` from where a linked `bin` really lies (measured). Raises OSError.
    """
    home.mkdir()
    for part in _parts(site / "nvidia"):
        for folder, place in _PLACES:
            for entry in sorted((part / folder).iterdir()) if (part / folder).is_dir() else ():
                if entry.name not in _NOT_PARTS:
                    _link(home / place / entry.name, entry)
    _show_cccl(home / "include")
    libraries = home / "lib64"
    libraries.mkdir(exist_ok=True)
    for entry in sorted(libraries.iterdir()):
        found = _VERSIONED.fullmatch(entry.name)
        if found and not (libraries / found["name"]).is_symlink():
            # the linker's name, which the wheels leave out: -lcudart means libcudart.so
            (libraries / found["name"]).symlink_to(entry.name)
    (home / "lib").symlink_to("lib64")


def _show_cccl(include: Path) -> None:
    """Links to cuda/, cub/, thrust/ and nv/ where they were before CUDA 13: only nvcc finds them in cccl/ by itself.

    Source: nvcc.profile of CUDA 13.0 has `-isystem $(TOP)/include/cccl`; the CUDA 13.0 release notes on CCCL.
    """
    cccl = include / "cccl"
    for entry in sorted(cccl.iterdir()) if cccl.is_dir() else ():
        if entry.name not in _NOT_PARTS and not (include / entry.name).exists():
            (include / entry.name).symlink_to(f"cccl/{entry.name}")


def _parts(nvidia: Path) -> list[Path]:
    folders = sorted(entry for entry in nvidia.iterdir() if entry.is_dir() and entry.name not in _NOT_PARTS)
    whole = [folder for folder in folders if re.fullmatch(r"cu\d+", folder.name)]
    return whole or folders


def _link(link: Path, target: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.is_symlink():  # two wheels that bring the same header: the first in order of name
        link.symlink_to(os.path.relpath(target, link.parent))


def nvcc_release(text: str) -> str:
    """`13.0` from what `nvcc --version` prints; "" when it does not say."""
    found = re.search(r"release (\d+\.\d+)", text)
    return found[1] if found else ""
