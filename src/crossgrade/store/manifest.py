"""The manifest: every entry of a tree, with what proves that it is still the same.

One JSON object per line, in order of path, so that two manifests can be compared with any tool. Contents
are sha256: pip's RECORD files and PyPI hashes use it too, so that a manifest can be checked against both,
and with the SHA extensions of current CPUs it is not what limits a pass over a disk.

A quick comparison trusts a file whose size, mtime_ns and ctime_ns are as recorded: the kernel sets ctime at
every change of content or mode, and no ordinary program can set it back. A full one reads every byte.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from crossgrade.errors import StoreError
from crossgrade.store.atomic import write_file

EntryType = Literal["file", "directory", "link", "other"]
_CHUNK = 1 << 20
# Python may write these at any import; they hold nothing that is not made from the .py beside them
_BYTECODE_FOLDER = "__pycache__"


@dataclass(frozen=True)
class Entry:
    """One entry of a tree. `path` is relative with `/`; sizes in bytes, times in nanoseconds since 1970."""

    path: str
    type: EntryType
    mode: int
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    sha256: str = ""
    target: str = ""

    def same_content(self, other: Entry) -> bool:
        """The same thing for whoever reads it, wherever and whenever it was written."""
        return (self.type, self.mode, self.size, self.sha256, self.target) == (
            other.type,
            other.mode,
            other.size,
            other.sha256,
            other.target,
        )


@dataclass(frozen=True)
class Manifest:
    """All entries of a tree by path, and the digest over what they hold (without times and inodes)."""

    entries: Mapping[str, Entry]
    digest: str

    @property
    def file_count(self) -> int:
        return sum(entry.type == "file" for entry in self.entries.values())

    @property
    def total_bytes(self) -> int:
        return sum(entry.size for entry in self.entries.values() if entry.type == "file")


@dataclass(frozen=True)
class Comparison:
    """What differs between a manifest and a tree. `bytecode` are extra files that Python wrote at import."""

    changed: tuple[str, ...]
    missing: tuple[str, ...]
    extra: tuple[str, ...]
    bytecode: tuple[str, ...]
    files: int
    bytes_read: int

    @property
    def identical(self) -> bool:
        return not (self.changed or self.missing or self.extra)


def _scan(root: Path) -> Iterator[tuple[str, os.stat_result, str]]:
    """(relative path, lstat, link target) of every entry below root, not following links."""
    pending = [("", str(root))]
    while pending:
        prefix, folder = pending.pop()
        with os.scandir(folder) as entries:
            for entry in entries:
                path = f"{prefix}{entry.name}"
                status = entry.stat(follow_symlinks=False)
                target = ""
                if stat.S_ISDIR(status.st_mode):
                    pending.append((f"{path}/", entry.path))
                elif stat.S_ISLNK(status.st_mode):
                    target = os.readlink(entry.path)  # noqa: PTH115 - str paths from scandir, in a hot loop
                yield path, status, target


def _type_of(mode: int) -> EntryType:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "directory"
    return "link" if stat.S_ISLNK(mode) else "other"


def _entry(path: str, status: os.stat_result, target: str, sha256: str) -> Entry:
    kind = _type_of(status.st_mode)
    size = status.st_size if kind == "file" else 0  # a directory's size is the filesystem's affair
    return Entry(
        path, kind, stat.S_IMODE(status.st_mode), size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino,
        sha256, target,
    )  # fmt: skip


def _sha256(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as stream:  # noqa: PTH123 - the path is a str from scandir, in a hot loop
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def digest_of(entries: Mapping[str, Entry]) -> str:
    """sha256 over path, type, mode, size, content and link target of every entry, in order of path."""
    digest = hashlib.sha256()
    for path in sorted(entries):
        entry = entries[path]
        digest.update(json.dumps([path, entry.type, entry.mode, entry.size, entry.sha256, entry.target]).encode())
        digest.update(b"\n")
    return digest.hexdigest()


def build_manifest(root: Path, *, known: Manifest | None = None) -> Manifest:
    """Read a whole tree. Files that `known` has with the same inode, size and times are not read again.

    Hashing uses all cores: hashlib lets the interpreter lock go for large pieces. Raises OSError.
    """
    scanned = list(_scan(root))
    entries: dict[str, Entry] = {}
    to_read: list[tuple[str, os.stat_result]] = []
    for path, status, target in scanned:
        before = known.entries.get(path) if known else None
        if not stat.S_ISREG(status.st_mode):
            entries[path] = _entry(path, status, target, "")
        elif before and _quick_same(before, status):
            entries[path] = _entry(path, status, "", before.sha256)
        else:
            to_read.append((path, status))
    base = str(root)
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        hashes = pool.map(_sha256, (f"{base}/{path}" for path, _ in to_read), chunksize=16)
        for (path, status), sha256 in zip(to_read, hashes, strict=True):
            entries[path] = _entry(path, status, "", sha256)
    return Manifest(entries, digest_of(entries))


def _quick_same(entry: Entry, status: os.stat_result) -> bool:
    return (
        entry.inode == status.st_ino
        and entry.size == status.st_size
        and entry.mtime_ns == status.st_mtime_ns
        and entry.ctime_ns == status.st_ctime_ns
        and entry.mode == stat.S_IMODE(status.st_mode)
    )


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Write it whole or not at all. The first line carries the digest, so that a torn file is recognised."""
    lines = [json.dumps({"schema": 1, "digest": manifest.digest, "entries": len(manifest.entries)})]
    lines += [
        json.dumps([getattr(manifest.entries[key], name) for name in _FIELDS]) for key in sorted(manifest.entries)
    ]
    write_file(path, ("\n".join(lines) + "\n").encode())


_FIELDS = tuple(Entry.__dataclass_fields__)


def read_manifest(path: Path) -> Manifest:
    """Raises StoreError when the manifest is missing, torn or was changed."""
    try:
        head, *lines = path.read_text(encoding="utf-8").splitlines()
        entries: dict[str, Entry] = {}
        for line in lines:
            values: list[Any] = json.loads(line)
            entries[values[0]] = Entry(*values)
        expected = json.loads(head)
    except FileNotFoundError as error:
        raise StoreError(f"the manifest {path} is missing") from error
    except (ValueError, TypeError, IndexError) as error:
        raise StoreError(f"the manifest {path} is damaged: {error}") from error
    if expected["entries"] != len(entries) or expected["digest"] != digest_of(entries):
        raise StoreError(f"the manifest {path} is damaged: its digest does not fit its lines")
    return Manifest(entries, expected["digest"])


def compare(manifest: Manifest, root: Path, *, full: bool) -> Comparison:
    """Compare a tree with its manifest. `full` reads every file; else only files whose inode, size or times differ.

    A file that was only touched or copied (other inode or times, same content) is not a change.
    """
    now = build_manifest(root, known=None if full else manifest)
    changed = sorted(
        path
        for path, entry in manifest.entries.items()
        if path in now.entries and not entry.same_content(now.entries[path])
    )
    missing = sorted(manifest.entries.keys() - now.entries.keys())
    more = sorted(now.entries.keys() - manifest.entries.keys())
    bytecode = [path for path in more if _is_bytecode(path, now.entries[path])]
    extra = [path for path in more if not _is_bytecode(path, now.entries[path])]
    read = sum(
        entry.size
        for path, entry in now.entries.items()
        if entry.type == "file" and (full or not _recorded_same(manifest.entries.get(path), entry))
    )
    return Comparison(tuple(changed), tuple(missing), tuple(extra), tuple(bytecode), now.file_count, read)


def _recorded_same(before: Entry | None, now: Entry) -> bool:
    return before is not None and (before.inode, before.mtime_ns, before.ctime_ns, before.size) == (
        now.inode,
        now.mtime_ns,
        now.ctime_ns,
        now.size,
    )


def _is_bytecode(path: str, entry: Entry) -> bool:
    parts = path.split("/")
    if entry.type == "directory":
        return parts[-1] == _BYTECODE_FOLDER
    return len(parts) > 1 and parts[-2] == _BYTECODE_FOLDER and path.endswith(".pyc")


def quick_drift(manifest: Manifest, root: Path) -> tuple[str, ...]:
    """Paths that are missing or whose size, mode or times differ from the manifest; reads no file.

    For plans: an unchanged tree of n entries costs n calls of lstat. Touched files count as drift here;
    whoever needs to know for sure calls `compare` on what this finds.
    """
    seen: set[str] = set()
    drift: list[str] = []
    for path, status, target in _scan(root):
        entry = manifest.entries.get(path)
        if entry is None:
            continue  # extras are judged by `compare`
        seen.add(path)
        kind = _type_of(status.st_mode)
        same = entry.type == kind and entry.target == target and entry.mode == stat.S_IMODE(status.st_mode)
        if not same or (kind == "file" and not _quick_same(entry, status)):
            drift.append(path)
    return tuple(sorted(drift + list(manifest.entries.keys() - seen)))
