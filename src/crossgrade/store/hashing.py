"""Content digests of files: BLAKE3, on all cores.

BLAKE3 and not the sha256 of pip's RECORD: a manifest reads every byte of an environment of 10 GB while
people wait, BLAKE3 is several times faster on each core, and a manifest is compared with our own record
only. (RECORD stays sha256 and is checked elsewhere.)

The work is done by threads: the interpreter lock is free while a file is read and while blake3 takes in a
piece of it. Largest files first, so that no core idles at the end beside one that has a big file left; but one
thread begins with the small ones. When small files come from a disk and not from memory, more threads read them:
then it is the disk that makes each of them wait, and it can serve several at once.
"""

from __future__ import annotations

import mmap
import os
import stat
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Event
from typing import NamedTuple

from blake3 import blake3

from crossgrade.errors import StoreError

# A piece stays in a core's own cache (1 MiB on current ones), from which it is hashed.
_PIECE = 1 << 18
_LARGE = 1 << 17
_CORES = os.cpu_count() or 1
# For small files on a disk. On the disk of a virtual server 8 threads for 2 cores took 0.8 times what 2 took, and 16
# no less than 8; from memory they take 1.2 times as long, hence the sample.
_READERS_MORE = 6
_SAMPLE = 64
_FROM_DISK_SECONDS = 60e-6  # a file of some bytes: from memory 15 to 25 µs, from flash memory 100 µs and more
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
    return _digest(path, Found(path, status.st_size, status.st_ctime_ns, status.st_ino), _room())


def _room() -> memoryview:
    """Room to read into, at the start of a page: the kernel copies to 16 bytes after one, where large objects of
    Python begin, four times more slowly on current processors of AMD.
    """
    return memoryview(mmap.mmap(-1, _PIECE))


def _digest(path: str, found: Found, room: memoryview) -> str:
    hasher = blake3()
    left = found.size
    try:
        descriptor = os.open(path, _OPEN)
        try:
            while left > 0 and (count := os.readv(descriptor, (room,))):
                hasher.update(room[:count])
                left -= count
            after = os.fstat(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise unreadable(path, error) from error
    if left != 0 or (after.st_size, after.st_ctime_ns, after.st_ino) != found[1:]:
        raise changed_while_read(path)
    return hasher.hexdigest()


def hash_files(base: str, files: Iterable[Found]) -> dict[str, str]:
    """BLAKE3, in hex, of files below `base`, by path relative to it.

    `files` may come slowly, as a tree is searched: large ones are read meanwhile, small ones when all are known.
    Raises StoreError, which names the file, for one that cannot be read, has vanished, or changed since it was found.
    """
    digests: dict[str, str] = {}
    orders: SimpleQueue[Sequence[deque[Found]]] = SimpleQueue()
    stop = Event()

    def read_files() -> None:
        room = _room()
        try:
            while order := orders.get():
                for todo in order:
                    for found in _taken(todo):
                        if stop.is_set():
                            return
                        digests[found.path] = _digest(f"{base}/{found.path}", found, room)
        except BaseException:
            stop.set()
            raise

    readers: list[Future[None]] = []
    small: list[Found] = []
    room = _room()
    with ThreadPoolExecutor(max_workers=_CORES + _READERS_MORE) as pool:
        try:
            for found in files:
                if not readers:
                    readers = [pool.submit(read_files) for _ in range(_CORES)]
                if found.size < _LARGE:
                    small.append(found)
                else:
                    orders.put((deque((found,)),))
            small.sort(key=_largest_first)
            with_bytes = sum(found.size > 0 for found in small)
            sample = slice(max(0, with_bytes - _SAMPLE), with_bytes)
            began = time.perf_counter()
            for found in small[sample]:
                digests[found.path] = _digest(f"{base}/{found.path}", found, room)
            waited = time.perf_counter() - began > _FROM_DISK_SECONDS * len(small[sample])
            del small[sample]
            more = _READERS_MORE if waited and len(small) > _SAMPLE else 0
            readers += [pool.submit(read_files) for _ in range(more)]
            _put_rest(orders, small, more)
        except BaseException:
            stop.set()  # also after a signal to us: the threads stop after the file at hand
            raise
        finally:
            for _ in readers:
                orders.put(())
        for reader in readers:
            reader.result()
    return digests


def _taken(todo: deque[Found]) -> Iterator[Found]:
    """What is left, one by one; several threads may take from it at once."""
    while todo:
        with suppress(IndexError):  # another thread took the last
            yield todo.popleft()


def _put_rest(orders: SimpleQueue[Sequence[deque[Found]]], small: list[Found], more: int) -> None:
    """Everything is known now: what nobody has begun is put in order, the largest first.

    One thread and `more` begin with the small files, the others with the large ones. Threads that open small files
    side by side mostly wait for the interpreter lock; beside one that hashes a large file it is free.
    """
    large: list[Found] = []
    with suppress(Empty):
        while True:
            for todo in orders.get_nowait():
                large += todo
    much, little = deque(sorted(large, key=_largest_first)), deque(small)
    for _ in range(1 + more):
        orders.put((little, much))
    for _ in range(_CORES - 1):
        orders.put((much, little))


def _largest_first(found: Found) -> int:
    return -found.size
