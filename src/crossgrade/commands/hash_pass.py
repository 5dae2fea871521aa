"""A peer for `bench store`, run as a program: BLAKE3 of every file of a tree on all cores, and nothing else.

As fast as Python can: no records, no checks, the digests are thrown away. `store/hashing.py` must come near it.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from concurrent.futures import ThreadPoolExecutor

from blake3 import blake3

_PIECE = 1 << 18
_SMALL = 1 << 16


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
    todo = deque(sorted(files, reverse=True))

    def work() -> None:
        piece = bytearray(_PIECE)
        view = memoryview(piece)
        while todo:
            try:
                size, path = todo.popleft()
            except IndexError:
                return
            descriptor = os.open(path, os.O_RDONLY)
            if size <= _SMALL:
                blake3(os.read(descriptor, _SMALL)).digest()
            else:
                hasher = blake3()
                while count := os.readv(descriptor, (piece,)):
                    hasher.update(view[:count])
                hasher.digest()
            os.close(descriptor)

    cores = os.cpu_count() or 1
    with ThreadPoolExecutor(cores) as pool:
        for done in [pool.submit(work) for _ in range(cores)]:
            done.result()


if __name__ == "__main__":
    main(sys.argv[1])
