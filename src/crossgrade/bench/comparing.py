"""Launches on record of two generations or runs, side by side: what the gate's statistics say of them. Pure.

Launches that were measured in pairs are compared as pairs, others as two groups. Only like is compared with like: the
same load, on the same machine. What else differs (the launch line, the driver, the kernel) is said.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from crossgrade.bench.history import StoredLaunch
from crossgrade.bench.statistics import LEAST_PAIRS, NonInferiority, non_inferiority, unpaired_non_inferiority
from crossgrade.errors import CrossgradeError


class UnlikeError(CrossgradeError, ValueError):
    """The launches of both sides have no load and machine in common."""


@dataclass(frozen=True)
class Compared:
    """Both sides under one load. `results` are by metric, `paired` says how they were judged, `notes` what differs."""

    profile: str
    asked: Mapping[str, object]
    launches: tuple[int, int]
    paired: bool
    results: Mapping[str, NonInferiority]
    notes: tuple[str, ...] = ()


def compare_launches(
    one: Sequence[StoredLaunch],
    other: Sequence[StoredLaunch],
    higher_is_better: Mapping[str, bool],
    *,
    allowed_loss: float = 0.05,
    confidence: float = 0.95,
    forced: bool = False,
) -> list[Compared]:
    """Compare under each load that both sides have on one machine, for each metric that all those launches have.

    `forced` compares what is unlike, too, if either side has but one load and machine. Raises UnlikeError, which says
    what differs.
    """
    sides = [_by_kind(launches) for launches in (one, other)]
    if not all(sides):
        raise UnlikeError("there is no launch that counts on one of the sides")
    common = [kind for kind in sides[0] if kind in sides[1]]
    pairs = [(sides[0][kind], sides[1][kind]) for kind in common]
    notes: tuple[str, ...] = ()
    if not common:
        unlike = _unlike(*sides)
        if not forced:
            raise UnlikeError(
                unlike, remedy="With --force they are compared all the same; the figures may say nothing."
            )
        if any(len(side) > 1 for side in sides):
            raise UnlikeError(f"{unlike}, and there are several of them: nobody can say which to compare")
        pairs = [(next(iter(sides[0].values())), next(iter(sides[1].values())))]
        notes = (f"{unlike}: compared all the same",)
    return [_compared(*pair, higher_is_better, allowed_loss, confidence, notes) for pair in pairs]


Kind = tuple[str, str]


def _by_kind(launches: Iterable[StoredLaunch]) -> dict[Kind, list[StoredLaunch]]:
    found: dict[Kind, list[StoredLaunch]] = {}
    for launch in launches:
        if launch.counts:
            found.setdefault((launch.profile, launch.host), []).append(launch)
    return found


def _unlike(one: Mapping[Kind, object], other: Mapping[Kind, object]) -> str:
    words = [
        what
        for what, place in (("the loads differ", 0), ("the machines differ", 1))
        if not {kind[place] for kind in one} & {kind[place] for kind in other}
    ]
    return " and ".join(words) or "no load was measured on the same machine on both sides"


def _compared(
    one: Sequence[StoredLaunch],
    other: Sequence[StoredLaunch],
    higher_is_better: Mapping[str, bool],
    allowed_loss: float,
    confidence: float,
    notes: tuple[str, ...],
) -> Compared:
    together = _pairs(one, other)
    paired = len(together) >= LEAST_PAIRS
    if paired:
        one, other = [pair[0] for pair in together], [pair[1] for pair in together]
    results = {}
    for metric, higher in higher_is_better.items():
        sides = [[launch.metrics.get(metric, 0.0) for launch in side] for side in (one, other)]
        if any(not (math.isfinite(value) and value > 0) for side in sides for value in side):
            continue
        if paired:
            results[metric] = non_inferiority(
                list(zip(*sides, strict=True)),
                allowed_loss=allowed_loss,
                higher_is_better=higher,
                confidence=confidence,
                minimum_pairs=LEAST_PAIRS,
            )
        else:
            results[metric] = unpaired_non_inferiority(
                sides[0],
                sides[1],
                allowed_loss=allowed_loss,
                higher_is_better=higher,
                confidence=confidence,
                minimum_launches=LEAST_PAIRS,
            )
    known = other[0]
    return Compared(
        known.profile, known.asked, (len(one), len(other)), paired, results, (*notes, *_differences(one, other))
    )


def _pairs(one: Iterable[StoredLaunch], other: Iterable[StoredLaunch]) -> list[tuple[StoredLaunch, StoredLaunch]]:
    """Those that were launched as one pair; a pair whose sides are both of one generation is none."""
    partners = {launch.pair_key: launch for launch in one}
    found = [(partners.get(launch.pair_key), launch) for launch in other]
    return [(first, second) for first, second in found if first is not None and first.side != second.side]


def _differences(one: Sequence[StoredLaunch], other: Sequence[StoredLaunch]) -> list[str]:
    """What differs besides the generation and does not forbid the comparison."""
    notes = []
    if {launch.starts for launch in one} != {launch.starts for launch in other}:
        notes.append("the servers were started by different launch lines")
    for name in ("driver", "kernel"):
        versions = [sorted({str(launch.machine.get(name, "")) for launch in side}) for side in (one, other)]
        if versions[0] != versions[1]:
            shown = ["/".join(filter(None, side)) or "none" for side in versions]
            notes.append(f"the {name} was {shown[0]}, then {shown[1]}")
    if not one[0].host:
        notes.append("the machine is not on record")
    return notes
