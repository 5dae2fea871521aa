"""Every entry of a tree, with one lstat each: what manifests, plans and measures are made from."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from crossgrade.store.hashing import unreadable

TYPE_BITS = 0o170000  # S_IFMT of stat(2), for comparing with stat.S_IFREG and the like
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def scan(root: Path) -> Iterator[tuple[str, os.stat_result, str]]:
    """(relative path, lstat, link target) of every entry below root, not following links. Raises StoreError.

    Each folder is read through its descriptor: the kernel need not walk the whole path for each entry.
    """
    pending = [("", str(root))]
    while pending:
        prefix, folder = pending.pop()
        name = ""
        try:
            descriptor = os.open(folder, _OPEN_FOLDER)
            try:
                with os.scandir(descriptor) as entries:
                    for entry in entries:
                        name = entry.name
                        path = prefix + name
                        status = entry.stat(follow_symlinks=False)
                        kind = status.st_mode & TYPE_BITS
                        target = ""
                        if kind == stat.S_IFDIR:
                            pending.append((f"{path}/", f"{folder}/{name}"))
                        elif kind == stat.S_IFLNK:
                            target = os.readlink(name, dir_fd=descriptor)
                        yield path, status, target
            finally:
                os.close(descriptor)
        except OSError as error:
            raise unreadable(f"{folder}/{name}" if name else folder, error) from error


def count_files(root: Path) -> tuple[int, int]:
    """Regular files below root, and their bytes. Raises StoreError."""
    files = size = 0
    for _, status, _ in scan(root):
        if status.st_mode & TYPE_BITS == stat.S_IFREG:
            files += 1
            size += status.st_size
    return files, size
