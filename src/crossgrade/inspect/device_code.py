"""Reading the device code of a file, wherever it stands: nvcc's sections, cubins, fatbins, archives, ordinary data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from crossgrade.inspect.archive import ARCHIVE_MAGIC, THIN_MAGIC, Part, read_archive
from crossgrade.inspect.cubin import read_cubin
from crossgrade.inspect.elf import MAGIC as ELF_MAGIC
from crossgrade.inspect.elf import ElfFile, Section, Source, UnreadableElfError, parse_elf
from crossgrade.inspect.fatbin import (
    MAGIC,
    MAX_PIECES,
    FatbinContainer,
    FatbinEntry,
    UnreadableFatbinError,
    read_fatbin,
)
from crossgrade.inspect.gpu_architecture import DeviceCode, DeviceImage

FATBIN_MAGIC = MAGIC.to_bytes(4, "little")
_CONTAINER_HEAD = FATBIN_MAGIC + b"\x01\x00\x10\x00"
_EXECUTABLE_SECTION, _RELOCATABLE_SECTION = ".nv_fatbin", "__nv_relfatbin"
# Where NVIDIA's libraries keep code that they load themselves: cuBLASLt, cuDNN, cuSPARSELt; cuFFT. Other ordinary
# data is searched only where nvcc's sections hold nothing that runs: it would mean reading gigabytes.
_OWN_SECTIONS = (".cask_resource", ".ldata", ".lrodata")
_DATA_SECTIONS = (*_OWN_SECTIONS, ".rodata", ".data", ".data.rel.ro")
_BLOCK, _MAX_SEARCHED = 1 << 20, 1 << 32  # bytes
_HEADER = 16  # of a container
_NEAR = 64  # containers stand in rows, with padding of less than this between
# cuSPARSE's containers in ordinary data have 14 entries; 4,096 tries that fail are no accident.
_MOST_ENTRIES, _MOST_FAILURES = 1 << 8, 1 << 12


def read_device_code(source: Source, elf: ElfFile) -> DeviceCode | None:
    """The device code of an ELF file, or None where it has none. Raises `UnreadableElfError`."""
    if elf.machine == "cuda":
        return _cubin(source)
    if not elf.sections:
        loaded = [(segment.offset, segment.offset + segment.size) for segment in elf.segments]
        return summarize(_search(source, loaded, MAX_PIECES, strict=True))
    sections = [s for s in elf.sections if s.name in (_EXECUTABLE_SECTION, _RELOCATABLE_SECTION) and s.size]
    containers: list[FatbinContainer] = []
    relocatable: list[FatbinContainer] = []
    left = MAX_PIECES
    for section in sections:
        chosen = containers if section.name == _EXECUTABLE_SECTION else relocatable
        # Sections may lie over one another: what is left for one is what the others have not used.
        found = read_fatbin(source, section.offset, section.size, left)
        left -= pieces(found)
        chosen.extend(found)
    embedded: list[FatbinContainer] = []
    if sections:
        runs = any(not entry.empty for container in containers for entry in container.entries)
        data = _chosen(elf.sections, _OWN_SECTIONS if runs or not containers else _DATA_SECTIONS)
        embedded = _search(source, [(s.offset, s.offset + s.size) for s in data], left, strict=False)
    return summarize(containers, relocatable, embedded)


def read_device_file(source: Source) -> DeviceCode | None:
    """The device code of a file that is no ELF file: a fatbin, or a static archive (whose code is all for a later
    link, and so ``relocatable``). Raises `UnreadableElfError`."""
    head = source.read(0, min(8, source.size))
    if head[:4] == FATBIN_MAGIC:
        return summarize(read_fatbin(source, 0, source.size))
    if head in (ARCHIVE_MAGIC, THIN_MAGIC):
        names: dict[str, None] = {}
        for member in read_archive(source):
            part = Part(source, member.offset, member.size)
            if member.size < 64 or part.read(0, 4) != ELF_MAGIC:
                continue
            code = read_device_code(part, parse_elf(part))
            if code is not None:
                names |= dict.fromkeys((*code.names, *code.relocatable))
        return DeviceCode((), (), tuple(names)) if names else None
    raise UnreadableElfError("it is neither a fatbin nor a static archive")


def summarize(
    containers: Sequence[FatbinContainer],
    relocatable: Sequence[FatbinContainer] = (),
    embedded: Sequence[FatbinContainer] = (),
) -> DeviceCode | None:
    """Count what the containers hold; None where they hold nothing."""
    units: Counter[tuple[str, ...]] = Counter()
    for container in (*containers, *embedded):
        names = [entry.name for entry in container.entries if not entry.empty]
        if names:
            units[tuple(dict.fromkeys(names))] += 1
    images, taken = _images(containers), _images(embedded)
    later = dict.fromkeys(entry.name for container in relocatable for entry in container.entries)
    found = images or taken or later
    return DeviceCode(images, tuple(units.items()), tuple(later), taken) if found else None


def _images(containers: Iterable[FatbinContainer]) -> tuple[DeviceImage, ...]:
    counts: Counter[tuple[str, str, int, str, str, str | None]] = Counter()
    sizes: Counter[tuple[str, str, int, str, str, str | None]] = Counter()
    for entry in (entry for container in containers for entry in container.entries):
        key = _key(entry)
        counts[key] += 1
        sizes[key] += entry.payload_size
    return tuple(DeviceImage(*key, count, sizes[key]) for key, count in counts.items())


def _key(entry: FatbinEntry) -> tuple[str, str, int, str, str, str | None]:
    version = ".".join(map(str, entry.version)) if entry.version else None
    return entry.name, entry.kind, entry.architecture, entry.variant, entry.compression, version


def _cubin(source: Source) -> DeviceCode:
    cubin = read_cubin(source)
    image = DeviceImage(
        f"sm_{cubin.architecture}{cubin.variant}", "sass", cubin.architecture, cubin.variant, "", None, 1, source.size
    )
    if cubin.relocatable:
        return DeviceCode((), (), (image.name,))
    return DeviceCode((image,), () if cubin.empty else (((image.name,), 1),))


def _chosen(sections: Iterable[Section], names: Sequence[str]) -> Iterator[Section]:
    no_bits = 8  # SHT_NOBITS takes no room in the file
    return (section for section in sections if section.name in names and section.kind != no_bits)


def pieces(containers: Sequence[FatbinContainer]) -> int:
    """How many containers and entries these are."""
    return len(containers) + sum(len(container.entries) for container in containers)


def _search(source: Source, ranges: Iterable[tuple[int, int]], left: int, *, strict: bool) -> list[FatbinContainer]:
    """Containers somewhere in parts of a file (from, to), found by their first bytes; ``left`` pieces at most.

    What begins like one and is none is an error where it is ``strict``, and passed over in ordinary data: tools hold
    such bytes.
    """
    merged = _merged(ranges)
    if sum(stop - start for start, stop in merged) > _MAX_SEARCHED:
        raise UnreadableFatbinError("it is too large to be searched for device code")
    found: list[FatbinContainer] = []
    failures = 0
    for start, stop in merged:
        for place, size in _candidates(source, start, stop):
            try:
                containers = read_fatbin(source, place, size, left if strict else min(left, _MOST_ENTRIES))
            except UnreadableFatbinError:
                failures += 1
                if strict or left <= _MOST_ENTRIES or failures > _MOST_FAILURES:
                    raise
                continue
            left -= pieces(containers)
            found.extend(containers)
    return found


def _candidates(source: Source, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Where containers seem to begin, with the sizes that they state; those within others are left out."""
    place, block, begin = start, b"", 0
    near = False
    while stop - place >= _HEADER:
        if not begin <= place <= begin + len(block) - _HEADER:
            # Behind a container the next one is near: then a few bytes are read, and not a block.
            begin, block = place, source.read(place, min(_NEAR if near else _BLOCK, stop - place))
        near = False
        hit = block.find(_CONTAINER_HEAD, place - begin)
        if 0 <= hit <= len(block) - _HEADER:
            size = _HEADER + int.from_bytes(block[hit + 8 : hit + 16], "little")
            yield begin + hit, size
            inside = begin + hit + size > stop
            near = not inside
            place = begin + hit + (len(_CONTAINER_HEAD) if inside else size)
        else:
            # A header may begin where the block ends.
            place, block = begin + len(block) - (_HEADER - 1), b""


def _merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Each byte once: sections and segments may show the same part of a file many times."""
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return merged
