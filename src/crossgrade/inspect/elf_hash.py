"""The hash table of one ELF file: which of its symbols a lookup can find, and whether the table is sound.

The loader finds a symbol through the hash table alone: one that stands in the symbol table and not in a chain is not
there, a bloom filter that is not set hides it, and a chain that leads back into itself never ends. So a damaged table
makes a file that cannot be loaded, or that hangs its process.

Sources: the System V ABI, chapter 5 ("Hash Table"); glibc 2.36 `elf/dl-lookup.c` (`do_lookup_x`, `_dl_setup_hash`) for
DT_GNU_HASH, which goes before DT_HASH where a file has both.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import TYPE_CHECKING, Any

from crossgrade.inspect.elf import MAX_TABLE, ElfFile, Source, UnreadableElfError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

MAX_SYMBOLS = 1 << 21  # libtriton, which has the most in the field, has 150,000
MAX_NAME = 1 << 16  # mangled names of 20 kB exist
_DT_HASH, _DT_GNU_HASH = 4, 0x6FFFFEF5
_NAMES_AT_ONCE = 1 << 17  # bytes of names that are hashed at a time
_LONGEST_CHAIN = 1 << 16


def claimed_count(source: Source, elf: ElfFile) -> int:
    """How many symbols the hash tables speak of; 0 without any. Raises `UnreadableElfError`."""
    count = 0
    if (place := elf.tag(_DT_HASH)) is not None:
        count = int.from_bytes(elf.read(source, place + 4, 4), "little")
    if (place := elf.tag(_DT_GNU_HASH)) is not None:
        count = max(count, _gnu_count(source, elf, place))
    return count


def found_symbols(source: Source, elf: ElfFile, names: Array, strings: bytes, *, verify: bool) -> Array:
    """Which symbols, whose ``names`` are places in ``strings``, a lookup by name can find.

    Raises `UnreadableElfError`; with ``verify`` also where the table does not fit the names.
    """
    import numpy as np

    found = np.zeros(len(names), dtype=bool)
    if (place := elf.tag(_DT_GNU_HASH)) is not None:
        found[_gnu_found(source, elf, place, names, strings, verify=verify) :] = True
    elif (place := elf.tag(_DT_HASH)) is not None:
        found[_system_v_found(source, elf, place, names, strings)] = True
    return found


def gnu_head(source: Source, elf: ElfFile, place: int) -> tuple[int, int, int, int]:
    """Number of buckets, first symbol, words of the bloom filter, its shift."""
    head: tuple[int, int, int, int] = struct.unpack("<IIII", elf.read(source, place, 16))
    if head[0] * 4 > MAX_TABLE or head[2] * 8 > MAX_TABLE:
        raise UnreadableElfError("its hash table is implausibly large")
    return head


def _gnu_count(source: Source, elf: ElfFile, place: int) -> int:
    """One more than the last symbol in the GNU hash table: the end of the chain of the highest bucket."""
    import numpy as np

    buckets, first, bloom, _ = gnu_head(source, elf, place)
    start = place + 16 + bloom * 8
    heads = np.frombuffer(elf.read(source, start, buckets * 4), dtype="<u4")
    last = int(heads.max()) if buckets else 0
    if last < first:
        return first if last == 0 else last
    if last > MAX_SYMBOLS:
        raise UnreadableElfError("its hash table refers to too many symbols")
    chain = start + buckets * 4
    end = elf.end_of(chain)
    while True:
        position = chain + 4 * (last - first)
        block = elf.read(source, position, max(4, min(1024, (end - position) // 4 * 4)))
        ends = (np.frombuffer(block, dtype="<u4") & 1).nonzero()[0]
        if len(ends):
            return last + int(ends[0]) + 1
        last += len(block) // 4
        if last > MAX_SYMBOLS:
            raise UnreadableElfError("its hash table has no end")


def _gnu_found(source: Source, elf: ElfFile, place: int, names: Array, strings: bytes, *, verify: bool) -> int:
    """The first symbol that the table covers: from there on it must lead to each one, by bloom, bucket and chain."""
    import numpy as np

    count = len(names)
    buckets, first, bloom, shift = gnu_head(source, elf, place)
    if bloom == 0 or bloom & (bloom - 1):
        raise UnreadableElfError("the bloom filter of its hash table has a size that is no power of two")
    start = place + 16 + bloom * 8
    heads = np.frombuffer(elf.read(source, start, buckets * 4), dtype="<u4")
    used = heads[heads != 0]
    if not len(used):
        return count  # a file that defines nothing; what the table says of the first symbol is of no use then
    if int(used.min()) < first or first > count:
        raise UnreadableElfError("its hash table refers to symbols that it does not cover")
    if not verify:
        return first
    chain = np.frombuffer(elf.read(source, start + buckets * 4, 4 * (count - first)), dtype="<u4")
    hashes = _gnu_hashes(strings, names[first:])
    order = np.sort(used)
    after = np.append(order[1:], count).astype("i8") - 1 - first  # the last symbol of each chain
    ends = (chain & 1).nonzero()[0]
    bucket = hashes % np.uint32(buckets)
    words = np.frombuffer(elf.read(source, place + 16, bloom * 8), dtype="<u8")
    word = words[(hashes >> np.uint32(6)) & np.uint32(bloom - 1)]
    one, low = np.uint64(1), np.uint32(63)
    bits = one << (hashes & low).astype("u8") | one << ((hashes >> np.uint32(shift & 31)) & low).astype("u8")
    sound = (
        int(order[0]) == first
        and len(ends) == len(after)
        and bool((ends == after).all())
        and bool(((chain | 1) == (hashes | 1)).all())
        # Each symbol stands in the chain that its bucket points to: the one that begins last before it.
        and bool((heads[bucket] == order[order.searchsorted(np.arange(first, count), side="right") - 1]).all())
        and bool((word & bits == bits).all())
    )
    if not sound:
        raise UnreadableElfError("its hash table does not fit its symbols: they would not be found")
    return first


def _system_v_found(source: Source, elf: ElfFile, place: int, names: Array, strings: bytes) -> Array:
    """The symbols in the chains, each of which must stand in the chain of its own bucket."""
    import numpy as np

    buckets, chains = struct.unpack("<II", elf.read(source, place, 8))
    if buckets == 0 or buckets * 4 > MAX_TABLE or chains > len(names):
        raise UnreadableElfError("its hash table is implausible")
    table = np.frombuffer(elf.read(source, place + 8, 4 * (buckets + chains)), dtype="<u4").astype("i8")
    if int(table.max()) >= chains:
        raise UnreadableElfError("its hash table refers to symbols that it does not cover")
    linked = table[table != 0]
    if len(np.unique(linked)) != len(linked):
        raise UnreadableElfError("its hash table has chains that meet or have no end")
    bucket = np.full(chains, -1, dtype="i8")  # of each symbol, as its chain says: from the heads on, step by step
    at = table[:buckets]
    number = (at != 0).nonzero()[0]
    at = at[number]
    for _ in range(_LONGEST_CHAIN):
        if not len(at):
            break
        bucket[at] = number
        at = table[buckets + at]
        number, at = number[at != 0], at[at != 0]
    else:
        raise UnreadableElfError("its hash table has an implausibly long chain")
    reached = (bucket >= 0).nonzero()[0]
    if (bucket[reached] != _system_v_hashes(strings, names[reached]) % buckets).any():
        raise UnreadableElfError("its hash table does not fit its symbols: they would not be found")
    return reached


def ends_of(strings: bytes, starts: Array) -> Array:
    """Where the names that begin at ``starts`` end.

    Raises `UnreadableElfError` for one outside of the table, and where they are together too long to be looked at:
    names may share their bytes, so that a small table can hold any number of long ones.
    """
    import numpy as np

    zeros = (np.frombuffer(strings, dtype="u1") == 0).nonzero()[0]
    nearest = zeros.searchsorted(starts)
    if len(nearest) and int(nearest.max()) >= len(zeros):
        raise UnreadableElfError("a symbol's name lies outside the string table")
    ends: Array = zeros[nearest]
    lengths = ends - starts
    if len(lengths) and (int(lengths.max()) > MAX_NAME or int(lengths.sum()) > MAX_NAME + 16 * len(strings)):
        raise UnreadableElfError("the names of its symbols are implausibly long")
    return ends


def _gnu_hashes(strings: bytes, names: Array) -> Array:
    """The hash of each name: from 5381, times 33 plus the next byte, modulo 2**32.

    33 has an inverse there, so that the hash of any part of the table follows from two sums over its beginning. The
    table is gone through in blocks, each from the start of a name on.
    """
    import numpy as np

    hashes = np.zeros(len(names), dtype="u4")
    order = np.argsort(names, kind="stable")
    starts = names[order].astype("i8")
    ends = ends_of(strings, starts)
    powers, inverse = _powers()
    begin = 0
    while begin < len(order):
        base = int(starts[begin])
        stop = int(starts.searchsorted(base + _NAMES_AT_ONCE))
        first, last = starts[begin:stop] - base, ends[begin:stop] - base
        size = int(last.max())
        text = np.frombuffer(strings, dtype="u1", count=size, offset=base)
        sums = np.zeros(size + 1, dtype="u4")
        np.cumsum(text * inverse[1 : size + 1], dtype="u4", out=sums[1:])
        # byte[i] * 33**(last - 1 - i), summed, and 5381 * 33**length
        hashes[order[begin:stop]] = (sums[last] - sums[first]) * powers[last] + np.uint32(5381) * powers[last - first]
        begin = stop
    return hashes


@cache
def _powers() -> tuple[Array, Array]:
    """33**n and 33**-n, modulo 2**32, for each n that a block can need."""
    import numpy as np

    count = _NAMES_AT_ONCE + MAX_NAME + 2
    powers = np.full(count, 33, dtype="u4")
    inverse = np.full(count, pow(33, -1, 1 << 32), dtype="u4")
    powers[0] = inverse[0] = 1
    return np.cumprod(powers, dtype="u4"), np.cumprod(inverse, dtype="u4")


def _system_v_hashes(strings: bytes, names: Array) -> Array:
    """The hash of the System V ABI of each name, all names together byte by byte."""
    import numpy as np

    hashes = np.zeros(len(names), dtype="i8")
    at = names.astype("i8")
    ends = ends_of(strings, at)
    text = np.frombuffer(strings, dtype="u1")
    left = (at < ends).nonzero()[0]
    while len(left):
        value = (hashes[left] << 4) + text[at[left]]
        value ^= value >> 24 & 0xF0
        hashes[left] = value & 0xFFFFFFF
        at[left] += 1
        left = left[at[left] < ends[left]]
    return hashes
