"""Whether a venv holds what a playbook asks for, and what changes from one environment to the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from crossgrade.errors import CrossgradeError, TaskError
from crossgrade.inspect.dists import InstalledDist, installed_dists, normalize_name, record_entries
from crossgrade.modules.contract import Difference
from crossgrade.modules.wheels import WheelSource, recorded_files

if TYPE_CHECKING:
    from packaging.requirements import Requirement


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


def dist_differences(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[Difference, ...]:
    """Each dist whose version changes, comes or goes; "" for not there."""
    return tuple(
        Difference(name, before.get(name, ""), after.get(name, ""))
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    )
