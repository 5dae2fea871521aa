"""Small real ELF files of every kind that the inspector meets, and every reader over the same bytes.

The files are kept below 8 kB, so that a fuzzer changes what a reader looks at and not padding.
"""

from __future__ import annotations

import os
import struct
import subprocess
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support.native import build, build_program

from crossgrade.inspect.device_code import read_device_code, summarize
from crossgrade.inspect.elf import BytesSource, ElfFile, UnreadableElfError, parse_elf
from crossgrade.inspect.elf_symbols import defined_symbols, list_symbols, referenced_symbols, scan_symbols
from crossgrade.inspect.fatbin import FatbinContainer, read_fatbin
from crossgrade.inspect.gpu_architecture import DeviceCode

_SMALL = ("-nostdlib", "-s", "-Wl,-z,noseparate-code", "-Wl,--build-id=none", "-Wl,-z,norelro")
_VERSIONED = "V_1 { global: f; local: *; };\nV_2 { global: g; } V_1;"
_USER = (
    "int f(void); int g(void); extern int weak(void) __attribute__((weak)); int own(void) { return 1; }\n"
    "int PyInit_user(void) { return f() + g() + own() + (weak ? weak() : 0); }"
)
_POINTERS = "static int a[4]; int *p[] = {a, a + 1, a + 2, a + 3}; int q(void) { return *p[0]; }"


@cache
def small_elf_files() -> dict[str, bytes]:
    """Name → content of real files made by gcc: shared libraries with each kind of table, programs, other kinds."""
    with TemporaryDirectory() as name:
        place = Path(name)

        def library(file: str, code: str, *options: str, script: str = "", needs: tuple[Path, ...] = ()) -> Path:
            return build(place / file, code, options=[*_SMALL, *options], version_script=script, libraries=needs)

        code = "int f(void) { return 1; } int g(void) { return 2; }"
        versioned = library("libv.so.1", code, "-Wl,-soname,libv.so.1", "-Wl,--hash-style=gnu", script=_VERSIONED)
        origin = "-Wl,--enable-new-dtags,-rpath,$ORIGIN:/nowhere"
        extension = library("user.so", _USER, origin, "-Wl,--hash-style=both", needs=(versioned,))
        old = library(
            "old.so", _USER, "-Wl,--disable-new-dtags,-rpath,$ORIGIN", "-Wl,--hash-style=sysv", needs=(versioned,)
        )
        relative = library("relr.so", _POINTERS, "-Wl,-z,pack-relative-relocs")
        program = build_program(
            place / "tool", "int f(void); void _start(void) { f(); }", libraries=[versioned], options=[*_SMALL, "-pie"]
        )
        subprocess.run(
            ["gcc", "-m32", "-shared", "-fPIC", *_SMALL, "-o", place / "small32.so", "-xc", "-"],
            input=code, text=True, check=True, capture_output=True,
        )  # fmt: skip
        subprocess.run(
            ["gcc", "-c", "-o", place / "part.o", "-xc", "-"], input=_USER, text=True, check=True, capture_output=True
        )
        bare = bytearray(extension.read_bytes())
        bare[40:48], bare[58:64] = bytes(8), bytes(6)
        found = {
            "versioned": versioned.read_bytes(),
            "extension": extension.read_bytes(),
            "old": old.read_bytes(),
            "relr": relative.read_bytes(),
            "program": program.read_bytes(),
            "32-bit": (place / "small32.so").read_bytes(),
            "relocatable": (place / "part.o").read_bytes(),
            "no sections": bytes(bare),
        }
    big = bytearray(found["versioned"])
    big[5], big[16:20] = 2, struct.pack(">HH", 3, 22)
    core = bytearray(found["program"])
    core[16:18] = b"\x04\0"
    return {**found, "big-endian": bytes(big), "core": bytes(core)}


@cache
def fatbins(home: Path) -> dict[str, bytes]:
    """Name → what the nvcc of a CUDA_HOME writes for one small kernel: machine code, PTX (packed and not), both."""
    wanted = {
        "plain": ["-gencode=arch=compute_120,code=sm_120", "--no-compress"],
        "ptx": ["-gencode=arch=compute_90,code=compute_90", "--no-compress"],
        "both": ["-gencode=arch=compute_90,code=[sm_90,compute_90]"],
        "specific": ["-gencode=arch=compute_120a,code=sm_120a", "-gencode=arch=compute_120f,code=compute_120f"],
    }
    found = {}
    with TemporaryDirectory() as name:
        source = Path(name) / "kernel.cu"
        source.write_text("__global__ void k(int *a) { a[0] = 1; }\n")
        for title, options in wanted.items():
            target = Path(name) / title
            command = [str(home / "bin" / "nvcc"), "-fatbin", *options, "-o", str(target), str(source)]
            subprocess.run(command, check=True, capture_output=True, env={**os.environ, "CUDA_HOME": str(home)})
            found[title] = target.read_bytes()
    return found


def with_device_code(content: bytes) -> bytes:
    """A small library with these bytes in its section .nv_fatbin, which is loaded, as nvcc makes it."""
    with TemporaryDirectory() as name:
        place = Path(name) / "content"
        place.write_bytes(content)
        section = '.section .nv_fatbin,\\"a\\"\\n.balign 8\\n.incbin \\"content\\"\\n.text'
        code = f'asm("{section}"); int f(void) {{ return 1; }}'
        return build(Path(name) / "libdevice.so", code, options=[*_SMALL, f"-Wa,-I{name}"]).read_bytes()


def read_elf(data: bytes) -> ElfFile | None:
    """Every reader of ELF files over the same bytes; None where they are unreadable.

    Nothing but `UnreadableElfError` is caught: any other exception is a defect.
    """
    source = BytesSource(data)
    try:
        elf = parse_elf(source)
    except UnreadableElfError:
        return None
    for read in (scan_symbols, defined_symbols, list_symbols, read_device_code):
        with suppress(UnreadableElfError):
            read(source, elf)
    with suppress(UnreadableElfError):
        referenced_symbols(source, elf, frozenset([b"f", b"PyInit_user"]))
    return elf


def read_device(data: bytes) -> tuple[tuple[FatbinContainer, ...], DeviceCode | None] | None:
    """The reader of device code over bytes; None where they are unreadable."""
    try:
        containers = read_fatbin(BytesSource(data), 0, len(data))
    except UnreadableElfError:
        return None
    return containers, summarize(containers)


_SMALL_NUMBERS = (0, 1, 2, 3, 7, 8, 16, 24, 63, 64, 255, 4096, 0x7FFF, 0x8000, 0xFFFF)
_LARGE_NUMBERS = (1 << 31, (1 << 32) - 1, 1 << 32, 1 << 40, 1 << 47, 1 << 63, (1 << 64) - 64, (1 << 64) - 1)
INTERESTING = (*_SMALL_NUMBERS, *_LARGE_NUMBERS)


def fields(data: bytes) -> list[tuple[int, int]]:
    """(place, width in bytes) of what a 64-bit file's headers and tables are made of, as far as it has them.

    The header, program headers, section headers, dynamic section, and the tables that the section headers name:
    symbols, hash tables, versions, relocations.
    """
    if len(data) < 64:
        return [(place, 1) for place in range(len(data))]
    found = [(4, 1), (5, 1), (6, 1), (7, 1), (16, 2), (18, 2), (20, 4), (24, 8), (32, 8), (40, 8), (48, 4)]
    found += [(place, 2) for place in range(52, 64, 2)]
    program, sections = struct.unpack_from("<QQ", data, 32)
    for index in range(min(struct.unpack_from("<H", data, 56)[0], 64)):
        place = program + 56 * index
        found += [(place, 4), (place + 4, 4), *((place + step, 8) for step in range(8, 56, 8))]
        if place + 56 <= len(data) and struct.unpack_from("<I", data, place)[0] == 2:
            start, size = struct.unpack_from("<Q", data, place + 8)[0], struct.unpack_from("<Q", data, place + 32)[0]
            found += [(start + step, 8) for step in range(0, min(size, 2048), 8)]
    for index in range(min(struct.unpack_from("<H", data, 60)[0], 64)):
        place = sections + 64 * index
        found += [(place, 4), (place + 4, 4), *((place + step, 8) for step in range(8, 40, 8)), (place + 40, 4)]
        if place + 64 > len(data):
            break
        kind, start, size = *struct.unpack_from("<I", data, place + 4), *struct.unpack_from("<QQ", data, place + 24)
        width = {11: 4, 5: 4, 0x6FFFFFF6: 4, 0x6FFFFFFE: 4, 0x6FFFFFFD: 4, 0x6FFFFFFF: 2, 4: 8, 3: 1}.get(kind)
        if width:
            found += [(start + step, width) for step in range(0, min(size, 2048), width)]
    return [(place, width) for place, width in found if place + width <= len(data)]


def changed(data: bytes, place: int, width: int, value: int) -> bytes:
    """The same with another number at a place."""
    content = (value & ((1 << 8 * width) - 1)).to_bytes(width, "little")
    return data[:place] + content + data[place + width :]


def container_fields(data: bytes) -> list[tuple[int, int]]:
    """(place, width in bytes) of the numbers in the headers of containers and entries, as they follow one another."""
    found: list[tuple[int, int]] = []
    place, stop = 0, 0
    while place + 64 <= len(data) and len(found) < 1000:
        if place >= stop:
            found += [(place, 4), (place + 4, 2), (place + 6, 2), (place + 8, 8)]
            head, size = *struct.unpack_from("<H", data, place + 6), *struct.unpack_from("<Q", data, place + 8)
            stop, place = place + head + size, place + max(head, 16)
            continue
        found += [(place, 2), (place + 2, 2), (place + 4, 4), (place + 8, 8), (place + 16, 4), (place + 20, 4)]
        found += [(place + 24, 2), (place + 26, 2), (place + 28, 4), (place + 40, 8), (place + 56, 8)]
        head, size = struct.unpack_from("<IQ", data, place + 4)
        place += max(head, 64) + size
    return found
