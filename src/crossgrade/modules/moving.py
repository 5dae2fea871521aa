"""Moving a file, a link or a whole tree, also to another filesystem, so that a kill never loses it.

On one filesystem it is one rename. Otherwise the copy is made whole first, under another name; then the
original vanishes by one rename; and only then is it deleted.
"""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import suppress
from pathlib import Path

from crossgrade.errors import TaskError
from crossgrade.store.atomic import sync_directory
from crossgrade.store.layout import remove_path

SPARE_BYTES = 64 << 20  # what must be left free on a filesystem after a copy


def move(source: Path, destination: Path, temporary: Path) -> None:
    """Move `source` to `destination`, where nothing is. `temporary` is an unused path beside `source`.

    Raises OSError; TaskError when another filesystem has no room for the copy.
    """
    try:
        source.rename(destination)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        partial = destination.with_name(destination.name + ".tmp")
        remove_path(partial)
        _check_room(source, destination.parent)
        copy_whole(source, partial)
        partial.rename(destination)
        sync_directory(destination.parent)
        source.rename(temporary)
        sync_directory(source.parent)
        remove_path(temporary)
    sync_directory(destination.parent)
    sync_directory(source.parent)


def copy_whole(source: Path, destination: Path) -> None:
    """Copy a file, a link or a tree with modes, times, extended attributes and, where permitted, owners."""
    if source.is_dir() and not source.is_symlink():
        shutil.copytree(source, destination, symlinks=True, copy_function=_copy_one)
        for folder, folders, _ in os.walk(source):
            below = os.path.relpath(folder, source)
            _copy_owner(Path(folder), destination / below)
            for name in folders:
                if (Path(folder) / name).is_symlink():
                    _copy_owner(Path(folder) / name, destination / below / name)
    else:
        _copy_one(source, destination)


def _copy_one(source: str | Path, destination: str | Path) -> None:
    shutil.copy2(source, destination, follow_symlinks=False)
    _copy_owner(Path(source), Path(destination))
    if not Path(destination).is_symlink():
        with Path(destination).open("rb") as stream:
            os.fsync(stream.fileno())


def _copy_owner(source: Path, destination: Path) -> None:
    status = source.lstat()
    with suppress(PermissionError):
        os.chown(destination, status.st_uid, status.st_gid, follow_symlinks=False)
        if not destination.is_symlink():
            destination.chmod(status.st_mode & 0o7777)  # chown takes the setuid bit away


def _check_room(source: Path, folder: Path) -> None:
    needed = source.lstat().st_size
    if source.is_dir() and not source.is_symlink():
        needed = sum(
            os.lstat(os.path.join(place, name)).st_size  # noqa: PTH118  # strings, in bulk
            for place, _, names in os.walk(source)
            for name in names
        )
    free = shutil.disk_usage(folder).free
    if needed + SPARE_BYTES > free:
        raise TaskError(
            f"{source} lies on another filesystem, and there is no room for it in {folder}, where it would "
            f"be kept for the rollback: it has {needed >> 20} MiB, {free >> 20} MiB are free",
            remedy="Make room there, or move it away by hand.",
        )
