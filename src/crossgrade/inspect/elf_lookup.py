"""Whether an ELF file defines certain names, by its GNU hash table: without reading the whole of its symbols.

libtorch_cpu defines 100,000 symbols in a table of strings of 10 MB; asking for 500 of them touches little of it.

Source: the GNU hash table as glibc 2.36 reads it (`elf/dl-lookup.c`, `do_lookup_x` and `_dl_setup_hash`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from crossgrade.inspect.elf import ElfFile, Source, UnreadableElfError
from crossgrade.inspect.elf_hash import gnu_head
from crossgrade.inspect.elf_symbols import defined_symbols

_DT_STRTAB, _DT_SYMTAB, _DT_GNU_HASH = 5, 6, 0x6FFFFEF5
_MAX_CHAIN = 1 << 12


def defines(source: Source, elf: ElfFile, names: Iterable[bytes]) -> frozenset[bytes]:
    """Those of ``names`` that the file defines in any version. Raises `UnreadableElfError`."""
    table, symbols, strings = (elf.tag(tag) for tag in (_DT_GNU_HASH, _DT_SYMTAB, _DT_STRTAB))
    if table is None or symbols is None or strings is None:
        return defined_symbols(source, elf).plain.intersection(names)
    lookup = _Lookup(source, elf, table, symbols, strings)
    return frozenset(name for name in names if lookup.found(name))


class _Lookup:
    """The hash table of one file; places are addresses in memory."""

    def __init__(self, source: Source, elf: ElfFile, table: int, symbols: int, strings: int) -> None:
        self._source, self._elf = source, elf
        self._symbols, self._strings = symbols, strings
        self._buckets, self._first, self._words, self._shift = gnu_head(source, elf, table)
        heads = table + 16 + 8 * self._words
        self._bloom = struct.unpack(f"<{self._words}Q", elf.read(source, table + 16, 8 * self._words))
        self._heads = struct.unpack(f"<{self._buckets}I", elf.read(source, heads, 4 * self._buckets))
        self._chains = heads + 4 * self._buckets

    def found(self, name: bytes) -> bool:
        if not self._bloom or not self._heads:
            return False
        value = gnu_hash(name)
        mask = (1 << (value % 64)) | (1 << ((value >> (self._shift & 31)) % 64))
        index = self._heads[value % self._buckets]
        if self._bloom[value // 64 % self._words] & mask != mask or index < self._first:
            return False
        for number in range(index, index + _MAX_CHAIN):
            place = self._chains + 4 * (number - self._first)
            (entry,) = struct.unpack("<I", self._elf.read(self._source, place, 4))
            if entry | 1 == value | 1 and self._is(number, name):
                return True
            if entry & 1:
                return False
        raise UnreadableElfError("its hash table has no end")

    def _is(self, number: int, name: bytes) -> bool:
        """Whether a symbol has this name and is defined."""
        symbol = self._elf.read(self._source, self._symbols + 24 * number, 8)
        place, _, _, section = struct.unpack("<IBBH", symbol)
        start = self._strings + place
        length = min(len(name) + 1, max(0, self._elf.end_of(start) - start))
        return bool(section) and self._elf.read(self._source, start, length) == name + b"\0"


def gnu_hash(name: bytes) -> int:
    """The hash of a symbol's name (Bernstein's, 32 bits)."""
    value = 5381
    for byte in name:
        value = (value * 33 + byte) & 0xFFFFFFFF
    return value
