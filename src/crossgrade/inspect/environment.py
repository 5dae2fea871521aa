"""The files of an environment that may be native code, and the dists that own them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from crossgrade.inspect.elf import MAGIC

# Names that neither Python nor the loader ever takes for native code; they are most of an environment's
# files.
NEVER_NATIVE = (".py", ".pyi", ".pyc", ".h", ".hpp", ".cuh", ".txt", ".json")


@dataclass(frozen=True)
class Dist:
    """An installed dist: its name and version, and the tags of its wheel."""

    name: str
    version: str
    tags: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


def elf_files(root: str) -> list[str]:
    """The absolute paths of all ELF files below ``root``, told by their first bytes, in order.

    A symlink counts only where the file that it leads to was not found otherwise; directories that are
    symlinks are not entered.
    """
    found: list[str] = []
    inodes: set[tuple[int, int]] = set()
    links: list[str] = []
    stack = [root]
    while stack:
        try:
            entries = list(os.scandir(stack.pop()))
        except OSError:
            continue
        for entry in entries:
            if entry.is_symlink():
                links.append(entry.path)
            elif entry.is_dir(follow_symlinks=False):
                if entry.name != "__pycache__":
                    stack.append(entry.path)
            elif not entry.name.endswith(NEVER_NATIVE) and _is_elf(entry.path):
                found.append(entry.path)
                status = entry.stat(follow_symlinks=False)
                inodes.add((status.st_dev, status.st_ino))
    for path in sorted(links):
        if path.endswith(NEVER_NATIVE) or not os.path.isfile(path):  # noqa: PTH113  # strings, in bulk
            continue
        status = os.stat(path)  # noqa: PTH116  # as above
        identity = (status.st_dev, status.st_ino)
        if identity not in inodes and _is_elf(path):
            inodes.add(identity)
            found.append(path)
    return sorted(found)


def owners(site_packages: Path, paths: frozenset[str]) -> dict[str, Dist]:
    """Which dist's RECORD lists each of ``paths`` (absolute); paths that none lists are left out."""
    prefix = f"{site_packages}/"
    wanted = {path[len(prefix) :] for path in paths if path.startswith(prefix)}
    outside = {os.path.relpath(path, site_packages) for path in paths if not path.startswith(prefix)}
    wanted |= outside
    found: dict[str, Dist] = {}
    for folder in sorted(site_packages.glob("*.dist-info")):
        listed = [name for name in _recorded(folder / "RECORD") if name in wanted]
        if not listed:
            continue
        name, _, version = folder.name.removesuffix(".dist-info").partition("-")
        dist = Dist(name.replace("_", "-"), version, _tags(folder / "WHEEL"))
        for item in listed:
            found[os.path.normpath(prefix + item)] = dist
    return found


def _is_elf(path: str) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        return os.read(descriptor, 4) == MAGIC
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _recorded(path: Path) -> Iterator[str]:
    try:
        text = path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return
    for line in text.splitlines():
        yield line.rsplit(",", 2)[0].strip('"')


def _tags(path: Path) -> tuple[str, ...]:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ()
    return tuple(line.partition(":")[2].strip() for line in lines if line.startswith("Tag:"))
