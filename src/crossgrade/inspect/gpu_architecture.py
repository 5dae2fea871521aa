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
from crossgrade.knowledge import table

Coverage = Literal["native", "jit", "none"]


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
    device link can use. ``embedded`` are images that stand in the file's ordinary data, where the library itself
    takes them from at run time, as cuFFT and cuBLASLt do; cuobjdump does not list them.
    """

    images: tuple[DeviceImage, ...]
    units: tuple[tuple[tuple[str, ...], int], ...]
    relocatable: tuple[str, ...] = ()
    embedded: tuple[DeviceImage, ...] = ()

    @cached_property
    def by_name(self) -> dict[str, DeviceImage]:
        """The images by their names; those of one name differ only in how they are packed."""
        return {image.name: image for image in (*self.images, *self.embedded)}

    @property
    def names(self) -> tuple[str, ...]:
        """Each image once, as compilers write it, lowest architecture first."""
        held = (*self.images, *self.embedded)
        ordered = sorted(held, key=lambda image: (image.kind != "sass", image.architecture, image.variant))
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
            for image in (*code.images, *code.embedded)
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
