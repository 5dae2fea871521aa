"""The proof that a toolkit's nvcc does its work: a small program is compiled, linked, inspected and started.

It is made in a temporary folder; nothing is written into the toolkit. The program takes the runtime's headers,
CCCL's where there are any, and libcudart.so; then its fatbin is read for machine code of exactly what was asked
for, since `cuobjdump` prints sm_120f as sm_120.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from crossgrade.errors import TaskError
from crossgrade.modules.contract import HostView
from crossgrade.modules.toolkits import release_of

if TYPE_CHECKING:
    from crossgrade.process import Completed

COMPILE_SECONDS = 600.0  # 3 s each on a quiet machine; a cold network disk and a busy one take far longer
DEFAULT = ("12.0f", "12.0")  # the first that the release compiles for
_ARCHITECTURE = re.compile(r"(\d+)\.(\d)([af]?)(\+PTX)?")
_SOURCE = """\
#include <cuda_runtime.h>
#if __has_include(<cuda/std/array>)
#include <cuda/std/array>
#endif
__global__ void add(int *values) { values[threadIdx.x] += 1; }
int main() {
  int version = 0;
  if (cudaRuntimeGetVersion(&version) != cudaSuccess) return 2;
  if (version < 0) add<<<1, 1>>>(&version);
  return version == CUDART_VERSION ? 0 : 3;
}
"""
_SHOWN_LINES = 6

# Toolkits that this process has proved: the proof is also wanted by the second look after an apply.
_proved: set[tuple[object, ...]] = set()


@dataclass(frozen=True)
class Proof:
    """The architectures to prove (``12.0f``); where there are none, `reason` says why."""

    architectures: tuple[str, ...]
    reason: str = ""


def wanted_proof(asked: Sequence[str] | None, version: str, has_nvcc: bool, has_runtime: bool) -> Proof:
    """What is to be proved of a toolkit. None asks for SM120's family where the release compiles for it. Pure.

    Raises TaskError for an architecture that cannot be read, and for one that is asked for and cannot be proved.
    """
    if asked is not None and not asked:
        return Proof((), "not run: `prove_for` is empty")
    missing = "" if has_nvcc and has_runtime else "it has no nvcc" if not has_nvcc else "it has no CUDA runtime"
    if missing:
        if asked:
            raise TaskError(
                f"the toolkit cannot compile for {', '.join(asked)}: {missing}",
                remedy="Add nvcc and cudart to `components`, or leave `prove_for` out.",
            )
        return Proof((), f"not run: {missing}")
    if asked is not None:
        for architecture in asked:
            compiler_option(architecture)
        return Proof(tuple(asked))
    from crossgrade.facts.architectures import compiles_for

    for architecture in DEFAULT:
        if compiles_for(_names(architecture)[0], release_of(version)):
            return Proof((architecture,))
    return Proof((), f"not run: CUDA {release_of(version)} is not known to compile for SM120; say `prove_for`")


def compiler_option(architecture: str) -> str:
    """nvcc's option for an architecture in PyTorch's spelling. Pure; raises TaskError.

    >>> compiler_option("12.0f")
    '-gencode=arch=compute_120f,code=[sm_120f]'
    """
    codes = _names(architecture)
    name = codes[0].removeprefix("sm_")
    return f"-gencode=arch=compute_{name},code=[{','.join(codes)}]"


def _names(architecture: str) -> tuple[str, ...]:
    match = _ARCHITECTURE.fullmatch(architecture)
    if match is None:
        raise TaskError(f"{architecture!r} is no architecture", remedy='Write it as "12.0f", "12.0a" or "9.0+PTX".')
    name = f"{match[1]}{match[2]}{match[3]}"
    return (f"sm_{name}", f"compute_{name}") if match[4] else (f"sm_{name}",)


def prove(home: Path, architectures: Sequence[str], host: HostView) -> None:
    """Compile, link, inspect and start a small program, once in this process for the same toolkit.

    Raises TaskError that says what was not as it must be.
    """
    nvcc = home / "bin" / "nvcc"
    status = nvcc.stat()
    chosen = host.environment.get("NVCC_CCBIN", "")
    key = (os.path.realpath(nvcc), status.st_mtime_ns, tuple(architectures), host.environment.get("PATH"), chosen)
    if key in _proved:
        return
    if not chosen:
        _require_compiler(home, host)
    with tempfile.TemporaryDirectory(prefix="crossgrade-nvcc-") as name:
        folder = Path(name)
        source, program = folder / "proof.cu", folder / "proof"
        source.write_text(_SOURCE, encoding="utf-8")
        argv = [str(nvcc), *map(compiler_option, architectures), "-cudart", "shared", "-o", str(program), str(source)]
        environment = {"TMPDIR": name, "NVCC_PREPEND_FLAGS": "", "NVCC_APPEND_FLAGS": ""}
        completed = host.run(argv, environment=environment, timeout=COMPILE_SECONDS)
        if not completed.succeeded or not program.is_file():
            raise _compile_error(home, architectures, completed)
        _inspect(program, home, architectures)
        _run(program, home, host)
    _proved.add(key)


def _require_compiler(home: Path, host: HostView) -> None:
    from crossgrade.inspect.host_compiler import find_host_compilers, judge_host_compiler
    from crossgrade.inspect.query import run_query
    from crossgrade.inspect.toolkit import read_toolkit

    toolkit = read_toolkit(home, host.run)
    compilers = find_host_compilers(host.environment.get("PATH", os.defpath), run_query)
    first = next((each for each in compilers if each.command == "g++"), None)
    judgement = judge_host_compiler(first, toolkit.newest_gcc, toolkit.name, compilers)
    if judgement.fits is False:
        remedy = f"{judgement.remedy} nvcc takes another one by NVCC_CCBIN; `prove_for: []` leaves the proof out."
        raise TaskError(judgement.message, remedy=remedy.strip())


def _compile_error(home: Path, architectures: Sequence[str], completed: Completed) -> TaskError:
    from crossgrade.inspect.toolkit_parts import missing_for_builds

    said = [line for line in (completed.stderr + completed.stdout).splitlines() if line.strip()]
    lines = "\n".join(said[-_SHOWN_LINES:])
    missing = missing_for_builds(home)
    lacks = f"\nThe toolkit lacks: {'; '.join(missing)}" if missing else ""
    return TaskError(
        f"nvcc of {home} does not compile a small program for {', '.join(architectures)} ({completed.outcome()}):\n"
        f"{lines}{lacks}",
        remedy="Take another toolkit (`method: wheels` needs no root), or `prove_for: []` to go on without the proof.",
    )


def _inspect(program: Path, home: Path, architectures: Sequence[str]) -> None:
    from crossgrade.inspect.device_code import read_device_code
    from crossgrade.inspect.elf import FileSource, UnreadableElfError, parse_elf

    try:
        with FileSource(program) as source:
            elf = parse_elf(source)
            code = read_device_code(source, elf)
    except UnreadableElfError as error:
        raise TaskError(f"what nvcc of {home} linked cannot be read: {error.reason}") from error
    held = {name for names, _ in code.units for name in names} if code else set()
    wanted = [name for architecture in architectures for name in _names(architecture)]
    lacking = [name for name in wanted if name not in held]
    if lacking:
        holds = ", ".join(sorted(held)) or "no device code"
        raise TaskError(f"nvcc of {home} was asked for {', '.join(wanted)}, and its program holds {holds}")
    if not any(name.startswith("libcudart.so") for name in elf.needed):
        raise TaskError(f"what nvcc of {home} linked needs no libcudart.so: {', '.join(elf.needed) or 'no library'}")


def _run(program: Path, home: Path, host: HostView) -> None:
    from crossgrade.inspect.toolkit import find_library

    library = find_library(home, "libcudart.so")
    folder = str(Path(library).parent) if library else str(home / "lib64")
    completed = host.run([str(program)], environment={"LD_LIBRARY_PATH": folder}, timeout=60.0)
    if completed.returncode == 3:
        raise TaskError(f"the runtime library of {home} is of another release than its headers")
    if not completed.succeeded:
        said = (completed.stderr or completed.stdout).strip()
        raise TaskError(f"what nvcc of {home} linked does not run: {completed.outcome()}: {said}")
