"""The dynamic symbols of one ELF file, as sets that can be compared.

Hundreds of thousands of symbols are compared on a real server, so the tables are filtered with numpy and only
the names that matter become Python objects. A name with a version is written ``name@version`` in the sets.

Which entries count, and for what, follows glibc 2.36 `elf/dl-lookup.c` (`check_match`, `do_lookup_x`).
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from crossgrade.inspect.elf import MAX_TABLE, ElfFile, Source, UnreadableElfError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

_DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_RELA, _DT_RELASZ, _DT_STRSZ = 4, 5, 6, 7, 8, 10
_DT_JMPREL, _DT_PLTRELSZ, _DT_GNU_HASH, _DT_VERSYM = 23, 2, 0x6FFFFEF5, 0x6FFFFFF0
_SHT_DYNSYM = 11
_SYMBOL_SIZE = 24
_MAX_SYMBOLS = 1 << 23
_MAX_NAME = 1 << 16  # mangled names of 20 kB exist
_MAX_MODULES = 1000
_SHN_UNDEF, _SHN_ABS = 0, 0xFFF1
_GLOBAL, _WEAK, _UNIQUE = 1, 2, 10
_TLS = 6
# Types that a lookup accepts: NOTYPE, OBJECT, FUNC, COMMON, TLS, GNU_IFUNC
_USABLE_TYPES = (1 << 0) | (1 << 1) | (1 << 2) | (1 << 5) | (1 << 6) | (1 << 10)
_HIDDEN_BIT = 0x8000


class Wanted(NamedTuple):
    """A symbol that a file wants with a version, and the library that it was linked against for it."""

    name: bytes
    version: str
    library: str


@dataclass(frozen=True)
class Undefined:
    """What a file wants from others and cannot do without (weak references are left out).

    ``plain`` holds names without a version, ``versioned`` maps ``name@version`` to its parts.
    """

    plain: frozenset[bytes] = frozenset()
    versioned: dict[bytes, Wanted] = field(default_factory=dict)


@dataclass(frozen=True)
class Defined:
    """What a file offers: ``plain`` answers references without a version, ``keyed`` those with one.

    ``keyed`` holds ``name@version``, and the bare name of each symbol that has no version: such a symbol
    answers a reference to any version.
    """

    plain: frozenset[bytes] = frozenset()
    keyed: frozenset[bytes] = frozenset()


@dataclass(frozen=True)
class Symbol:
    """One dynamic symbol, for listings and tests; ``default`` is what `nm` writes as ``@@``."""

    name: str
    version: str | None
    default: bool
    defined: bool
    weak: bool


@dataclass(frozen=True)
class _Tables:
    info: Array
    other: Array
    section: Array
    value: Array
    name: Array
    version: Array | None
    strings: bytes

    def texts(self, chosen: Array) -> list[bytes]:
        """The names of the chosen symbols, in order."""
        import numpy as np

        if not len(chosen):
            return []
        ends_of_names = (np.frombuffer(self.strings, dtype="u1") == 0).nonzero()[0]
        starts = self.name[chosen].astype("i8")
        nearest = ends_of_names.searchsorted(starts)
        if int(nearest.max()) >= len(ends_of_names):
            raise UnreadableElfError("a symbol's name lies outside the string table")
        ends = ends_of_names[nearest]
        lengths = ends - starts
        if int(lengths.max()) > _MAX_NAME or int(lengths.sum()) > MAX_TABLE:
            raise UnreadableElfError("the names of its symbols are implausibly long")
        strings = self.strings
        return [strings[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


def scan_symbols(source: Source, elf: ElfFile) -> tuple[Undefined, tuple[str, ...]]:
    """The strong undefined symbols of a file, and the Python modules that it initializes (PyInit_ functions).

    Raises `UnreadableElfError`.
    """
    import numpy as np

    tables = _read_tables(source, elf)
    if tables is None:
        return Undefined(), ()
    binding, visible = tables.info >> 4, (tables.other & 3) % 3 == 0
    chosen = ((tables.section == _SHN_UNDEF) & (binding == _GLOBAL) & visible).nonzero()[0]
    names = tables.texts(chosen)
    modules = _python_modules(tables)
    if tables.version is None:
        return Undefined(frozenset(filter(None, names))), modules
    numbers = tables.version[chosen] & 0x7FFF
    unversioned = np.ones(len(names), dtype=bool)
    versioned: dict[bytes, Wanted] = {}
    for version in elf.needed_versions:
        group = numbers == version.index
        unversioned &= ~group
        suffix = b"@" + os.fsencode(version.version)
        for place in group.nonzero()[0].tolist():
            versioned[names[place] + suffix] = Wanted(names[place], version.version, version.library)
    plain = [names[place] for place in unversioned.nonzero()[0].tolist()]
    return Undefined(frozenset(filter(None, plain)), versioned), modules


def _python_modules(tables: _Tables) -> tuple[str, ...]:
    found: list[str] = []
    strings, prefix = tables.strings, b"PyInit_"
    place = strings.find(prefix)
    for _ in range(_MAX_MODULES):
        if place < 0:
            break
        end = strings.find(b"\0", place, place + _MAX_NAME)
        if ((tables.name == place) & (tables.section != _SHN_UNDEF)).any():
            found.append(strings[place + len(prefix) : end].decode(errors="replace"))
        place = strings.find(prefix, max(end, place + 1))
    return tuple(sorted(found))


def defined_symbols(source: Source, elf: ElfFile) -> Defined:
    """What a file defines for others. Raises `UnreadableElfError`."""
    tables = _read_tables(source, elf)
    if tables is None:
        return Defined()
    chosen = _offered(tables).nonzero()[0]
    listed = tables.texts(chosen)
    if tables.version is None:
        names = frozenset(listed)
        return Defined(names, names)
    # A program's copy of a library's variable carries the library's version, from its version needs.
    versions = {version.index: version.version for version in elf.needed_versions}
    versions |= {version.index: version.version for version in elf.defined_versions if not version.base}
    suffixes = {index: b"@" + os.fsencode(version) for index, version in versions.items()}
    numbers, hidden = tables.version[chosen] & 0x7FFF, (tables.version[chosen] & _HIDDEN_BIT) != 0
    bare = ~hidden
    keyed: set[bytes] = set()
    for number, suffix in suffixes.items():
        group = numbers == number
        bare &= ~group
        keyed.update([listed[place] + suffix for place in group.nonzero()[0].tolist()])
    keyed.update([listed[place] for place in bare.nonzero()[0].tolist()])
    answering = ((numbers < 3) | ~hidden).nonzero()[0].tolist()
    return Defined(frozenset([listed[place] for place in answering]), frozenset(keyed))


def list_symbols(source: Source, elf: ElfFile) -> list[Symbol]:
    """Every dynamic symbol that is not local, in the order of the table. Raises `UnreadableElfError`."""
    tables = _read_tables(source, elf)
    if tables is None:
        return []
    names = {version.index: version.version for version in elf.needed_versions}
    names |= {version.index: version.version for version in elf.defined_versions if not version.base}
    found = []
    binding = tables.info >> 4
    chosen = ((binding == _GLOBAL) | (binding == _WEAK) | (binding == _UNIQUE)).nonzero()[0]
    for index, text in zip(chosen.tolist(), tables.texts(chosen), strict=True):
        raw = 0 if tables.version is None else int(tables.version[index])
        name = os.fsdecode(text)
        defined = int(tables.section[index]) != _SHN_UNDEF
        version = names.get(raw & 0x7FFF)
        found.append(Symbol(name, version, not raw & _HIDDEN_BIT, defined, bool(binding[index] == _WEAK)))
    return found


def referenced_symbols(source: Source, elf: ElfFile, names: frozenset[bytes]) -> frozenset[bytes]:
    """Those of ``names`` that a relocation refers to.

    A symbol that is listed as undefined but that no relocation refers to is never looked up by the loader.
    """
    tables = _read_tables(source, elf)
    if tables is None:
        return frozenset()
    import numpy as np

    used = np.array(_relocated(source, elf), dtype="<u8")
    return names.intersection(tables.texts(used[used < len(tables.name)]))


def _offered(tables: _Tables) -> Array:
    """Which symbols a lookup in this file can find."""
    import numpy as np

    kind, binding = tables.info & 15, tables.info >> 4
    usable = (np.left_shift(np.uint32(1), kind.astype(np.uint32)) & _USABLE_TYPES) != 0
    bound = (binding == _GLOBAL) | (binding == _WEAK) | (binding == _UNIQUE)
    present = (tables.value != 0) | (tables.section == _SHN_ABS) | (kind == _TLS)
    visible = (tables.other & 3) % 3 == 0  # DEFAULT or PROTECTED; HIDDEN and INTERNAL are local
    offered: Array = usable & bound & present & visible & (tables.section != _SHN_UNDEF)
    return offered


def _read_tables(source: Source, elf: ElfFile) -> _Tables | None:
    import numpy as np

    symbols, strings = elf.tag(_DT_SYMTAB), elf.tag(_DT_STRTAB)
    if symbols is None or strings is None:
        return None
    count = _symbol_count(source, elf, symbols)
    if count <= 1:
        return None
    fields = [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8")]
    layout = np.dtype([*fields, ("size", "<u8")])
    table = np.frombuffer(source.read(elf.offset_of(symbols), count * _SYMBOL_SIZE), dtype=layout)
    size = elf.tag(_DT_STRSZ) or 0
    if size > MAX_TABLE:
        raise UnreadableElfError(f"its string table claims {size} bytes")
    names = source.read(elf.offset_of(strings), size)
    versions = elf.tag(_DT_VERSYM)
    numbers = None
    if versions is not None:
        numbers = np.frombuffer(source.read(elf.offset_of(versions), 2 * count), dtype="<u2")
    return _Tables(table["info"], table["other"], table["section"], table["value"], table["name"], numbers, names)


def _symbol_count(source: Source, elf: ElfFile, symbols: int) -> int:
    """How many entries the table has: nothing states it, so every table that refers to it is asked."""
    sizes = [s.size for s in elf.sections if s.kind == _SHT_DYNSYM and s.address == symbols]
    count = max(sizes, default=0) // _SYMBOL_SIZE
    if (place := elf.tag(_DT_HASH)) is not None:
        count = max(count, int.from_bytes(source.read(elf.offset_of(place) + 4, 4), "little"))
    if (place := elf.tag(_DT_GNU_HASH)) is not None:
        count = max(count, _gnu_hash_count(source, elf.offset_of(place)))
    if not sizes:
        # The GNU hash table covers only what is defined; a file that defines nothing needs its relocations.
        count = max(count, max(_relocated(source, elf), default=0) + 1)
    if count > _MAX_SYMBOLS:
        raise UnreadableElfError(f"it claims {count} dynamic symbols")
    return count


def _gnu_hash_count(source: Source, place: int) -> int:
    """One more than the last symbol in the GNU hash table: the end of the chain of the highest bucket."""
    import numpy as np

    head: tuple[int, int, int, int] = struct.unpack("<IIII", source.read(place, 16))
    buckets, first, bloom, _ = head
    if buckets * 4 > MAX_TABLE or bloom * 8 > MAX_TABLE:
        raise UnreadableElfError("its hash table is implausibly large")
    start = place + 16 + bloom * 8
    heads = np.frombuffer(source.read(start, buckets * 4), dtype="<u4")
    last = int(heads.max()) if buckets else 0
    if last < first:
        return first
    if last > _MAX_SYMBOLS:
        raise UnreadableElfError("its hash table refers to too many symbols")
    chain = start + buckets * 4
    while True:
        position = chain + 4 * (last - first)
        block = source.read(position, max(4, min(1024, (source.size - position) // 4 * 4)))
        ends = (np.frombuffer(block, dtype="<u4") & 1).nonzero()[0]
        if len(ends):
            return last + int(ends[0]) + 1
        last += len(block) // 4
        if last > _MAX_SYMBOLS:
            raise UnreadableElfError("its hash table has no end")


def _relocated(source: Source, elf: ElfFile) -> list[int]:
    """The numbers of the symbols that relocations refer to, each once."""
    import numpy as np

    parts = []
    for table, length in ((_DT_RELA, _DT_RELASZ), (_DT_JMPREL, _DT_PLTRELSZ)):
        place, size = elf.tag(table), elf.tag(length) or 0
        if place is None or size < 24:
            continue
        if size > MAX_TABLE:
            raise UnreadableElfError("its relocation table is implausibly large")
        entries = np.frombuffer(source.read(elf.offset_of(place), size // 24 * 24), dtype="<u8")
        parts.append(np.unique(entries[1::3] >> np.uint64(32)))
    if not parts:
        return []
    numbers: list[int] = np.unique(np.concatenate(parts)).tolist()
    return numbers
