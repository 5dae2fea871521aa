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

from blake3 import blake3

from crossgrade.errors import StoreError

# A piece fits into a core's own cache: it is hashed from there, not from main memory.
_PIECE = 1 << 20
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


def same_file(one: os.stat_result, other: os.stat_result) -> bool:
    """Whether nothing was done to a file between the two: the kernel sets ctime at every change."""
    return (
        one.st_ctime_ns == other.st_ctime_ns
        and one.st_mtime_ns == other.st_mtime_ns
        and one.st_size == other.st_size
        and one.st_ino == other.st_ino
        and one.st_dev == other.st_dev
    )


def hash_file(path: str) -> str:
    """BLAKE3 of a regular file's bytes, in hex. Raises StoreError when it cannot be read or changes meanwhile."""
    try:
        before = os.lstat(path)
    except OSError as error:
        raise unreadable(path, error) from error
    if not stat.S_ISREG(before.st_mode):
        raise StoreError(f"{path} is not a regular file")
    return _digest(path, before, bytearray(min(_PIECE, before.st_size + 1)))


def _digest(path: str, before: os.stat_result, piece: bytearray) -> str:
    """`before` is what the file was when it was found; `piece` is room to read into."""
    try:
        descriptor = os.open(path, _OPEN)
        try:
            if before.st_size <= _SMALL:
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
    if not same_file(before, after):
        raise changed_while_read(path)
    return digest


def hash_files(base: str, files: Iterable[tuple[str, os.stat_result]]) -> dict[str, str]:
    """BLAKE3, in hex, of files below `base`, by relative path. Each comes with what lstat said of it before.

    Raises StoreError, which names the file, for one that cannot be read, has vanished, or changed since.
    """
    todo = deque(sorted(files, key=lambda file: -file[1].st_size))
    digests: dict[str, str] = {}

    def work() -> None:
        piece = bytearray(_PIECE)
        try:
            while True:
                path, status = todo.popleft()
                digests[path] = _digest(f"{base}/{path}", status, piece)
        except IndexError:
            return  # nothing is left

    workers = min(os.cpu_count() or 1, len(todo))
    if workers:
        with ThreadPoolExecutor(max_workers=workers) as pool:
            try:
                for done in [pool.submit(work) for _ in range(workers)]:
                    done.result()
            finally:
                todo.clear()  # after a failure, or a signal to us, the others stop too
    return digests
