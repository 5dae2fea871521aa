"""The manifest: every entry of a tree, with what proves that it is still the same.

Contents are BLAKE3 (`store/hashing.py` says why), through the package `blake3`.

A quick comparison trusts a file whose device, inode, size, times, mode and owner are as recorded: the kernel
sets ctime at every change of content, mode or owner, and no ordinary program can set it back. It is trusted
only if it could not have changed again within one tick of the kernel's clock after it was read; git calls
such files racy. Those are read again at every comparison. A full comparison reads every byte.

On disk: one line with what is needed to recognise a torn or edited file, then the entries as a JSON array,
one a line, in order of path, so that two manifests can be compared with any tool. Names that are not UTF-8
are written as Python's surrogate escapes.
"""

from __future__ import annotations

import gc
import json
import os
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from blake3 import blake3

from crossgrade.errors import StoreError
from crossgrade.store.atomic import write_file
from crossgrade.store.hashing import Found, hash_files
from crossgrade.store.hashing import hash_file as hash_file
from crossgrade.store.scanning import TYPE_BITS, scan

if TYPE_CHECKING:
    from crossgrade.store.layout import Store

SCHEMA = 2
EntryType = Literal["file", "directory", "link", "other"]
# Python may write these at any import; they hold nothing that is not made from the .py beside them
_BYTECODE_FOLDER = "__pycache__"
# Nanoseconds in which two changes may get the same ctime: the kernel's clock moves on at each of 100 to 1000
# ticks a second. Filesystems that keep whole seconds (ext4 with inodes of 128 bytes) show it by their zeros.
_TICK = 20_000_000
_ROWS_AT_ONCE = 1000
_SECOND = 1_000_000_000
_COARSE_TICK = 2 * _SECOND
_RACY = -1  # the ctime that is recorded for a file that cannot be trusted: no file has it


class Entry(NamedTuple):
    """One entry of a tree. `path` is relative with `/`; sizes in bytes, times in nanoseconds since 1970.

    `digest` is the BLAKE3 of a file's bytes, in hex. `ctime_ns` is -1 for a file that was changed so shortly
    before it was read that it could change again unnoticed: nothing but its bytes proves that it is the same.
    """

    path: str
    type: EntryType
    mode: int
    uid: int
    gid: int
    size: int
    mtime_ns: int
    ctime_ns: int
    device: int
    inode: int
    digest: str = ""
    target: str = ""

    def same_content(self, other: Entry) -> bool:
        """The same thing for whoever reads it, wherever and whenever it was written."""
        return _content(self)[1:] == _content(other)[1:]


def _content(entry: Entry) -> tuple[str, EntryType, int, int, int, int, str, str]:
    """What counts: all but times, device and inode."""
    path, kind, mode, uid, gid, size, _, _, _, _, digest, target = entry
    return path, kind, mode, uid, gid, size, digest, target


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


# ---- reading a tree


def type_of(mode: int) -> EntryType:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "directory"
    return "link" if stat.S_ISLNK(mode) else "other"


def _entry(path: str, status: os.stat_result, digest: str = "", target: str = "", racy: bool = False) -> Entry:
    kind = type_of(status.st_mode)
    # a directory's size is the filesystem's affair; of a device, which one it is counts
    size = status.st_size if kind == "file" else status.st_rdev if kind == "other" else 0
    return Entry(
        path, kind, stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid, size,
        status.st_mtime_ns, _RACY if racy else status.st_ctime_ns, status.st_dev, status.st_ino, digest, target,
    )  # fmt: skip


_STATUS = attrgetter("st_uid", "st_gid", "st_size", "st_mtime_ns", "st_ctime_ns", "st_dev", "st_ino")


def _quick_same(entry: Entry, status: os.stat_result) -> bool:
    """Never for a racy file: no file has its ctime. One comparison of tuples, because it is made for every file."""
    return bool(entry[3:10] == _STATUS(status) and entry.mode == stat.S_IMODE(status.st_mode))


def _is_racy(ctime_ns: int, read_from_ns: int) -> bool:
    """Whether a change after `read_from_ns`, when we began to read, could get this very ctime."""
    coarse = ctime_ns % _SECOND == 0
    return ctime_ns >= read_from_ns - (_COARSE_TICK if coarse else _TICK)


class _Tree(NamedTuple):
    """What a tree holds: the very entries that were known and are unchanged, all others, and the bytes read."""

    unchanged: list[Entry]
    others: dict[str, Entry]
    bytes_read: int


def _read_tree(root: Path, known: Mapping[str, Entry]) -> _Tree:
    began = time.time_ns()
    unchanged: list[Entry] = []
    others: dict[str, Entry] = {}

    def search() -> Iterator[Found]:
        for path, status, target in scan(root):
            if status.st_mode & TYPE_BITS != stat.S_IFREG:
                others[path] = _entry(path, status, target=target)
                continue
            before = known.get(path)
            if before is not None and before.type == "file" and _quick_same(before, status):
                unchanged.append(before)
            else:
                others[path] = entry = _entry(path, status, racy=_is_racy(status.st_ctime_ns, began))
                yield Found(path, entry.size, status.st_ctime_ns, entry.inode)

    digests = hash_files(str(root), search())
    bytes_read = 0
    for path, digest in digests.items():
        others[path] = entry = Entry._make((*others[path][:10], digest, ""))
        bytes_read += entry.size
    return _Tree(unchanged, others, bytes_read)


def digest_of(entries: Mapping[str, Entry]) -> str:
    """BLAKE3 over path, type, mode, owner, size, content and link target of every entry, in order of path."""
    hasher = blake3()
    paths = iter(sorted(entries))
    while rows := [_content(entries[path]) for path in islice(paths, _ROWS_AT_ONCE)]:
        hasher.update(json.dumps(rows).encode("ascii"))
    return hasher.hexdigest()


@contextmanager
def _no_collections() -> Iterator[None]:
    """Hundreds of thousands of objects are made and none is a cycle: looking for cycles would double the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def build_manifest(root: Path, *, known: Manifest | None = None) -> Manifest:
    """Read a whole tree, on all cores. Files that `known` has unchanged, by inode, times and owner, are not read.

    Raises StoreError, which names the file, for what cannot be read, vanishes, or changes meanwhile.
    """
    with _no_collections():
        tree = _read_tree(root, known.entries if known else {})
        entries = tree.others
        entries.update((entry.path, entry) for entry in tree.unchanged)
        return Manifest(entries, digest_of(entries))


# ---- on disk


def _array(entries: Iterable[Entry]) -> Iterator[bytes]:
    """A JSON array with one entry a line, in pieces: a second copy of it all would be most of the memory used."""
    yield b"["
    before = "\n"
    entries = iter(entries)
    while lines := ",\n".join(map(_line, islice(entries, _ROWS_AT_ONCE))):
        yield (before + lines).encode("ascii")
        before = ",\n"
    yield b"\n]\n"


def _line(entry: Entry) -> str:
    """An entry as JSON; written out, because the encoder of the library takes four times as long."""
    path, kind, mode, uid, gid, size, mtime, ctime, device, inode, digest, target = entry
    quoted, aim = json.dumps(path), json.dumps(target) if target else '""'
    return f'[{quoted},"{kind}",{mode},{uid},{gid},{size},{mtime},{ctime},{device},{inode},"{digest}",{aim}]'


def _checksum(head: Mapping[str, Any], body: bytes | bytearray) -> str:
    hasher = blake3(json.dumps(head, sort_keys=True).encode())
    hasher.update(body)
    return hasher.hexdigest()


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Write it whole or not at all."""
    write_file(path, _written(manifest))


def manifest_bytes(manifest: Manifest) -> bytes:
    """The file, with a checksum by which a torn or edited one is recognised."""
    return bytes(_written(manifest))


def _written(manifest: Manifest) -> bytearray:
    data = bytearray()
    for piece in _array(manifest.entries[key] for key in sorted(manifest.entries)):
        data += piece
    head = {"schema": SCHEMA, "digest": manifest.digest, "entries": len(manifest.entries)}
    line = json.dumps({**head, "checksum": _checksum(head, data)})
    data[:0] = line.encode("ascii") + b"\n"
    return data


def read_manifest(path: Path) -> Manifest:
    """Raises StoreError when the manifest is missing, torn, was changed, or is of another schema."""
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise StoreError(f"the manifest {path} is missing") from error
    except OSError as error:
        raise StoreError(f"the manifest {path} cannot be read: {error.strerror}") from error
    return parse_manifest(data, path)


def recorded_manifest(store: Store, number: int) -> Manifest:
    """The manifest of a generation. Raises StoreError when it has none, or not the one that its record names."""
    generation = store.generation(number)
    if not generation.manifest:
        raise StoreError(f"generation {number} is not complete and has no manifest")
    manifest = read_manifest(store.manifest_path(number))
    if manifest.digest != generation.manifest:
        raise StoreError(f"the manifest of generation {number} is not the one that was recorded for it")
    return manifest


def parse_manifest(data: bytes, path: Path) -> Manifest:
    """The manifest in the bytes of a file; `path` is for messages. Raises StoreError as `read_manifest` does."""
    line, _, body = data.partition(b"\n")
    try:
        head: dict[str, Any] = json.loads(line)
        _check_schema(path, head["schema"])
        checksum, digest, count = head.pop("checksum"), head["digest"], head["entries"]
        if checksum != _checksum(head, body):
            raise StoreError(f"the manifest {path} is damaged: its checksum does not fit its lines")
        with _no_collections():
            entries = {values[0]: Entry._make(values) for values in json.loads(body)}
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise StoreError(f"the manifest {path} is damaged: {error!r}") from error
    if len(entries) != count:
        raise StoreError(f"the manifest {path} is damaged: {len(entries)} entries in place of {count}")
    return Manifest(entries, digest)


def _check_schema(path: Path, schema: object) -> None:
    if schema == 1:
        raise StoreError(
            f"the manifest {path} was written by an older crossgrade (schema 1) and is not read any more",
            remedy="`crossgrade upgrade` builds a candidate anew. `crossgrade rollback` needs no manifest.",
        )
    if schema != SCHEMA:
        raise StoreError(
            f"the manifest {path} has schema {schema!r}, and this crossgrade knows {SCHEMA}",
            remedy="Use the crossgrade that wrote it, or a newer one.",
        )


# ---- comparing


def compare(manifest: Manifest, root: Path, *, full: bool) -> Comparison:
    """Compare a tree with its manifest. `full` reads every file, else those of another status.

    A file that was only touched or copied (other inode or times, same content) is not a change. Raises
    StoreError, which names the file, for what cannot be read, vanishes, or changes meanwhile.
    """
    before = manifest.entries
    with _no_collections():
        tree = _read_tree(root, {} if full else before)
    now = tree.others
    recorded = {path: before[path] for path in now if path in before}
    changed = sorted(path for path, entry in recorded.items() if not entry.same_content(now[path]))
    missing: list[str] = []
    if len(tree.unchanged) + len(recorded) < len(before):
        missing = sorted(before.keys() - recorded.keys() - {entry.path for entry in tree.unchanged})
    more = sorted(now.keys() - recorded.keys())
    bytecode = [path for path in more if is_bytecode(path, now[path].type)]
    extra = [path for path in more if not is_bytecode(path, now[path].type)]
    files = len(tree.unchanged) + sum(entry.type == "file" for entry in now.values())
    return Comparison(tuple(changed), tuple(missing), tuple(extra), tuple(bytecode), files, tree.bytes_read)


def is_bytecode(path: str, kind: EntryType) -> bool:
    """Whether it is what Python writes at an import, or a folder for it: nothing is lost without it."""
    parts = path.split("/")
    if kind == "directory":
        return parts[-1] == _BYTECODE_FOLDER
    return len(parts) > 1 and parts[-2] == _BYTECODE_FOLDER and path.endswith(".pyc")


def quick_drift(manifest: Manifest, root: Path) -> tuple[str, ...]:
    """Paths that are missing, or whose status differs from the manifest; reads no file but racy ones.

    For plans: an unchanged tree of n entries costs n calls of lstat. Touched files count as drift here;
    whoever needs to know for sure calls `compare` on what this finds. Raises StoreError.
    """
    seen: set[str] = set()
    drift: list[str] = []
    for path, status, target in scan(root):
        entry = manifest.entries.get(path)
        if entry is None:
            continue  # extras are judged by `compare`
        seen.add(path)
        if entry.type == "file" and entry.ctime_ns != _RACY:
            same = stat.S_ISREG(status.st_mode) and _quick_same(entry, status)
        else:
            digest = hash_file(f"{root}/{path}") if stat.S_ISREG(status.st_mode) else ""
            same = entry.same_content(_entry(path, status, digest, target))
        if not same:
            drift.append(path)
    return tuple(sorted(drift + list(manifest.entries.keys() - seen)))
