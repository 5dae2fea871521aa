"""Places on disk that may not be there yet."""

from __future__ import annotations

import os
from pathlib import Path


def nearest_existing(path: Path) -> Path:
    """The path, or the nearest folder above it that is there."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def free_bytes(path: Path) -> int:
    """What an ordinary user may still write below a path, which need not exist yet. Raises OSError."""
    status = os.statvfs(nearest_existing(path))
    return status.f_bavail * status.f_frsize


def shown_bytes(size: int) -> str:
    """Bytes for people."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
