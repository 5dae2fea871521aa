"""What stands against adopting a directory, said before anything is touched.

Adoption renames a directory, so it needs what rename(2) needs. Most of it can be read off beforehand and be said
in words; for the rest the kernel itself is asked, by a rename that cannot succeed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import struct
from pathlib import Path

from crossgrade.errors import StoreError
from crossgrade.places import nearest_existing
from crossgrade.store.layout import Store

# include/uapi/linux/fs.h: FS_IOC_GETFLAGS on 64 bits; FS_IMMUTABLE_FL, FS_APPEND_FL
_GET_FLAGS = 0x80086601
_FIXED = {0x10: "immutable", 0x20: "append-only"}


def check_adoptable(store: Store, path: Path) -> None:
    """Raises StoreError, with a remedy, for the first thing that stands against adopting `path`. Changes nothing."""
    if path.is_symlink():
        raise StoreError(
            f"{path} is a symlink, not the environment itself", remedy="Name the directory that it points at."
        )
    if not (path / "pyvenv.cfg").is_file():
        raise StoreError(f"{path} is not a venv: it has no pyvenv.cfg", remedy="Name the folder that holds bin/python.")
    real, root = path.resolve(), store.root.resolve()
    if root.is_relative_to(real):
        raise StoreError(
            f"the store {store.root} lies inside {path}, which it is to adopt", remedy="Give it another --root."
        )
    if real.is_relative_to(root):
        raise StoreError(f"{path} lies inside the store {store.root}", remedy="Give the store another --root.")
    _check_mounts(real, root)
    _check_rights(path)
    _ask_kernel(store, path)


def _check_mounts(path: Path, root: Path) -> None:
    mounts = mount_points(Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape"))
    if path in mounts or path.is_mount():
        raise StoreError(f"{path} is a mount point and cannot be moved", remedy="Adopt a directory inside it.")
    inside = sorted(mount for mount in mounts if mount.is_relative_to(path))
    if inside:
        raise StoreError(
            f"something is mounted inside {path}, at {inside[0]}: it cannot be moved", remedy=f"umount {inside[0]}"
        )
    below = nearest_existing(root)
    if below.stat().st_dev != path.stat().st_dev or _mount_of(below, mounts) != _mount_of(path, mounts):
        raise StoreError(
            f"{path} and the store {root} are on different filesystems or mounts, so no single rename can adopt it",
            remedy="Put the store on the same filesystem (--root, or crossgrade_root in the playbook).",
        )


def mount_points(mountinfo: str) -> set[Path]:
    """The mount points of /proc/PID/mountinfo (proc(5)); spaces and the like are written there in octal."""
    found = set()
    for line in mountinfo.splitlines():
        fields = line.split(" ")
        if len(fields) > 4:
            found.add(Path(re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), fields[4])))
    return found


def _mount_of(path: Path, mounts: set[Path]) -> Path:
    return next((each for each in (path, *path.parents) if each in mounts), Path("/"))


def _check_rights(path: Path) -> None:
    parent = path.parent
    if os.statvfs(parent).f_flag & os.ST_RDONLY:
        raise StoreError(f"{parent} is on a read-only filesystem: the environment cannot be replaced by a link there")
    for each in (path, parent):
        word = _fixed(each)
        if word:
            raise StoreError(f"{each} is {word}: it cannot be moved or replaced", remedy=f"chattr -i -a {each}")
    if not os.access(parent, os.W_OK | os.X_OK, effective_ids=True):
        raise StoreError(
            f"{parent} is not writable: the environment cannot be replaced by a link there",
            remedy="Run as the user whom the directory belongs to, or as root.",
        )
    status, user = parent.stat(), os.geteuid()
    if status.st_mode & stat.S_ISVTX and user not in (0, status.st_uid, path.stat().st_uid):
        raise StoreError(
            f"{parent} is sticky, and {path} belongs to another user: only its owner may move it",
            remedy="Run as its owner, or as root.",
        )


def _fixed(folder: Path) -> str:
    """`immutable` or `append-only`, as chattr(1) makes it; "" where the filesystem has no such flags."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        (flags,) = struct.unpack("=l", fcntl.ioctl(descriptor, _GET_FLAGS, bytes(8))[:4])
    except OSError:
        return ""
    finally:
        os.close(descriptor)
    return next((word for flag, word in _FIXED.items() if flags & flag), "")


def _ask_kernel(store: Store, path: Path) -> None:
    """Ask for a rename onto a directory that is not empty: it never happens, and the refusal says whether it could.

    ENOTEMPTY or EEXIST (rename(2)) mean that nothing else stands against it. The store's root always holds its
    record, so this can only be asked when the store is there.
    """
    if not store.exists:
        return
    try:
        os.rename(path, store.root)  # noqa: PTH104 - the system call itself is what is asked about
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return
        if error.errno == errno.EXDEV:
            raise StoreError(
                f"{path} cannot be moved to the store {store.root}: the kernel sees two filesystems, or a layer of a "
                "container's image",
                remedy="Put both on one volume. A venv in an image's layer must be copied out of it first.",
            ) from error
        raise StoreError(f"{path} cannot be moved: {error.strerror}") from error
