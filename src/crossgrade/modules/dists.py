"""Whether a venv holds what a playbook asks for, and what changes from one environment to the next."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from crossgrade.errors import CrossgradeError, TaskError
from crossgrade.inspect.dists import METADATA_BYTES, InstalledDist, installed_dists, normalize_name, record_entries
from crossgrade.inspect.reading import read_regular
from crossgrade.modules.contract import Difference
from crossgrade.modules.wheels import WheelSource, recorded_files

if TYPE_CHECKING:
    from packaging.requirements import Requirement


# The names in METADATA's Requires-Dist lines: all of them start with one (PEP 508).
_REQUIRED = re.compile(r"^Requires-Dist:\s*([A-Za-z0-9][A-Za-z0-9._-]*)", re.MULTILINE | re.IGNORECASE)


def installed(venv: Path) -> dict[str, InstalledDist]:
    """Normalized name → dist, in order of name. Empty for what is not there or is no venv."""
    try:
        return {dist.name: dist for dist in installed_dists(venv)}
    except CrossgradeError:
        return {}


def versions(venv: Path) -> dict[str, str]:
    """Normalized name → version of all dists of a venv; empty as `installed` is."""
    return {name: dist.version for name, dist in installed(venv).items()}


def parse_requirement(text: str) -> Requirement:
    """Raises TaskError for what is not a requirement as PEP 508 has it."""
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        return Requirement(text)
    except InvalidRequirement as error:
        raise TaskError(
            f"{text!r} is not a requirement: {str(error).splitlines()[0]}",
            remedy="Write each as in `numpy>=2.2,<3`, one for each list item; no options, no files.",
        ) from error


def unsatisfied(dists: Mapping[str, InstalledDist], requirements: Sequence[str]) -> list[str]:
    """What each unmet requirement lacks, in words. A requirement by URL is met by any version of its name."""
    problems: list[str] = []
    for text in requirements:
        requirement = parse_requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate():
            continue
        dist = dists.get(normalize_name(requirement.name))
        if dist is None:
            problems.append(f"{text} is not installed")
        elif not requirement.specifier.contains(dist.version, prereleases=True):
            problems.append(f"{requirement.name} {dist.version} is installed, {text} is asked for")
    return problems


def wheel_problem(dists: Mapping[str, InstalledDist], wheel: WheelSource) -> str:
    """Why this wheel is not what is installed, in words; "" when it is, file by file."""
    if wheel.file is None:
        return f"the wheel of {wheel.name or wheel.key} is not built yet"
    dist = dists.get(wheel.name)
    if dist is None:
        return f"{wheel.name} {wheel.version} is not installed"
    if dist.version != wheel.version:
        return f"{wheel.name} {dist.version} is installed, {wheel.version} is asked for"
    try:
        recorded = {entry.path: f"{entry.algorithm}={entry.digest}" for entry in record_entries(dist)}
    except CrossgradeError as error:
        return error.message
    differing = [path for path, digest in recorded_files(wheel.file).items() if recorded.get(path) != digest]
    if differing:
        return f"{wheel.name} {wheel.version} is installed from another build ({differing[0]} differs)"
    return ""


def dist_differences(
    before: Mapping[str, str],
    after: Mapping[str, str],
    why: Mapping[str, str] | None = None,
    first: Collection[str] = (),
) -> tuple[Difference, ...]:
    """Each dist whose version changes, comes or goes; "" for not there.

    `first` come before the others, then what stays or comes, then what goes, each in order of name. `why` says of a
    name what makes it so.
    """
    names = (name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    ordered = sorted(names, key=lambda name: (name not in first, name not in after, name))
    reasons = why or {}
    return tuple(
        Difference(name, before.get(name, ""), after.get(name, ""), reasons.get(name, "") if name in after else "")
        for name in ordered
    )


def requested_dists(venv: Path, among: Collection[str]) -> frozenset[str]:
    """Those of `among` that a person asked for by name and that no other dist requires.

    Installers mark what was asked for with the file REQUESTED; where a whole lock was installed, that is everything, so
    what others require does not count. Empty for what is not there.
    """
    dists = installed(venv) if among else {}
    marked = {name for name in among if name in dists and (dists[name].folder / "REQUESTED").is_file()}
    for dist in dists.values() if marked else ():
        try:
            text = read_regular(dist.folder / "METADATA", METADATA_BYTES).decode("utf-8", "replace")
        except OSError:
            continue
        marked -= {normalize_name(name) for name in _REQUIRED.findall(text.partition("\n\n")[0])} - {dist.name}
    return frozenset(marked)
