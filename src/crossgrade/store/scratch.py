"""A private folder for one process: gone when its body ends, and after a kill cleared up by the next process."""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from crossgrade.errors import CrossgradeError
from crossgrade.store.layout import remove_path

_LOCK = ".lock"


def scratch_root() -> Path:
    """Where such folders lie: ``crossgrade/scratch`` below XDG_CACHE_HOME, or below ~/.cache."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(cache) if cache.startswith("/") else Path("~/.cache").expanduser()) / "crossgrade" / "scratch"


@contextmanager
def scratch(root: Path | None = None) -> Iterator[Path]:
    """An empty folder that only its owner may enter, below `root`.

    Whose process has died is told by the kernel: it drops the lock on the folder's file. What such processes left is
    removed first. Raises CrossgradeError when `root` belongs to somebody else, and OSError.
    """
    root = root or scratch_root()
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    _require_private(root)
    with _locked(root / _LOCK, fcntl.LOCK_EX):  # nobody clears up while a folder has no lock of its own yet
        _clear(root)
        folder = Path(tempfile.mkdtemp(prefix="deep-", dir=root))
        descriptor = _open_lock(folder.with_name(f"{folder.name}{_LOCK}"))
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield folder
    finally:
        remove_path(folder)
        remove_path(folder.with_name(f"{folder.name}{_LOCK}"))
        os.close(descriptor)


def _require_private(root: Path) -> None:
    status = root.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise CrossgradeError(f"{root} is not a folder of yours", remedy="Move it away, or set XDG_CACHE_HOME.")
    root.chmod(0o700)


def _clear(root: Path) -> None:
    for folder in root.glob("deep-*"):
        if folder.name.endswith(_LOCK):
            continue
        lock = folder.with_name(f"{folder.name}{_LOCK}")
        try:
            with _locked(lock, fcntl.LOCK_EX | fcntl.LOCK_NB):
                remove_path(folder)
                remove_path(lock)
        except BlockingIOError:
            continue  # its process lives


@contextmanager
def _locked(path: Path, operation: int) -> Iterator[None]:
    descriptor = _open_lock(path)
    try:
        fcntl.flock(descriptor, operation)
        yield
    finally:
        with suppress(OSError):
            os.close(descriptor)


def _open_lock(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
