"""Device compilation without nvcc: NVRTC makes PTX, libnvfatbin the fat binary, both through ctypes."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from pathlib import Path

from buildtools.toolkit import BuildError


def _load(path: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise BuildError(
            f"cannot load {path}: {error}", "install the toolkit's wheels anew: the file is damaged"
        ) from error


def compile_to_ptx(library: Path, source: str, name: str, options: Sequence[str]) -> bytes:
    """Compile one CUDA source text to PTX; the compiler's log becomes the error's message."""
    nvrtc = _load(library)
    nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p

    def check(status: int, call: str) -> None:
        if status != 0:
            reason = nvrtc.nvrtcGetErrorString(status).decode()
            raise BuildError(f"{call}: {reason}", "check the architecture list against this toolkit's release")

    program = ctypes.c_void_p()
    check(
        nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), name.encode(), 0, None, None),
        "nvrtcCreateProgram",
    )
    try:
        array = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        status = nvrtc.nvrtcCompileProgram(program, len(options), array)
        if status != 0:
            size = ctypes.c_size_t()
            check(nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size)), "nvrtcGetProgramLogSize")
            log = ctypes.create_string_buffer(size.value)
            check(nvrtc.nvrtcGetProgramLog(program, log), "nvrtcGetProgramLog")
            reason = nvrtc.nvrtcGetErrorString(status).decode()
            raise BuildError(
                f"NVRTC could not compile {name} ({reason}): {log.value.decode(errors='replace').strip()}",
                "check the architecture list against this toolkit's release (12.0f needs CUDA 12.9)",
            )
        size = ctypes.c_size_t()
        check(nvrtc.nvrtcGetPTXSize(program, ctypes.byref(size)), "nvrtcGetPTXSize")
        text = ctypes.create_string_buffer(size.value)
        check(nvrtc.nvrtcGetPTX(program, text), "nvrtcGetPTX")
        return text.raw.rstrip(b"\0")
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def make_fatbin(
    library: Path, cubins: Iterable[tuple[str, bytes]], ptx: Iterable[tuple[str, bytes]], name: str
) -> bytes:
    """Put cubins and PTX, each with its architecture's number ("120"), into one fat binary (nvFatbin.h)."""
    nvfatbin = _load(library)
    nvfatbin.nvFatbinGetErrorString.restype = ctypes.c_char_p

    def check(status: int, call: str) -> None:
        if status != 0:
            reason = nvfatbin.nvFatbinGetErrorString(status).decode()
            raise BuildError(f"{call}: {reason}", "use the nvfatbin wheel of the same CUDA release as the compiler")

    handle = ctypes.c_void_p()
    options = (ctypes.c_char_p * 2)(b"-64", b"-host=linux")
    check(nvfatbin.nvFatbinCreate(ctypes.byref(handle), options, ctypes.c_size_t(2)), "nvFatbinCreate")
    try:
        for number, code in cubins:
            status = nvfatbin.nvFatbinAddCubin(handle, code, ctypes.c_size_t(len(code)), number.encode(), name.encode())
            check(status, f"nvFatbinAddCubin (sm_{number})")
        for number, code in ptx:
            terminated = code + b"\0"  # nvFatbin reads the text up to its end mark
            status = nvfatbin.nvFatbinAddPTX(
                handle, terminated, ctypes.c_size_t(len(terminated)), number.encode(), name.encode(), b""
            )
            check(status, f"nvFatbinAddPTX (compute_{number})")
        size = ctypes.c_size_t()
        check(nvfatbin.nvFatbinSize(handle, ctypes.byref(size)), "nvFatbinSize")
        data = ctypes.create_string_buffer(size.value)
        check(nvfatbin.nvFatbinGet(handle, data), "nvFatbinGet")
        return data.raw
    finally:
        nvfatbin.nvFatbinDestroy(ctypes.byref(handle))
