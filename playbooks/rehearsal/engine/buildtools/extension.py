"""Compiling ``_kernels.abi3.so``: by nvcc where CUDA_HOME has it, else by NVRTC, ptxas and g++.

Both routes share module.cpp, arithmetic.h and device.cuh. Only the way in which the device code gets into the
file and is registered with the CUDA runtime differs: kernels.cu (nvcc writes that code) or registration.cpp.
"""

from __future__ import annotations

import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from buildtools import nvrtc
from buildtools.commands import Runner, find_host_compiler, say, tool_environment
from buildtools.toolkit import Architecture, Toolkit

FILE_NAME = "_kernels.abi3.so"
_FATBIN = "kernels.fatbin"
# No -march: the file must run on every x86-64 (or other) machine of this kind. -O3 for vectorised loops.
_HOST_OPTIONS = (
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
    "-Werror=return-type",
)


@dataclass(frozen=True)
class Built:
    """The finished extension and what it was made with."""

    path: Path
    device_compiler: str
    host_compiler: str


def build_extension(
    toolkit: Toolkit,
    architectures: tuple[Architecture, ...],
    jobs: int,
    sources: Path,
    scratch: Path,
    environment: dict[str, str],
) -> Built:
    """Compile the sources in ``sources`` to ``scratch / FILE_NAME``. Raises BuildError.

    The sources are copied into ``scratch`` and compiled by relative names, so no path of this machine gets
    into the result and nothing is written beside the sources.
    """
    host = find_host_compiler(environment)
    runner = Runner(scratch, tool_environment(environment, scratch))
    runtime = toolkit.library(toolkit.runtime_soname, toolkit.runtime_requirement)
    shutil.copytree(sources, scratch / "native")
    include = ["-isystem", str(toolkit.include)]
    module = [host, *_HOST_OPTIONS, *include, "-c", "native/module.cpp", "-o", "module.o"]

    nvcc = toolkit.nvcc
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        pending = pool.submit(runner.run, module)
        if nvcc is not None:
            device_compiler = _compile_with_nvcc(runner, nvcc, host, architectures, jobs)
        else:
            device_compiler = _compile_with_nvrtc(runner, toolkit, host, architectures)
        pending.result()

    runner.run(
        [
            host, "-shared", "-s", "module.o", "device.o", "-o", FILE_NAME,
            # The wheels hold no libcudart.so: name the file itself. Its soname becomes the DT_NEEDED entry.
            f"-L{runtime.parent}", f"-l:{toolkit.runtime_soname}",
            "-Wl,--enable-new-dtags", f"-Wl,-rpath,{toolkit.runpath}",
            "-Wl,-z,relro,-z,now", "-Wl,--build-id=sha1",
        ]
    )  # fmt: skip
    version = runner.run([host, "--version"]).partition("\n")[0]
    return Built(scratch / FILE_NAME, device_compiler, version)


def _compile_with_nvcc(
    runner: Runner, nvcc: Path, host: str, architectures: tuple[Architecture, ...], jobs: int
) -> str:
    """native/kernels.cu to device.o; the compiler's name and version."""
    targets = []
    for architecture in architectures:
        code = architecture.sass_name + (f",{architecture.ptx_name}" if architecture.ptx else "")
        targets += ["-gencode", f"arch={architecture.ptx_name},code=[{code}]"]
    runner.run(
        [
            str(nvcc), "-ccbin", host, "-std=c++17", "-O3", "--threads", str(jobs), *targets,
            "-Xcompiler", "-fPIC,-fvisibility=hidden", "-c", "native/kernels.cu", "-o", "device.o",
        ]
    )  # fmt: skip
    return f"nvcc {_release(runner.run([str(nvcc), '--version']))}"


def _compile_with_nvrtc(runner: Runner, toolkit: Toolkit, host: str, architectures: tuple[Architecture, ...]) -> str:
    """native/device.cuh to device.o; the compilers' names and versions."""
    release = toolkit.release
    suffix = "-cu12" if toolkit.major == 12 else ""
    nvrtc_library = toolkit.library(f"libnvrtc.so.{toolkit.major}", f"nvidia-cuda-nvrtc{suffix}=={release}.*")
    fatbin_library = toolkit.library(f"libnvfatbin.so.{toolkit.major}", f"nvidia-nvfatbin{suffix}=={release}.*")
    ptxas = toolkit.program("ptxas", f"nvidia-cuda-nvcc{suffix}=={release}.*")
    source = (runner.directory / "native" / "device.cuh").read_text(encoding="utf-8")

    cubins: list[tuple[str, bytes]] = []
    ptx: list[tuple[str, bytes]] = []
    for architecture in architectures:
        options = [
            f"--gpu-architecture={architecture.ptx_name}", "--std=c++17",
            f"--include-path={runner.directory / 'native'}",
        ]  # fmt: skip
        say(f"+ nvrtcCompileProgram device.cuh {' '.join(options)}   # {nvrtc_library}")
        text = nvrtc.compile_to_ptx(nvrtc_library, source, "device.cuh", options)
        ptx_name, cubin_name = f"device.{architecture.number}.ptx", f"device.{architecture.number}.cubin"
        (runner.directory / ptx_name).write_bytes(text)
        runner.run([str(ptxas), "-O3", f"--gpu-name={architecture.sass_name}", ptx_name, "-o", cubin_name])
        cubins.append((architecture.number, (runner.directory / cubin_name).read_bytes()))
        if architecture.ptx:
            ptx.append((architecture.number, text))
    say(f"+ nvFatbinGet -> {_FATBIN}   # {fatbin_library}")
    (runner.directory / _FATBIN).write_bytes(nvrtc.make_fatbin(fatbin_library, cubins, ptx, "device"))
    runner.run(
        [
            host, *_HOST_OPTIONS, "-isystem", str(toolkit.include), f'-DREHEARSAL_FATBIN="{_FATBIN}"',
            "-c", "native/registration.cpp", "-o", "device.o",
        ]
    )  # fmt: skip
    return f"NVRTC {release} and ptxas {_release(runner.run([str(ptxas), '--version']))}"


def _release(version_text: str) -> str:
    """``13.0.88`` from what nvcc and ptxas print about themselves."""
    found = re.search(r"\bV(\d+\.\d+\.\d+)", version_text)
    return found[1] if found else "of unknown version"
