"""Writes that are either whole or not there at all, also after a power cut.

Every function here ends with an fsync of the directory it changed: on ext4 and XFS a rename is durable
only once its directory is.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
from pathlib import Path

from crossgrade.jsontype import JSON

# include/uapi/linux/fs.h and fcntl.h of the Linux kernel
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def sync_directory(directory: Path) -> None:
    """Make the directory's entries durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(path: Path, mode: int = 0o777) -> None:
    """Make a folder and those above it that are missing, each durably; harmless when it is there.

    A file that is synced inside of a new folder is lost all the same when the folder's own name was not.
    """
    if path.is_dir():
        return
    make_folder(path.parent)
    path.mkdir(mode=mode, exist_ok=True)
    sync_directory(path.parent)


def write_file(path: Path, data: bytes | bytearray, mode: int = 0o600) -> None:
    """Replace the file by these bytes in one step; a reader sees the old file or the new one."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.rename(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def write_json(path: Path, value: JSON) -> None:
    """Replace the file by this value as JSON, readable by its owner only."""
    write_file(path, (json.dumps(value, indent=1, sort_keys=True) + "\n").encode())


def replace_link(link: Path, target: Path) -> None:
    """Point the symlink at the target by one rename; it exists at every instant."""
    temporary = link.with_name(f".{link.name}.{secrets.token_hex(4)}.tmp")
    temporary.symlink_to(target)
    try:
        temporary.rename(link)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(link.parent)


def exchange(one: Path, other: Path) -> None:
    """Let the two paths change places in one step (renameat2 with RENAME_EXCHANGE, Linux 3.15).

    Raises OSError; EINVAL or ENOSYS where the filesystem or the C library cannot do it.
    """
    import ctypes  # adoption needs it, once

    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "renameat2"):  # glibc before 2.28
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), str(one))
    result = library.renameat2(
        _AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), ctypes.c_uint(_RENAME_EXCHANGE)
    )
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(one), None, str(other))
    for directory in {one.parent, other.parent}:
        sync_directory(directory)
