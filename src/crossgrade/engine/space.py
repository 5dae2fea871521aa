"""Whether there is room for what a plan would do. Pure but for asking the filesystems how much they have left."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from crossgrade.modules.contract import Space
from crossgrade.places import free_bytes, nearest_existing, shown_bytes

IGNORE = "crossgrade_ignore_space"


def missing_room(space: Iterable[Space]) -> str:
    """What lacks where, in words; "" when every filesystem has room for its part."""
    parts: dict[int, list[Space]] = {}
    places: dict[int, Path] = {}
    for each in space:
        below = nearest_existing(each.path)
        device = below.stat().st_dev
        places.setdefault(device, below)
        parts.setdefault(device, []).append(each)
    problems = []
    for device, needs in parts.items():
        free, needed = free_bytes(places[device]), sum(need.bytes for need in needs)
        if needed > free:
            what = ", ".join(f"{need.what} {shown_bytes(need.bytes)}" for need in needs if need.bytes)
            problems.append(
                f"the filesystem of {places[device]} has {shown_bytes(free)} left, and about {shown_bytes(needed)} are "
                f"needed ({what})"
            )
    return "; ".join(problems)
