"""One run at a time: an flock on the store's lock file.

The kernel drops the lock with its holder, however that ends, so a dead holder never blocks anybody. Python
opens files so that children do not inherit them (PEP 446): a build or a server that outlives its run cannot
hold the lock.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from crossgrade.errors import LockedError


@dataclass(frozen=True)
class Holder:
    """Who holds the lock. `since` is seconds since 1970 (UTC)."""

    pid: int
    command: str
    since: float


def read_holder(path: Path) -> Holder | None:
    """Who holds the lock now; None when nobody does. Takes nothing."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _holder(os.pread(descriptor, 4096, 0))
    finally:
        os.close(descriptor)
    return None


def _holder(data: bytes) -> Holder:
    try:
        return Holder(**json.loads(data))
    except (ValueError, TypeError):
        return Holder(0, "unknown: its record is not written yet", 0.0)


@contextmanager
def hold(path: Path, command: str) -> Iterator[None]:
    """Hold the lock for the body. Raises LockedError (exit code 75) that names the holder."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(os.pread(descriptor, 4096, 0))
            raise LockedError(
                f"another run holds the lock: pid {holder.pid}, started "
                f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(holder.since))}, `{holder.command}`",
                remedy="Wait for it, or follow it with `crossgrade status`.",
            ) from None
        with suppress(OSError):  # a full disk must not stand in the way of a rollback: the lock is held without a name
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(asdict(Holder(os.getpid(), command, time.time()))).encode(), 0)
        yield
        with suppress(OSError):  # what was done is done; the name of a holder whose lock is free is not read
            os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)
