"""Changes of files, each of which can be taken back: shared by copy, template and file.

A module plans a list of operations as data; `perform` carries them out in one journaled step. What an
operation replaces is kept in the run's folder before the step begins: by a hard link where that is possible,
so that keeping a large file costs nothing and owner, mode, times and extended attributes stay as they were.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from crossgrade.errors import TaskError
from crossgrade.jsontype import JSON
from crossgrade.modules.contract import ApplyContext, Change, Difference
from crossgrade.modules.file_undo import forget_needless_backup, undo_folder
from crossgrade.modules.files import (
    DIFFERENCE_BYTES,
    READ_BYTES,
    UNKNOWN_ID,
    Attributes,
    Entry,
    group_name,
    owner_name,
    predictions,
)
from crossgrade.modules.moving import move
from crossgrade.store.atomic import sync_directory


class Content(Protocol):
    """A content that is made while it is written, such as a member of an archive."""

    def blocks(self) -> Iterator[bytes]: ...


Time = int | Literal["now"] | None  # nanoseconds since 1970, or None for: as it is


@dataclass(frozen=True)
class WriteFile:
    """Put a file with this content here, in one rename, in place of a link, a file or an empty directory.

    Without user or group those of the old file stay.

    `content` is the bytes themselves, the file to copy them from, or what makes them; `checksum` is their sha1,
    `size` their number. `validate` is a program with `%s` for the new file; it must agree before the rename.
    """

    before: Entry
    content: bytes | Path | Content
    checksum: str
    size: int
    mode: int
    uid: int | None = None
    gid: int | None = None
    validate: tuple[str, ...] = ()


@dataclass(frozen=True)
class MakeDirectory:
    """Make one directory, in place of a link or a file; the one above is there.

    `mode` None leaves it to the umask, -1 does not chown.
    """

    before: Entry
    mode: int | None
    uid: int | None = None
    gid: int | None = None


@dataclass(frozen=True)
class MakeLink:
    """Put a symlink here, in place of a link, a file or an empty directory."""

    before: Entry
    target: str


@dataclass(frozen=True)
class MakeHardLink:
    """Put another name of a file here."""

    before: Entry
    source: Path


@dataclass(frozen=True)
class Remove:
    """Take away whatever is here, with all that is below."""

    before: Entry


@dataclass(frozen=True)
class SetAttributes:
    """Set what is not None. Symlinks are not followed; their mode cannot be set."""

    before: Entry
    mode: int | None = None
    uid: int | None = None
    gid: int | None = None
    atime: Time = None
    mtime: Time = None


Operation = WriteFile | MakeDirectory | MakeLink | MakeHardLink | Remove | SetAttributes


# ---- planning


def entry_after(operation: Operation) -> Entry:
    """What will lie at the path of the operation."""
    before = operation.before
    if isinstance(operation, Remove):
        return Entry(before.path, "absent", predicted=True, other_path=before.other_path)
    if isinstance(operation, SetAttributes):
        given = {"mode": operation.mode, "uid": operation.uid, "gid": operation.gid}
        after = replace(before, **{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]  # only the three numbers
        return after if before.predicted or before.kind != "file" else replace(after, content_of=before.path)
    new = Entry(before.path, "unknown", predicted=True, other_path=before.other_path)
    if isinstance(operation, MakeLink):
        return replace(new, kind="link", target=operation.target, mode=0o777)
    if isinstance(operation, MakeHardLink):
        return replace(new, kind="file", links=2)
    uid = os.geteuid() if operation.uid is None else operation.uid
    gid = os.getegid() if operation.gid is None else operation.gid
    if isinstance(operation, MakeDirectory):
        return replace(new, kind="directory", mode=operation.mode, uid=uid, gid=gid, fresh=True)
    if before.kind == "file":
        uid = before.uid if operation.uid is None and before.uid is not None else uid
        gid = before.gid if operation.gid is None and before.gid is not None else gid
    size, checksum = operation.size, operation.checksum
    new = replace(new, kind="file", mode=operation.mode, uid=uid, gid=gid, size=size, checksum=checksum)
    if isinstance(operation.content, Path):
        return replace(new, content_of=operation.content)
    known = isinstance(operation.content, bytes) and size <= DIFFERENCE_BYTES
    return replace(new, content=operation.content if known else None)  # type: ignore[arg-type]  # it is bytes


def attribute_operation(
    attributes: Attributes, entry: Entry, *, atime: Time = None, mtime: Time = None
) -> SetAttributes | None:
    """What is to be set on this entry so that it is as asked; None when it is so already."""
    mode = None
    if entry.kind not in ("absent", "link") and entry.mode is not None:
        mode = attributes.mode_of(entry.mode, directory=entry.kind == "directory")
    operation = SetAttributes(
        entry,
        mode=None if mode == entry.mode else mode,
        uid=None if attributes.uid == entry.uid else attributes.uid,
        gid=None if attributes.gid == entry.gid else attributes.gid,
        atime=None if atime == entry.atime else atime,
        mtime=None if mtime == entry.mtime else mtime,
    )
    return None if operation == SetAttributes(entry) else operation


def attribute_differences(operation: SetAttributes) -> Iterator[Difference]:
    before, path = operation.before, operation.before.path
    if operation.mode is not None:
        was = "unknown" if before.mode is None else f"0{before.mode:03o}"
        yield Difference(f"mode of {path}", was, f"0{operation.mode:03o}")
    for what, old, new, name in (
        ("owner", before.uid, operation.uid, owner_name),
        ("group", before.gid, operation.gid, group_name),
    ):
        if new is not None:
            was = "unknown" if old is None else name(old)
            yield Difference(f"{what} of {path}", was, "a new one" if new == UNKNOWN_ID else name(new))


def plan_change(
    summary: str,
    operations: Sequence[Operation],
    values: dict[str, Any],
    differences: Sequence[Difference] = (),
) -> Change:
    """The change that carries out these operations; attribute differences and predictions are added."""
    attributes = (op for op in operations if isinstance(op, SetAttributes))
    return Change(
        summary=summary,
        differences=(*differences, *(diff for op in attributes for diff in attribute_differences(op))),
        values=values,
        predicts=tuple(item for op in operations for item in predictions(entry_after(op))),
        payload={"operations": tuple(operations)},
    )


# ---- doing


def perform(change: Change, context: ApplyContext) -> None:
    """Carry out the operations that `plan_change` put into the change, as one journaled step.

    Raises OSError and TaskError; what was done until then is in the journal and can be undone.
    """
    operations: tuple[Operation, ...] = change.payload["operations"]
    folder = undo_folder(context)
    records: list[dict[str, JSON]] = []
    try:
        for operation in operations:
            records.append(_record(operation, folder, context.run_id))  # noqa: PERF401 - for the cleaning below
        by_hand = [line for record in reversed(records) for line in _by_hand(record)]
        with context.step(change.summary, {"records": list(records)}, by_hand=by_hand):
            for operation, record in zip(operations, records, strict=True):
                _do(operation, record, context)
            for directory in {operation.before.path.parent for operation in operations}:
                if directory.is_dir():  # it may itself have been removed
                    sync_directory(directory)
    except BaseException:
        for record in records:
            forget_needless_backup(record)
        raise


def _record(operation: Operation, folder: Path, run_id: str) -> dict[str, JSON]:
    """What undo needs to know, with what will be replaced kept in the undo folder."""
    before = operation.before
    token = hashlib.sha256(os.fsencode(f"{run_id}\0{before.path}")).hexdigest()[:16]
    record: dict[str, JSON] = {
        "operation": type(operation).__name__,
        "path": str(before.path),
        "before": {
            "kind": before.kind,
            "mode": before.mode,
            "uid": before.uid,
            "gid": before.gid,
            "target": before.target,
            "atime": before.atime,
            "mtime": before.mtime,
            "inode": None if before.inode is None else list(before.inode),
        },
        "temporary": str(before.path.parent / f".crossgrade-{token}.tmp"),
        "backup": None,
    }
    if isinstance(operation, Remove):
        record["backup"] = str(_unused(folder / token))
    elif isinstance(operation, SetAttributes):
        only_atime = operation.mtime is None and operation.atime is not None
        record["times"] = "atime" if only_atime else None if operation.mtime is None else "mtime"
    elif before.kind == "file":
        record["backup"] = str(_keep(before.path, _unused(folder / token)))
    if isinstance(operation, WriteFile):
        record["made"] = {"kind": "file", "checksum": operation.checksum}
    elif isinstance(operation, MakeLink):
        record["made"] = {"kind": "link", "target": operation.target}
    elif isinstance(operation, MakeHardLink):
        record["made"] = {"kind": "hard link", "source": str(operation.source)}
    elif isinstance(operation, MakeDirectory):
        record["made"] = {"kind": "directory"}
    return record


def _unused(path: Path) -> Path:
    """A run may change the same path more than once."""
    number = 0
    while os.path.lexists(path if not number else path.with_suffix(f".{number}")):
        number += 1
    return path if not number else path.with_suffix(f".{number}")


def _keep(path: Path, backup: Path) -> Path:
    try:
        os.link(path, backup, follow_symlinks=False)
    except OSError:  # another filesystem, one without hard links, or another user's file
        temporary = backup.with_name(backup.name + ".tmp")
        shutil.copy2(path, temporary, follow_symlinks=False)
        status = path.lstat()
        with suppress(PermissionError):
            os.chown(temporary, status.st_uid, status.st_gid)
        with temporary.open("rb") as stream:
            os.fsync(stream.fileno())
        temporary.rename(backup)
    try:
        sync_directory(backup.parent)
    except OSError:
        backup.unlink()
        raise
    return backup


def _do(operation: Operation, record: dict[str, JSON], context: ApplyContext) -> None:
    path, temporary = operation.before.path, Path(str(record["temporary"]))
    temporary.unlink(missing_ok=True)  # of a run that was killed and is resumed
    if isinstance(operation, WriteFile):
        _write(operation, temporary, context)
    elif isinstance(operation, MakeDirectory):
        if operation.before.kind in ("file", "link"):
            path.unlink()
        path.mkdir() if operation.mode is None else path.mkdir(mode=0o700)
        _set_owner(path, operation.uid, operation.gid)
        if operation.mode is not None:
            path.chmod(operation.mode)
    elif isinstance(operation, MakeLink):
        temporary.symlink_to(operation.target)
        if operation.before.kind == "directory":
            path.rmdir()
        temporary.rename(path)
    elif isinstance(operation, MakeHardLink):
        temporary.hardlink_to(operation.source)
        temporary.rename(path)
        temporary.unlink(missing_ok=True)  # rename does nothing when both are names of one file
    elif isinstance(operation, Remove):
        move(path, Path(str(record["backup"])), temporary)
    else:
        _set_attributes(operation)


def _write(operation: WriteFile, temporary: Path, context: ApplyContext) -> None:
    path, old = operation.before.path, operation.before
    try:
        # nobody else may read it before it has its final mode
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            for block in _blocks(operation.content):
                stream.write(block)
            stream.flush()
            if old.kind == "file" and old.uid is not None and old.gid is not None:
                with suppress(PermissionError):  # nobody asked for it
                    os.fchown(descriptor, old.uid, old.gid)
            if operation.uid is not None or operation.gid is not None:
                os.fchown(descriptor, _or_same(operation.uid), _or_same(operation.gid))
            os.fchmod(descriptor, operation.mode)  # after chown, which takes the setuid bit away
            os.fsync(descriptor)
        if operation.validate:
            _validate(operation.validate, temporary, context)
        if old.kind == "directory":
            path.rmdir()
        temporary.rename(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _blocks(content: bytes | Path | Content) -> Iterator[bytes]:
    if isinstance(content, bytes):
        yield content
        return
    if not isinstance(content, Path):
        yield from content.blocks()
        return
    with content.open("rb") as stream:
        while block := stream.read(READ_BYTES):
            yield block


def _validate(command: Sequence[str], file: Path, context: ApplyContext) -> None:
    argv = [part.replace("%s", str(file)) for part in command]
    completed = context.run(argv)
    if not completed.succeeded:
        said = (completed.stderr or completed.stdout).strip()
        raise TaskError(
            f"`validate` refuses the new content ({completed.outcome()}); the old file is untouched",
            remedy=f"{shlex.join(command)} says: {said[-2000:]}" if said else "",
        )


def _set_attributes(operation: SetAttributes) -> None:
    path, before = operation.before.path, operation.before
    _set_owner(path, operation.uid, operation.gid)
    if before.kind != "link":
        # chown takes the setuid and setgid bits away; they were not asked to go
        mode = before.mode if operation.mode is None and operation.uid is not None else operation.mode
        if mode is not None:
            path.chmod(mode)
    if operation.atime is not None or operation.mtime is not None:
        now, status = time.time_ns(), path.lstat()
        atime = _nanoseconds(operation.atime, status.st_atime_ns, now)
        mtime = _nanoseconds(operation.mtime, status.st_mtime_ns, now)
        os.utime(path, ns=(atime, mtime), follow_symlinks=False)


def _nanoseconds(wanted: Time, current: int, now: int) -> int:
    if wanted is None:
        return current
    return wanted if isinstance(wanted, int) else now


def _set_owner(path: Path, uid: int | None, gid: int | None) -> None:
    if uid is not None or gid is not None:
        os.chown(path, _or_same(uid), _or_same(gid), follow_symlinks=False)


def _or_same(identity: int | None) -> int:
    return -1 if identity is None else identity  # chown(2): -1 leaves it


def _by_hand(record: dict[str, JSON]) -> list[str]:
    """What a person would type to take one operation back."""
    path, before, backup = shlex.quote(str(record["path"])), record["before"], record["backup"]
    if not isinstance(before, dict):
        return []
    if record["operation"] == "SetAttributes":
        lines = [f"chown -h {before['uid']}:{before['gid']} {path}"]
        if before["kind"] != "link" and isinstance(before["mode"], int):
            lines.append(f"chmod {before['mode']:04o} {path}")
        return lines
    if record["operation"] == "Remove":
        return [f"mv -T {shlex.quote(str(backup))} {path}"]
    if backup is not None:
        return [f"cp -a --remove-destination {shlex.quote(str(backup))} {path}"]
    if before["kind"] == "link":
        return [f"ln -sfn {shlex.quote(str(before['target']))} {path}"]
    if before["kind"] == "directory":
        return [f"rm {path} && mkdir {path}"]
    return [f"rmdir {path}" if record["operation"] == "MakeDirectory" else f"rm {path}"]
