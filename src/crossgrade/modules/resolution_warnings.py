"""What a person should know of a resolution before it is carried out. Pure: from data to warnings.

Names, remedies and sources are in `knowledge/resolution_warnings.yml`, the days that count as long in
`knowledge/resolver_ages.yml`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import cached_property
from typing import TYPE_CHECKING

from crossgrade.knowledge import Row, table
from crossgrade.modules.contract import Lock, LockRequest, Offer, Offers, PlanWarning
from crossgrade.modules.dists import parse_requirement
from crossgrade.modules.locks import LockEntry, lock_entries, yanked

if TYPE_CHECKING:
    from packaging.requirements import Requirement
    from packaging.version import Version

_SHOWN_PARENTS = 3
# Whose CUDA is that of the environment, and what it asks for when it is built for one (metadata of torch's wheels).
_LOCAL_LABEL = re.compile(r"\+.*?cu(1[1-9])\d")
_VERSIONED_BY_CUDA = re.compile(r"cuda-toolkit|cuda-bindings|nvidia-cuda-runtime|nvidia-cuda-nvrtc")


@dataclass(frozen=True)
class Resolution:
    """All that warnings are made from.

    `before` are the dists of the environment that is replaced, `expected` those of the new one, name to version.
    `requested` are those of `before` that a person asked for by name and nothing else needs.
    """

    request: LockRequest
    lock: Lock
    before: Mapping[str, str]
    expected: Mapping[str, str]
    offers: Offers = field(default_factory=Offers)
    requested: frozenset[str] = frozenset()

    @cached_property
    def entries(self) -> dict[str, LockEntry]:
        return {entry.dist.name: entry for entry in lock_entries(self.lock.text)}

    @cached_property
    def stated(self) -> dict[str, Requirement]:
        """The dists that a requirement, a constraint or an override names."""
        from packaging.utils import canonicalize_name

        texts = (*self.request.requirements, *self.request.constraints, *self.request.overrides)
        return {canonicalize_name(one.name): one for one in map(parse_requirement, texts)}


def warnings_of(resolution: Resolution) -> tuple[PlanWarning, ...]:
    """In the order of the knowledge table, then by name of dist."""
    order = [str(row["name"]) for row in table("resolution_warnings")]
    judges = (_same_files, _mixed_cuda, _prereleases, _backwards, _built, _yanked, _gone)
    found = [warning for judge in judges for warning in judge(resolution)]
    return tuple(sorted(found, key=lambda one: (order.index(one.name), one.subject)))


def warning(name: str, subject: str, message: str, entry: LockEntry | None = None, newest: str = "") -> PlanWarning:
    row = next(row for row in table("resolution_warnings") if row["name"] == name)
    version = entry.dist.version if entry else ""
    parents = asked_for_by(entry) if entry else ""
    remedy = str(row["remedy"]).format(dist=subject, version=version, newest=newest, parents=parents)
    return PlanWarning(name, subject, message, remedy)


def asked_for_by(entry: LockEntry) -> str:
    """`sglang, torch and 2 more`; "the playbook" for what a person named."""
    names = [*(["the playbook"] if entry.named else []), *entry.parents]
    shown = ", ".join(names[:_SHOWN_PARENTS])
    more = len(names) - _SHOWN_PARENTS
    return f"{shown} and {more} more" if more > 0 else shown or "nobody that is known"


# ---- CUDA


def cuda_release(entry: LockEntry) -> int | None:
    """The CUDA major release that a dist is for, by its name, its local version label, the tables, or its version."""
    for row in table("cuda_dists"):
        found = re.fullmatch(str(row["dist"]), entry.dist.name)
        if found:
            return int(found[1])
    label = _LOCAL_LABEL.search(entry.dist.version)
    if label:
        return int(label[1])
    for row in table("cuda_kernels"):
        if row["dist"] == entry.dist.name and _is_one_of(entry.dist.version, str(row["versions"])):
            return int(str(row["cuda"]))
    if _VERSIONED_BY_CUDA.fullmatch(entry.dist.name):
        return int(entry.dist.version.partition(".")[0])
    return None


def _is_one_of(version: str, specifier: str) -> bool:
    from packaging.specifiers import SpecifierSet

    parsed = _version(version)
    return parsed is not None and SpecifierSet(specifier).contains(parsed, prereleases=True)


def _stem(name: str) -> str:
    return re.sub(r"-cu1[1-9]$", "", name)


def _same_files(resolution: Resolution) -> Iterator[PlanWarning]:
    by_stem: dict[str, list[LockEntry]] = {}
    for name, entry in resolution.entries.items():
        if _stem(name) != name:
            by_stem.setdefault(_stem(name), []).append(entry)
    for row in table("cuda_same_files"):
        entries = by_stem.get(str(row["stem"]), [])
        if len(entries) > 1:
            of_torch = torch_cuda(resolution.entries)
            first, *_, second = sorted(entries, key=lambda one: cuda_release(one) == of_torch)
            yield warning(
                "cuda-same-files",
                first.dist.name,
                f"{first.dist.name} {first.dist.version} and {second.dist.name} {second.dist.version} both install "
                f"{row['file']}: the one that is installed last wins",
                first,
            )


def _mixed_cuda(resolution: Resolution) -> Iterator[PlanWarning]:
    """What is for another CUDA than torch, but where a twin for that CUDA is there too."""
    entries = resolution.entries
    of_torch = torch_cuda(entries)
    if of_torch is None:
        return
    there = {(_stem(name), cuda_release(entry)) for name, entry in entries.items()}
    for name, entry in entries.items():
        release = cuda_release(entry)
        if release in (None, of_torch) or (_stem(name) != name and (_stem(name), of_torch) in there):
            continue
        yield warning(
            "cuda-mixed",
            name,
            f"{name} {entry.dist.version} is for CUDA {release}, torch {entries['torch'].dist.version} for {of_torch} "
            f"(asked for by {asked_for_by(entry)})",
            entry,
        )


def torch_cuda(entries: Mapping[str, LockEntry]) -> int | None:
    """The CUDA major release of the locked torch: by its local label, or by the CUDA dists that it asks for."""
    torch = entries.get("torch")
    if torch is None:
        return None
    own = cuda_release(torch)
    if own is not None:
        return own
    asked = {release for one in entries.values() if "torch" in one.parents and (release := cuda_release(one))}
    return asked.pop() if len(asked) == 1 else None


# ---- versions


def _version(text: str) -> Version | None:
    from packaging.version import InvalidVersion, Version

    try:
        return Version(text)
    except InvalidVersion:
        return None


def _prereleases(resolution: Resolution) -> Iterator[PlanWarning]:
    for name, entry in resolution.entries.items():
        version = _version(entry.dist.version)
        if version is None or not version.is_prerelease:
            continue
        newest = _newest(resolution, name)
        if newest is None:
            continue
        said = f"{name} {version} is a prerelease (asked for by {asked_for_by(entry)})"
        if newest.is_prerelease:
            yield warning("prerelease-only", name, f"{said}, and there is no final release", entry, str(newest))
        elif not _holds(resolution, name, version):
            yield warning(
                "prerelease-beside-final", name, f"{said}, the newest final release is {newest}", entry, str(newest)
            )


def _newest(resolution: Resolution, name: str) -> Version | None:
    offer = resolution.offers.newest.get(name)
    return _version(offer.version) if offer else None


def _holds(resolution: Resolution, name: str, version: Version) -> bool:
    """Whether a person asks for this very version."""
    stated = resolution.stated.get(name)
    return stated is not None and any(
        one.operator in ("==", "===") and one.contains(str(version), prereleases=True) for one in stated.specifier
    )


def _backwards(resolution: Resolution) -> Iterator[PlanWarning]:
    """One warning for each dist at most: the one that says most."""
    for name, entry in resolution.entries.items():
        version, newest = _version(entry.dist.version), _newest(resolution, name)
        if version is None:
            continue
        before, stated = _version(resolution.before.get(name, "")), resolution.stated.get(name)
        behind = _days_behind(resolution.offers.locked.get(name), resolution.offers.newest.get(name))
        age = _age(name)
        told = f" (asked for by {asked_for_by(entry)})"
        lag = f"{behind} days older than {newest}, the newest"
        if (
            stated is not None
            and newest is not None
            and _admits(stated, newest)
            and _lags(version, newest, behind, age)
        ):
            text = f"{name} {version} was taken, though the requirement {stated} admits {newest}"
            more = f": it is {lag}" if behind is not None else ""
            yield warning("held-back", name, f"{text}{more}", entry, str(newest))
        elif before is not None and version < before and (stated is None or _admits(stated, before)):
            yield warning("downgraded", name, f"{name} goes back from {before} to {version}{told}", entry)
        elif stated is None and behind is not None and behind > int(str(age["days"])):
            yield warning("ancient", name, f"{name} {version}{told} is {lag}", entry)


def _lags(version: Version, newest: Version, behind: int | None, age: Row) -> bool:
    """Far behind by its day; where the index states none, by its major or minor release."""
    if newest <= version:
        return False
    return newest.release[:2] > version.release[:2] if behind is None else behind > int(str(age["held_back"]))


def _admits(stated: Requirement, version: Version) -> bool:
    return stated.url is None and stated.specifier.contains(str(version), prereleases=True)


def _age(name: str) -> Row:
    return next(row for row in table("resolver_ages") if re.fullmatch(str(row["dist"]), name))


def _days_behind(locked: Offer | None, newest: Offer | None) -> int | None:
    if locked is None or newest is None or not locked.published or not newest.published:
        return None
    return (date.fromisoformat(newest.published) - date.fromisoformat(locked.published)).days


# ---- what will not be there, or only after a build


def _built(resolution: Resolution) -> Iterator[PlanWarning]:
    for name, offer in resolution.offers.locked.items():
        entry = resolution.entries.get(name)
        if entry is not None and not offer.wheel:
            message = f"{name} {entry.dist.version} has no wheel for this Python and platform (asked for by "
            yield warning("built-from-source", name, f"{message}{asked_for_by(entry)}): it is built from source", entry)


def _yanked(resolution: Resolution) -> Iterator[PlanWarning]:
    for name, reason in yanked(resolution.lock).items():
        entry = resolution.entries.get(name)
        if entry is not None:
            why = f": {reason}" if reason else ", without a reason"
            yield warning("yanked", name, f"{name} {entry.dist.version} was yanked{why}", entry)


def _gone(resolution: Resolution) -> Iterator[PlanWarning]:
    for name in sorted(resolution.requested - resolution.expected.keys()):
        text = f"{name} {resolution.before.get(name, '')} was installed by name, and the new environment has none"
        yield warning("no-longer-there", name, text)


# ---- what changes, in words


@dataclass(frozen=True)
class Counts:
    """How many dists change, and how."""

    upgraded: int
    downgraded: int
    new: int
    removed: int

    def __str__(self) -> str:
        parts = [f"{number} {word}" for word, number in vars(self).items() if number]
        return ", ".join(parts) or "no version changes"


def count_changes(before: Mapping[str, str], after: Mapping[str, str]) -> Counts:
    """A version that cannot be compared (a commit, a build) counts as an upgrade."""
    changed = [name for name in before.keys() & after.keys() if before[name] != after[name]]
    down = 0
    for name in changed:
        old, new = _version(before[name]), _version(after[name])
        down += old is not None and new is not None and new < old
    new_ones, removed = len(after.keys() - before.keys()), len(before.keys() - after.keys())
    return Counts(len(changed) - down, down, new_ones, removed)


def reasons(entries: Sequence[LockEntry]) -> dict[str, str]:
    """Why each dist of a lock is in it, and from which index where there are several."""
    places = {entry.index for entry in entries if entry.index}
    return {
        entry.dist.name: f"asked for by {asked_for_by(entry)}"
        + (f"; git {entry.git.url} at {entry.git.commit}" if entry.git else "")
        + (f"; from {entry.index}" if len(places) > 1 and entry.index else "")
        for entry in entries
    }


def sources(entries: Sequence[LockEntry]) -> str:
    """`from pypi.org`, or the indexes with the number of dists from each."""
    from urllib.parse import urlsplit

    counted: dict[str, int] = {}
    for entry in entries:
        place = f"git {entry.git.url}" if entry.git else entry.index
        counted[place or "an address or path"] = counted.get(place or "an address or path", 0) + 1
    if len(counted) == 1:
        only = next(iter(counted))
        return f"from {urlsplit(only).netloc or only}"
    return ", ".join(f"{number} from {place}" for place, number in sorted(counted.items(), key=lambda one: -one[1]))
