"""Whether device code runs on a GPU of a given compute capability, decided from the fatbin headers alone.

The rules, from the CUDA Programming Guide (release 13.x), "Compute Capabilities" and "CUDA Platform":

- machine code (SASS, sm_XY) runs on the same major capability with an equal or higher minor one;
- architecture-specific code (suffix a) runs on exactly that capability, be it SASS or PTX;
- family-specific code (suffix f) runs on the members of its family with an equal or higher minor capability;
the
  families stand in `knowledge/compute_capabilities.yml`;
- PTX (compute_XY) can be compiled by the driver for every equal or higher capability, at the first start
(JIT).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Literal

from crossgrade.errors import WrongOptionsError
from crossgrade.inspect.elf import ElfFile, Source
from crossgrade.inspect.fatbin import MAGIC, MAX_PIECES, FatbinContainer, UnreadableFatbinError, read_fatbin
from crossgrade.knowledge import table

Coverage = Literal["native", "jit", "none"]

_BLOCK, _MAX_SEARCHED = 1 << 20, 1 << 32  # bytes
_EXECUTABLE_SECTION, _RELOCATABLE_SECTION = ".nv_fatbin", "__nv_relfatbin"


@dataclass(frozen=True)
class DeviceImage:
    """All pieces of device code of one kind in a file: how many, and their bytes in the file."""

    name: str
    kind: str
    architecture: int
    variant: str
    compression: str
    ptx_version: str | None
    count: int
    payload_bytes: int


@dataclass(frozen=True)
class DeviceCode:
    """The device code of one file.

    ``units`` lists which images stand together in one container (a translation unit), with the number of such
    containers; containers without any function are left out. ``relocatable`` names images that only a later
    device link can use.
    """

    images: tuple[DeviceImage, ...]
    units: tuple[tuple[tuple[str, ...], int], ...]
    relocatable: tuple[str, ...] = ()

    @cached_property
    def by_name(self) -> dict[str, DeviceImage]:
        """The images by their names; those of one name differ only in how they are packed."""
        return {image.name: image for image in self.images}

    @property
    def names(self) -> tuple[str, ...]:
        """Each image once, as compilers write it, lowest architecture first."""
        ordered = sorted(self.images, key=lambda image: (image.kind != "sass", image.architecture, image.variant))
        return tuple(dict.fromkeys(image.name for image in ordered))


def parse_compute_capability(text: str) -> tuple[int, int]:
    """``"12.0"`` or ``"sm_120"`` as (12, 0). Raises `WrongOptionsError`."""
    digits = text.removeprefix("sm_").removeprefix("compute_").rstrip("af")
    major, dot, minor = digits.partition(".")
    if not dot:
        major, minor = digits[:-1], digits[-1:]
    if not (major.isdecimal() and minor.isdecimal() and major.isascii() and minor.isascii()):
        raise WrongOptionsError(
            f"{text!r} is not a compute capability", remedy='Write it as "12.0" (RTX PRO 6000) or "sm_120".'
        )
    return int(major), int(minor)


def capability_of(architecture: int) -> tuple[int, int]:
    """120 as (12, 0): the last digit is the minor capability."""
    return divmod(architecture, 10)


@cache
def _families() -> dict[tuple[int, int], frozenset[tuple[int, int]]]:
    """For each capability, those that run its family-specific code."""
    families = {}
    for row in table("compute_capabilities"):
        members = row.get("family")
        if isinstance(members, list):
            capability = parse_compute_capability(str(row["capability"]))
            families[capability] = frozenset(parse_compute_capability(str(member)) for member in members)
    return families


def runs(kind: str, architecture: int, variant: str, capability: tuple[int, int]) -> Coverage:
    """How one image runs on a GPU of ``capability``; LTO and unknown kinds do not run."""
    built_for = capability_of(architecture)
    if variant == "a":
        fits = built_for == capability
    elif variant == "f":
        known = _families().get(built_for)
        same_major = built_for[0] == capability[0] and built_for[1] <= capability[1]
        fits = capability in known if known is not None else same_major
    elif kind == "sass":
        fits = built_for[0] == capability[0] and built_for[1] <= capability[1]
    else:
        fits = built_for <= capability
    if not fits or kind not in ("sass", "ptx"):
        return "none"
    return "native" if kind == "sass" else "jit"


def coverage(code: DeviceCode, capability: tuple[int, int]) -> Coverage:
    """The best that any unit of the file offers: a file may hold units for other GPUs only."""
    found = [unit_coverage(code, names, capability) for names, _ in code.units]
    return "native" if "native" in found else "jit" if "jit" in found else "none"


def unit_coverage(code: DeviceCode, names: Sequence[str], capability: tuple[int, int]) -> Coverage:
    """The same for the images of one unit."""
    found = {runs(i.kind, i.architecture, i.variant, capability) for i in (code.by_name[name] for name in names)}
    return "native" if "native" in found else "jit" if "jit" in found else "none"


def jit_ptx(code: DeviceCode, capability: tuple[int, int]) -> tuple[tuple[str, int], ...]:
    """The versions of the PTX that the driver must compile for a GPU, each with the number of units that rely on it.

    Those are the units without machine code for it. Of several PTX images in a unit the driver takes the highest that
    fits, and of one that stands in the file in several versions the latest is meant.
    """
    found: Counter[str] = Counter()
    for names, count in code.units:
        if unit_coverage(code, names, capability) != "jit":
            continue
        fit = [
            (image.architecture, version_of(image.ptx_version), image.ptx_version)
            for image in code.images
            if image.name in names
            and image.ptx_version is not None
            and runs(image.kind, image.architecture, image.variant, capability) == "jit"
        ]
        if fit:
            found[max(fit)[2]] += count
    return tuple(sorted(found.items(), key=lambda item: version_of(item[0])))


def version_of(text: str) -> tuple[int, ...]:
    """``9.0`` as (9, 0)."""
    return tuple(map(int, text.split(".")))


def read_device_code(source: Source, elf: ElfFile) -> DeviceCode | None:
    """The device code of a file, or None where it has none. Raises `UnreadableFatbinError`."""
    sections = [s for s in elf.sections if s.name in (_EXECUTABLE_SECTION, _RELOCATABLE_SECTION) and s.size]
    containers: list[FatbinContainer] = []
    relocatable: list[FatbinContainer] = []
    for section in sections:
        chosen = containers if section.name == _EXECUTABLE_SECTION else relocatable
        # Sections may lie over one another: what is left for one is what the others have not used.
        left = MAX_PIECES - pieces(containers) - pieces(relocatable)
        chosen.extend(read_fatbin(source, section.offset, section.size, left))
    if not elf.sections:
        containers.extend(_search(source, elf))
    return summarize(containers, relocatable)


def summarize(containers: Sequence[FatbinContainer], relocatable: Sequence[FatbinContainer] = ()) -> DeviceCode | None:
    """Count what the containers hold; None where they hold nothing."""
    if not containers and not relocatable:
        return None
    counts: Counter[tuple[str, str, int, str, str, str | None]] = Counter()
    sizes: Counter[tuple[str, str, int, str, str, str | None]] = Counter()
    units: Counter[tuple[str, ...]] = Counter()
    for container in containers:
        names = []
        for entry in container.entries:
            version = ".".join(map(str, entry.version)) if entry.version else None
            key = (entry.name, entry.kind, entry.architecture, entry.variant, entry.compression, version)
            counts[key] += 1
            sizes[key] += entry.payload_size
            if not entry.empty:
                names.append(entry.name)
        if names:
            units[tuple(dict.fromkeys(names))] += 1
    images = tuple(DeviceImage(*key, count, sizes[key]) for key, count in counts.items())
    later = dict.fromkeys(entry.name for container in relocatable for entry in container.entries)
    return DeviceCode(images, tuple(units.items()), tuple(later)) if images or later else None


def pieces(containers: Sequence[FatbinContainer]) -> int:
    """How many containers and entries these are."""
    return len(containers) + sum(len(container.entries) for container in containers)


def _search(source: Source, elf: ElfFile) -> list[FatbinContainer]:
    """Containers in a file without section headers, found by their first bytes in what the loader maps."""
    head = MAGIC.to_bytes(4, "little") + b"\x01\x00\x10\x00"
    found: list[FatbinContainer] = []
    left = MAX_PIECES
    ranges = _ranges(elf)
    if sum(stop - start for start, stop in ranges) > _MAX_SEARCHED:
        raise UnreadableFatbinError("it has no section headers and is too large to be searched for device code")
    for start, stop in ranges:
        place = start
        while place < stop:
            block = source.read(place, min(_BLOCK, stop - place))
            at = 0
            while 0 <= (hit := block.find(head, at)) <= len(block) - 16:
                size = 16 + int.from_bytes(block[hit + 8 : hit + 16], "little")
                containers = read_fatbin(source, place + hit, size, left)
                left -= pieces(containers)
                found.extend(containers)
                at = hit + size
            # The next block begins behind what was read, or where a header could begin that this one cuts in two.
            place += max(at, len(block) - 15 if place + len(block) < stop else len(block))
    return found


def _ranges(elf: ElfFile) -> list[tuple[int, int]]:
    """The parts of the file that are loaded, each byte once: segments may show the same part many times."""
    merged: list[tuple[int, int]] = []
    for start, stop in sorted((segment.offset, segment.offset + segment.size) for segment in elf.segments):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return merged
