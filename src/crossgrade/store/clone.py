"""Copying a venv: a real copy of every file, by the quickest way that the filesystem has.

Where the filesystem shares extents between files (btrfs, XFS, bcachefs) each file is a reflink: it costs no space
and behaves like a copy. Elsewhere the bytes are copied inside the kernel (`copy_file_range`), holes stay holes.

Files are never hard-linked to the original. A hard link is only safe for a file that nothing ever writes in
place, and in a venv nobody can promise that: uv and pip replace files by new ones, but a person's `sed -i`
does not always, packages write data files below themselves, and one byte written in place would change the working
environment too. Making the link would also change the ctime of the original, which its manifest has on record, so
that the next quick `verify` would read every linked file again. Files that are hard links of each other inside
the tree stay so, in the copy, among themselves.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from crossgrade.errors import StoreError
from crossgrade.store.manifest import type_of
from crossgrade.store.scanning import scan

# include/uapi/linux/fs.h: _IOW(0x94, 9, int)
_FICLONE = 0x40049409
_NOT_HERE = {errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL, errno.EXDEV, errno.ENOSYS, errno.EPERM, errno.EBADF}
_PIECE = 1 << 26


@dataclass(frozen=True)
class Cloned:
    """What was copied, and how the bytes came over."""

    files: int
    bytes: int
    way: Literal["reflink", "copy"]


@dataclass
class _Copier:
    """`reflink` is tried until the filesystem says that it cannot."""

    reflink: bool = True
    seen: dict[tuple[int, int], str] = field(default_factory=dict)

    def copy(self, source: str, target: str, status: os.stat_result) -> None:
        with open(source, "rb", buffering=0) as read, open(target, "xb", buffering=0) as write:  # noqa: PTH123 - hot loop
            if not (self.reflink and self._reflink(read.fileno(), write.fileno())):
                _copy_bytes(read.fileno(), write.fileno(), status)
            _keep(source, target, status, write.fileno())

    def _reflink(self, source: int, target: int) -> bool:
        try:
            fcntl.ioctl(target, _FICLONE, source)
        except OSError as error:
            if error.errno not in _NOT_HERE:
                raise
            self.reflink = False
            return False
        return True


def clone_tree(source: Path, target: Path, progress: Callable[[str], None] = lambda _: None) -> Cloned:
    """Copy the tree below `source` to `target`, which must not be there yet; all cores are used.

    Modes, owners, times, extended attributes, links and holes are kept. Raises StoreError for something that cannot be
    copied (a socket, a device) or read, OSError when the disk is full. It is durable once the filesystem is synced.
    """
    copier = _Copier()
    old, new = os.fspath(source), os.fspath(target)
    folders: list[tuple[str, str, os.stat_result]] = [(old, new, source.stat())]
    files: list[tuple[str, str, os.stat_result]] = []
    again: list[tuple[str, str]] = []
    target.mkdir(0o700)
    for path, status, aim in scan(source):  # a folder comes before what is in it
        original, place, kind = f"{old}/{path}", f"{new}/{path}", type_of(status.st_mode)
        if kind == "directory":
            folders.append((original, place, status))
            os.mkdir(place, 0o700)  # noqa: PTH102 - str paths, in a hot loop
        elif kind == "link":
            os.symlink(aim, place)  # noqa: PTH211 - the same
            _keep(original, place, status)
        elif kind == "other":
            raise StoreError(
                f"{original} is neither a file, a directory nor a link: it cannot be copied",
                remedy="Remove it from the environment, or build the candidate with `base: fresh`.",
            )
        elif status.st_nlink > 1 and (status.st_dev, status.st_ino) in copier.seen:
            again.append((copier.seen[status.st_dev, status.st_ino], place))
        else:
            copier.seen[status.st_dev, status.st_ino] = place
            files.append((original, place, status))
    progress(f"copying {len(files):,} files")
    files.sort(key=lambda file: file[2].st_size, reverse=True)  # so that no core is left alone with the largest
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for _ in pool.map(lambda file: copier.copy(*file), files):
            pass
    for first, place in again:
        os.link(first, place)
    for original, place, status in reversed(folders):  # the deepest first: filling a folder changes its time
        _keep(original, place, status)
    return Cloned(len(files), sum(file[2].st_size for file in files), "reflink" if copier.reflink else "copy")


def _copy_bytes(source: int, target: int, status: os.stat_result) -> None:
    """The data of a file; what is a hole in the source stays one."""
    if status.st_blocks * 512 < status.st_size:
        os.truncate(target, status.st_size)
        position = 0
        while position < status.st_size:
            try:
                begin = os.lseek(source, position, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:  # nothing but a hole up to the end
                    return
                raise
            position = os.lseek(source, begin, os.SEEK_HOLE)
            _copy_range(source, target, begin, position)
        return
    _copy_range(source, target, 0, status.st_size)


def _copy_range(source: int, target: int, begin: int, end: int) -> None:
    while begin < end:
        try:
            copied = os.copy_file_range(source, target, min(_PIECE, end - begin), begin, begin)
        except OSError as error:
            if error.errno not in _NOT_HERE:
                raise
            data = os.pread(source, min(1 << 20, end - begin), begin)
            copied = os.pwrite(target, data, begin) if data else 0
        if copied == 0:
            raise StoreError("a file became shorter while it was copied", remedy="Find out what writes, and run again.")
        begin += copied


def _keep(source: str, target: str, status: os.stat_result, descriptor: int | None = None) -> None:
    """Give the copy owner, mode, times and extended attributes of the original; the owner first, chown drops setuid."""
    if (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
        os.chown(target, status.st_uid, status.st_gid, follow_symlinks=False)
    shutil.copystat(source, target, follow_symlinks=False)
    if descriptor is not None and os.fstat(descriptor).st_size != status.st_size:
        raise StoreError(f"{source} was changed while it was copied", remedy="Find out what writes, and run again.")
