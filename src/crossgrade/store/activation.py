"""The one commit point: the active link, and how a plain directory comes to be behind it."""

from __future__ import annotations

import os
from pathlib import Path

from crossgrade.errors import StoreError
from crossgrade.store.atomic import exchange, replace_link, sync_directory
from crossgrade.store.layout import Store


def switch(store: Store, number: int) -> None:
    """Point the active link at a generation: one rename, whatever the size of the environment.

    Raises StoreError when the generation is not complete or nothing was adopted yet.
    """
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
    replace_link(link, store.venv(number))


def check_adoptable(store: Store, path: Path) -> None:
    """Say what stands against adopting this directory, before anything is touched. Raises StoreError."""
    if path.is_symlink():
        raise StoreError(
            f"{path} is a symlink, not the environment itself", remedy="Name the directory that it points at."
        )
    if not (path / "pyvenv.cfg").is_file():
        raise StoreError(f"{path} is not a venv: it has no pyvenv.cfg", remedy="Name the folder that holds bin/python.")
    if not os.access(path.parent, os.W_OK):
        raise StoreError(f"{path.parent} is not writable: the environment cannot be replaced by a link there")
    if path.is_mount():
        raise StoreError(f"{path} is a mount point and cannot be moved", remedy="Adopt a directory inside it.")
    below = store.root
    while not below.exists():
        below = below.parent
    if below.stat().st_dev != path.stat().st_dev:
        raise StoreError(
            f"{path} and the store {store.root} are on different filesystems, so no single rename can adopt it",
            remedy="Put the store on the same filesystem (--root, or crossgrade_root in the playbook).",
        )
    if store.root.resolve().is_relative_to(path.resolve()):
        raise StoreError(f"the store {store.root} lies inside {path}, which it is to adopt")


def adopt(store: Store, path: Path, number: int) -> None:
    """Move a plain directory into the store as generation `number` and leave the link in its place, in one step.

    A link with the final target is put where the venv will be; then the two change places. A process that
    runs from the old path goes on: its open files and its working directory move along. Raises OSError.
    """
    place = store.venv(number)
    place.unlink(missing_ok=True)
    place.symlink_to(place)
    sync_directory(place.parent)
    exchange(place, path)


def undo_adoption(store: Store, path: Path, number: int) -> bool:
    """Put an adopted directory back where it was. True when it had been moved; harmless when it had not."""
    place = store.venv(number)
    if path.is_symlink() and place.is_dir() and not place.is_symlink():
        exchange(place, path)
        place.unlink()
        return True
    if place.is_symlink():
        place.unlink()
    return False
