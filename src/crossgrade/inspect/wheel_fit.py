"""Whether the wheel that each dist was installed from is one for this Python and this machine, by its WHEEL file.

Source: the PyPA specifications "Binary distribution format" (WHEEL: Tag) and "Platform compatibility tags".
"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from crossgrade.inspect.dists import METADATA_BYTES, InstalledDist
from crossgrade.inspect.python_abi import Interpreter, wheel_problem
from crossgrade.inspect.reading import read_regular

# What a platform tag ends with, where it is for Linux: (?:many|musl)linux_2_28_x86_64, linux_aarch64.
_LINUX = re.compile(r"(?:manylinux(?:1|2010|2014|_\d+_\d+)|linux)_(\w+)$")


@dataclass(frozen=True)
class Unfit:
    """A dist whose wheel is for another Python (``python``), or for another machine or system (``platform``)."""

    dist: InstalledDist
    part: Literal["python", "platform"]
    tags: tuple[str, ...]
    words: str


def wheel_tags(dist: InstalledDist) -> tuple[str, ...]:
    """The tags of the wheel that a dist came from, each for one platform; none where it has no readable WHEEL."""
    try:
        lines = read_regular(dist.folder / "WHEEL", METADATA_BYTES).decode("utf-8", "replace").splitlines()
    except OSError:
        return ()
    stated = [line.partition(":")[2].strip() for line in lines if line.lower().startswith("tag:")]
    found: list[str] = []
    for tag in stated:
        parts = tag.split("-")
        if len(parts) == 3:
            found += [f"{parts[0]}-{parts[1]}-{each}" for each in parts[2].split(".")]
    return tuple(dict.fromkeys(found))


def unfit_wheels(dists: Iterable[InstalledDist], interpreter: Interpreter) -> tuple[Unfit, ...]:
    """The dists whose wheel no installer would choose for this Python and machine, in the order given.

    Which glibc a manylinux tag asks for is not judged: the versions of symbols that the files need are.
    """
    found = []
    machine = platform.machine()
    for dist in dists:
        tags = wheel_tags(dist)
        if not tags:
            continue
        if words := wheel_problem(tags, interpreter):
            found.append(Unfit(dist, "python", tags, words))
        elif not any(_runs_here(tag.rpartition("-")[2], machine) for tag in tags):
            kinds = ", ".join(sorted({tag.rpartition("-")[2] for tag in tags}))
            words = f"comes from a wheel for {kinds}; this is Linux with glibc on {machine}"
            found.append(Unfit(dist, "platform", tags, words))
    return tuple(found)


def _runs_here(tag: str, machine: str) -> bool:
    match = _LINUX.match(tag)
    return tag == "any" or (match is not None and match[1] == machine)
