"""Room that is kept for going back: a rollback writes to its journal, and must not fail because the disk is full.

The file is made when an upgrade begins, and given up when a rollback finds the disk full; the next upgrade makes it
anew.
"""

from __future__ import annotations

import os
from contextlib import suppress

from crossgrade.store.layout import Store

RESERVED_BYTES = 1 << 20
_LOW_BYTES = 1 << 19


def keep_reserve(store: Store) -> None:
    """Set the room aside. On a disk that is full already nothing can be done; the plan has said so."""
    path = store.root / "reserve"
    with suppress(OSError):
        if path.exists() and path.stat().st_blocks * 512 >= RESERVED_BYTES:
            return
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, RESERVED_BYTES)
        except OSError:
            path.unlink()  # half a reserve would only take room away
        finally:
            os.close(descriptor)


def release_reserve(store: Store) -> None:
    """Give the room up when the disk is nearly full. Needs no room itself."""
    with suppress(OSError):
        status = os.statvfs(store.root)
        if status.f_bavail * status.f_frsize < _LOW_BYTES:
            (store.root / "reserve").unlink(missing_ok=True)
