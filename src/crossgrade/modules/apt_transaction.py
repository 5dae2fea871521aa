"""What apt says that it would do, as data, and whether a toolkit may be installed that way. Pure.

The text is that of ``apt-get --simulate install`` with LC_ALL=C: a line ``Inst NAME [OLD] (NEW ORIGIN [ARCH])`` for
each package that is unpacked, ``Remv NAME [OLD]`` or ``Purg`` for each that goes (apt-get(8), ``--simulate``; read
from apt 2.6.1).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Action = Literal["install", "upgrade", "downgrade", "remove"]

_LINE = re.compile(r"(Inst|Remv|Purg) (\S+)(?: \[([^\]]*)\])?(?: \((\S+)[^)]*\))?")
_DOWNGRADED = "The following packages will be DOWNGRADED:"
_UNKNOWN = re.compile(r"Unable to locate package (\S+)|Version '(\S+)' for '(\S+)' was not found")


@dataclass(frozen=True)
class PackageChange:
    """One package of a transaction; `before` is empty for a new one, `after` for one that goes.

    `name` carries the architecture only where it is a foreign one (``libc6:i386``).
    """

    name: str
    before: str
    after: str
    action: Action


@dataclass(frozen=True)
class DriverRule:
    """Names of packages that are parts of the driver, and what they are (`knowledge/driver_packages.yml`)."""

    package: re.Pattern[str]
    what: str


def driver_rules() -> tuple[DriverRule, ...]:
    """The rows of the table."""
    from crossgrade.knowledge import table

    return tuple(DriverRule(re.compile(str(row["package"])), str(row["what"])) for row in table("driver_packages"))


def driver_part(name: str, rules: Sequence[DriverRule]) -> str:
    """What a package is of the driver; empty where it is none."""
    bare = name.partition(":")[0]
    return next((rule.what for rule in rules if rule.package.fullmatch(bare)), "")


def parse_simulation(text: str) -> tuple[PackageChange, ...]:
    """The transaction that apt simulated, in its order."""
    downgraded = set(_listed(text, _DOWNGRADED))
    changes = []
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        verb, name, before, after = match[1], match[2], match[3] or "", match[4] or ""
        action: Action = "upgrade" if before else "install"
        if verb != "Inst":
            action, after = "remove", ""
        elif name in downgraded:
            action = "downgrade"
        changes.append(PackageChange(name, before, after, action))
    return tuple(changes)


def _listed(text: str, title: str) -> list[str]:
    """The names in the indented lines below a title of apt's."""
    names: list[str] = []
    _, found, rest = text.partition(title)
    for line in rest.splitlines()[1:] if found else ():
        if not line.startswith(" "):
            break
        names += line.split()
    return names


def unknown_packages(text: str) -> tuple[str, ...]:
    """The packages that apt said not to know, or not in the version that was asked for."""
    return tuple(match[1] or f"{match[3]}={match[2]}" for match in _UNKNOWN.finditer(text))


def refusals(changes: Sequence[PackageChange], rules: Sequence[DriverRule], *, upgrades: bool) -> tuple[str, ...]:
    """Why a transaction is not carried out, each reason one sentence; empty where nothing speaks against it.

    `upgrades` says whether packages that are installed may become newer; that cannot be taken back.
    """
    reasons = []
    words = {"install": "be installed", "upgrade": "be upgraded", "downgrade": "be downgraded", "remove": "be removed"}
    for change in changes:
        versions = " -> ".join(filter(None, (change.before, change.after)))
        would = f"{change.name} would {words[change.action]} ({versions})"
        part = driver_part(change.name, rules)
        if part:
            reasons.append(f"{would}: it belongs to the driver: {part}")
        elif change.action == "remove":
            reasons.append(f"{would}: a toolkit must remove nothing")
        elif change.action == "downgrade":
            reasons.append(f"{would}: a toolkit must downgrade nothing")
        elif change.action == "upgrade" and not upgrades:
            reasons.append(f"{would}, which cannot be taken back")
    return tuple(reasons)


def removed_besides(changes: Sequence[PackageChange], meant: Mapping[str, str]) -> tuple[str, ...]:
    """What a transaction would remove or change beside the packages that are meant to go."""
    return tuple(change.name for change in changes if change.action != "remove" or change.name not in meant)


def package_versions(text: str, architecture: str, *, whole: bool) -> dict[str, str]:
    """Package → version, from lines of name, abbreviated state and version that dpkg-query prints, with tabs between.

    `whole`: only those that are installed; else also those of which something is left. The names of the system's own
    `architecture` are without it, as in simulations.
    """
    versions = {}
    for line in text.splitlines():
        name, state, version = line.split("\t")
        if state.strip() == "ii" or (not whole and state.strip()[1:2] not in ("n", "")):
            versions[name.removesuffix(f":{architecture}")] = version
    return versions


def package_sizes(text: str) -> tuple[int, int]:
    """Bytes on disk and bytes to download, from the stanzas of ``apt-cache show``."""
    installed = sum(int(kibibytes) for kibibytes in re.findall(r"^Installed-Size: (\d+)", text, re.MULTILINE))
    return installed * 1024, sum(int(size) for size in re.findall(r"^Size: (\d+)", text, re.MULTILINE))
