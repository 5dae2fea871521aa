"""Dists whose own code wants the same version of another one, without requiring it in their metadata."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from crossgrade.inspect.dists import InstalledDist
from crossgrade.knowledge import Row, table


@dataclass(frozen=True)
class Mismatch:
    """``dist`` is not of the version of ``partner``, whose code compares the two.

    ``refuses`` is True where the partner then raises an error, False where it only leaves the dist unused;
    ``words`` say which, ``source`` where that stands, ``fault`` what it is called.
    """

    dist: InstalledDist
    partner: InstalledDist
    refuses: bool
    words: str
    source: str
    fault: str


def mismatched(dists: Iterable[InstalledDist]) -> tuple[Mismatch, ...]:
    """The pairs of knowledge/version_pairs.yml that are installed in different versions."""
    named: dict[str, list[InstalledDist]] = {}
    for dist in dists:
        named.setdefault(dist.name, []).append(dist)
    return tuple(
        found
        for row in table("version_pairs")
        for dist in named.get(str(row["dist"]), ())
        for partner in named.get(str(row["partner"]), ())
        if (found := _judge(dist, partner, row)) is not None
    )


def _judge(dist: InstalledDist, partner: InstalledDist, row: Row) -> Mismatch | None:
    from packaging.version import Version

    theirs = dist.version.partition("+")[0] if row.get("local_version_is_free") else dist.version
    if theirs == partner.version:
        return None
    try:
        if Version(theirs) == Version(partner.version):
            return None
        version = Version(partner.version)
        if "first" in row and version < Version(str(row["first"])):
            return None
        unused = "unused_since" in row and version >= Version(str(row["unused_since"]))
    except ValueError:
        return None  # the requirements are where such a version is named
    words = str(row["then"] if not unused else row["unused"])
    return Mismatch(dist, partner, not unused, words, str(row["source"]), str(row["fault"]))
