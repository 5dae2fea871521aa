"""What people have changed in a virtual environment by hand: files that are no longer as their dist's RECORD says.

Three kinds: files with other bytes, files that are gone, and source files inside of a package that no RECORD names.
Nothing is executed. A file whose size differs from the recorded one has changed; of the others the bytes are hashed.
Only large files that were last written before their RECORD was are taken to be as installed: an installer writes RECORD
last, and hashing 9 GB of native libraries would take longer than all the rest.

Left out, for what they are now says nothing about people: scripts in ``bin`` (installers write their first line),
compiled Python files, .dist-info directories, files that two dists list (whoever came last has written them, see
`crossgrade.inspect.ownership`), files that lie directly in site-packages and no RECORD names.

Source: the PyPA specification "Recording installed projects".
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from crossgrade.inspect.dists import InstalledDist, site_packages
from crossgrade.inspect.installed_files import Recorded, read_records
from crossgrade.inspect.ownership import file_digest
from crossgrade.inspect.reading import read_regular

Kind = Literal["changed", "deleted", "added"]
# What people add to a package by hand; caches and what programs leave behind have other names.
_ADDED = (".py", ".pyi", ".cu", ".cuh", ".h", ".hpp", ".c", ".cc", ".cpp", ".json", ".jinja", ".yaml", ".toml")
LARGE_BYTES = 1 << 20  # above it a file is hashed only if it is younger than its RECORD
TEXT_BYTES = 8 << 20  # above it a file is not taken for text
_SECOND = 1_000_000_000


@dataclass(frozen=True)
class LocalChange:
    """One file that differs. `path` is relative to site-packages; `dist` and `version` say whose it is.

    `recorded` is the hash in RECORD (``sha256=…``), empty for a file that was added. `content` are its bytes now, None
    for one that is gone and for one that is no text: `is_text` is False there.
    """

    dist: str
    version: str
    path: str
    kind: Kind
    recorded: str = ""
    content: bytes | None = None
    is_text: bool = True


@dataclass(frozen=True)
class LocalChanges:
    """All changes of a venv, in order of dist and path.

    `unknown` says for a dist or a path why it could not be compared: it counts neither as changed nor as unchanged.
    """

    site: str
    changes: tuple[LocalChange, ...]
    unknown: Mapping[str, str] = field(default_factory=dict)

    def of_dist(self, name: str) -> tuple[LocalChange, ...]:
        return tuple(change for change in self.changes if change.dist == name)

    @property
    def dists(self) -> tuple[tuple[str, str], ...]:
        """Name and version of each dist with changes, in order."""
        return tuple(dict.fromkeys((change.dist, change.version) for change in self.changes))


class _File(NamedTuple):
    size: int
    mtime_ns: int


class _Recorded(NamedTuple):
    dist: InstalledDist
    digest: str
    size: str


def local_changes(
    venv: Path, records: Sequence[Recorded] | None = None, *, trusted_bytes: int = LARGE_BYTES
) -> LocalChanges:
    """Every file that was changed, removed or added by hand, with its bytes where it is text.

    75,000 files of 9 GB take two seconds. Files above `trusted_bytes` are taken to be as installed where they are
    older than their RECORD: 0 takes a third of the time, and misses what was put there with its old size and an old
    time. A RECORD that is missing or damaged is `unknown`. `records` are those of `read_records`, where they were read
    already. Raises UnreadableEnvironmentError for what is no environment.
    """
    site = str(site_packages(venv))
    unknown: dict[str, str] = {}
    recorded, shared, written = _read_records(read_records(venv) if records is None else records, unknown)
    files = dict(_walk(site, {path.partition("/")[0] for path in recorded if "/" in path}, unknown))
    found: list[LocalChange] = []
    for path, line in recorded.items():
        if path in shared or path.startswith("../"):
            continue
        if "/" not in path:
            _stat_into(files, site, path)
        change = _compare(site, path, line, files.get(path), written.get(line.dist.name, 0), unknown, trusted_bytes)
        if change is not None:
            found.append(change)
    found += _added(site, files, recorded, unknown)
    return LocalChanges(site, tuple(sorted(found, key=lambda change: (change.dist, change.path))), unknown)


def is_text(content: bytes) -> bool:
    """As git tells it: text holds no zero byte."""
    return b"\0" not in content


def _read_records(
    records: Sequence[Recorded], unknown: dict[str, str]
) -> tuple[dict[str, _Recorded], set[str], dict[str, int]]:
    """The line of each path, the paths that two dists list, and when each dist's RECORD was written."""
    recorded: dict[str, _Recorded] = {}
    shared: set[str] = set()
    written: dict[str, int] = {}
    for record in records:
        dist = record.dist
        if record.problem:
            unknown[str(dist)] = f"its RECORD {record.problem}"
            continue
        written[dist.name] = dist.record.stat().st_mtime_ns
        for path, digest in record.files.items():
            if path in recorded:
                shared.add(path)
            recorded[path] = _Recorded(dist, digest, record.sizes[path])
    return recorded, shared, written


def _walk(site: str, folders: set[str], unknown: dict[str, str]) -> Iterator[tuple[str, _File]]:
    """Every regular file below these folders of site-packages, links followed, by its path."""
    for name in sorted(folders - {".."}):
        yield from _walk_folder(f"{site}/{name}", name, unknown)


def _walk_folder(folder: str, relative: str, unknown: dict[str, str]) -> Iterator[tuple[str, _File]]:
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                path = f"{relative}/{entry.name}"
                if entry.is_dir():
                    if entry.name != "__pycache__" and not (entry.is_symlink() and _leads_up(entry.path, folder)):
                        yield from _walk_folder(entry.path, path, unknown)
                elif entry.is_file():
                    status = entry.stat()
                    yield path, _File(status.st_size, status.st_mtime_ns)
    except FileNotFoundError:
        return
    except OSError as error:
        unknown[relative] = f"unreadable: {error.strerror}"


def _leads_up(link: str, folder: str) -> bool:
    """Whether a link in a folder leads to that folder or to one above it: it would be walked for ever."""
    return f"{os.path.realpath(folder)}/".startswith(f"{os.path.realpath(link)}/")


def _stat_into(files: dict[str, _File], site: str, path: str) -> None:
    try:
        status = os.stat(f"{site}/{path}")  # noqa: PTH116 - strings, in bulk
    except OSError:
        return
    if stat.S_ISREG(status.st_mode):
        files[path] = _File(status.st_size, status.st_mtime_ns)


def _compare(
    site: str, path: str, line: _Recorded, file: _File | None, written: int, unknown: dict[str, str], trusted: int
) -> LocalChange | None:
    dist = line.dist
    if file is None:
        # what may not be looked at is not gone
        if any(path.startswith(f"{folder}/") for folder in unknown):
            return None
        return LocalChange(dist.name, dist.version, path, "deleted", line.digest, None, path.endswith(_ADDED))
    algorithm, _, digest = line.digest.partition("=")
    if not digest:
        return None
    same_size = not line.size.isdecimal() or int(line.size) == file.size
    if same_size:
        if file.size > trusted and file.mtime_ns <= written + _SECOND:
            return None
        try:
            now = file_digest(f"{site}/{path}", algorithm.lower())
        except OSError as error:
            unknown[path] = f"unreadable: {error.strerror}"
            return None
        if not now:
            unknown[path] = f"RECORD states a hash of an unknown kind: {algorithm}"
        if not now or now == digest.rstrip("="):
            return None
    content = _content(site, path, file, unknown)
    return LocalChange(dist.name, dist.version, path, "changed", line.digest, content, content is not None)


def _content(site: str, path: str, file: _File, unknown: dict[str, str]) -> bytes | None:
    """The bytes of a text; None for what is no text, is too large for one, or cannot be read."""
    if file.size > TEXT_BYTES:
        return None
    try:
        content = read_regular(f"{site}/{path}", TEXT_BYTES)
    except OSError as error:
        unknown[path] = f"unreadable: {error.strerror}"
        return None
    return content if is_text(content) else None


def _added(
    site: str, files: Mapping[str, _File], recorded: Mapping[str, _Recorded], unknown: dict[str, str]
) -> list[LocalChange]:
    more = [path for path in files if path not in recorded and path.endswith(_ADDED)]
    if not more:
        return []
    owners: dict[str, Counter[InstalledDist]] = {}
    for path, line in recorded.items():
        folder = path.rpartition("/")[0]
        while folder:
            owners.setdefault(folder, Counter())[line.dist] += 1
            folder = folder.rpartition("/")[0]
    found = []
    for path in more:
        folder = path.rpartition("/")[0]
        while folder not in owners:  # the first part of the path is a folder that some RECORD names
            folder = folder.rpartition("/")[0]
        dist = owners[folder].most_common(1)[0][0]
        content = _content(site, path, files[path], unknown)
        found.append(LocalChange(dist.name, dist.version, path, "added", "", content, content is not None))
    return found
