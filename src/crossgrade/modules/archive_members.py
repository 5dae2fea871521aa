"""Which members of an archive are unpacked, and whether they may be: none leaves the directory. Only reads."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from crossgrade.errors import TaskError
from crossgrade.modules.files import MOST_LINKS, entry_at
from crossgrade.modules.unpacking import Archive, Member


def chosen_members(
    members: Sequence[Member], archive: Archive, *, include: Sequence[str], exclude: Sequence[str]
) -> list[Member]:
    """The members to unpack, the last one of each name. Raises TaskError for an `include` that there is not."""
    zipped = archive.handler == "ZipArchive"
    last = {member.name: member for member in members}
    chosen = [member for member in members if last[member.name] is member]
    if include:
        wanted = [posixpath.normpath(one) for one in include]
        lacking = [one for one in wanted if not any(_is_included(member.name, one, zipped) for member in chosen)]
        if lacking:
            raise TaskError(f"{archive.path} has no member {lacking[0]!r}")
        return [member for member in chosen if any(_is_included(member.name, one, zipped) for one in wanted)]
    left_out = [one.removeprefix("./") for one in exclude]
    return [member for member in chosen if not any(_is_excluded(member, one, zipped) for one in left_out)]


def _is_included(name: str, wanted: str, zipped: bool) -> bool:
    if zipped:
        return fnmatchcase(name, wanted)
    return wanted == "." or name == wanted or name.startswith(f"{wanted}/")


def _is_excluded(member: Member, pattern: str, zipped: bool) -> bool:
    """As tar has it: a pattern is for the end of a name, from any slash on, and for all below. Unzip: a whole name."""
    if zipped:
        name = f"{member.name}/" if member.kind == "directory" else member.name
        return fnmatchcase(name, pattern)
    parts = member.name.split("/")
    pattern = pattern.removesuffix("/")
    ends = range(1, len(parts) + 1)
    return any(fnmatchcase("/".join(parts[start:end]), pattern) for end in ends for start in range(end))


def check_links(members: Sequence[Member], dest: Path) -> None:
    """Raises TaskError for a link that leads out of the directory, by way of other links too."""
    links = {member.name: member.target for member in members if member.kind == "link"}
    names = {member.name: member for member in members}
    for member in members:
        if member.kind == "link" and _leaves(member, links, dest):
            raise TaskError(
                f"the archive is not unpacked: its link {member.name} leads out of the directory, to {member.target}"
            )
        if member.kind == "hard":
            source = names.get(member.target)
            there = Path(os.path.realpath(dest / member.target)).is_relative_to(os.path.realpath(dest))
            outside = source is None and not (there and entry_at(dest / member.target).kind == "file")
            if outside or (source is not None and source.kind not in ("file", "hard")):
                raise TaskError(f"{member.name} is another name of {member.target}, which is not there")


def _leaves(member: Member, links: Mapping[str, str], dest: Path) -> bool:
    """Whether a link leads out of the directory, when all other links of the archive and of the disk are there too."""
    place = member.name.split("/")[:-1]
    left = [part for part in reversed(member.target.split("/")) if part not in ("", ".")]
    if member.target.startswith("/"):
        return True
    for _ in range(MOST_LINKS * 100):
        if not left:
            return False
        part = left.pop()
        if part == "..":
            if not place:
                return True
            place.pop()
            continue
        place.append(part)
        name = "/".join(place)
        target = links.get(name)
        if target is None and (dest / name).is_symlink():
            target = os.readlink(dest / name)  # noqa: PTH115 - as it was written
        if target is not None:
            if target.startswith("/"):
                return True
            place.pop()
            left += [part for part in reversed(target.split("/")) if part not in ("", ".")]
    return True  # links in a ring, or a chain that nobody makes for good


def check_parents(member: Member, members: Sequence[Member], made: set[str], dest: Path) -> None:
    """Raises TaskError when the member would be written through a link that leads out, or is in the archive itself."""
    parts = member.name.split("/")[:-1]
    for number in range(1, len(parts) + 1):
        name = "/".join(parts[:number])
        if name in made:
            continue
        if any(one.name == name for one in members):
            raise TaskError(f"the archive is not unpacked: {member.name} lies below {name}, which is no directory")
        place = dest / name
        if place.is_symlink() and not Path(os.path.realpath(place)).is_relative_to(os.path.realpath(dest)):
            raise TaskError(f"{place} is a link that leads out of {dest}: nothing is unpacked through it")
