"""A peer for `bench store`, run as a program: BLAKE3 of every file of a tree on all cores, and nothing else.

As fast as Python can: no records, no checks, the digests are thrown away. `store/hashing.py` must come near it.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections import deque
from concurrent.futures import ThreadPoolExecutor

from blake3 import blake3

_PIECE = 1 << 18
_LARGE = 1 << 17


def main(root: str) -> None:
    files: list[tuple[int, str]] = []
    folders = [root]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif entry.is_file(follow_symlinks=False):
                    files.append((entry.stat(follow_symlinks=False).st_size, entry.path))
    files.sort(reverse=True)
    large = deque(file for file in files if file[0] >= _LARGE)
    small = deque(file for file in files if file[0] < _LARGE)

    def work(*queues: deque[tuple[int, str]]) -> None:
        room = memoryview(mmap.mmap(-1, _PIECE))  # at the start of a page, where the kernel copies to fastest
        for queue in queues:
            while queue:
                try:
                    left, path = queue.popleft()
                except IndexError:
                    break
                descriptor = os.open(path, os.O_RDONLY)
                hasher = blake3()
                while left > 0 and (count := os.readv(descriptor, (room,))):
                    hasher.update(room[:count])
                    left -= count
                hasher.digest()
                os.close(descriptor)

    cores = os.cpu_count() or 1
    with ThreadPoolExecutor(cores) as pool:
        # one begins with the small files: side by side, threads that open small files wait for the interpreter lock
        orders = [(small, large), *[(large, small)] * (cores - 1)]
        for done in [pool.submit(work, *order) for order in orders]:
            done.result()


if __name__ == "__main__":
    main(sys.argv[1])
