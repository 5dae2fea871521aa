"""Wheels as the environment that they would make: laid out in a temporary folder, over an installed one if wanted.

Only what may be native is unpacked, Python code (it says what is imported first), and the metadata. Of the environment
below, folders that the wheels do not touch are links: their libraries are found at the places that they would have, and
are not inspected again.

Source: PyPA specification "Binary distribution format" (names, .dist-info and .data folders).
"""

from __future__ import annotations

import errno
import lzma
import os
import shutil
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from crossgrade.errors import CrossgradeError
from crossgrade.inspect.environment import NEVER_NATIVE

_PIECE = 1 << 20
_MOST_EXPANSION = 100  # native code packs to a half or a fifth
# What `zipfile` and its decompressors raise for damaged archives.
_DAMAGED = (
    zipfile.BadZipFile,
    EOFError,
    RuntimeError,
    ValueError,
    LookupError,
    struct.error,
    zlib.error,
    lzma.LZMAError,
)
_METADATA = ("METADATA", "RECORD", "WHEEL")
_PLACES = {"purelib": "", "platlib": ""}  # folders of NAME.data whose content belongs into site-packages


@dataclass(frozen=True)
class Layout:
    """`root` is a venv in all that the loader looks at; `files` are the wheels' own, as absolute paths."""

    root: Path
    site_packages: Path
    files: frozenset[str]


class UnreadableWheelError(CrossgradeError, ValueError):
    """A file is no wheel, or a damaged one."""


@contextmanager
def laid_out(wheels: Sequence[Path], below: Path | None) -> Iterator[Layout]:
    """The wheels as one environment, over the venv `below`. It is gone afterwards.

    Raises UnreadableWheelError, UnreadableEnvironmentError for `below`, and OSError when the disk is full.
    """
    from crossgrade.inspect.dists import site_packages

    with tempfile.TemporaryDirectory(prefix="crossgrade-inspect-") as folder:
        root = Path(folder)
        base = site_packages(below) if below is not None else None
        site = root if base is None or below is None else root / base.relative_to(below)
        site.mkdir(parents=True, exist_ok=True)
        files: set[str] = set()
        for wheel in wheels:
            files |= _unpack(wheel, site)
        if base is not None and below is not None:
            _underlay(base, site, "", _replaced(below, site))
            shutil.copy(below / "pyvenv.cfg", root / "pyvenv.cfg")
            (root / "bin").mkdir()
            (root / "bin" / "python").symlink_to((below / "bin" / "python").resolve())
        yield Layout(root, site, frozenset(files))


def _unpack(wheel: Path, site: Path) -> set[str]:
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = list(_wanted(archive, wheel, site))
            _bound(members, wheel)
            return {str(_write(archive, member, target)) for member, target in members}
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise
        raise UnreadableWheelError(f"{wheel} is no wheel: {error}", remedy="Fetch it again.") from error
    except _DAMAGED as error:
        raise UnreadableWheelError(f"{wheel} is no wheel: {error}", remedy="Fetch it again.") from error


def _bound(members: Sequence[tuple[zipfile.ZipInfo, Path]], wheel: Path) -> None:
    """Refuse what would fill the disk: zeros can be packed to a thousandth, and members can share their bytes."""
    claimed, packed = sum(member.file_size for member, _ in members), wheel.stat().st_size
    if claimed > _MOST_EXPANSION * packed + _PIECE:
        raise UnreadableWheelError(f"{wheel} claims to unpack to {claimed} bytes, from {packed}")


def _wanted(archive: zipfile.ZipFile, wheel: Path, site: Path) -> Iterator[tuple[zipfile.ZipInfo, Path]]:
    for member in archive.infolist():
        path = PurePosixPath(member.filename)
        if not path.parts or path.is_absolute() or ".." in path.parts or "\\" in member.filename:
            raise UnreadableWheelError(f"{wheel} holds {member.filename!r}, which leads out of it")
        wanted = path.name.endswith(".py") or (path.parts[0].endswith(".dist-info") and path.name in _METADATA)
        if member.is_dir() or (path.name.endswith(NEVER_NATIVE) and not wanted):
            continue
        if path.parts[0].endswith(".data"):
            if len(path.parts) < 3 or path.parts[1] not in _PLACES:
                continue
            path = PurePosixPath(*path.parts[2:])
        yield member, site / path


def _write(archive: zipfile.ZipFile, member: zipfile.ZipInfo, target: Path) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(member) as source, target.open("wb") as copy:
        shutil.copyfileobj(source, copy, _PIECE)
    return target


def _replaced(below: Path, site: Path) -> frozenset[str]:
    """The files, and the folders above them, of dists that the wheels take the place of; relative to site-packages."""
    from crossgrade.inspect.dists import installed_dists, normalize_name, record_entries

    names = {normalize_name(folder.name.partition("-")[0]) for folder in site.glob("*.dist-info")}
    paths: set[str] = set()
    for dist in installed_dists(below):
        if dist.name in names:
            for entry in record_entries(dist):
                path = PurePosixPath(os.path.normpath(entry.path))
                paths.update(map(str, (path, *path.parents)))
    return frozenset(paths - {"."})


def _underlay(base: Path, site: Path, prefix: str, replaced: frozenset[str]) -> None:
    """Link to everything of the installed environment that the wheels have not put there or replaced."""
    with os.scandir(base) as entries:
        for entry in entries:
            name, place = prefix + entry.name, site / entry.name
            if entry.is_dir() and (name in replaced or place.is_dir()):
                place.mkdir(exist_ok=True)
                _underlay(Path(entry.path), place, f"{name}/", replaced)
            elif name not in replaced and not os.path.lexists(place):
                place.symlink_to(entry.path)
