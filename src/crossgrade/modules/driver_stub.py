"""Something to link against where the machine has no NVIDIA driver.

FlashInfer links each module with `-lcuda`. The driver's own `libcuda.so` is on a machine with a GPU; NVIDIA's
installers bring a stub in `lib64/stubs` for build machines, and the wheels of the toolkit bring none. The stub made
here has the names of the functions that the toolkit's `cuda.h` declares, under the driver's soname, so that the linker
makes the same library as beside a driver. It is used for linking only, and lies in the run's temporary folder.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from crossgrade.errors import TaskError
from crossgrade.process import run_process

SONAME = "libcuda.so.1"
# `CUresult CUDAAPI cuInit(unsigned int Flags);` and `#define cuCtxCreate cuCtxCreate_v4`, cuda.h of CUDA 12 and 13
_DECLARED = re.compile(r"\bCUDAAPI\s+(cu[A-Z]\w*)\s*\(")
_RENAMED = re.compile(r"^\s*#\s*define\s+cu[A-Z]\w*\s+(?:__CUDA_API_\w+\()?(cu[A-Z]\w*)", re.MULTILINE)
_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE, cuda.h


def declared_functions(header: str) -> tuple[str, ...]:
    """The names of the driver's functions in the text of a cuda.h, in order of name. Pure."""
    return tuple(sorted({*_DECLARED.findall(header), *_RENAMED.findall(header)}))


def stub_source(functions: tuple[str, ...]) -> str:
    """C source of a library with these functions, each of which says that there is no device. Pure."""
    return "".join(f"int {name}(void) {{ return {_NO_DEVICE}; }}\n" for name in functions)


def links(cxx: str, cuda_home: Path, work: Path, environment: Mapping[str, str]) -> bool:
    """Whether the linker finds libcuda as FlashInfer's link command looks for it."""
    folders = [f"-L{cuda_home}/lib64", f"-L{cuda_home}/lib64/stubs"]
    argv = [cxx, "-shared", "-nostdlib", *folders, "-lcuda", "-o", str(work / "links.so")]
    return run_process(argv, env=environment, cwd=work, timeout=60.0).succeeded


def make_stub(cxx: str, cuda_home: Path, work: Path, environment: Mapping[str, str]) -> Path:
    """A folder with a stub `libcuda.so`, below `work`. Raises TaskError when it cannot be made."""
    header = cuda_home / "include" / "cuda.h"
    try:
        functions = declared_functions(header.read_text(encoding="utf-8", errors="replace"))
    except OSError as error:
        raise TaskError(
            f"there is no libcuda.so to link against, and none can be made: {header}: {error.strerror}",
            remedy="Let cuda_toolkit install the component `cudart`, which holds cuda.h.",
        ) from error
    folder = work / "driver"
    folder.mkdir()
    source = folder / "stub.c"
    source.write_text(stub_source(functions), encoding="utf-8")
    library = folder / "libcuda.so"
    argv = [cxx, "-x", "c", "-shared", "-fPIC", f"-Wl,-soname,{SONAME}", "-o", str(library), str(source)]
    built = run_process(argv, env=environment, cwd=work, timeout=120.0)
    if not built.succeeded:
        raise TaskError(f"{cxx} could not make a stub of the driver's library: {built.outcome()}\n{built.stderr}")
    (folder / SONAME).symlink_to(library.name)
    return folder
