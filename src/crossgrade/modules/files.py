"""What lies at a path and what a task wants there, for the modules that deal with files. Nothing here writes.

In a plan the predictions of earlier tasks are laid over the disk: a directory that an earlier task will make
counts as existing, what it will remove counts as gone.
"""

from __future__ import annotations

import grp
import hashlib
import os
import pwd
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from crossgrade.errors import TaskError
from crossgrade.jsontype import JSON
from crossgrade.modules.contract import Difference, HostView, Prediction
from crossgrade.modules.modes import current_umask, read_mode, symbolic_mode

# unknown: an earlier task of the plan will make it, and nobody knows as what
Kind = Literal["absent", "file", "directory", "link", "other", "unknown"]

READ_BYTES = 1 << 20
DIFFERENCE_BYTES = 100 << 10  # larger files are shown by their size only
MOST_LINKS = 40  # as many symlinks in a row as Linux follows (path_resolution(7))
_VARIABLE = re.compile(r"\$(?:(\w+)|\{([^}]*)\})", re.ASCII)
UNKNOWN_ID = -1  # a user or group that does not exist yet, in a plan


@dataclass(frozen=True)
class Entry:
    """What lies at an absolute path, symlinks not followed. None where a prediction does not say.

    `mode` holds the permission bits, `size` is bytes, times are nanoseconds since 1970. `fresh` marks a
    directory that will be new: what the disk has below that path today does not count. `other_path` is the
    same place with the links above it resolved, where that differs. `content` is that of a small file that an
    earlier task of the plan will make, `content_of` the file on the disk whose content it will have.
    """

    path: Path
    kind: Kind
    mode: int | None = None
    uid: int | None = None
    gid: int | None = None
    size: int | None = None
    target: str = ""
    links: int = 1
    inode: tuple[int, int] | None = None
    atime: int | None = None
    mtime: int | None = None
    checksum: str = ""
    predicted: bool = False
    fresh: bool = False
    other_path: Path | None = None
    content: bytes | None = None
    content_of: Path | None = None

    @property
    def exists(self) -> bool:
        return self.kind != "absent"

    @property
    def state(self) -> str:
        """Ansible's word for it."""
        return "hard" if self.kind == "file" and self.links > 1 else self.kind


def absolute(path: str | Path, host: HostView) -> Path:
    """The path with `~` and `$VARIABLES` expanded; a relative one counts from the playbook's directory.

    Raises TaskError for an empty path or one that no file can have.
    """
    text = expand(str(path), host.environment)
    if not text or "\0" in text:
        raise TaskError(f"{text!r} is not a path")
    return host.playbook_directory.absolute() / text


def expand(text: str, environment: Mapping[str, str]) -> str:
    """`~`, `$NAME` and `${NAME}` as Ansible expands them in paths and commands; unknown names stay."""
    text = _VARIABLE.sub(lambda found: environment.get(found[1] or found[2], found[0]), text)
    if text.startswith("~") and "HOME" in environment and text[1:2] in ("", "/"):
        return environment["HOME"] + text[1:]
    return os.path.expanduser(text)  # noqa: PTH111 - leaves an unknown user's ~ alone, where Path raises


# ---- looking


def entry_at(path: Path) -> Entry:
    """What the disk has at this path. Raises OSError where it may not be looked at."""
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return Entry(path, "absent")
    kind: Kind = "other"
    if stat.S_ISREG(status.st_mode):
        kind = "file"
    elif stat.S_ISDIR(status.st_mode):
        kind = "directory"
    elif stat.S_ISLNK(status.st_mode):
        kind = "link"
    return Entry(
        path,
        kind,
        mode=stat.S_IMODE(status.st_mode),
        uid=status.st_uid,
        gid=status.st_gid,
        size=status.st_size,
        target=os.readlink(path) if kind == "link" else "",  # noqa: PTH115 - as it was written, "a/" too
        links=status.st_nlink,
        inode=(status.st_dev, status.st_ino),
        atime=status.st_atime_ns,
        mtime=status.st_mtime_ns,
    )


def look(path: Path, host: HostView) -> Entry:
    """What lies at this path, or will lie there when the tasks before this one are done."""
    if not host.check_mode:
        return entry_at(path)
    resolved = Path(os.path.realpath(path.parent)) / path.name
    other_path = resolved if resolved != path else None
    value = prediction_for(path, host)
    if value is not None:
        return replace(_predicted_entry(path, value), other_path=other_path)
    for parent in path.parents:
        above = prediction_for(parent, host)
        if above is not None:
            if not above.get("exists", True) or above.get("fresh"):
                return Entry(path, "absent", predicted=True, other_path=other_path)
            below = above.get("unknown_below")
            if below == "all" or (below == "new" and not os.path.lexists(path)):
                return Entry(path, "unknown", predicted=True, other_path=other_path)
            break
    return replace(entry_at(path), other_path=other_path)


def follow(path: Path, host: HostView) -> Entry:
    """Like `look`, through symlinks. A link that leads nowhere gives the absent entry that it leads to."""
    for _ in range(MOST_LINKS):
        entry = look(path, host)
        if entry.kind != "link":
            return entry
        path = path.parent / entry.target
    raise TaskError(f"{path}: too many symlinks follow each other")


def exists(path: Path, host: HostView) -> bool:
    """Whether something will be there; a link that leads nowhere does not count."""
    return follow(path, host).exists


def missing_directories(path: Path, host: HostView) -> tuple[Entry, ...]:
    """The directories that are missing on the way to this one and it itself, the uppermost first.

    Raises TaskError when something on the way is not a directory.
    """
    missing: list[Entry] = []
    for directory in (path, *path.parents):
        entry = follow(directory, host)
        if entry.kind in ("directory", "unknown"):
            break
        if entry.exists:
            raise TaskError(f"{directory} is no directory (it is a {entry.state})")
        missing.insert(0, entry if entry.path == directory else replace(entry, path=directory))
    return tuple(missing)


# ---- predictions


def prediction_for(path: Path, host: HostView) -> Mapping[str, JSON] | None:
    """What an earlier task of the plan will have made of this path: values as `stat` gives them."""
    for key in dict.fromkeys((str(path), str(Path(os.path.realpath(path.parent)) / path.name))):
        value = host.predicted("path", key)
        if isinstance(value, dict):
            return value
        if isinstance(value, bool):
            return {"exists": value}
    return None


def predictions(entry: Entry) -> tuple[Prediction, ...]:
    """The predictions for an entry as it will be."""
    value: dict[str, JSON] = {"exists": entry.exists}
    if entry.exists:
        value["path"] = str(entry.path)
        if entry.mode is not None:
            value["mode"] = f"0{entry.mode:03o}"
        known = {"uid": entry.uid, "gid": entry.gid, "size": entry.size}
        value.update({name: number for name, number in known.items() if number not in (None, UNKNOWN_ID)})
    if entry.exists and entry.kind != "unknown":
        value.update(isdir=entry.kind == "directory", islnk=entry.kind == "link", isreg=entry.kind == "file")
    if entry.kind == "link":
        value["lnk_target"] = entry.target
    if entry.checksum:
        value["checksum"] = entry.checksum
    if entry.fresh:
        value["fresh"] = True
    if entry.content is not None:
        value["content"] = entry.content.decode("latin-1")  # any bytes, as JSON can hold them
    elif entry.content_of is not None:
        value["content_of"] = str(entry.content_of)
    paths = (entry.path, entry.other_path)
    return tuple(Prediction("path", str(path), value) for path in paths if path is not None)


def _predicted_entry(path: Path, value: Mapping[str, JSON]) -> Entry:
    if not value.get("exists", True):
        return Entry(path, "absent", predicted=True)
    kinds: dict[str, Kind] = {"islnk": "link", "isdir": "directory", "isreg": "file"}
    said = [kind for name, kind in kinds.items() if value.get(name)]
    mode = value.get("mode")
    numbers = {name: value.get(name) for name in ("uid", "gid", "size")}
    return Entry(
        path,
        said[0] if said else "unknown",
        mode=int(mode, 8) if isinstance(mode, str) else None,
        target=str(value.get("lnk_target", "")),
        checksum=str(value.get("checksum", "")),
        predicted=True,
        fresh=bool(value.get("fresh")),
        content=_bytes(value.get("content")),
        content_of=Path(str(value["content_of"])) if "content_of" in value else None,
        **{name: number for name, number in numbers.items() if isinstance(number, int)},  # type: ignore[arg-type]  # only the three numbers
    )


def _bytes(value: JSON) -> bytes | None:
    return value.encode("latin-1") if isinstance(value, str) else None


def known_content(entry: Entry) -> bytes | None:
    """The content of a file as the task will find it; None where only the run makes it. Raises OSError."""
    if not entry.predicted:
        return entry.path.read_bytes()
    if entry.content is not None or entry.content_of is None:
        return entry.content
    try:
        content = entry.content_of.read_bytes()
    except (FileNotFoundError, NotADirectoryError):  # an earlier task will make that one too
        return None
    digest = hashlib.sha1(content, usedforsecurity=False).hexdigest()
    return content if not entry.checksum or digest == entry.checksum else None


# ---- mode and owner


@dataclass(frozen=True)
class Attributes:
    """The mode, user and group that a task asks for; None: as it is. `umask` is that of the process."""

    mode: int | str | None
    uid: int | None
    gid: int | None
    umask: int
    owner: str = ""
    group: str = ""

    def mode_of(self, current: int, *, directory: bool) -> int | None:
        """The permission bits asked for, when it has `current` now; None when the task says nothing."""
        if self.mode is None or isinstance(self.mode, int):
            return self.mode
        return symbolic_mode(self.mode, current, directory=directory, umask=self.umask)

    @property
    def new_file_mode(self) -> int:
        usual = 0o666 & ~self.umask
        mode = self.mode_of(usual, directory=False)
        return usual if mode is None else mode

    @property
    def new_directory_mode(self) -> int | None:
        """None where the system's own choice is right (umask, setgid of the directory above)."""
        return self.mode_of(0o777 & ~self.umask, directory=True)


def read_attributes(mode: Any, owner: str | None, group: str | None, host: HostView) -> Attributes:
    """Raises TaskError for a mode that cannot be read and for a user or group that does not exist.

    In a plan a missing user is no error: an earlier task may make it.
    """
    return Attributes(
        mode=read_mode(mode),
        uid=_identity(owner, "user", host),
        gid=_identity(group, "group", host),
        umask=current_umask(),
        owner=owner or "",
        group=group or "",
    )


def _identity(name: str | None, kind: Literal["user", "group"], host: HostView) -> int | None:
    if name is None or name == "":
        return None
    if name.isdigit():
        return int(name)
    try:
        return pwd.getpwnam(name).pw_uid if kind == "user" else grp.getgrnam(name).gr_gid
    except KeyError:
        if host.check_mode:
            return UNKNOWN_ID
        raise TaskError(f"there is no {kind} {name!r} on this machine") from None


def owner_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


# ---- results


def path_values(entry: Entry) -> dict[str, Any]:
    """What Ansible's modules say about a path: uid, gid, owner, group, mode, state, size (bytes)."""
    values: dict[str, Any] = {"state": entry.state} if entry.kind != "unknown" else {}
    if entry.uid not in (None, UNKNOWN_ID):
        values.update(uid=entry.uid, owner=owner_name(entry.uid))
    if entry.gid not in (None, UNKNOWN_ID):
        values.update(gid=entry.gid, group=group_name(entry.gid))
    if entry.mode is not None:
        values["mode"] = f"0{entry.mode:03o}"
    if entry.size is not None:
        values["size"] = entry.size
    return values


def file_digest(path: Path, algorithm: str = "sha1") -> str:
    """The digest of a file's content, in hex. Raises OSError."""
    digest = hashlib.new(algorithm, usedforsecurity=False)
    with path.open("rb") as stream:
        while block := stream.read(READ_BYTES):
            digest.update(block)
    return digest.hexdigest()


def content_difference(path: Path, before: bytes | Path | None, after: bytes | Path | None) -> Difference:
    """Two contents of a file for `--diff`; None stands for no file."""
    return Difference(str(path), _shown(before), _shown(after))


def _shown(content: bytes | Path | None) -> str:
    if content is None:
        return ""
    try:
        size = len(content) if isinstance(content, bytes) else content.stat().st_size
        if size <= DIFFERENCE_BYTES:
            data = content if isinstance(content, bytes) else content.read_bytes()
            if b"\0" not in data:
                return data.decode()
    except PermissionError:
        return "(not readable)"
    except UnicodeDecodeError:
        pass
    return f"({size} bytes, not shown)"
