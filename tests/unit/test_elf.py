"""Hostile ELF files: whatever the bytes, an answer or `UnreadableElfError`, in bounded time and memory."""

from __future__ import annotations

import struct
import sys
import time
import tracemalloc
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.support.native import build, build_program, have_gcc

from crossgrade.inspect.device_code import read_device_code
from crossgrade.inspect.elf import BytesSource, UnreadableElfError, parse_elf
from crossgrade.inspect.elf_symbols import defined_symbols, list_symbols, referenced_symbols, scan_symbols
from crossgrade.inspect.loader_settings import parse_loader_cache, settings_from_diagnostics

pytestmark = pytest.mark.skipif(not have_gcc(), reason="gcc is not installed")


@cache
def samples() -> tuple[bytes, ...]:
    """Real files: a library with versions, one that needs versions, one without sections, a program."""
    with TemporaryDirectory() as name:
        place = Path(name)
        code = "int f(void) { return 1; } int g(void) { return 2; }"
        script = "V_1 { global: f; local: *; };\nV_2 { global: g; } V_1;"
        options = ["-Wl,-soname,libv.so.1"]
        library = build(place / "libv.so.1", code, options=options, version_script=script)
        user = '#include <stdio.h>\nint f(void); int PyInit_user(void) { return printf("%d", f()); }'
        options = ["-Wl,-rpath,$ORIGIN", "-Wl,--hash-style=both"]
        extension = build(place / "user.so", user, libraries=[library], options=options)
        program = build_program(place / "tool", "int main(void) { return 0; }")
        bare = bytearray(extension.read_bytes())
        bare[40:48], bare[58:64] = bytes(8), bytes(6)
        return library.read_bytes(), extension.read_bytes(), bytes(bare), program.read_bytes()


def read_everything(data: bytes) -> None:
    """Every reader over the same bytes; nothing but `UnreadableElfError` may come out."""
    source = BytesSource(data)
    with suppress(UnreadableElfError):
        elf = parse_elf(source)
        for read in (scan_symbols, defined_symbols, list_symbols, read_device_code):
            with suppress(UnreadableElfError):
                read(source, elf)
        with suppress(UnreadableElfError):
            referenced_symbols(source, elf, frozenset([b"f"]))


def test_a_sound_file_is_read() -> None:
    library, extension, bare, program = (BytesSource(data) for data in samples())
    elf = parse_elf(library)
    assert (elf.soname, elf.kind, elf.bits) == ("libv.so.1", "shared", 64)
    assert [version.version for version in elf.defined_versions] == ["libv.so.1", "V_1", "V_2"]
    assert defined_symbols(library, elf).keyed >= {b"f@V_1", b"g@V_2"}
    elf = parse_elf(extension)
    assert elf.needed[0] == "libv.so.1"
    undefined, modules = scan_symbols(extension, elf)
    assert modules == ("user",)
    assert undefined.versioned[b"f@V_1"].library == "libv.so.1"
    assert scan_symbols(bare, parse_elf(bare)) == (undefined, modules)
    assert parse_elf(program).interpreter


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 3), st.floats(0, 1))
def test_truncation(which: int, share: float) -> None:
    data = samples()[which]
    read_everything(data[: int(share * len(data))])


@settings(max_examples=1500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.integers(0, 3),
    st.lists(
        st.tuples(
            st.one_of(st.integers(0, 1200), st.integers(0, 20_000)),
            st.one_of(
                st.binary(min_size=1, max_size=8),
                st.sampled_from([b"\xff" * 4, b"\xff" * 8, b"\0" * 8, b"\0\0\0\x7f", b"\x01\0\0\0\0\0\0\x80"]),
            ),
        ),
        min_size=1,
        max_size=6,
    ),
)
def test_mutation(which: int, changes: list[tuple[int, bytes]]) -> None:
    data = bytearray(samples()[which])
    for place, content in changes:
        place %= len(data)
        data[place : place + len(content)] = content
    read_everything(bytes(data))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=400))
@example(b"")
@example(b"\x7fELF")
def test_noise(data: bytes) -> None:
    read_everything(data)
    read_everything(samples()[0][:64] + data)
    parse_loader_cache(data, "x86_64")
    parse_loader_cache(b"glibc-ld.so.cache1.1" + data, "x86_64")


@pytest.mark.parametrize("field", range(4))
def test_every_table_may_claim_any_size(field: int) -> None:
    """Each value of the dynamic section in turn becomes huge: bounded time and memory."""
    data = samples()[field]
    elf = parse_elf(BytesSource(data))
    started = time.perf_counter()
    tracemalloc.start()
    for tag, value in elf.dynamic:
        entry = struct.pack("<QQ", tag, value)
        for claim in (0, 1, len(data), len(data) * 1000, 1 << 31, 1 << 40, (1 << 64) - 1):
            read_everything(data.replace(entry, struct.pack("<QQ", tag, claim), 1))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 << 20
    assert time.perf_counter() - started < 60


def test_the_loaders_own_account_of_itself() -> None:
    text = (
        'dl_dst_lib="lib/x86_64-linux-gnu"\ndl_hwcaps_subdirs="x86-64-v4:x86-64-v3:x86-64-v2"\n'
        'dl_hwcaps_subdirs_active=0x3\ndl_platform="haswell"\npath.system_dirs[0x0]="/lib/x86_64-linux-gnu/"\n'
        'path.system_dirs[0x1]="/usr/lib/"\nversion.version="2.36"\n'
    )
    found = settings_from_diagnostics(text, "x86_64", {})
    assert found.system_directories == ("/lib/x86_64-linux-gnu", "/usr/lib")
    assert found.hardware_directories == ("glibc-hwcaps/x86-64-v3", "glibc-hwcaps/x86-64-v2")
    assert (found.glibc, found.platform_token, found.library_token) == (
        "2.36",
        "haswell",
        "lib/x86_64-linux-gnu",
    )
    assert settings_from_diagnostics("nonsense", "x86_64", {}).system_directories[0] == "/lib64"


def test_this_python_can_be_read() -> None:
    with Path(sys.executable).open("rb") as file:
        read_everything(file.read())
