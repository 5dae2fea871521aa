"""How much room a folder takes on disk."""

from __future__ import annotations

import os
from pathlib import Path

_BLOCK = 512  # the unit of st_blocks, whatever the filesystem's own (stat(2))


def tree_bytes(root: Path) -> int:
    """The bytes that a folder's files take on disk, each file once however many names it has; links are not followed.

    A part that cannot be read counts as nothing. Raises OSError where the folder itself cannot be.
    """
    seen: set[tuple[int, int]] = set()
    total = 0
    os.scandir(root).close()
    for folder, _, names in os.walk(root.resolve()):
        for name in names:
            try:
                status = os.lstat(os.path.join(folder, name))  # noqa: PTH118  # strings, in bulk
            except OSError:
                continue
            if status.st_nlink == 1 or (status.st_dev, status.st_ino) not in seen:
                seen.add((status.st_dev, status.st_ino))
                total += status.st_blocks * _BLOCK
    return total
