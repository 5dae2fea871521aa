"""Reading the headers of the device code that nvcc embeds in a host file (sections .nv_fatbin,
__nv_relfatbin).

A section is a row of containers, one for each translation unit; a container is a row of entries, one for each
architecture that the unit was compiled for. Only the headers are read, never the code.

Layout, as written by nvcc 12.8 and 13.0 and read from their output (see `tests/unit/test_fatbin.py`); the
names of the fields follow the public descriptions by the authors of Cricket (RWTH Aachen,
`fatbin-decompress.h`):

container: magic u32, version u16, header size u16, size of all entries u64
entry: kind u16, version u16, header size u32, payload size u64, compressed size u32, options offset u32,
       minor u16, major u16 (for PTX: the PTX ISA version), architecture u32, name offset u32, name length
       u32, flags u64, unused u64, uncompressed size u64
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from crossgrade.inspect.cubin import flag_variant
from crossgrade.inspect.decompress import beginning
from crossgrade.inspect.elf import Source, UnreadableElfError

MAGIC = 0xBA55ED50
KINDS = {1: "ptx", 2: "sass", 8: "lto"}

_CONTAINER = struct.Struct("<IHHQ")
_ENTRY = struct.Struct("<HHIQIIHHIIIQQQ")
_ELF_MAGIC, _ZSTD_MAGIC = b"\x7fELF", b"\x28\xb5\x2f\xfd"
_FLAG_LZ4, _FLAG_ZSTD = 1 << 13, 1 << 15
_FLAG_ARCHITECTURE_SPECIFIC, _FLAG_FAMILY_SPECIFIC = 1 << 20, 1 << 21
# The most that one file may hold, entries and containers together: libcublasLt of CUDA 12.8 has 8,786.
MAX_PIECES = 1 << 17
# nvcc and its linkers put containers side by side; zeros as long as a page are a part of the file that is lost.
_MAX_PADDING = 1 << 10
# An entry's header and the beginning of its payload: nvcc writes headers of 64 to 120 bytes.
_BEGINNING = 256
# nvcc's device link step adds a cubin without any function to most files: 1.5 to 2 kB, packed 300 to 600 bytes. PTX of
# host code alone is a comment and three directives.
_EMPTY_LIMITS = {"sass": 1 << 14, "ptx": 1 << 10}
_EMPTY_PACKED_LIMIT = 1 << 10
# Entries of nvFatbin 12.4 have no flag for a variant; there was none before sm_90a.
_FIRST_WITH_VARIANT = 90
_HEADER_PACKED = 128  # LZ4 makes of 64 bytes 66 at most


class UnreadableFatbinError(UnreadableElfError):
    """The device code in a file cannot be read; `reason` is one line for people."""


@dataclass(frozen=True)
class FatbinEntry:
    """One piece of device code.

    ``architecture`` is 120 for sm_120 and compute_120, ``variant`` is ``""``, ``"a"`` or ``"f"``,
    ``compression`` is ``""``, ``"lz4"`` or ``"zstd"``, sizes are in bytes, ``version`` is the PTX ISA version
    of PTX, such as (9, 0). ``empty`` is True for machine code or PTX that holds no function at all.
    """

    kind: str
    architecture: int
    variant: str
    compression: str
    payload_size: int
    uncompressed_size: int
    version: tuple[int, int] | None
    flags: int
    empty: bool = False

    @property
    def name(self) -> str:
        """As compilers write it: ``sm_120a``, ``compute_90``, ``lto_120``."""
        prefix = {"ptx": "compute", "sass": "sm"}.get(self.kind, self.kind)
        return f"{prefix}_{self.architecture}{self.variant}"


@dataclass(frozen=True)
class FatbinContainer:
    """The device code of one translation unit; ``offset`` is its place in the file."""

    offset: int
    entries: tuple[FatbinEntry, ...]


def read_fatbin(source: Source, offset: int, size: int, most: int = MAX_PIECES) -> tuple[FatbinContainer, ...]:
    """The containers in ``size`` bytes of the file from ``offset``; ``most`` entries and containers at most.

    Raises `UnreadableFatbinError` for anything else than whole, well-formed containers and zero padding.
    """
    try:
        return _containers(source, offset, offset + size, most)
    except UnreadableFatbinError:
        raise
    except UnreadableElfError as error:
        raise UnreadableFatbinError(f"its device code is {error.reason}") from error


def _containers(source: Source, offset: int, end: int, most: int) -> tuple[FatbinContainer, ...]:
    found: list[FatbinContainer] = []
    padding = 0
    while offset < end:
        head = source.read(offset, min(16, end - offset))
        if len(head) < 16 or head[:4] == b"\0\0\0\0":
            step = len(head) - len(head.lstrip(b"\0"))
            if step < len(head):
                step -= step % 4
            if step == 0:
                raise UnreadableFatbinError("its device code ends in the middle of a header")
            padding += step
            if padding > _MAX_PADDING:
                raise UnreadableFatbinError(f"its device code is lost from {offset - padding + step:#x} on: only zeros")
            offset += step
            continue
        magic, version, header_size, size = _CONTAINER.unpack(head)
        if magic != MAGIC or version != 1 or header_size < 16:
            raise UnreadableFatbinError(f"its device code has an unknown header at {offset:#x}")
        stop = offset + header_size + size
        if stop > end:
            raise UnreadableFatbinError("its device code is cut short")
        entries = _entries(source, offset + header_size, stop, most)
        most -= len(entries) + 1
        padding = 0
        if most < 0:
            raise UnreadableFatbinError("it claims too many pieces of device code")
        found.append(FatbinContainer(offset, entries))
        offset = stop
    return tuple(found)


def _entries(source: Source, offset: int, stop: int, most: int) -> tuple[FatbinEntry, ...]:
    found: list[FatbinEntry] = []
    while offset < stop:
        if stop - offset < _ENTRY.size:
            raise UnreadableFatbinError("a piece of its device code has no room for its header")
        first = source.read(offset, min(_BEGINNING, stop - offset))
        (
            number,
            _,
            header_size,
            payload,
            compressed,
            _,
            minor,
            major,
            architecture,
            _,
            _,
            flags,
            _,
            original,
        ) = _ENTRY.unpack_from(first)
        following = offset + header_size + payload
        if header_size < _ENTRY.size or following > stop:
            raise UnreadableFatbinError("a piece of its device code is cut short")
        kind = KINDS.get(number, f"kind{number}")
        compression = "zstd" if flags & _FLAG_ZSTD else "lz4" if flags & _FLAG_LZ4 else ""
        variant = "a" if flags & _FLAG_ARCHITECTURE_SPECIFIC else "f" if flags & _FLAG_FAMILY_SPECIFIC else ""
        begins = first[header_size : header_size + min(4, payload)]
        expected = _ZSTD_MAGIC if compression == "zstd" else _ELF_MAGIC if kind == "sass" and not compression else b""
        if kind not in ("ptx", "sass"):  # what nvcc 13.0 writes of LTO code is no plain Zstandard frame
            expected = b""
        if header_size + 4 <= _BEGINNING and not begins.startswith(expected):
            raise UnreadableFatbinError(f"a piece of its device code at {offset:#x} is not what its header says")
        stored = compressed if compression and 0 < compressed <= payload else payload
        size = original if compression else payload
        begin = offset + header_size
        if kind == "sass" and not variant and architecture >= _FIRST_WITH_VARIANT and compression != "zstd":
            head = source.read(begin, min(stored, _HEADER_PACKED))
            variant = flag_variant(beginning(head, compression, 64))
        small = size <= _EMPTY_LIMITS.get(kind, -1) and (not compression or stored <= _EMPTY_PACKED_LIMIT)
        empty = small and _holds_no_function(kind, beginning(source.read(begin, stored), compression, size))
        found.append(
            FatbinEntry(
                kind=kind,
                architecture=architecture,
                variant=variant,
                compression=compression,
                payload_size=stored,
                uncompressed_size=size,
                version=(major, minor) if kind == "ptx" else None,
                flags=flags,
                empty=empty,
            )
        )
        if len(found) > most:
            raise UnreadableFatbinError("it claims too many pieces of device code")
        offset = following
    return tuple(found)


def _holds_no_function(kind: str, code: bytes) -> bool:
    """Whether PTX has no kernel and no function, or a cubin, itself an ELF file, no section with machine code."""
    if kind == "ptx":
        return b".version" in code and b".entry" not in code and b".func" not in code
    if len(code) < 64 or code[:4] != _ELF_MAGIC or code[4] != 2:
        return False
    place, size, count = struct.unpack_from("<Q", code, 40)[0], *struct.unpack_from("<HH", code, 58)
    if size != 64 or place + size * count > len(code):
        return False
    executable = 0x4  # SHF_EXECINSTR
    return not any(struct.unpack_from("<Q", code, place + 64 * index + 8)[0] & executable for index in range(count))
