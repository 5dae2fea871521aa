"""The parts of a CUDA toolkit and their releases, read from the files alone: nothing of it is started.

The wheels of a toolkit are installed one by one (nvidia-cuda-nvcc, nvidia-nvvm, nvidia-cuda-runtime and so on), and an
installer may take each in another release. Sources: each program of the toolkit holds the line that its ``--version``
prints (read in those of 11.8 to 13.5); CUDART_VERSION in `cuda_runtime_api.h`; the check in
`cuda/std/__cccl/cuda_toolkit.h` of CCCL 3 stops a compilation whose nvcc and headers differ in major or minor release.
"""

from __future__ import annotations

import mmap
import os
import re
from dataclasses import dataclass
from pathlib import Path

from crossgrade.inspect.toolkit import header_version

_RELEASE = re.compile(rb"Cuda compilation tools, release (\d+\.\d+), V(\d+(?:\.\d+)+)")
_CHECK = "cuda/std/__cccl/cuda_toolkit.h"
_LIBRARY_HEADER = "cuda/std/utility"
# Where nvcc.profile (bin/../targets) and FlashInfer and torch (CUDA_HOME/lib64) let the linker look.
_LINKED = ("lib64", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib")


@dataclass(frozen=True)
class ToolkitParts:
    """The releases of the parts of one toolkit; None for a part that is not there or does not say.

    ``nvcc``, ``cicc`` (from CUDA C++ to PTX) and ``ptxas`` (from PTX to machine code) are full versions (``13.5.37``),
    ``headers`` is a release (``13.0``). ``checked`` is True where the headers stop a compilation by another nvcc,
    ``libdevice`` where the library of device functions is there, ``cccl`` where the headers of CUDA's C++ library are,
    ``links`` where the linker finds ``-lcudart`` in lib64, which has no such name in wheels. ``problem`` says why there
    is nothing to read.
    """

    home: str
    nvcc: str | None = None
    cicc: str | None = None
    ptxas: str | None = None
    headers: str | None = None
    checked: bool = False
    libdevice: bool = False
    cccl: bool = True
    links: bool = True
    problem: str = ""


def read_parts(home: Path, title: str = "") -> ToolkitParts:
    """Read the parts below a directory that has bin/nvcc; `problem` is set where it has none.

    ``title`` is what the result calls it, in place of its path.
    """
    nvcc = home / "bin" / "nvcc"
    if not nvcc.is_file():
        return ToolkitParts(title or str(home), problem="it has no bin/nvcc")
    version = stated_release(nvcc)
    include = home / "include"
    return ToolkitParts(
        home=title or str(home),
        nvcc=version,
        cicc=stated_release(home / "nvvm" / "bin" / "cicc"),
        ptxas=stated_release(home / "bin" / "ptxas"),
        headers=header_version(include),
        checked=any((folder / _CHECK).is_file() for folder in (include / "cccl", include)),
        libdevice=any((home / "nvvm" / "libdevice").glob("libdevice*.bc")),
        cccl=any((folder / _LIBRARY_HEADER).is_file() for folder in (include / "cccl", include)),
        links=any((home / folder / "libcudart.so").exists() for folder in _LINKED),
        problem="" if version else "its nvcc does not state its release",
    )


def toolkits_below(site_packages: Path) -> tuple[Path, ...]:
    """The toolkits with an nvcc that wheels have installed (``nvidia/cu13``), in order of name."""
    found = sorted((site_packages / "nvidia").glob("*/bin/nvcc"))
    return tuple(nvcc.parent.parent for nvcc in found if nvcc.is_file())


def missing_for_builds(home: Path) -> tuple[str, ...]:
    """What a toolkit lacks to compile and link with nvcc, in words; empty where it lacks nothing.

    By `knowledge/toolkit_needs.yml`. What wheels leave out though nobody forgot to install it is said so.
    """
    from crossgrade.knowledge import table

    missing = []
    for row in table("toolkit_needs"):
        places = row["any"]
        paths = [str(path) for path in places] if isinstance(places, list) else []
        if not any((home / path).exists() for path in paths):
            brings = f"{row['wheel']} brings it" if row["wheel"] else "no wheel brings it"
            missing.append(f"{paths[0]} ({brings})")
    return tuple(missing)


def stated_release(program: Path) -> str | None:
    """The full version in the text of a program (``13.5.37``); None where there is none."""
    if not program.is_file():
        return None
    try:
        with program.open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                return None
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                match = _RELEASE.search(data)
                return match[2].decode() if match else None
    except (OSError, ValueError):
        return None
