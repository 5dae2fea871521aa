"""Reading an archive, which may be torn, changed or made to do harm: everything is checked before it counts.

The whole of it is unpacked to a folder of its own, to which nothing leads yet. Each member must be the next thing that
the record and the manifests announce: same path, kind, size, link target, and the same bytes. What is
more, less or different ends it, and whoever called removes the folder.
"""

from __future__ import annotations

import io
import json
import os
import re
import stat
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol, cast

from blake3 import blake3

from crossgrade.errors import StoreError
from crossgrade.gates.verdict import Verdict
from crossgrade.places import free_bytes, shown_bytes
from crossgrade.store.archive import (
    EXTRAS,
    MANIFEST,
    MANIFEST_BYTES,
    RECORD,
    TOOLKITS,
    VENV,
    ArchiveError,
    Record,
    check_entries,
    check_venv,
)
from crossgrade.store.manifest import Entry, Manifest, digest_of, parse_manifest

_PIECE = 1 << 20
_RECORD_BYTES = 1 << 24
_EXTRA_BYTES = 1 << 26
_EXTRA = re.compile(r"lock\.txt|verdicts/[\w.-]+\.json")
# All headers of one member together: a path and a link target of 4096 bytes each fill a fraction of it. tarfile reads
# an extended header at one go, of any size that it claims, and keeps every one of a chain of them.
_HEADER_BYTES = 1 << 17


@dataclass(frozen=True)
class Unpacked:
    """What was in an archive: its record, the manifest of its venv, and how many files and bytes were checked.

    `mode` and `owner` (user, group) are those of the venv's own folder, which no manifest lists.
    """

    record: Record
    manifest: Manifest
    files: int
    bytes: int
    mode: int
    owner: tuple[int, int]

    def seal_entries(self, venv: Path) -> None:
        """Give the folders below the unpacked venv their modes, owners and times, once nothing in them changes more."""
        _seal_folders(venv, self.manifest)

    def seal_root(self, venv: Path) -> None:
        """The same for the venv's own folder, once it lies where it stays: its owner may not move it any more."""
        if os.geteuid() == 0:
            os.chown(venv, *self.owner)
        venv.chmod(self.mode)


class _Readable(Protocol):
    def read(self, size: int = -1, /) -> bytes: ...


class _Guarded(io.RawIOBase):
    """A stream that only goes forward, and hands out no more than headers may need while `in_headers`."""

    def __init__(self, stream: _Readable) -> None:
        self._stream = stream
        self._position = 0
        self._left: int | None = None

    @contextmanager
    def in_headers(self) -> Iterator[None]:
        self._left = _HEADER_BYTES
        try:
            yield
        finally:
            self._left = None

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, position: int, whence: int = os.SEEK_SET) -> int:
        if whence != os.SEEK_SET or position < self._position:
            raise ArchiveError("the archive is damaged: its members do not follow each other")
        while self._position < position:
            if not self._read(min(_PIECE, position - self._position)):
                break
        return self._position

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _PIECE:
            raise ArchiveError(f"the archive is damaged: a header claims {size:,} bytes")
        if self._left is not None:
            self._left -= size
            if self._left < 0:
                raise ArchiveError("the archive is damaged: the headers of one member are larger than any need to be")
        return self._read(size)

    def _read(self, size: int) -> bytes:
        data = self._stream.read(size)
        self._position += len(data)
        return data


def unpack(path: Path, folder: Path | None, progress: Callable[[str], None] = lambda _: None) -> Unpacked:
    """Check an archive as a whole, and unpack it below `folder` when one is given, which must be empty.

    The venv comes to `folder`/venv, toolkits to `folder`/toolkits/DIGEST, the rest to `folder`/extras.
    Raises ArchiveError for anything that is not as it was written, OSError for a full disk.
    """
    with _opened(path) as stream, _explained(path):
        guarded = _Guarded(stream)
        with _members(guarded) as archive:
            unpacked = _Reader(archive, guarded, folder).read(progress)
        _check_end(guarded)
    return unpacked


def read_archive_record(path: Path) -> Record:
    """What an archive says of itself, without looking at the rest. Raises ArchiveError when it is none of ours."""
    with _opened(path) as stream, _explained(path):
        guarded = _Guarded(stream)
        with _members(guarded) as archive:
            return _Reader(archive, guarded, None).record()


@contextmanager
def _members(guarded: _Guarded) -> Iterator[tarfile.TarFile]:
    with guarded.in_headers():
        archive = tarfile.TarFile(fileobj=guarded, mode="r", errorlevel=2)
    with archive:
        yield archive


@contextmanager
def _opened(path: Path) -> Iterator[_Readable]:
    from crossgrade.store.zstandard import zstd  # only archives need it

    try:
        with path.open("rb") as file, zstd.ZstdFile(file) as stream:
            yield stream
    except FileNotFoundError as error:
        if error.filename != os.fspath(path):
            raise
        raise StoreError(f"there is no archive at {path}") from error


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Every way in which the libraries say that an archive is broken, as one error."""
    from crossgrade.store.zstandard import zstd

    try:
        yield
    except ArchiveError as error:
        raise ArchiveError(f"{path}: {error.message}", remedy=error.remedy) from error
    except EOFError as error:
        raise ArchiveError(f"{path} is truncated: it ends before its end mark") from error
    except (
        *(zstd.ZstdError, tarfile.TarError, UnicodeError, ValueError, OverflowError),
        *(TypeError, AttributeError, RecursionError),
    ) as error:
        raise ArchiveError(f"{path} is damaged or is no archive of crossgrade: {error}") from error


def _check_end(stream: _Guarded) -> None:
    """The frame must be whole to its checksum, and hold nothing after the last member but padding."""
    while data := stream.read(_PIECE):
        if data.strip(b"\0"):
            raise ArchiveError("there is something after the last member of the archive")


@dataclass
class _Reader:
    archive: tarfile.TarFile
    stream: _Guarded
    folder: Path | None
    files: int = 0
    size: int = 0

    def read(self, progress: Callable[[str], None]) -> Unpacked:
        record = self.record()
        manifest = self._manifest(self._next(MANIFEST), MANIFEST)
        if manifest.digest != record.manifest:
            raise ArchiveError("the archive's manifest is not the one that its record names")
        check_venv(manifest)
        member = self._member()
        while member.name.startswith(EXTRAS):
            self._extra(member)
            member = self._member()
        progress(f"unpacking {len(manifest.entries):,} entries, {manifest.total_bytes / 1e6:,.0f} MB")
        mode, owner = member.mode & 0o777, (member.uid, member.gid)
        if not all(0 <= each < 1 << 32 for each in owner):
            raise ArchiveError("the environment has an owner that nobody is")
        self._tree(member, VENV, manifest)
        for digest in record.toolkits:
            if not digest.isalnum():
                raise ArchiveError(f"{digest!r} is no digest of a toolkit")
            progress(f"unpacking toolkit {digest[:12]}")
            toolkit = self._manifest(self._next(f"{TOOLKITS}/{digest}.jsonl"), digest)
            self._tree(self._member(), f"{TOOLKITS}/{digest}", toolkit)
            if self.folder is not None:
                _seal_folders(self.folder / TOOLKITS / digest, toolkit)
        with self.stream.in_headers():
            if self.archive.next() is not None:
                raise ArchiveError("there are more members than the archive's manifest lists")
        return Unpacked(record, manifest, self.files, self.size, mode, owner)

    def record(self) -> Record:
        return Record.from_json(_object(self._data(self._next(RECORD), _RECORD_BYTES), RECORD))

    # ---- members

    def _member(self) -> tarfile.TarInfo:
        with self.stream.in_headers():
            member = self.archive.next()
        cast("Any", self.archive).members.clear()  # tarfile keeps them all, for 60,000 files some 60 MB
        if member is None:
            raise ArchiveError("the archive ends before everything that it announces")
        return member

    def _next(self, name: str) -> tarfile.TarInfo:
        member = self._member()
        if member.name != name or not member.isreg():
            raise ArchiveError(f"{name} was expected in the archive, not {member.name!r}")
        return member

    def _data(self, member: tarfile.TarInfo, largest: int) -> bytes:
        if member.size > largest or member.issparse():
            raise ArchiveError(f"{member.name} claims {member.size:,} bytes")
        return b"".join(self._pieces(member))

    def _pieces(self, member: tarfile.TarInfo) -> Iterator[bytes]:
        stream = self.archive.extractfile(member)
        assert stream is not None  # noqa: S101 - only asked for regular files
        left = member.size
        while left:
            data = stream.read(min(_PIECE, left))
            if not data:
                raise ArchiveError("the archive ends in the middle of a file")
            left -= len(data)
            yield data

    def _manifest(self, member: tarfile.TarInfo, where: str) -> Manifest:
        data = self._data(member, MANIFEST_BYTES)
        try:
            manifest = parse_manifest(data, Path(where))
        except StoreError as error:
            raise ArchiveError(error.message) from error
        if digest_of(manifest.entries) != manifest.digest:
            raise ArchiveError(f"the manifest {where} does not fit its digest")
        check_entries(manifest, where)
        return manifest

    def _extra(self, member: tarfile.TarInfo) -> None:
        name = member.name.removeprefix(EXTRAS)
        if not member.isreg() or not _EXTRA.fullmatch(name):
            raise ArchiveError(f"{member.name!r} is nothing that an archive holds")
        data = self._data(member, _EXTRA_BYTES)
        if name != "lock.txt":
            Verdict.from_json(_object(data, name))  # a damaged one would stand in the way of every `status`
        if self.folder is not None:
            target = self.folder / "extras" / name
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(data)

    # ---- trees

    def _tree(self, top: tarfile.TarInfo, prefix: str, manifest: Manifest) -> None:
        """Everything below one prefix, in the order of its manifest."""
        if top.name != prefix or not top.isdir():
            raise ArchiveError(f"{prefix} was expected in the archive, not {top.name!r}")
        root = self.folder / prefix if self.folder is not None else None
        if root is not None:
            _check_room(root.parent, manifest.total_bytes)
            root.mkdir(parents=True)
        first: dict[str, Entry] = {}
        for path in sorted(manifest.entries):
            entry, member = manifest.entries[path], self._member()
            if member.name != f"{prefix}/{path}":
                raise ArchiveError(f"{prefix}/{path} was expected in the archive, not {member.name!r}")
            target = None if root is None else f"{root}/{path}"
            if entry.type == "directory" and member.isdir():
                if target:
                    os.mkdir(target, 0o700)  # noqa: PTH102 - str paths, in a hot loop
            elif entry.type == "link" and member.issym() and member.linkname == entry.target:
                if target:
                    os.symlink(entry.target, target)  # noqa: PTH211 - the same
                    _own(target, entry)
            elif entry.type == "file" and member.islnk():
                self._hard_link(member, entry, prefix, first, root, target)
            elif entry.type == "file" and member.isreg() and member.size == entry.size and not member.issparse():
                self._file(member, entry, target)
                first[path] = entry
            else:
                raise ArchiveError(f"{member.name!r} is not what the archive's manifest says")

    def _hard_link(
        self,
        member: tarfile.TarInfo,
        entry: Entry,
        prefix: str,
        first: dict[str, Entry],
        root: Path | None,
        target: str | None,
    ) -> None:
        known = first.get(member.linkname.removeprefix(f"{prefix}/"))
        if known is None or not known.same_content(entry):
            raise ArchiveError(f"{member.name!r} is a hard link to something that is not the same file")
        if target and root is not None:
            os.link(f"{root}/{known.path}", target, follow_symlinks=False)
        self.files += 1

    def _file(self, member: tarfile.TarInfo, entry: Entry, target: str | None) -> None:
        hasher = blake3()
        if target is None:
            for piece in self._pieces(member):
                hasher.update(piece)
        else:
            # EXCL and NOFOLLOW: the folder is ours alone, and still nothing is ever written through a link
            descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with os.fdopen(descriptor, "wb", buffering=0) as stream:
                for piece in self._pieces(member):
                    hasher.update(piece)
                    _write(stream, piece)
                os.fchmod(stream.fileno(), entry.mode)
            _own(target, entry)
            os.utime(target, ns=(entry.mtime_ns, entry.mtime_ns), follow_symlinks=False)
        if hasher.hexdigest() != entry.digest:
            raise ArchiveError(f"{member.name!r} has other bytes than the archive's manifest says")
        self.files += 1
        self.size += entry.size


def _object(data: bytes, name: str) -> dict[str, Any]:
    value = json.loads(data)
    if not isinstance(value, dict):
        raise ArchiveError(f"{name} holds no object")
    return value


def _write(stream: io.FileIO | IO[bytes], data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[stream.write(view) :]


def _own(target: str, entry: Entry) -> None:
    """Give it its owner back where we may: another user's archive becomes our own."""
    if os.geteuid() == 0:
        os.chown(target, entry.uid, entry.gid, follow_symlinks=False)


def _check_room(folder: Path, needed: int) -> None:
    free = free_bytes(folder)
    if needed > free:
        raise StoreError(
            f"the filesystem of {folder} has {shown_bytes(free)} left, and {shown_bytes(needed)} are needed",
            remedy="Make room there, or restore to a --root on another filesystem.",
        )


def _seal_folders(root: Path, manifest: Manifest) -> None:
    """Modes, owners and times of directories, the deepest first: until then each had to be writable."""
    for path in sorted((path for path, entry in manifest.entries.items() if entry.type == "directory"), reverse=True):
        entry, target = manifest.entries[path], f"{root}/{path}"
        _own(target, entry)
        os.chmod(target, stat.S_IMODE(entry.mode))  # noqa: PTH101 - str paths, as above
        os.utime(target, ns=(entry.mtime_ns, entry.mtime_ns))
