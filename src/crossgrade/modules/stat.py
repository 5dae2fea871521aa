"""stat: what lies at a path."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat as bits
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from crossgrade.modules.contract import ApplyContext, Change, HostView, Module, Outcome, Plan
from crossgrade.modules.files import (
    absolute,
    entry_at,
    file_digest,
    follow,
    group_name,
    look,
    owner_name,
    prediction_for,
)
from crossgrade.playbook.arguments import argument
from crossgrade.playbook.markers import Unknown

# ioctl_iflags(2) and the letters of chattr(1), in the order in which lsattr(1) prints them, with Ansible's names
FS_IOC_GETFLAGS = 0x80086601
FS_IOC_GETVERSION = 0x80087601
FLAGS = (
    (0x1, "s", "zero"),
    (0x2, "u", "undelete"),
    (0x8, "S", "synchronous"),
    (0x10000, "D", "dirsync"),
    (0x10, "i", "immutable"),
    (0x20, "a", "append"),
    (0x40, "d", "nodump"),
    (0x80, "A", "noatime"),
    (0x4, "c", "compressed"),
    (0x800, "E", "encrypted"),
    (0x4000, "j", "journalled"),
    (0x1000, "I", "indexed"),
    (0x8000, "t", "notail"),
    (0x20000, "T", "blockroot"),
    (0x80000, "e", "extents"),
    (0x800000, "C", "nocow"),
    (0x10000000, "N", "inline"),
)
PERMISSIONS = {
    f"{letter}{who}": getattr(bits, f"S_I{letter.upper()}{who.upper()}")
    for who in ("usr", "grp", "oth")
    for letter in "rwx"
}

# what a prediction of a path shares with the result; tasks tell each other more than that
FORESEEN = frozenset(
    (*("exists", "path", "mode", "uid", "gid", "size"), *("isdir", "islnk", "isreg", "lnk_target", "checksum"))
)


@dataclass(frozen=True)
class Arguments:
    """Tells whether a path exists, and its type, mode, owner, size, times and checksum."""

    path: str = argument(doc="The path.", aliases=("dest", "name"))
    follow: bool = argument(doc="Tell of what a symlink leads to.", default=False)
    get_checksum: bool = argument(doc="Read the whole file for its checksum.", default=True)
    checksum_algorithm: Literal["md5", "sha1", "sha224", "sha256", "sha384", "sha512"] = argument(
        doc="Which checksum.",
        default="sha1",
        choices=("md5", "sha1", "sha224", "sha256", "sha384", "sha512"),
        aliases=("checksum", "checksum_algo"),
    )
    get_mime: bool = argument(
        doc="Ask file(1), where it is installed, for the type of the content.",
        default=True,
        aliases=("mime", "mime_type", "mime-type"),
    )
    get_attributes: bool = argument(doc="Tell the flags of chattr(1).", default=True, aliases=("attr", "attributes"))


@dataclass(frozen=True)
class State:
    """The dictionary that is returned as `stat`."""

    stat: Mapping[str, Any]


def inspect(arguments: Arguments, host: HostView) -> State:
    path = absolute(arguments.path, host)
    entry = follow(path, host) if arguments.follow else look(path, host)
    if not entry.exists:
        return State({"exists": False})
    foreseen = (prediction_for(entry.path, host) or {}) if entry.predicted else {}
    predicted = {name: value for name, value in foreseen.items() if name in FORESEEN}
    if arguments.checksum_algorithm != "sha1" or not arguments.get_checksum:
        predicted.pop("checksum", None)
    now = entry_at(entry.path)
    same_kind = now.kind == entry.kind or entry.kind == "unknown"
    found = _describe(entry.path, arguments, host) if now.exists and same_kind and not foreseen.get("fresh") else {}
    if "checksum" in predicted or (entry.predicted and predicted.get("size") not in (None, now.size)):
        found.pop("checksum", None)
    told = {**found, **predicted, "exists": True, "path": str(path)}
    return State({**_known_later(told, arguments, str(entry.path)), **told} if entry.predicted else told)


def _known_later(told: Mapping[str, Any], arguments: Arguments, path: str) -> dict[str, Unknown]:
    """In a plan: the rest of what a path will have, once an earlier task has made it."""
    names = [*status_values(Path("/").lstat()), "readable", "writeable", "executable"]
    names += ["checksum"] if told.get("isreg", True) and arguments.get_checksum else []
    names += ["lnk_source", "lnk_target"] if told.get("islnk") else []
    names += ["mimetype", "charset"] if arguments.get_mime else []
    names += ["version", "attributes", "attr_flags"] if arguments.get_attributes else []
    return {name: Unknown(f"{path}, which an earlier task makes") for name in names}


def _describe(path: Path, arguments: Arguments, host: HostView) -> dict[str, Any]:
    status = path.lstat()
    found: dict[str, Any] = {
        "exists": True,
        "path": str(path),
        **status_values(status),
        "readable": os.access(path, os.R_OK),
        "writeable": os.access(path, os.W_OK),
        "executable": os.access(path, os.X_OK),
    }
    if found["islnk"]:
        found["lnk_source"] = os.path.realpath(path)
        found["lnk_target"] = os.readlink(path)  # noqa: PTH115 - as it was written
    if found["isreg"] and found["readable"] and arguments.get_checksum:
        found["checksum"] = file_digest(path, arguments.checksum_algorithm)
    if arguments.get_mime:
        found["mimetype"], found["charset"] = _mime(path, found, host)
    if arguments.get_attributes:
        found.update(_flags(path, found))
    return found


def status_values(status: os.stat_result) -> dict[str, Any]:
    """What stat(2) says, with Ansible's names; owner and group by name too."""
    mode = status.st_mode
    return {
        "mode": f"{bits.S_IMODE(mode):04o}",
        "isdir": bits.S_ISDIR(mode),
        "ischr": bits.S_ISCHR(mode),
        "isblk": bits.S_ISBLK(mode),
        "isreg": bits.S_ISREG(mode),
        "isfifo": bits.S_ISFIFO(mode),
        "islnk": bits.S_ISLNK(mode),
        "issock": bits.S_ISSOCK(mode),
        "uid": status.st_uid,
        "gid": status.st_gid,
        "size": status.st_size,
        "inode": status.st_ino,
        "dev": status.st_dev,
        "nlink": status.st_nlink,
        "atime": status.st_atime,
        "mtime": status.st_mtime,
        "ctime": status.st_ctime,
        **{name: bool(mode & bit) for name, bit in PERMISSIONS.items()},
        "isuid": bool(mode & bits.S_ISUID),
        "isgid": bool(mode & bits.S_ISGID),
        "blocks": status.st_blocks,
        "block_size": status.st_blksize,
        "device_type": status.st_rdev,
        "pw_name": owner_name(status.st_uid),
        "gr_name": group_name(status.st_gid),
    }


def _mime(path: Path, found: Mapping[str, Any], host: HostView) -> tuple[str, str]:
    program = shutil.which("file", path=host.environment.get("PATH", os.defpath))
    if program is None:
        return "unknown", "unknown"
    known = {"isdir": "inode/directory", "islnk": "inode/symlink"}  # what file(1) says; starting it costs 20 ms
    for key, mime in known.items():
        if found[key]:
            return mime, "binary"
    completed = host.run([program, "--brief", "--mime-type", "--mime-encoding", str(path)], timeout=10.0)
    mime, separator, charset = completed.stdout.strip().partition("; charset=")
    return (mime, charset) if completed.succeeded and separator else ("unknown", "unknown")


def _flags(path: Path, found: Mapping[str, Any]) -> dict[str, Any]:
    """As far as the filesystem has them; a device is not opened for this."""
    values: dict[str, Any] = {"version": None, "attributes": [], "attr_flags": ""}
    if not (found["isreg"] or found["isdir"]):
        return values
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return values
    try:
        flags = _ioctl(descriptor, FS_IOC_GETFLAGS)
        values["attr_flags"] = "".join(letter for bit, letter, _ in FLAGS if flags & bit)
        values["attributes"] = [name for bit, _, name in FLAGS if flags & bit]
        values["version"] = str(_ioctl(descriptor, FS_IOC_GETVERSION))
    except OSError:
        return values
    finally:
        os.close(descriptor)
    return values


def _ioctl(descriptor: int, request: int) -> int:
    # the kernel writes an int, although the request is numbered as for a long
    answer: int = struct.unpack_from("I", fcntl.ioctl(descriptor, request, bytes(8)))[0]
    return answer


def plan(arguments: Arguments, state: State) -> Plan:
    return Change(f"look at {arguments.path}", values={"stat": state.stat})


def apply(arguments: Arguments, change: Change, context: ApplyContext) -> Outcome:  # noqa: ARG001 (the contract's shape)
    return Outcome(change.values)


MODULE = Module(
    name="stat",
    arguments=Arguments,
    effect="reads",
    inspect=inspect,
    plan=plan,
    apply=apply,
    summary="What lies at a path.",
)
