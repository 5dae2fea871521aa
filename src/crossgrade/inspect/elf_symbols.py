"""The dynamic symbols of one ELF file, as sets that can be compared.

Hundreds of thousands of symbols are compared on a real server, so the tables are filtered with numpy and only
the names that matter become Python objects. A name with a version is written ``name@version`` in the sets.

Which entries count, and for what, follows glibc 2.36 `elf/dl-lookup.c` (`check_match`, `do_lookup_x`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from crossgrade.inspect.elf import MAX_TABLE, ElfFile, Source, UnreadableElfError
from crossgrade.inspect.elf_hash import MAX_SYMBOLS, claimed_count, ends_of, found_symbols
from crossgrade.inspect.elf_relocations import check_relative, relocated_symbols

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

_DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_VERSYM = 5, 6, 10, 0x6FFFFFF0
_SHT_DYNSYM = 11
_SYMBOL_SIZE = 24
_MAX_MODULES, _MAX_MODULE_NAME = 1000, 1 << 10
_SHN_UNDEF, _SHN_ABS = 0, 0xFFF1
_LOCAL, _GLOBAL, _WEAK, _UNIQUE = 0, 1, 2, 10
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
    found: Array  # whether a lookup by name can find it

    def texts(self, chosen: Array) -> list[bytes]:
        """The names of the chosen symbols, in order."""
        if not len(chosen):
            return []
        starts = self.name[chosen].astype("i8")
        ends = ends_of(self.strings, starts)
        strings = self.strings
        return [strings[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


def scan_symbols(source: Source, elf: ElfFile) -> tuple[Undefined, tuple[str, ...]]:
    """The strong undefined symbols of a file, and the Python modules that it initializes (PyInit_ functions).

    Raises `UnreadableElfError`.
    """
    tables = _read_tables(source, elf, verify=True)
    if tables is None:
        return Undefined(), ()
    check_relative(source, elf)
    relocated = relocated_symbols(source, elf)
    if len(relocated) and int(relocated[-1]) >= len(tables.name):
        raise UnreadableElfError("a relocation refers to a symbol that is not there")
    if int(tables.name.max()) >= len(tables.strings):
        raise UnreadableElfError("a symbol's name lies outside the string table")
    binding, visible = tables.info >> 4, (tables.other & 3) % 3 == 0
    # The loader looks up by name what is defined here, too, and may not find it.
    chosen = (~_offered(tables) & (binding != _LOCAL) & (binding != _WEAK) & visible).nonzero()[0]
    names = tables.texts(chosen)
    modules = _python_modules(tables)
    if tables.version is None:
        return Undefined(frozenset(filter(None, names))), modules
    needs = {version.index: version for version in elf.needed_versions}
    plain: set[bytes] = set()
    versioned: dict[bytes, Wanted] = {}
    _bound_keys(len(names), [version.version for version in needs.values()])
    for number, places in _by_number(tables.version[chosen] & 0x7FFF):
        version = needs.get(number)
        if version is None:
            plain.update([names[place] for place in places])
            continue
        suffix = b"@" + os.fsencode(version.version)
        for place in places:
            versioned[names[place] + suffix] = Wanted(names[place], version.version, version.library)
    return Undefined(frozenset(filter(None, plain)), versioned), modules


def _by_number(numbers: Array) -> Iterator[tuple[int, list[int]]]:
    """The places of each number that occurs."""
    import numpy as np

    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    begins = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])) if len(ordered) else order
    for begin, places in zip(begins.tolist(), np.split(order, begins[1:]), strict=bool(len(order))):
        yield int(ordered[begin]), places.tolist()


def _bound_keys(count: int, versions: Sequence[str]) -> None:
    """Each symbol becomes a key with its version: a long version for each of many symbols is refused."""
    if count * max(map(len, versions), default=0) > MAX_TABLE:
        raise UnreadableElfError("the names of its versions are implausibly long")


def _python_modules(tables: _Tables) -> tuple[str, ...]:
    import numpy as np

    strings, prefix = tables.strings, b"PyInit_"
    places: list[int] = []
    place = strings.find(prefix)
    while place >= 0 and len(places) < _MAX_MODULES:
        places.append(place)
        place = strings.find(prefix, place + len(prefix))
    if not places:
        return ()
    defined = tables.name[tables.section != _SHN_UNDEF]
    found = np.intersect1d(defined, np.array(places, dtype="u4")).tolist()
    ends = [strings.find(b"\0", place, place + _MAX_MODULE_NAME) for place in found]
    names = [strings[place + len(prefix) : end] for place, end in zip(found, ends, strict=True) if end >= 0]
    return tuple(sorted(name.decode(errors="replace") for name in names))


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
    _bound_keys(len(listed), list(versions.values()))
    numbers, hidden = tables.version[chosen] & 0x7FFF, (tables.version[chosen] & _HIDDEN_BIT) != 0
    keyed: set[bytes] = set()
    for number, places in _by_number(numbers):
        if number in versions:
            suffix = b"@" + os.fsencode(versions[number])
            keyed.update([listed[place] + suffix for place in places])
        else:
            keyed.update([listed[place] for place in places if not hidden[place]])
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
    used = relocated_symbols(source, elf)
    return names.intersection(tables.texts(used[used < len(tables.name)]))


def _offered(tables: _Tables) -> Array:
    """Which symbols a lookup in this file can find."""
    import numpy as np

    kind, binding = tables.info & 15, tables.info >> 4
    usable = (np.left_shift(np.uint32(1), kind.astype(np.uint32)) & _USABLE_TYPES) != 0
    bound = (binding == _GLOBAL) | (binding == _WEAK) | (binding == _UNIQUE)
    present = (tables.value != 0) | (tables.section == _SHN_ABS) | (kind == _TLS)
    visible = (tables.other & 3) % 3 == 0  # DEFAULT or PROTECTED; HIDDEN and INTERNAL are local
    offered: Array = usable & bound & present & visible & (tables.section != _SHN_UNDEF) & tables.found
    return offered


def _read_tables(source: Source, elf: ElfFile, *, verify: bool = False) -> _Tables | None:
    """None where there is no symbol. With ``verify`` the hash table must fit the names."""
    import numpy as np

    symbols, strings = elf.tag(_DT_SYMTAB), elf.tag(_DT_STRTAB)
    if symbols is None or strings is None:
        return None
    count = _symbol_count(source, elf, symbols)
    if count <= 1:
        return None
    fields = [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8")]
    layout = np.dtype([*fields, ("size", "<u8")])
    table = np.frombuffer(elf.read(source, symbols, count * _SYMBOL_SIZE), dtype=layout)
    size = elf.tag(_DT_STRSZ) or 0
    if size > MAX_TABLE:
        raise UnreadableElfError(f"its string table claims {size} bytes")
    names = elf.read(source, strings, size)
    versions = elf.tag(_DT_VERSYM)
    numbers = None
    if versions is not None:
        numbers = np.frombuffer(elf.read(source, versions, 2 * count), dtype="<u2")
        known = [version.index for version in elf.needed_versions]
        known += [version.index for version in elf.defined_versions]
        if int((numbers & 0x7FFF).max()) > max(known, default=1):
            raise UnreadableElfError("a symbol has a version that is not there")
    found = found_symbols(source, elf, table["name"], names, verify=verify)
    return _Tables(
        table["info"], table["other"], table["section"], table["value"], table["name"], numbers, names, found
    )


def _symbol_count(source: Source, elf: ElfFile, symbols: int) -> int:
    """How many entries the table has: nothing states it, so every table that refers to it is asked."""
    sizes = [s.size for s in elf.sections if s.kind == _SHT_DYNSYM and s.address == symbols]
    count = max(max(sizes, default=0) // _SYMBOL_SIZE, claimed_count(source, elf))
    if not sizes:
        # The GNU hash table covers only what is defined; a file that defines nothing needs its relocations.
        relocated = relocated_symbols(source, elf)
        count = max(count, int(relocated[-1]) + 1 if len(relocated) else 0)
    if count > MAX_SYMBOLS:
        raise UnreadableElfError(f"it claims {count} dynamic symbols")
    return count
