"""Reading tar and zip archives member by member, within bounds, without writing anything.

A tar archive is read as a stream, so that one compressed with gzip, bzip2, xz or Zstandard costs no room.
"""

from __future__ import annotations

import hashlib
import posixpath
import stat
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

from crossgrade.errors import TaskError

if TYPE_CHECKING:
    import tarfile
    import zipfile

MOST_BYTES = 256 << 30  # of all files of an archive
MOST_MEMBERS = 200_000
HEADER_BYTES = 16 << 20  # what the headers of one member may take: names and extended attributes
TARGET_BYTES = 4096  # of what a symlink leads to (PATH_MAX of Linux)
BLOCK = 1 << 20
Handler = Literal["TarArchive", "TarBzipArchive", "TarXzArchive", "TarZstdArchive", "TgzArchive", "ZipArchive"]
# the first bytes of a file (RFC 1952, bzip2's manual, the .xz format, RFC 8878, PKWARE's APPNOTE) → Ansible's word
MAGIC: tuple[tuple[bytes, Handler], ...] = (
    (b"\x1f\x8b", "TgzArchive"),
    (b"BZh", "TarBzipArchive"),
    (b"\xfd7zXZ\0", "TarXzArchive"),
    (b"\x28\xb5\x2f\xfd", "TarZstdArchive"),
    (b"PK\3\4", "ZipArchive"),
    (b"PK\5\6", "ZipArchive"),
)
_EXTRA_TIMES = 0x5455  # the extra field "UT" of Info-ZIP: its first time is the modification time, in seconds


@dataclass(frozen=True)
class Member:
    """One member. `name` is relative, without `.` and without a slash at its end; "" is the directory itself.

    `mtime` is nanoseconds since 1970. `sha1` is of the content, `target` what a link leads to: as written for a
    symlink, a name like `name` for a hard link. `number` counts members from 0. Owners are None in a zip archive.
    """

    number: int
    name: str
    kind: Literal["file", "directory", "link", "hard"]
    mode: int
    mtime: int
    size: int = 0
    uid: int | None = None
    gid: int | None = None
    user: str = ""
    group: str = ""
    target: str = ""
    sha1: str = ""


@dataclass(frozen=True)
class Archive:
    """Where an archive lies, and what it is."""

    path: Path
    handler: Handler


def recognized(path: Path) -> Archive:
    """What the first bytes say. Raises OSError."""
    with path.open("rb") as stream:
        start = stream.read(6)
    return Archive(path, next((handler for magic, handler in MAGIC if start.startswith(magic)), "TarArchive"))


def read_members(archive: Archive) -> list[Member]:
    """All members, with the checksums of their contents.

    Raises TaskError for what is no archive, is damaged, is larger than the bounds, or would leave its directory.
    """
    members = []
    total = 0
    for member, blocks in walk(archive):
        total += member.size
        if total > MOST_BYTES or member.number >= MOST_MEMBERS:
            raise TaskError(
                f"{archive.path} is not unpacked: it holds more than {MOST_BYTES >> 30} GiB or {MOST_MEMBERS} members"
            )
        if member.kind == "file":
            digest = hashlib.sha1(usedforsecurity=False)
            with _errors(archive.path):
                for block in blocks():
                    digest.update(block)
            member = Member(**{**vars(member), "sha1": digest.hexdigest()})
        members.append(member)
    return members


Blocks = Callable[[], Iterator[bytes]]


def walk(archive: Archive) -> Iterator[tuple[Member, Blocks]]:
    """Each member, and what gives its content; that must be read before the next member is asked for."""
    with _errors(archive.path):
        if archive.handler == "ZipArchive":
            yield from _walk_zip(archive.path)
        else:
            yield from _walk_tar(archive)


@dataclass
class Contents:
    """The contents of members for those who ask in the order of the archive; it is read once.

    Whoever asks for an earlier member makes it begin anew.
    """

    archive: Archive
    _walk: Iterator[tuple[Member, Blocks]] | None = field(default=None, repr=False, compare=False)
    _next: int = 0

    def blocks(self, member: Member) -> Iterator[bytes]:
        """Raises TaskError when the archive has changed since its members were read."""
        if self._walk is None or member.number < self._next:
            self._walk, self._next = walk(self.archive), 0
        digest = hashlib.sha1(usedforsecurity=False)
        for found, blocks in self._walk:
            self._next = found.number + 1
            if found.number == member.number:
                with _errors(self.archive.path):
                    for block in blocks():
                        digest.update(block)
                        yield block
                break
        if digest.hexdigest() != member.sha1:
            raise TaskError(f"{self.archive.path} has changed while it was unpacked")


@dataclass(frozen=True)
class MemberContent:
    """The content of one member, as something to write."""

    contents: Contents
    member: Member

    def blocks(self) -> Iterator[bytes]:
        return self.contents.blocks(self.member)


@contextmanager
def _errors(path: Path) -> Iterator[None]:
    import lzma
    import tarfile
    import zipfile

    from crossgrade.store.zstandard import zstd

    broken = (
        tarfile.TarError,
        zipfile.BadZipFile,
        zlib.error,
        lzma.LZMAError,
        zstd.ZstdError,
        EOFError,
        NotImplementedError,
        ValueError,
        OverflowError,
        struct.error,
    )
    try:
        yield
    except broken as error:
        raise TaskError(
            f"{path} cannot be unpacked: {error or type(error).__name__}",
            remedy="tar archives, also compressed with gzip, bzip2, xz or zstd, and zip archives can be unpacked.",
        ) from error
    except OSError as error:
        if error.errno is not None:
            raise
        raise TaskError(f"{path} cannot be unpacked: {error}") from error  # gzip and bz2 say so of damage


# ---- tar


@dataclass
class _Metered:
    """A stream that gives no more bytes than allowed, so that a header cannot fill the memory."""

    stream: IO[bytes]
    allowed: int

    def read(self, size: int) -> bytes:
        block = self.stream.read(size)
        self.allowed -= len(block)
        if self.allowed < 0:
            raise TaskError(f"a member of the archive has headers of more than {HEADER_BYTES >> 20} MiB")
        return block


def _opened(archive: Archive) -> IO[bytes]:
    import bz2
    import gzip
    import lzma

    from crossgrade.store.zstandard import zstd

    openers: dict[str, Callable[..., Any]] = {
        "TgzArchive": gzip.open,
        "TarBzipArchive": bz2.open,
        "TarXzArchive": lzma.open,
        "TarZstdArchive": zstd.open,
    }
    stream: IO[bytes] = openers.get(archive.handler, Path.open)(archive.path, "rb")
    return stream


def _strict_headers() -> type[tarfile.TarInfo]:
    """Headers of which a damaged one is an error; Python's own end the archive there, as if it were whole."""
    import tarfile

    class Strict(tarfile.TarInfo):
        @classmethod
        def fromtarfile(cls, tarfile: Any) -> Any:
            try:
                return super().fromtarfile(tarfile)
            except _damaged as error:
                raise ValueError(f"it is damaged at {tarfile.offset} bytes: {error}") from error

    _damaged = tarfile.InvalidHeaderError, tarfile.TruncatedHeaderError  # type: ignore[attr-defined]  # no part of the stubs
    return Strict


def _walk_tar(archive: Archive) -> Iterator[tuple[Member, Blocks]]:
    import tarfile

    with _opened(archive) as stream:
        metered = _Metered(stream, HEADER_BYTES)
        options: Any = {"fileobj": metered, "mode": "r|", "errorlevel": 2, "tarinfo": _strict_headers()}
        with tarfile.open(**options) as tar:
            number = 0
            while True:
                metered.allowed = HEADER_BYTES
                info = tar.next()
                if info is None:
                    break
                tar.members.clear()  # type: ignore[attr-defined]  # it keeps all that it has read
                metered.allowed = info.size + HEADER_BYTES
                yield _tar_member(info, number), lambda info=info: _tar_blocks(tar, info)  # type: ignore[misc]
                number += 1
        left = HEADER_BYTES  # a compressed stream has its checksum at its end, behind the padding
        while left > 0 and (block := stream.read(BLOCK)):
            left -= len(block)


def _tar_blocks(tar: tarfile.TarFile, info: tarfile.TarInfo) -> Iterator[bytes]:
    stream = tar.extractfile(info)
    if stream is None:
        return
    left = info.size
    while left and (block := stream.read(min(BLOCK, left))):
        left -= len(block)
        yield block
    if left:
        raise EOFError(f"{info.name} ends too early")


def _tar_member(info: tarfile.TarInfo, number: int) -> Member:
    name = _relative(info.name)
    kind: Literal["file", "directory", "link", "hard"]
    target = ""
    if info.isreg():
        kind = "file"
    elif info.isdir():
        kind = "directory"
    elif info.issym():
        kind, target = "link", info.linkname
    elif info.islnk():
        kind, target = "hard", _relative(info.linkname)
    else:
        raise TaskError(f"{info.name} is a device or a pipe: such an archive is not unpacked")
    size = info.size if kind == "file" else 0
    return Member(
        number,
        name,
        kind,
        stat.S_IMODE(info.mode),
        int(info.mtime) * 10**9,
        size,
        info.uid,
        info.gid,
        info.uname,
        info.gname,
        target,
    )


def _relative(name: str) -> str:
    """The name without `.` and needless slashes. Raises TaskError for one that leaves the directory."""
    if name.startswith("/") or ".." in name.split("/") or "\0" in name:
        raise TaskError(f"the archive is not unpacked: its member {name!r} would lie outside of the directory")
    plain = posixpath.normpath(name)
    return "" if plain == "." else plain


# ---- zip


def _walk_zip(path: Path) -> Iterator[tuple[Member, Blocks]]:
    import zipfile

    with zipfile.ZipFile(path) as archive:
        for number, info in enumerate(archive.infolist()):
            if info.flag_bits & 1:
                raise TaskError(f"{path} is encrypted: it is not unpacked")
            yield _zip_member(archive, info, number), lambda info=info: _zip_blocks(archive, info)  # type: ignore[misc]


def _zip_blocks(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Iterator[bytes]:
    with archive.open(info) as stream:
        while block := stream.read(BLOCK):
            yield block


def _zip_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, number: int) -> Member:
    mode = info.external_attr >> 16
    name, mtime = (
        _relative(info.filename.replace("\\", "/") if info.create_system == 0 else info.filename),
        _mtime(info),
    )
    if info.is_dir():
        return Member(number, name, "directory", stat.S_IMODE(mode) or 0o755, mtime)
    if stat.S_ISLNK(mode):
        if info.file_size > TARGET_BYTES:
            raise TaskError(f"the symlink {info.filename} leads to a name of {info.file_size} bytes")
        target = archive.read(info).decode(errors="surrogateescape")
        return Member(number, name, "link", 0o777, mtime, target=target)
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
        raise TaskError(f"{info.filename} is a device or a pipe: such an archive is not unpacked")
    return Member(number, name, "file", stat.S_IMODE(mode) or 0o644, mtime, info.file_size)


def _mtime(info: zipfile.ZipInfo) -> int:
    """The time of the extra field where there is one, else the one of the header, which is local time."""
    extra = info.extra
    while len(extra) >= 4:
        kind, length = struct.unpack_from("<HH", extra)
        if kind == _EXTRA_TIMES and length >= 5 and len(extra) >= 9 and extra[4] & 1:
            return int(struct.unpack_from("<i", extra, 5)[0]) * 10**9
        extra = extra[4 + length :]
    try:
        return int(time.mktime((*info.date_time, 0, 0, -1))) * 10**9
    except (OverflowError, ValueError):
        return 0
