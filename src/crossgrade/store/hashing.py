"""Content digests of files: BLAKE3, on all cores.

BLAKE3 and not the sha256 of pip's RECORD: a manifest reads every byte of an environment of 10 GB while
people wait, BLAKE3 is several times faster on each core, and a manifest is compared with our own record
only. (RECORD stays sha256 and is checked elsewhere.)

The work is done by threads: the interpreter lock is free while a file is read and while blake3 takes in a
piece of it. Largest files first, so that no core idles at the end beside one that has a big file left.
"""

from __future__ import annotations

import os
import stat
from collections import deque
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from blake3 import blake3

from crossgrade.errors import StoreError

# A piece stays in a core's own cache (1 MiB on current ones), from which it is hashed.
_PIECE = 1 << 18
_SMALL = 1 << 16
# NONBLOCK: should a FIFO have taken the file's place meanwhile, opening it must not wait for a writer.
_OPEN = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_WAIT = "Find out what writes into it (an installation?), wait for its end, and run again."


def changed_while_read(path: str) -> StoreError:
    return StoreError(f"{path} changed while it was read", remedy=_WAIT)


def unreadable(path: str, error: OSError) -> StoreError:
    """What to say of an entry that the kernel refuses."""
    if isinstance(error, FileNotFoundError):
        return StoreError(f"{path} vanished while the tree was read", remedy=_WAIT)
    remedy = "Run as a user who may read every file there: its owner, or root."
    return StoreError(
        f"{path} cannot be read: {error.strerror}", remedy=remedy if isinstance(error, PermissionError) else ""
    )


class Found(NamedTuple):
    """A regular file as it was found: the kernel sets ctime at every change, and another file has another inode."""

    path: str
    size: int
    ctime_ns: int
    inode: int


def hash_file(path: str) -> str:
    """BLAKE3 of a regular file's bytes, in hex. Raises StoreError when it cannot be read or changes meanwhile."""
    try:
        status = os.lstat(path)
    except OSError as error:
        raise unreadable(path, error) from error
    if not stat.S_ISREG(status.st_mode):
        raise StoreError(f"{path} is not a regular file")
    return _digest(path, Found(path, status.st_size, status.st_ctime_ns, status.st_ino), bytearray(_PIECE))


def _digest(path: str, found: Found, piece: bytearray) -> str:
    """`piece` is room to read into."""
    try:
        descriptor = os.open(path, _OPEN)
        try:
            if found.size <= _SMALL:
                digest = blake3(os.read(descriptor, _SMALL + 1)).hexdigest()
            else:
                hasher = blake3()
                view = memoryview(piece)
                while count := os.readv(descriptor, (piece,)):
                    hasher.update(view[:count])
                digest = hasher.hexdigest()
            after = os.fstat(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise unreadable(path, error) from error
    if (after.st_size, after.st_ctime_ns, after.st_ino) != found[1:]:
        raise changed_while_read(path)
    return digest


def hash_files(base: str, files: Iterable[Found]) -> dict[str, str]:
    """BLAKE3, in hex, of files below `base`, by path relative to it.

    Raises StoreError, which names the file, for one that cannot be read, has vanished, or changed since it was found.
    """
    todo = deque(sorted(files, key=_largest_first))
    digests: dict[str, str] = {}

    def work() -> None:
        piece = bytearray(_PIECE)
        while todo:
            try:
                found = todo.popleft()
            except IndexError:
                return  # another thread was faster
            digests[found.path] = _digest(f"{base}/{found.path}", found, piece)

    workers = min(os.cpu_count() or 1, len(todo))
    if workers:
        with ThreadPoolExecutor(max_workers=workers) as pool:
            try:
                for done in [pool.submit(work) for _ in range(workers)]:
                    done.result()
            finally:
                todo.clear()  # after a failure, or a signal to us, the others stop too
    return digests


def _largest_first(found: Found) -> int:
    return -found.size
