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
_MEMORY = Path("/dev/shm")  # noqa: S108 - what lies there is in a folder that only its owner may enter
_ROOM = 1 << 30
_FILES = 300_000


def scratch_root() -> Path:
    """Where such folders lie: below TMPDIR when it is set, else in memory where there is room, else below ~/.cache.

    A hundred thousand links are quick to make anywhere; to remove them took 200 s on an ext4 that discards what it
    frees, and 0.8 s in memory.
    """
    name = f"crossgrade-{os.geteuid()}"
    if given := os.environ.get("TMPDIR", ""):
        return Path(given) / name
    cache = os.environ.get("XDG_CACHE_HOME", "")
    below = (Path(cache) if cache.startswith("/") else Path("~/.cache").expanduser()) / "crossgrade" / "scratch"
    try:
        memory = os.statvfs(_MEMORY)
        roomy = memory.f_bavail * memory.f_frsize >= _ROOM and memory.f_favail >= _FILES
        if not roomy or not os.access(_MEMORY, os.W_OK):
            return below
        (_MEMORY / name).mkdir(mode=0o700, exist_ok=True)
        _require_private(_MEMORY / name)
    except (OSError, CrossgradeError):  # anybody may have made a folder of that name
        return below
    return _MEMORY / name


@contextmanager
def scratch(root: Path | None = None) -> Iterator[Path]:
    """An empty folder that only its owner may enter, below `root`.

    Whether a process lives is told by the kernel: it drops the lock on the folder's file with it. What dead ones left
    is removed first. Raises CrossgradeError when `root` belongs to somebody else, and OSError.
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
        raise CrossgradeError(
            f"{root} is not a folder of yours", remedy="Move it away, or set TMPDIR to another place."
        )
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
