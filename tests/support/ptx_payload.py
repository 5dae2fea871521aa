"""The PTX itself in the fatbins of a file, unpacked, to compare what its headers say of it."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path

from crossgrade.inspect.elf import FileSource, Source, parse_elf
from crossgrade.inspect.fatbin import FatbinEntry, read_fatbin
from crossgrade.store.zstandard import zstd

_BEGINNING = 4096


def ptx_versions(path: Path) -> Iterator[tuple[FatbinEntry, tuple[int, int] | None]]:
    """Each entry of PTX in an ELF file, with the version that its text states."""
    with FileSource(str(path)) as source:
        for section in parse_elf(source).sections:
            if section.name in (".nv_fatbin", "__nv_relfatbin") and section.size:
                yield from ptx_of_fatbin(source, section.offset, section.size)


def ptx_of_fatbin(source: Source, offset: int, size: int) -> Iterator[tuple[FatbinEntry, tuple[int, int] | None]]:
    """The same of a fatbin that lies anywhere in a file."""
    for container in read_fatbin(source, offset, size):
        (place,) = struct.unpack("<H", source.read(container.offset + 6, 2))
        place += container.offset
        for entry in container.entries:
            header, payload = struct.unpack("<IQ", source.read(place + 4, 12))
            if entry.kind == "ptx":
                yield entry, _stated(source.read(place + header, min(entry.payload_size, 1 << 16)), entry.compression)
            place += header + payload


def _stated(payload: bytes, compression: str) -> tuple[int, int] | None:
    if compression == "zstd":
        payload = zstd.ZstdDecompressor().decompress(payload, max_length=_BEGINNING)
    elif compression == "lz4":
        payload = _lz4_beginning(payload)
    match = re.search(rb"^\s*\.version\s+(\d+)\.(\d+)", payload, re.MULTILINE)
    return (int(match[1]), int(match[2])) if match else None


def _lz4_beginning(block: bytes) -> bytes:
    """The first bytes of an LZ4 block (the format is described in lz4's doc/lz4_Block_format.md)."""
    out = bytearray()
    place = 0

    def length(nibble: int) -> int:
        nonlocal place
        total = nibble
        while total >= 15 and (nibble == 15 or block[place - 1] == 255):
            total += block[place]
            place += 1
            nibble = 0
        return total

    while place < len(block) and len(out) < _BEGINNING:
        token = block[place]
        place += 1
        literals = length(token >> 4)
        out += block[place : place + literals]
        place += literals
        if place + 2 > len(block):
            break
        distance = block[place] | block[place + 1] << 8
        place += 2
        for _ in range(length(token & 15) + 4):
            out.append(out[-distance])
    return bytes(out)
