"""The one commit point: the active link, and how a plain directory comes to be behind it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from crossgrade.errors import StoreError
from crossgrade.store.atomic import exchange, replace_link, sync_directory
from crossgrade.store.layout import Store

# What renameat2(2) says where the filesystem or the kernel knows no RENAME_EXCHANGE
_NO_EXCHANGE = {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}


def switch(store: Store, number: int) -> None:
    """Point the active link at a generation: one rename, whatever the size of the environment.

    Raises StoreError when the generation is not complete or nothing was adopted yet.
    """
    replace_link(check_switch(store, number), store.venv(number))


def check_switch(store: Store, number: int) -> Path:
    """The active link, which may be turned to that generation. Changes nothing; raises StoreError as `switch` does."""
    link = store.active_link
    if link is None:
        raise StoreError("nothing was adopted yet: there is no active link", remedy="Run `crossgrade upgrade` first.")
    generation = store.generation(number)
    if generation.state == "building" or not generation.manifest:
        raise StoreError(f"generation {number} is not complete: it is not activated")
    if not (store.venv(number) / "pyvenv.cfg").is_file():
        raise StoreError(f"generation {number} has no venv at {store.venv(number)}: it is not activated")
    if link.exists() and not link.is_symlink():
        raise StoreError(
            f"{link} is no longer a link: somebody put a real file or directory there",
            remedy=f"Move it away and point {link} at {store.venv(number)}.",
        )
    return link


def adopt(store: Store, path: Path, number: int) -> None:
    """Move a plain directory into the store as generation `number` and leave the link in its place, in one step.

    A link with the final target is put where the venv will be; then the two change places. A process that
    runs from the old path goes on: its open files and its working directory move along.

    Where the filesystem cannot exchange two names, it takes two steps, and for a moment the path is not there;
    `finish_adoption` and `undo_adoption` know each state in between. Raises OSError.
    """
    place = store.venv(number)
    place.unlink(missing_ok=True)
    place.symlink_to(place)
    sync_directory(place.parent)
    try:
        exchange(place, path)
    except OSError as error:
        if error.errno not in _NO_EXCHANGE:
            raise
        place.unlink()
        path.rename(place)
        sync_directory(place.parent)
        finish_adoption(store, path, number)


def finish_adoption(store: Store, path: Path, number: int) -> bool:
    """Whether the directory lies in the store with the link in its place; puts a link that is missing."""
    place = store.venv(number)
    if place.is_symlink() or not place.is_dir():
        return False
    if not path.is_symlink() and not path.exists():
        path.symlink_to(place)
        sync_directory(path.parent)
    return _leads_to(path, place)


def _leads_to(path: Path, place: Path) -> bool:
    """Whether a link leads to a place, however both are written."""
    return path.is_symlink() and os.path.realpath(path) == os.path.realpath(place)


def undo_adoption(store: Store, path: Path, number: int) -> bool:
    """Put an adopted directory back where it was. True when it had been moved; harmless when it had not.

    Raises StoreError when something else has taken its place: it is never removed.
    """
    place = store.venv(number)
    if place.is_symlink():
        place.unlink()
        return False
    if not place.is_dir():
        return False
    if _leads_to(path, place):
        try:
            exchange(place, path)
            place.unlink()
            return True
        except OSError as error:
            if error.errno not in _NO_EXCHANGE:
                raise
            path.unlink()
    if path.is_symlink() or path.exists():
        raise StoreError(
            f"{path} cannot be put back: something else is there now; the environment is {place}",
            remedy=f"Move it away, then: mv {place} {path}",
        )
    place.rename(path)
    sync_directory(path.parent)
    return True
