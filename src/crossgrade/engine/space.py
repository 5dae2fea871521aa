"""Whether there is room for what a plan would do. Pure but for asking the filesystems how much they have left."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from crossgrade.modules.contract import Space

IGNORE = "crossgrade_ignore_space"


def missing_room(space: Iterable[Space]) -> str:
    """What lacks where, in words; "" when every filesystem has room for its part."""
    parts: dict[int, list[Space]] = {}
    places: dict[int, Path] = {}
    for each in space:
        below = existing(each.path)
        device = below.stat().st_dev
        places.setdefault(device, below)
        parts.setdefault(device, []).append(each)
    problems = []
    for device, needs in parts.items():
        status = os.statvfs(places[device])
        free, needed = status.f_bavail * status.f_frsize, sum(need.bytes for need in needs)
        if needed > free:
            what = ", ".join(f"{need.what} {shown(need.bytes)}" for need in needs if need.bytes)
            problems.append(
                f"the filesystem of {places[device]} has {shown(free)} left, and about {shown(needed)} are "
                f"needed ({what})"
            )
    return "; ".join(problems)


def shown(size: int) -> str:
    """Bytes for people."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def existing(path: Path) -> Path:
    """The path, or the nearest folder above it that is there."""
    while not path.exists():
        path = path.parent
    return path
