"""Damaged and crafted ELF files and device code: a result or `UnreadableElfError`, and never a pass that is none.

Exhaustive where the files are small enough, by hypothesis elsewhere; the long, coverage-guided runs are
`atheris_elf.py` and `atheris_fatbin.py` beside this file.
"""

from __future__ import annotations

import random
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.crafted import library
from tests.support.hostile import (
    INTERESTING,
    changed,
    container_fields,
    fatbins,
    fields,
    read_device,
    read_elf,
    small_elf_files,
    with_device_code,
)
from tests.support.native import have_gcc
from tests.support.toolkits import toolkits

from crossgrade.inspect.device_code import read_device_code
from crossgrade.inspect.elf import BytesSource, UnreadableElfError, parse_elf
from crossgrade.inspect.elf_index import ElfIndex
from crossgrade.inspect.elf_symbols import defined_symbols, scan_symbols
from crossgrade.inspect.loader_settings import read_loader_settings
from crossgrade.inspect.loading import Loader, Process
from crossgrade.inspect.symbols import SymbolChecker

pytestmark = pytest.mark.skipif(not have_gcc(), reason="gcc is not installed")

NAMES = (
    "versioned",
    "extension",
    "old",
    "relr",
    "program",
    "32-bit",
    "relocatable",
    "no sections",
    "big-endian",
    "core",
)
LOADED = ("versioned", "extension", "old", "relr")
QUICK = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])

_OPENS = r"""
import ctypes, os, sys
for path in sys.stdin.read().split():
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        try:
            ctypes.CDLL(path, mode=os.RTLD_NOW)
        except (OSError, UnicodeDecodeError):
            os._exit(1)
        os._exit(0)
    print(path, os.waitpid(child, 0)[1], flush=True)
"""


@pytest.mark.parametrize(("name", "step"), [("extension", 1), ("old", 7), ("no sections", 5), ("program", 7)])
def test_truncation(name: str, step: int) -> None:
    data = small_elf_files()[name]
    for size in range(0, len(data), step):
        read_elf(data[:size])


@QUICK
@given(st.sampled_from(NAMES), st.data())
def test_numbers_in_headers_and_tables(name: str, data: st.DataObject) -> None:
    content = small_elf_files()[name]
    places = fields(content)
    for place, width in data.draw(st.lists(st.sampled_from(places), min_size=1, max_size=4)):
        content = changed(content, place, width, data.draw(st.sampled_from(INTERESTING) | st.integers(0, 1 << 64)))
    read_elf(content)


def loads(path: Path) -> bool:
    """What the inspector says of one file."""
    index = ElfIndex()
    loader = Loader(index, read_loader_settings())
    try:
        elf, _, _ = index.read(str(path))
        if elf.kind != "shared" or elf.machine != "x86_64" or not elf.understood or not elf.is_dynamic:
            return False
        process = Process(None)
        loaded = loader.load(process, str(path))
        findings = SymbolChecker(index, loader).check(process, loaded)
    except UnreadableElfError:
        return False
    return not (loaded.missing or findings.versions or findings.symbols)


@pytest.mark.parametrize("seed", range(2))
def test_what_is_said_to_load_does_load(seed: int, tmp_path: Path) -> None:
    """One number of a file is changed; where the inspector still says that it loads, so does the loader.

    The loader crashes on many of them, so that each is opened in a process of its own.
    """
    chance = random.Random(seed)  # noqa: S311 - no secret
    samples = small_elf_files()
    (tmp_path / "libv.so.1").write_bytes(samples["versioned"])
    changes: dict[str, tuple[str, int, int, int]] = {}
    for number in range(250):
        name = chance.choice(LOADED)
        place, width = chance.choice(fields(samples[name]))
        there = int.from_bytes(samples[name][place : place + width], "little")
        bit, near = there ^ 1 << chance.randrange(8 * width), there + chance.choice((-8, -1, 1, 8))
        value = chance.choice((bit, near, chance.choice(INTERESTING)))
        path = tmp_path / f"{number}.so"
        path.write_bytes(changed(samples[name], place, width, value))
        if loads(path):
            changes[str(path)] = (name, place, width, value)
        else:
            path.unlink()
    assert len(changes) > 50
    command = [sys.executable, "-c", _OPENS]
    done = subprocess.run(command, input="\n".join(changes), capture_output=True, text=True, check=True)
    answers = dict(line.split() for line in done.stdout.splitlines())
    assert answers.keys() == changes.keys()
    assert [changes[path] for path, status in answers.items() if status != "0"] == []


@pytest.mark.parametrize("name", LOADED)
def test_the_samples_themselves_load(name: str, tmp_path: Path) -> None:
    (tmp_path / "libv.so.1").write_bytes(small_elf_files()["versioned"])
    path = tmp_path / f"{name}.so"
    path.write_bytes(small_elf_files()[name])
    assert loads(path)


def unreadable(data: bytes) -> str:
    """Why `scan_symbols` or the parser refuse a file; empty where they do not."""
    source = BytesSource(data)
    try:
        scan_symbols(source, parse_elf(source))
    except UnreadableElfError as error:
        return error.reason
    return ""


def section(data: bytes, kind: int) -> int:
    """Where the section of a type begins."""
    return next(section.offset for section in parse_elf(BytesSource(data)).sections if section.kind == kind)


def test_a_hash_chain_that_never_ends() -> None:
    """The loader would look for a symbol forever."""
    data = small_elf_files()["old"]
    table = section(data, 5)
    buckets, symbols = struct.unpack_from("<II", data, table)
    chains = table + 8 + 4 * buckets
    for symbol in range(1, symbols):
        looped = changed(data, chains + 4 * symbol, 4, symbol)
        assert "hash table" in unreadable(looped)


@pytest.mark.parametrize(("step", "words"), [(8, "its hash table"), (16, "not fit")])
def test_a_hash_table_that_finds_nothing(step: int, words: str) -> None:
    data = small_elf_files()["versioned"]
    table = section(data, 0x6FFFFFF6)
    assert words in unreadable(changed(data, table + step, 4, 0))
    source = BytesSource(changed(data, table, 4, 0))  # without buckets nothing is found, and nothing is damaged
    assert defined_symbols(source, parse_elf(source)).plain == frozenset()


def test_a_name_that_its_hash_does_not_find() -> None:
    data = small_elf_files()["extension"]
    assert "not fit its symbols" in unreadable(data.replace(b"\0own\0", b"\0owm\0"))
    assert "hash of its version" in unreadable(data.replace(b"V_2\0", b"V_3\0", 1))


def test_a_table_without_its_size() -> None:
    """The loader would read it by what stands at address 0."""
    data = small_elf_files()["versioned"]
    end = next(place for place, _ in fields(data) if place >= section(data, 6) and not any(data[place : place + 16]))
    assert "has tag 7 and lacks tag 8" in unreadable(changed(data, end, 8, 7))


def test_many_symbols_and_the_same_version_many_times() -> None:
    """Every pair of them would be a name: 4,000 versions with one number take no more than one."""
    elf = parse_elf(BytesSource(library(versions=4000)))
    assert len(elf.needed_versions) == 4000
    with pytest.raises(UnreadableElfError, match="too many version"):
        parse_elf(BytesSource(library(versions=5000)))


@pytest.fixture(scope="module")
def device() -> dict[str, bytes]:
    return fatbins(toolkits().cuda_13_0)


def test_device_code_is_read_where_it_stands(device: dict[str, bytes]) -> None:
    for name, names in (("both", {"sm_90", "compute_90"}), ("specific", {"sm_120a", "compute_120f"})):
        data = with_device_code(device[name])
        bare = changed(changed(data, 40, 8, 0), 58, 6, 0)
        for variant in (data, bare):
            source = BytesSource(variant)
            code = read_device_code(source, parse_elf(source))
            assert code is not None
            assert set(code.names) == names


def test_truncated_device_code_is_unreadable(device: dict[str, bytes]) -> None:
    for content in device.values():
        assert read_device(content) is not None
        for size in range(1, len(content)):
            assert read_device(content[:size]) is None, size


@QUICK
@given(st.sampled_from(["plain", "ptx", "both", "specific"]), st.data())
def test_numbers_in_device_code(device: dict[str, bytes], name: str, data: st.DataObject) -> None:
    content = device[name]
    places = container_fields(content)
    for place, width in data.draw(st.lists(st.sampled_from(places), min_size=1, max_size=4)):
        content = changed(content, place, width, data.draw(st.sampled_from(INTERESTING) | st.integers(0, 1 << 64)))
    read_device(content)


def test_lost_pages_of_device_code_are_no_padding(device: dict[str, bytes]) -> None:
    content = device["both"]
    assert read_device(bytes(4096)) is None
    assert read_device(content + bytes(64) + content) is not None
    assert read_device(content + bytes(4096)) is None
    start = struct.unpack_from("<I", content, 16 + 4)[0] + 16
    assert read_device(content[:start] + bytes(512) + content[start + 512 :]) is None
