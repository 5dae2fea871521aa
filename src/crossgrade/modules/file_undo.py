"""Taking operations on files back, from their journaled records.

Each record is looked at against what the disk has now, so it does not matter whether the operation was done,
half done or never done, nor how often its undo runs. What somebody else put in the place since then is not
destroyed but kept aside, in the undo folder of the run that undoes; directories
that are no longer empty stay.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from crossgrade.errors import TaskError
from crossgrade.jsontype import JSON
from crossgrade.modules.contract import ApplyContext
from crossgrade.modules.files import Entry, entry_at, file_digest
from crossgrade.modules.moving import copy_whole, move
from crossgrade.store.atomic import make_folder, sync_directory
from crossgrade.store.layout import remove_path

SHOWN_PATHS = 3


def undo_folder(context: ApplyContext) -> Path:
    """Where a run keeps what it replaces: its own folder in the store, readable by its owner only."""
    folder = context.log_directory / "undo"
    make_folder(folder, 0o700)
    return folder


def undo(record: Mapping[str, JSON], context: ApplyContext) -> str:
    """Take back the step of `file_operations.perform`. Raises TaskError when what it needs is gone."""
    records = record.get("records")
    done: list[str] = []
    for item in reversed(records if isinstance(records, list) else []):
        if isinstance(item, dict):
            words = _undo_one(item, undo_folder(context))
            done += [words] if words else []
    if len(done) > SHOWN_PATHS:
        return f"{len(done)} paths: " + "; ".join(done[:SHOWN_PATHS]) + "; …"
    return "; ".join(done)


def _undo_one(record: Mapping[str, JSON], folder: Path) -> str:
    path = Path(str(record["path"]))
    before = record["before"]
    if not isinstance(before, dict):
        return ""
    backup = None if record["backup"] is None else Path(str(record["backup"]))
    if path.parent.is_dir():
        remove_path(Path(str(record["temporary"])))
    now = entry_at(path)
    if record["operation"] == "SetAttributes":
        if now.kind != before["kind"]:
            return ""
        restored = _restore_attributes(now, before, times=record.get("times"))
        return f"restored the attributes of {path}" if restored else ""
    if record["operation"] == "Remove":
        return _undo_remove(now, before, backup, folder)
    if _is_as_before(now, before, backup):
        forget_needless_backup(record)
        restored = now.exists and _restore_attributes(now, before, times=None)
        return f"restored the attributes of {path}" if restored else ""
    return _put_back(now, record, before, backup, folder)


def _undo_remove(now: Entry, before: Mapping[str, JSON], backup: Path | None, folder: Path) -> str:
    if backup is None or not os.path.lexists(backup):
        if now.exists:
            return ""  # it never left, or is back already
        raise TaskError(f"{now.path} cannot be restored: what was kept of it at {backup} is gone")
    if now.inode is not None and list(now.inode) == before["inode"]:
        remove_path(backup)  # the copy to another filesystem was made, but the original had not left yet
        return ""
    aside = _put_aside(now, folder)
    _carry_over(backup, now.path, use_up=True)
    return f"restored {now.path}{aside}"


def forget_needless_backup(record: Mapping[str, JSON]) -> None:
    """Drop the second name of a file that was not replaced after all."""
    if isinstance(record["backup"], str) and record["operation"] != "Remove":
        kept, now = Path(record["backup"]), entry_at(Path(str(record["path"])))
        if now.inode is not None and _inode(kept) == list(now.inode):
            remove_path(kept)


def _is_as_before(now: Entry, before: Mapping[str, JSON], backup: Path | None) -> bool:
    if now.kind != before["kind"]:
        return False
    if now.kind == "link":
        return now.target == before["target"]
    if now.kind == "file":
        if now.inode is not None and list(now.inode) == before["inode"]:
            return True
        return backup is not None and backup.exists() and file_digest(now.path) == file_digest(backup)
    return True


def _inode(path: Path) -> list[int] | None:
    inode = entry_at(path).inode
    return None if inode is None else list(inode)


def _put_back(
    now: Entry, record: Mapping[str, JSON], before: Mapping[str, JSON], backup: Path | None, folder: Path
) -> str:
    path = now.path
    kind = before["kind"]
    if kind == "file" and (backup is None or not backup.exists()):
        raise TaskError(f"{path} cannot be restored: what was kept of it at {backup} is gone")
    aside = ""
    if now.kind == "directory" and _is_ours(now, record["made"]):
        try:
            path.rmdir()
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise
            return f"left {path}, which is not empty"
    elif now.exists and not _is_ours(now, record["made"]):
        aside = _put_aside(now, folder)
    elif now.exists and kind != "file":
        path.unlink()
    if kind == "file" and backup is not None:
        # a hard link of the old file becomes the file again, so that no second name of it remains
        _carry_over(backup, path, use_up=_inode(backup) == before["inode"])
    elif kind == "link":
        path.symlink_to(str(before["target"]))
    elif kind == "directory":
        path.mkdir(mode=0o700)
    if kind != "absent":
        _restore_attributes(entry_at(path), before, times="mtime")
    sync_directory(path.parent)
    return f"{'removed' if kind == 'absent' else 'restored'} {path}{aside}"


def _is_ours(now: Entry, made: JSON) -> bool:
    """Whether the operation left what lies there now, unchanged since."""
    if not isinstance(made, dict):
        return False
    if made["kind"] == "hard link":
        return now.kind == "file" and now.inode == entry_at(Path(str(made["source"]))).inode
    if made["kind"] != now.kind:
        return False
    if now.kind == "link":
        return now.target == made["target"]
    return now.kind == "directory" or file_digest(now.path) == made["checksum"]


def _put_aside(now: Entry, folder: Path) -> str:
    """Keep what somebody else made; says where, as the end of a sentence."""
    if not now.exists:
        return ""
    number = 1
    while os.path.lexists(folder / f"found-{number}"):
        number += 1
    kept = folder / f"found-{number}"
    move(now.path, kept, _temporary(now.path))
    return f" (what others had made of it since is kept at {kept})"


def _carry_over(backup: Path, path: Path, *, use_up: bool) -> None:
    """Put what was kept in its place by one rename: itself when it is to be used up, else a copy."""
    if use_up:
        try:
            backup.rename(path)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
        else:
            sync_directory(path.parent)
            return
    temporary = _temporary(path)
    remove_path(temporary)
    copy_whole(backup, temporary)
    temporary.rename(path)
    sync_directory(path.parent)
    if use_up:
        remove_path(backup)


def _temporary(path: Path) -> Path:
    return path.parent / f".crossgrade-undo-{os.getpid()}.tmp"


def _restore_attributes(now: Entry, before: Mapping[str, JSON], *, times: JSON) -> bool:
    """True when something was to be restored.

    `times` names the time that tells whether both are to be restored: mtime, or atime, which changes by
    reading as well; None leaves them.
    """
    path, uid, gid = now.path, before["uid"], before["gid"]
    changed = False
    if isinstance(uid, int) and isinstance(gid, int) and (now.uid, now.gid) != (uid, gid):
        with suppress(PermissionError):
            os.chown(path, uid, gid, follow_symlinks=False)
            changed = True
    mode = before["mode"]
    if now.kind != "link" and isinstance(mode, int) and (changed or now.mode != mode):
        path.chmod(mode)
        changed = True
    atime, mtime = before["atime"], before["mtime"]
    differs = now.atime != atime if times == "atime" else now.mtime != mtime
    if times and differs and isinstance(atime, int) and isinstance(mtime, int):
        os.utime(path, ns=(atime, mtime), follow_symlinks=False)
        changed = True
    return changed
