"""The relocations of one ELF file: which symbols they refer to, and whether the loader can apply them.

Sources: the System V ABI, AMD64 supplement, chapter 4 ("Relocation"); glibc 2.36 `sysdeps/x86_64/dl-machine.h`
(`elf_machine_rela`) for the types that are applied when a file is loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from crossgrade.inspect.elf import MAX_TABLE, ElfFile, Source, UnreadableElfError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

_DT_RELA, _DT_RELASZ, _DT_JMPREL, _DT_PLTRELSZ, _DT_RELRSZ, _DT_RELR = 7, 8, 23, 2, 35, 36
_DT_TEXTREL, _DT_FLAGS, _DF_TEXTREL = 22, 30, 4
# NONE, 64, PC32, COPY, GLOB_DAT, JUMP_SLOT, RELATIVE, 32, DTPMOD64, DTPOFF64, TPOFF64, SIZE32, SIZE64, TLSDESC,
# IRELATIVE; loading stops at every other type
_APPLIED = {"x86_64": (0, 1, 2, 5, 6, 7, 8, 10, 16, 17, 18, 32, 33, 36, 37)}


def relocated_symbols(source: Source, elf: ElfFile) -> Array:
    """The numbers of the symbols that relocations refer to, each once, in order.

    Raises `UnreadableElfError`, also for relocations that the loader refuses or that lie outside of the file's memory.
    """
    import numpy as np

    parts = []
    for table, length in ((_DT_RELA, _DT_RELASZ), (_DT_JMPREL, _DT_PLTRELSZ)):
        place, size = elf.tag(table), elf.tag(length) or 0
        if place is None or size == 0:
            continue
        if size > MAX_TABLE:
            raise UnreadableElfError("its relocation table is implausibly large")
        if size % 24:
            raise UnreadableElfError("its relocation table ends in the middle of a relocation")
        entries = np.frombuffer(elf.read(source, place, size), dtype="<u8")
        _check(elf, entries[0::3], entries[1::3])
        parts.append(_different(entries[1::3] >> np.uint64(32)))
    return np.unique(np.concatenate(parts)) if parts else np.zeros(0, dtype="<u8")


def _different(numbers: Array) -> Array:
    """Each number once. Most relocations come in runs of one number, 0, which sorting would not profit from."""
    import numpy as np

    return np.unique(numbers[np.flatnonzero(np.append(True, numbers[1:] != numbers[:-1]))])


def _check(elf: ElfFile, places: Array, information: Array) -> None:
    """Only types that are applied, and at places that may be written to."""
    import numpy as np

    applied = _APPLIED.get(elf.machine)
    if applied is None:
        return
    types = information & np.uint64(0xFFFFFFFF)
    unknown = np.setdiff1d(_different(types), np.array(applied, dtype="u8"))
    if len(unknown):
        raise UnreadableElfError(f"unexpected reloc type {int(unknown[0]):#04x}")
    if not types.all():
        places = places[types != 0]  # R_X86_64_NONE changes nothing, wherever it stands
    if len(places):
        _check_places(elf, places)


def _check_places(elf: ElfFile, places: Array) -> None:
    import numpy as np

    text_is_written = _DT_TEXTREL in dict(elf.dynamic) or (elf.tag(_DT_FLAGS) or 0) & _DF_TEXTREL
    segments = [segment for segment in elf.segments if segment.flags & 2 or text_is_written]
    if not segments:
        raise UnreadableElfError("it has relocations, and nothing that may be written to")
    starts = np.array([segment.address for segment in segments], dtype="u8")
    ends = np.array([segment.address + segment.memory for segment in segments], dtype="u8")
    holder = starts.searchsorted(places, side="right") - 1
    if (holder < 0).any() or (places >= ends[holder]).any():
        raise UnreadableElfError("a relocation lies outside of what may be written to")


def check_relative(source: Source, elf: ElfFile) -> None:
    """The packed relocations of DT_RELR: addresses, each followed by bitmaps for the 63 words behind.

    Raises `UnreadableElfError` where they lie outside of what may be written to.
    """
    import numpy as np

    place, size = elf.tag(_DT_RELR), elf.tag(_DT_RELRSZ) or 0
    if place is None or size == 0:
        return
    if size > MAX_TABLE or size % 8:
        raise UnreadableElfError(f"its relative relocations claim {size} bytes")
    entries = np.frombuffer(elf.read(source, place, size), dtype="<u8")
    addresses = (entries & 1) == 0
    if not addresses[0]:
        raise UnreadableElfError("its relative relocations begin without an address")
    at = np.arange(len(entries))
    last = np.maximum.accumulate(np.where(addresses, at, 0))
    base = entries[last] + (np.uint64(8) + (at - last - 1).astype("u8") * np.uint64(504)) * ~addresses
    highest = np.where(addresses, 0, np.frexp(entries.astype("f8"))[1].clip(2) - 2).astype("u8")
    _check_places(elf, np.concatenate((base, base + highest * np.uint64(8))))
