"""Reading one ELF file as glibc's loader does: program headers, dynamic section, versions.

Any input, however damaged, gives an `ElfFile` or an `UnreadableElfError`, in bounded time and memory.

Sources: System V ABI, chapters 4 and 5 (headers, program loading, dynamic section); the Linux Standard Base,
"Symbol Versioning"; glibc 2.36 `elf/dl-load.c` and `elf/dl-version.c` for what the loader accepts.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from functools import lru_cache

from crossgrade.inspect.elf_source import BytesSource as BytesSource
from crossgrade.inspect.elf_source import FileSource as FileSource
from crossgrade.inspect.elf_source import Source as Source
from crossgrade.inspect.elf_source import UnreadableElfError as UnreadableElfError
from crossgrade.inspect.elf_source import beyond
from crossgrade.inspect.elf_tags import check_tags

MAGIC = b"\x7fELF"
MACHINES = {3: "i386", 8: "mips", 20: "ppc", 21: "ppc64", 22: "s390", 40: "arm", 62: "x86_64", 183: "aarch64"}
MACHINES |= {190: "cuda", 224: "amdgpu", 243: "riscv", 247: "bpf", 258: "loongarch"}
TYPES = {1: "relocatable", 2: "executable", 3: "shared", 4: "core"}

# The largest tables that are read. libtorch_cuda, the largest library in the field, has 30 MB of names.
MAX_TABLE = 256 << 20
MAX_DYNAMIC_ENTRIES = 1 << 16
MAX_SECTIONS = 1 << 16
MAX_NEEDED = 1 << 12
MAX_VERSIONS = 1 << 12
MAX_NAME = 4096  # as long as a path may be
MAX_SEARCH_PATH = 1 << 16
MAX_SECTION_NAME = 64  # what is longer is cut; the names that are looked for are short
MAX_MAPPED = 1 << 36  # the memory that one file may claim: 64 GiB

_PT_LOAD, _PT_DYNAMIC, _PT_INTERP = 1, 2, 3
_DT_NEEDED, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_SONAME, _DT_RPATH = 1, 5, 6, 10, 14, 15
_DT_RUNPATH, _DT_FLAGS_1, _DT_VERDEF, _DT_VERNEED = 29, 0x6FFFFFFB, 0x6FFFFFFC, 0x6FFFFFFE
_HOSTS = ("x86_64", "aarch64")  # code for GPUs has systems and versions of its own
_CALLED = (12, 13)  # DT_INIT and DT_FINI
_DF_1_NODEFLIB, _DF_1_PIE = 0x800, 0x08000000
_VER_FLG_BASE, _VER_FLG_WEAK = 1, 2


@dataclass(frozen=True)
class Segment:
    """One PT_LOAD: ``size`` bytes of the file at ``offset`` appear at ``address``, zeros up to ``memory`` bytes.

    ``flags`` are PF_X (1), PF_W (2) and PF_R (4).
    """

    offset: int
    address: int
    size: int
    memory: int
    flags: int


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

    ``dynamic`` holds the last value of each DT_ tag, which is the one that the loader takes. ``rpath`` is empty
    where ``runpath`` is set: the loader ignores it then. ``understood`` is False for a class or
    byte order that this system cannot load; then only the header is filled in.
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
        """The value of a DT_ tag."""
        for name, value in self.dynamic:
            if name == tag:
                return value
        return None

    def read(self, source: Source, address: int, size: int) -> bytes:
        """Bytes of the file by their address in memory, which must be readable there.

        Raises `UnreadableElfError`.
        """
        for segment in self.segments:
            if segment.address <= address and address + size <= segment.address + segment.size and segment.flags & 4:
                return source.read(address - segment.address + segment.offset, size)
        raise UnreadableElfError(f"{size} bytes at address {address:#x} are in no part of the file that is loaded")

    def end_of(self, address: int) -> int:
        """Where the file's part of the segment that holds an address ends, as an address; 0 where none does."""
        ends = (s.address + s.size for s in self.segments if s.address <= address < s.address + s.size)
        return next(ends, 0)


def parse_elf(source: Source) -> ElfFile:
    """Read headers, dynamic section and versions of one file.

    Raises `UnreadableElfError` for anything that is not a sound ELF file, among it every file whose segments
    or section headers reach beyond its end: the loader may map such a file, and the program dies later.
    """
    if source.size < 20 or source.read(0, 4) != MAGIC:
        begins = MAGIC.startswith(source.read(0, min(4, source.size)))
        raise UnreadableElfError("file too short" if begins else "invalid ELF header")
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
    form, _, program_offset, section_offset, flags, _, entry_size, program_count, *rest = header
    section_entry_size, section_count, names_index = rest
    if machine == "cuda" or kind in ("relocatable", "core"):
        sections: tuple[Section, ...] = ()
        if kind == "relocatable" and machine != "cuda":  # an object file may hold device code for a later link
            sections = _section_headers(source, section_offset, section_entry_size, section_count, names_index)
        return ElfFile(bits, machine, kind, understood=True, flags=flags, sections=sections)
    if kind not in ("shared", "executable"):
        raise UnreadableElfError(f"it is neither a shared library nor a program, but of {kind}")
    if machine in _HOSTS:
        _check_identity(identity, form)
    if entry_size != 56 or program_count == 0:
        raise UnreadableElfError("it has no program headers of the expected size")
    segments, dynamic_place, interpreter = _program_headers(source, program_offset, program_count)
    _check_segments(segments)
    sections = _section_headers(source, section_offset, section_entry_size, section_count, names_index)
    elf = ElfFile(bits, machine, kind, True, flags, interpreter=interpreter, segments=segments, sections=sections)
    return elf if dynamic_place is None else _with_dynamic(source, elf, *dynamic_place)


def _check_identity(identity: bytes, form: int) -> None:
    """What glibc asks of the first bytes (`elf/dl-load.c`, `open_verify`), beyond class and byte order."""
    if identity[7] not in (0, 3):  # System V and GNU; another one is for another system
        raise UnreadableElfError(f"ELF file OS ABI invalid ({identity[7]})")
    if identity[8] > (4 if identity[7] == 3 else 0):
        raise UnreadableElfError(f"ELF file ABI version invalid ({identity[8]})")
    if any(identity[9:16]):
        raise UnreadableElfError("nonzero padding in e_ident")
    if form != 1:
        raise UnreadableElfError(f"ELF file version does not match current one ({form})")


def _check_segments(segments: tuple[Segment, ...]) -> None:
    """That what is loaded stands in order, as the System V ABI asks, and can be mapped at all."""
    if not segments:
        raise UnreadableElfError("object file has no loadable segments")
    end = 0
    for segment in segments:
        if segment.address < end:
            raise UnreadableElfError("its segments overlap or are not in order")
        end = segment.address + segment.memory
    if end - segments[0].address > MAX_MAPPED:
        raise UnreadableElfError(f"it claims {end - segments[0].address} bytes of memory")


def _program_headers(
    source: Source, offset: int, count: int
) -> tuple[tuple[Segment, ...], tuple[int, int] | None, str | None]:
    segments = []
    dynamic = None
    interpreter = None
    for kind, flags, place, address, _, size, memory, alignment in struct.iter_unpack(
        "<IIQQQQQQ", source.read(offset, 56 * count)
    ):
        if kind not in (_PT_LOAD, _PT_DYNAMIC, _PT_INTERP):
            continue
        if place + size > source.size:
            raise beyond(place + size, source.size)
        if kind == _PT_LOAD:
            if size > memory:
                raise UnreadableElfError("a segment is larger in the file than in memory")
            if alignment & 0xFFF or alignment > MAX_MAPPED:
                raise UnreadableElfError("ELF load command alignment not page-aligned")
            if (address - place) & ((alignment - 1) if alignment else -1):
                raise UnreadableElfError("ELF load command address/offset not page-aligned")
            segments.append(Segment(place, address, size, memory, flags))
        elif kind == _PT_DYNAMIC:
            dynamic = (address, size)
        else:
            path = source.read(place, min(size, MAX_NAME))
            if path.find(b"\0") < 1:
                raise UnreadableElfError("the name of its program interpreter has no end")
            interpreter = _text(path.partition(b"\0")[0])
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
            raise beyond(place + size, source.size)
        if name >= len(names):
            raise UnreadableElfError("the name of a section lies outside the table of names")
        title = _text(names[name : name + MAX_SECTION_NAME].partition(b"\0")[0])
        sections.append(Section(title, kind, address, place, size, flags))
    return tuple(sections)


def _with_dynamic(source: Source, elf: ElfFile, address: int, size: int) -> ElfFile:
    if size // 16 > MAX_DYNAMIC_ENTRIES:
        raise UnreadableElfError("its dynamic section is implausibly large")
    entries: list[tuple[int, int]] = []
    for tag, value in struct.iter_unpack("<QQ", elf.read(source, address, size - size % 16)):
        if tag == 0:
            break
        entries.append((tag, value))
    else:
        raise UnreadableElfError("its dynamic section has no end")
    tags = dict(entries)
    mapped = ElfFile(
        elf.bits, elf.machine, elf.kind, True, elf.flags, segments=elf.segments, dynamic=tuple(tags.items())
    )
    if _DT_STRTAB not in tags or _DT_STRSZ not in tags or _DT_SYMTAB not in tags:
        raise UnreadableElfError("its dynamic section lacks the string or symbol table")
    check_tags(tags, elf.machine)
    for tag in _CALLED:
        if tags.get(tag) and not any(s.flags & 1 and 0 <= tags[tag] - s.address < s.memory for s in elf.segments):
            raise UnreadableElfError("a function that is called when it is loaded lies outside of its code")
    strings = mapped.read(source, tags[_DT_STRTAB], _bounded(tags[_DT_STRSZ]))
    needed = [_string(strings, value) for tag, value in entries if tag == _DT_NEEDED]
    if len(needed) > MAX_NEEDED:
        raise UnreadableElfError(f"it claims to need {len(needed)} libraries")
    runpath = _string(strings, tags[_DT_RUNPATH], MAX_SEARCH_PATH) if _DT_RUNPATH in tags else None
    rpath = ""
    if _DT_RPATH in tags and runpath is None:
        rpath = _string(strings, tags[_DT_RPATH], MAX_SEARCH_PATH)
    flags_1 = tags.get(_DT_FLAGS_1, 0)
    return ElfFile(
        bits=elf.bits,
        machine=elf.machine,
        kind=elf.kind,
        understood=True,
        flags=elf.flags,
        is_dynamic=True,
        interpreter=elf.interpreter,
        soname=_string(strings, tags[_DT_SONAME]) if _DT_SONAME in tags else None,
        needed=tuple(needed),
        rpath=rpath,
        runpath=runpath,
        no_default_path=bool(flags_1 & _DF_1_NODEFLIB),
        is_pie=bool(flags_1 & _DF_1_PIE),
        needed_versions=_needed_versions(source, mapped, strings, tags),
        defined_versions=_defined_versions(source, mapped, strings, tags),
        segments=elf.segments,
        sections=elf.sections,
        dynamic=mapped.dynamic,
    )


def _needed_versions(source: Source, elf: ElfFile, strings: bytes, tags: dict[int, int]) -> tuple[NeededVersion, ...]:
    """The chain of Verneed records, each with its chain of Vernaux; like the loader, by their links alone."""
    if _DT_VERNEED not in tags:
        return ()
    place = tags[_DT_VERNEED]
    found: list[NeededVersion] = []
    following = 1
    while following:
        form, _, file, first, following = struct.unpack("<HHIII", elf.read(source, place, 16))
        if form != 1:
            raise UnreadableElfError(f"unsupported version {form} of its version needs")
        library = _string(strings, file)
        entry, step = place + first, 1
        while step:
            stated, flags, other, name, step = struct.unpack("<IHHII", elf.read(source, entry, 16))
            text = _version_name(strings, name, stated)
            found.append(NeededVersion(library, text, other & 0x7FFF, bool(flags & _VER_FLG_WEAK)))
            if len(found) > MAX_VERSIONS:
                raise UnreadableElfError("it claims too many version needs")
            entry += step
        place += following
    return tuple(found)


def _defined_versions(source: Source, elf: ElfFile, strings: bytes, tags: dict[int, int]) -> tuple[DefinedVersion, ...]:
    """The chain of Verdef records, each with its name in its first Verdaux."""
    if _DT_VERDEF not in tags:
        return ()
    place = tags[_DT_VERDEF]
    found: list[DefinedVersion] = []
    following = 1
    while following:
        form, flags, index, _, stated, first, following = struct.unpack("<HHHHIII", elf.read(source, place, 20))
        if form != 1:
            raise UnreadableElfError(f"unsupported version {form} of its version definitions")
        name = struct.unpack("<I", elf.read(source, place + first, 4))[0]
        text = _version_name(strings, name, stated)
        found.append(DefinedVersion(text, index & 0x7FFF, bool(flags & _VER_FLG_BASE)))
        if len(found) > MAX_VERSIONS:
            raise UnreadableElfError("it claims too many versions")
        place += following
    return tuple(found)


def _version_name(strings: bytes, offset: int, stated: int) -> str:
    """The name of a version, which the loader tells by its hash as well (`elf/dl-version.c`, `match_symbol`)."""
    name = _string(strings, offset)
    if system_v_hash(name) != stated:
        raise UnreadableElfError(f"the hash of its version {name!r} is not that of the name")
    return name


@lru_cache(maxsize=4096)
def system_v_hash(name: str) -> int:
    """The hash of a name as the System V ABI defines it: 28 bits."""
    value = 0
    for byte in os.fsencode(name):
        value = (value << 4) + byte
        value ^= value >> 24 & 0xF0
        value &= 0xFFFFFFF
    return value


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
