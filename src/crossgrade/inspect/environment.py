"""The files of an environment that may be native code, and the dists that own them."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from crossgrade.inspect.elf import MAGIC
from crossgrade.inspect.reading import read_regular

# Names that neither Python nor the loader ever takes for native code; they are most of an environment's
# files.
NEVER_NATIVE = (".py", ".pyi", ".pyc", ".h", ".hpp", ".cuh", ".txt", ".json")

_LIBRARY_NAME = re.compile(r"\.so(?:\.\d+)*$")
_LINKER_SCRIPTS = (b"/*", b"INPUT", b"GROUP", b"OUTPUT_FORMAT")  # text in the place of a library, for ld alone
_CLOSED = (errno.EACCES, errno.EPERM, errno.EIO)
_MOST_RECORD = 64 << 20  # torch's RECORD, the longest, has 1.5 MB


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

    Also of what should be one and is not: a file with the name of a shared library (but for ld's text scripts), and
    what cannot be looked at, be it a file or a directory.

    A symlink counts only where the file that it leads to was not found otherwise; directories that are
    symlinks are not entered.
    """
    found: list[str] = []
    inodes: set[tuple[int, int]] = set()
    links: list[str] = []
    stack = [root]
    while stack:
        folder = stack.pop()
        try:
            entries = list(os.scandir(folder))
        except OSError as error:
            if error.errno in _CLOSED:
                found.append(folder)
            continue
        for entry in entries:
            if entry.is_symlink():
                links.append(entry.path)
            elif entry.is_dir(follow_symlinks=False):
                if entry.name != "__pycache__":
                    stack.append(entry.path)
            elif not entry.name.endswith(NEVER_NATIVE) and _is_native(entry.path):
                found.append(entry.path)
                with suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    inodes.add((status.st_dev, status.st_ino))
    for path in sorted(links):
        if path.endswith(NEVER_NATIVE) or not os.path.isfile(path):  # noqa: PTH113  # strings, in bulk
            continue
        try:
            status = os.stat(path)  # noqa: PTH116  # as above
        except OSError:
            continue
        identity = (status.st_dev, status.st_ino)
        if identity not in inodes and _is_native(path):
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
        listed = [name for name in recorded(folder / "RECORD") if name in wanted]
        if not listed:
            continue
        name, _, version = folder.name.removesuffix(".dist-info").partition("-")
        dist = Dist(name.replace("_", "-"), version, _tags(folder / "WHEEL"))
        for item in listed:
            found[os.path.normpath(prefix + item)] = dist
    return found


def is_library_name(path: str) -> bool:
    """Whether a file is called as shared libraries are: ``x.so``, ``libx.so.1.2``."""
    return _LIBRARY_NAME.search(path) is not None


def _is_native(path: str) -> bool:
    """Whether a file is ELF, or should be by its name, or cannot be looked at."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        return error.errno in _CLOSED or is_library_name(path)
    try:
        begins = os.read(descriptor, 64)
    except OSError as error:
        return error.errno in _CLOSED or is_library_name(path)
    finally:
        os.close(descriptor)
    return begins.startswith(MAGIC) or (is_library_name(path) and not begins.lstrip().startswith(_LINKER_SCRIPTS))


def recorded(path: Path) -> Iterator[str]:
    """The files that a RECORD lists, relative to site-packages; none where it cannot be read."""
    try:
        text = read_regular(path, _MOST_RECORD).decode("utf-8", "surrogateescape")
    except OSError:
        return
    for line in text.splitlines():
        yield line.rsplit(",", 2)[0].strip('"')


def recorded_files(site_packages: Path) -> Iterator[tuple[Dist, list[str]]]:
    """Each dist with the absolute paths that its RECORD lists, in order of their folders."""
    prefix = f"{site_packages}/"
    for folder in sorted(site_packages.glob("*.dist-info")):
        name, _, version = folder.name.removesuffix(".dist-info").partition("-")
        names = (item if item.startswith("/") else prefix + item for item in recorded(folder / "RECORD"))
        paths = [os.path.normpath(name) if "/../" in name else name for name in names]
        yield Dist(name.replace("_", "-"), version, ()), paths


def _tags(path: Path) -> tuple[str, ...]:
    try:
        lines = read_regular(path, _MOST_RECORD).decode("utf-8", "replace").splitlines()
    except OSError:
        return ()
    return tuple(line.partition(":")[2].strip() for line in lines if line.startswith("Tag:"))
