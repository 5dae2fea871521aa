"""Which dists of two environments can be mixed: what must move together, by what the dists themselves require.

A dist that is in both in another version, or in one of them only, is a change. Taking a change on may need another one:
the new version requires what only the other environment has, or the old version of somebody else forbids it. What needs
each other, directly or around a ring, is one group. Requirements that neither environment meets in itself are left out:
no mixture makes them worse.

Source: PEP 508 and the core metadata (Requires-Dist), as in `crossgrade.inspect.requirements`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from crossgrade.inspect.dists import installed_dists, normalize_name
from crossgrade.inspect.requirements import UNPARSABLE, stated_requirements

if TYPE_CHECKING:
    from packaging.requirements import Requirement


@dataclass(frozen=True)
class Dist:
    """An installed dist: its version and its Requires-Dist lines, as METADATA has them."""

    version: str
    requires: tuple[str, ...] = ()


Dists = Mapping[str, Dist]


@dataclass(frozen=True)
class Group:
    """Changes that cannot be taken apart, by name; `needs` are positions of earlier groups."""

    names: tuple[str, ...]
    needs: frozenset[int] = frozenset()


def read_dists(venv: Path) -> dict[str, Dist]:
    """Every dist of an environment by its normalized name. What its METADATA does not tell it does not require.

    Raises UnreadableEnvironmentError.
    """
    found = {}
    for dist in installed_dists(venv):
        try:
            requires = tuple(stated_requirements(dist)[0])
        except (OSError, ValueError):
            requires = ()
        found[dist.name] = Dist(dist.version, requires)
    return found


def changed_names(before: Dists, after: Dists) -> list[str]:
    """The names whose version differs, or that only one side has, in order."""
    versions = [{name: dist.version for name, dist in dists.items()} for dists in (before, after)]
    return [name for name in sorted({*before, *after}) if versions[0].get(name) != versions[1].get(name)]


def needs_of(
    before: Dists, after: Dists, changed: Collection[str], environment: Mapping[str, str]
) -> dict[str, set[str]]:
    """For each changed dist the changed dists that it cannot be changed without. Pure.

    `environment` holds the variables of markers. A dist that is removed by the change counts as one that is not there.
    """
    needs: dict[str, set[str]] = {name: set() for name in changed}
    for dists, others, new in ((after, before, True), (before, after, False)):
        for name, requirement in _asked(dists, environment):
            wanted = normalize_name(requirement.name)
            if wanted == name or name not in needs or wanted not in needs:
                continue
            if _meets(dists.get(wanted), requirement) and not _meets(others.get(wanted), requirement):
                # the new name with the old wanted, or the old name with the new wanted, would not fit
                needs[name if new else wanted].add(wanted if new else name)
    return needs


def unmet_names(dists: Dists, environment: Mapping[str, str]) -> set[str]:
    """The names of which a dist asks for what is not there, neither in that version nor at all. Pure."""
    asked = _asked(dists, environment)
    names = ((normalize_name(requirement.name), requirement) for _, requirement in asked)
    return {name for name, requirement in names if not _meets(dists.get(name), requirement)}


def _asked(dists: Dists, environment: Mapping[str, str]) -> Iterator[tuple[str, Requirement]]:
    """Each dist's name with each of its requirements that holds here, those behind extras that are asked for too."""
    extras: dict[str, set[str]] = {}
    for dist in dists.values():
        for requirement in _parsed(dist.requires):
            if requirement.extras:
                extras.setdefault(normalize_name(requirement.name), set()).update(requirement.extras)
    for name, dist in dists.items():
        for requirement in _parsed(dist.requires):
            if _holds(requirement, extras.get(name, set()), environment):
                yield name, requirement


def _holds(requirement: Requirement, extras: set[str], environment: Mapping[str, str]) -> bool:
    marker = requirement.marker
    try:
        return marker is None or any(marker.evaluate({**environment, "extra": extra}) for extra in ("", *extras))
    except UNPARSABLE:
        return False


def _parsed(lines: Sequence[str]) -> Iterator[Requirement]:
    from packaging.requirements import Requirement

    for line in lines:
        with suppress(*UNPARSABLE):
            yield Requirement(line)


def _meets(dist: Dist | None, requirement: Requirement) -> bool:
    if dist is None:
        return False
    try:
        return bool(requirement.url) or requirement.specifier.contains(dist.version, prereleases=True)
    except UNPARSABLE:
        return True


def grouped(names: Sequence[str], needs: Mapping[str, Iterable[str]]) -> tuple[Group, ...]:
    """The names as groups, each after those that it needs; otherwise in their order. Pure."""
    reach = {name: _reached(name, needs) for name in names}
    rings = {
        name: tuple(each for each in names if each == name or (each in reach[name] and name in reach[each]))
        for name in names
    }
    groups: list[tuple[str, ...]] = []
    place: dict[str, int] = {}
    waiting = list(names)
    while waiting:
        ring = next(rings[name] for name in waiting if all(need in place for need in reach[name] - {*rings[name]}))
        place |= dict.fromkeys(ring, len(groups))
        groups.append(ring)
        waiting = [each for each in waiting if each not in place]
    return tuple(
        Group(group, frozenset(place[need] for name in group for need in reach[name]) - {number})
        for number, group in enumerate(groups)
    )


def _reached(name: str, needs: Mapping[str, Iterable[str]]) -> set[str]:
    reached: set[str] = set()
    ahead = [name]
    while ahead:
        for need in needs.get(ahead.pop(), ()):
            if need not in reached:
                reached.add(need)
                ahead.append(need)
    return reached
