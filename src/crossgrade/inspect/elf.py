"""Reading one ELF file as glibc's loader does: program headers, dynamic section, versions.

Everything is read with `os.pread` in a few small pieces, so that a library of a gigabyte costs as much as one
of a kilobyte, and a file that is cut short while it is read gives an error, not the SIGBUS of a mapping.
Any input, however damaged, gives an `ElfFile` or an `UnreadableElfError`, in bounded time and memory.

Sources: System V ABI, chapters 4 and 5 (headers, program loading, dynamic section); the Linux Standard Base,
"Symbol Versioning"; glibc 2.36 `elf/dl-load.c` and `elf/dl-version.c` for what the loader accepts.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol

from crossgrade.errors import CrossgradeError

MAGIC = b"\x7fELF"
MACHINES = {3: "i386", 8: "mips", 20: "ppc", 21: "ppc64", 22: "s390", 40: "arm", 62: "x86_64", 183: "aarch64"}
MACHINES |= {190: "cuda", 224: "amdgpu", 243: "riscv", 247: "bpf", 258: "loongarch"}
TYPES = {1: "relocatable", 2: "executable", 3: "shared", 4: "core"}

# The largest tables that are read. libtorch_cuda, the largest library in the field, has 30 MB of names.
MAX_TABLE = 256 << 20
MAX_DYNAMIC_ENTRIES = 1 << 16
MAX_SECTIONS = 1 << 16
MAX_NEEDED = 1 << 12
MAX_VERSIONS = 1 << 14
MAX_NAME = 4096  # as long as a path may be
MAX_SEARCH_PATH = 1 << 16

_PT_LOAD, _PT_DYNAMIC, _PT_INTERP = 1, 2, 3
_DT_NEEDED, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_SONAME, _DT_RPATH = 1, 5, 6, 10, 14, 15
_DT_RUNPATH, _DT_FLAGS_1, _DT_VERDEF, _DT_VERDEFNUM = 29, 0x6FFFFFFB, 0x6FFFFFFC, 0x6FFFFFFD
_DT_VERNEED, _DT_VERNEEDNUM = 0x6FFFFFFE, 0x6FFFFFFF
_DF_1_NODEFLIB, _DF_1_PIE = 0x800, 0x08000000
_VER_FLG_BASE, _VER_FLG_WEAK = 1, 2


class UnreadableElfError(CrossgradeError, ValueError):
    """The file cannot be read as an ELF file; `reason` is one line for people."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, remedy="Install the package that owns the file again.")
        self.reason = reason


def _beyond(end: int, size: int) -> UnreadableElfError:
    return UnreadableElfError(f"truncated: a part of it ends at {end} bytes, the file at {size}")


class Source(Protocol):
    """Bytes that can be read at any place."""

    @property
    def size(self) -> int:
        """Length in bytes."""
        ...

    def read(self, offset: int, size: int) -> bytes:
        """Exactly ``size`` bytes from ``offset``; raises `UnreadableElfError` where they do not exist."""
        ...


class BytesSource:
    """A source in memory."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size = len(data)

    def read(self, offset: int, size: int) -> bytes:
        if offset < 0 or size < 0 or offset + size > self.size:
            raise _beyond(offset + size, self.size)
        return self._data[offset : offset + size]


class FileSource:
    """An open file; use it in a `with` statement."""

    def __init__(self, path: str | Path) -> None:
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise UnreadableElfError(f"cannot be opened: {error.strerror}") from error
        self.size = os.fstat(self._descriptor).st_size

    def read(self, offset: int, size: int) -> bytes:
        if offset < 0 or size < 0 or offset + size > self.size:
            raise _beyond(offset + size, self.size)
        try:
            data = os.pread(self._descriptor, size, offset)
            while len(data) < size:
                more = os.pread(self._descriptor, size - len(data), offset + len(data))
                if not more:
                    raise UnreadableElfError("the file was cut short while it was read")
                data += more
        except OSError as error:
            raise UnreadableElfError(f"cannot be read: {error.strerror}") from error
        return data

    def __enter__(self) -> FileSource:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)


@dataclass(frozen=True)
class Segment:
    """One PT_LOAD: ``size`` bytes of the file at ``offset`` appear at ``address``."""

    offset: int
    address: int
    size: int


@dataclass(frozen=True)
class Section:
    """One section header: name, type (SHT_*), address, place in the file."""

    name: str
    kind: int
    address: int
    offset: int
    size: int
    flags: int


@dataclass(frozen=True)
class NeededVersion:
    """One entry of .gnu.version_r: ``library`` (a soname) must define ``version``."""

    library: str
    version: str
    index: int
    weak: bool


@dataclass(frozen=True)
class DefinedVersion:
    """One entry of .gnu.version_d; the base entry names the library itself and no version of its symbols."""

    version: str
    index: int
    base: bool


@dataclass(frozen=True)
class ElfFile:
    """What the loader needs to know of one file.

    ``dynamic`` holds the first value of each DT_ tag. ``rpath`` is empty where ``runpath`` is set: the loader
    ignores it then. ``understood`` is False for a class or byte order that this system cannot load; then only
    the header is filled in.
    """

    bits: int
    machine: str
    kind: str
    understood: bool
    flags: int = 0
    is_dynamic: bool = False
    interpreter: str | None = None
    soname: str | None = None
    needed: tuple[str, ...] = ()
    rpath: str = ""
    runpath: str | None = None
    no_default_path: bool = False
    is_pie: bool = False
    needed_versions: tuple[NeededVersion, ...] = ()
    defined_versions: tuple[DefinedVersion, ...] = ()
    segments: tuple[Segment, ...] = ()
    sections: tuple[Section, ...] = ()
    dynamic: tuple[tuple[int, int], ...] = ()

    def tag(self, tag: int) -> int | None:
        """The first value of a DT_ tag."""
        for name, value in self.dynamic:
            if name == tag:
                return value
        return None

    def offset_of(self, address: int) -> int:
        """Where an address of the loaded file stands in the file."""
        for segment in self.segments:
            if segment.address <= address < segment.address + segment.size:
                return address - segment.address + segment.offset
        raise UnreadableElfError(f"address {address:#x} is in no part of the file that is loaded")


def parse_elf(source: Source) -> ElfFile:
    """Read headers, dynamic section and versions of one file.

    Raises `UnreadableElfError` for anything that is not a sound ELF file, among it every file whose segments
    or section headers reach beyond its end: the loader may map such a file, and the program dies later.
    """
    if source.size < 20 or source.read(0, 4) != MAGIC:
        raise UnreadableElfError("file too short" if source.size < 52 else "invalid ELF header")
    identity = source.read(0, 20)
    bits = {1: 32, 2: 64}.get(identity[4])
    if bits is None or identity[5] not in (1, 2) or identity[6] != 1:
        raise UnreadableElfError("invalid ELF header")
    order = "<" if identity[5] == 1 else ">"
    kind_number, machine_number = struct.unpack_from(order + "HH", identity, 16)
    machine = MACHINES.get(machine_number, f"machine {machine_number}")
    kind = TYPES.get(kind_number, f"type {kind_number}")
    if bits == 32 or order == ">":
        return ElfFile(bits, machine, kind, understood=False)
    header = struct.unpack("<IQQQIHHHHHH", source.read(20, 44))
    _, _, program_offset, section_offset, flags, _, entry_size, program_count, *rest = header
    section_entry_size, section_count, names_index = rest
    if machine == "cuda" or kind not in ("shared", "executable"):
        return ElfFile(bits, machine, kind, understood=True, flags=flags)
    if entry_size != 56 or program_count == 0:
        raise UnreadableElfError("it has no program headers of the expected size")
    segments, dynamic_place, interpreter = _program_headers(source, program_offset, program_count)
    sections = _section_headers(source, section_offset, section_entry_size, section_count, names_index)
    elf = ElfFile(bits, machine, kind, True, flags, interpreter=interpreter, segments=segments, sections=sections)
    return elf if dynamic_place is None else _with_dynamic(source, elf, *dynamic_place)


def _program_headers(
    source: Source, offset: int, count: int
) -> tuple[tuple[Segment, ...], tuple[int, int] | None, str | None]:
    segments = []
    dynamic = None
    interpreter = None
    for kind, _, place, address, _, size, memory, _ in struct.iter_unpack("<IIQQQQQQ", source.read(offset, 56 * count)):
        if kind not in (_PT_LOAD, _PT_DYNAMIC, _PT_INTERP):
            continue
        if place + size > source.size:
            raise _beyond(place + size, source.size)
        if kind == _PT_LOAD:
            if size > memory:
                raise UnreadableElfError("a segment is larger in the file than in memory")
            segments.append(Segment(place, address, size))
        elif kind == _PT_DYNAMIC:
            dynamic = (place, size)
        else:
            interpreter = _text(source.read(place, min(size, 4096)).split(b"\0", 1)[0])
    return tuple(segments), dynamic, interpreter


def _section_headers(source: Source, offset: int, entry_size: int, count: int, names_index: int) -> tuple[Section, ...]:
    """The section headers; the loader does without them, so a file may have none (offset 0)."""
    if offset == 0:
        return ()
    if entry_size != 64:
        raise UnreadableElfError("its section headers have an unexpected size")
    if count == 0:  # more sections than fit into 16 bits: the first header's size holds the number
        count = struct.unpack_from("<Q", source.read(offset, 64), 32)[0]
    if count > MAX_SECTIONS:
        raise UnreadableElfError(f"it claims {count} sections")
    headers = list(struct.iter_unpack("<IIQQQQIIQQ", source.read(offset, 64 * count)))
    if names_index == 0xFFFF and headers:
        names_index = headers[0][6]
    if names_index >= len(headers):
        raise UnreadableElfError("its section names are missing")
    _, _, _, _, names_offset, names_size, *_ = headers[names_index]
    names = source.read(names_offset, _bounded(names_size))
    sections = []
    for name, kind, flags, address, place, size, *_ in headers:
        if kind != 8 and place + size > source.size:  # 8: SHT_NOBITS, which takes no room in the file
            raise _beyond(place + size, source.size)
        sections.append(Section(_string(names, name), kind, address, place, size, flags))
    return tuple(sections)


def _with_dynamic(source: Source, elf: ElfFile, offset: int, size: int) -> ElfFile:
    if size // 16 > MAX_DYNAMIC_ENTRIES:
        raise UnreadableElfError("its dynamic section is implausibly large")
    entries: list[tuple[int, int]] = []
    for tag, value in struct.iter_unpack("<QQ", source.read(offset, size - size % 16)):
        if tag == 0:
            break
        entries.append((tag, value))
    else:
        raise UnreadableElfError("its dynamic section has no end")
    first: dict[int, int] = {}
    for tag, value in entries:
        first.setdefault(tag, value)
    mapped = ElfFile(
        elf.bits, elf.machine, elf.kind, True, elf.flags, segments=elf.segments, dynamic=tuple(first.items())
    )
    if _DT_STRTAB not in first or _DT_STRSZ not in first or _DT_SYMTAB not in first:
        raise UnreadableElfError("its dynamic section lacks the string or symbol table")
    strings = source.read(mapped.offset_of(first[_DT_STRTAB]), _bounded(first[_DT_STRSZ]))
    needed = [_string(strings, value) for tag, value in entries if tag == _DT_NEEDED]
    if len(needed) > MAX_NEEDED:
        raise UnreadableElfError(f"it claims to need {len(needed)} libraries")
    runpath = _string(strings, first[_DT_RUNPATH], MAX_SEARCH_PATH) if _DT_RUNPATH in first else None
    rpath = ""
    if _DT_RPATH in first and runpath is None:
        rpath = _string(strings, first[_DT_RPATH], MAX_SEARCH_PATH)
    flags_1 = first.get(_DT_FLAGS_1, 0)
    return ElfFile(
        bits=elf.bits,
        machine=elf.machine,
        kind=elf.kind,
        understood=True,
        flags=elf.flags,
        is_dynamic=True,
        interpreter=elf.interpreter,
        soname=_string(strings, first[_DT_SONAME]) if _DT_SONAME in first else None,
        needed=tuple(needed),
        rpath=rpath,
        runpath=runpath,
        no_default_path=bool(flags_1 & _DF_1_NODEFLIB),
        is_pie=bool(flags_1 & _DF_1_PIE),
        needed_versions=_needed_versions(source, mapped, strings, first),
        defined_versions=_defined_versions(source, mapped, strings, first),
        segments=elf.segments,
        sections=elf.sections,
        dynamic=mapped.dynamic,
    )


def _needed_versions(source: Source, elf: ElfFile, strings: bytes, tags: dict[int, int]) -> tuple[NeededVersion, ...]:
    """The chain of Verneed records, each with its chain of Vernaux."""
    if _DT_VERNEED not in tags:
        return ()
    place = elf.offset_of(tags[_DT_VERNEED])
    found: list[NeededVersion] = []
    for _ in range(min(tags.get(_DT_VERNEEDNUM, 0), MAX_NEEDED)):
        form, count, file, first, following = struct.unpack("<HHIII", source.read(place, 16))
        if form != 1:
            raise UnreadableElfError(f"unsupported version {form} of its version needs")
        library = _string(strings, file)
        entry = place + first
        for _ in range(count):
            _, flags, other, name, step = struct.unpack("<IHHII", source.read(entry, 16))
            version = NeededVersion(library, _string(strings, name), other & 0x7FFF, bool(flags & _VER_FLG_WEAK))
            found.append(version)
            if len(found) > MAX_VERSIONS:
                raise UnreadableElfError("it claims too many version needs")
            if step == 0:
                break
            entry += step
        if following == 0:
            break
        place += following
    return tuple(found)


def _defined_versions(source: Source, elf: ElfFile, strings: bytes, tags: dict[int, int]) -> tuple[DefinedVersion, ...]:
    """The chain of Verdef records, each with its name in its first Verdaux."""
    if _DT_VERDEF not in tags:
        return ()
    place = elf.offset_of(tags[_DT_VERDEF])
    found: list[DefinedVersion] = []
    for _ in range(min(tags.get(_DT_VERDEFNUM, 0), MAX_VERSIONS)):
        form, flags, index, _, _, first, following = struct.unpack("<HHHHIII", source.read(place, 20))
        if form != 1:
            raise UnreadableElfError(f"unsupported version {form} of its version definitions")
        name = struct.unpack("<I", source.read(place + first, 4))[0]
        found.append(DefinedVersion(_string(strings, name), index & 0x7FFF, bool(flags & _VER_FLG_BASE)))
        if following == 0:
            break
        place += following
    return tuple(found)


def _bounded(size: int) -> int:
    if size > MAX_TABLE:
        raise UnreadableElfError(f"one of its tables claims {size} bytes")
    return size


def _string(table: bytes, offset: int, limit: int = MAX_NAME) -> str:
    end = table.find(b"\0", offset, offset + limit)
    if end < 0:
        raise UnreadableElfError("one of its names lies outside the string table or is implausibly long")
    return _text(table[offset:end])


def _text(raw: bytes) -> str:
    """Names of files are bytes; they are kept as Python keeps file names."""
    return os.fsdecode(raw)
