"""Putting files at a destination: what copy and template share."""

from __future__ import annotations

import hashlib
import os
import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from crossgrade.errors import TaskError
from crossgrade.modules.contract import ApplyContext, Change, Difference, HostView, Outcome, Plan, Unchanged
from crossgrade.modules.file_operations import (
    MakeDirectory,
    MakeLink,
    Operation,
    SetAttributes,
    WriteFile,
    attribute_operation,
    entry_after,
    perform,
    plan_change,
)
from crossgrade.modules.files import (
    READ_BYTES,
    Attributes,
    Entry,
    absolute,
    content_difference,
    entry_at,
    expand,
    file_digest,
    follow,
    known_content,
    look,
    missing_directories,
    path_values,
    read_attributes,
)
from crossgrade.playbook.vault import open_sealed, read_sealed


@dataclass(frozen=True)
class Placement:
    """Where to, and how: the arguments that copy and template have in common."""

    dest: str
    mode: Any
    owner: str | None
    group: str | None
    directory_mode: Any = None
    backup: bool = False
    force: bool = True
    follow: bool = False
    validate: str | None = None


@dataclass(frozen=True)
class Source:
    """One file to be: its content or the file that has it, and its name, relative to a destination directory.

    `mode` is that of the source, None where there is none. `checksum` is the sha1, "" when the content is
    not known yet: an earlier task of the plan will make it. `sealed` says that it came out of a vault: no difference
    is shown.
    """

    content: bytes | Path
    name: str
    mode: int | None
    checksum: str
    md5sum: str
    size: int
    sealed: bool = False


@dataclass(frozen=True)
class FileItem:
    """A file to be, and what lies at its place. `current` is the sha1 of that; "" where it cannot be told."""

    source: Source
    entry: Entry
    current: str
    difference: Difference | None


@dataclass(frozen=True)
class DirectoryItem:
    """A directory to be, and what lies there. `mode` is that of its source, to be taken over, or None."""

    entry: Entry
    mode: int | None = None


@dataclass(frozen=True)
class LinkItem:
    """A symlink to be, and what lies there."""

    entry: Entry
    target: str


@dataclass(frozen=True)
class State:
    """All that is to be, with what there is. `parents` are the missing directories above the destination.

    `destination` is the file for a single file, the directory for a tree.
    """

    destination: Path
    tree: bool
    files: tuple[FileItem, ...]
    parents: tuple[Entry, ...]
    directories: tuple[DirectoryItem, ...]
    links: tuple[LinkItem, ...]
    attributes: Attributes
    directory_attributes: Attributes
    backup_suffix: str
    validate: tuple[str, ...]


# ---- looking


def find_source(name: str, folder: str, host: HostView) -> Path:
    """A file of the playbook: below `folder` ("files", "templates") or as it is, in the role, then in the playbook.

    Raises TaskError with the places that were looked at.
    """
    text = expand(name, host.environment)
    places = []
    for directory in host.search_directories:
        if folder and Path(text).parts[:1] != (folder,):
            places.append(absolute(directory / folder / text, host))
        places.append(absolute(directory / text, host))
    places = list(dict.fromkeys(places))
    for place in places:
        if follow(place, host).exists:
            return place
    raise TaskError(f"there is no {name!r}", remedy="Looked at: " + ", ".join(str(place) for place in places))


def bytes_source(content: bytes, name: str, mode: int | None = None, *, sealed: bool = False) -> Source:
    sha1 = hashlib.sha1(content, usedforsecurity=False).hexdigest()
    md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
    return Source(content, name, mode, sha1, md5, len(content), sealed)


def file_source(path: Path, name: str, host: HostView, *, decrypt: bool = False) -> Source:
    """A file; with `decrypt`, of one that `ansible-vault` has encrypted what is inside.

    Raises OSError, VaultError; TaskError for what is neither a file nor foreseen to become one.
    """
    entry = follow(path, host)
    if entry.predicted:
        content = known_content(entry) if entry.kind == "file" else None
        if content is not None:
            opened = open_sealed(content, path) if decrypt else None
            return bytes_source(content if opened is None else opened, name, entry.mode, sealed=opened is not None)
        return Source(path, name, entry.mode, entry.checksum, "", entry.size or 0)
    if entry.kind != "file":
        raise TaskError(f"{path} is a device, a socket or a pipe: it cannot be copied")
    if decrypt and (opened := read_sealed(path)) is not None:
        return bytes_source(opened, name, entry.mode, sealed=True)
    sha1 = hashlib.sha1(usedforsecurity=False)
    md5 = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as stream:
        while block := stream.read(READ_BYTES):
            sha1.update(block)
            md5.update(block)
    return Source(path, name, entry.mode, sha1.hexdigest(), md5.hexdigest(), entry.size or 0)


def look_at_file(source: Source, placement: Placement, host: HostView) -> State:
    """One file, whose destination is a file or a directory; with a slash at its end it must be a directory."""
    path = absolute(placement.dest, host)
    as_directory = placement.dest.endswith("/")
    parents: tuple[Entry, ...] = ()
    if as_directory:
        parents = missing_directories(path, host)
    if as_directory or follow(path, host).kind == "directory":
        if not source.name:
            raise TaskError(f"{path} is a directory: `content` needs the path of a file as `dest`")
        path /= source.name
    if not parents and follow(path.parent, host).kind not in ("directory", "unknown"):
        raise TaskError(
            f"there is no directory {path.parent} to put {path.name} into",
            remedy="Make it with the file module, or end `dest` with a slash.",
        )
    return _state(path, placement, host, [(source, path)], parents=parents, follow_links=placement.follow)


def look_at_tree(
    sources: Sequence[Source],
    directories: Sequence[tuple[str, int | None]],
    links: Sequence[tuple[str, str]],
    placement: Placement,
    host: HostView,
) -> State:
    """A tree: its files, its directories (name, mode or None) and its symlinks (name, target)."""
    path = absolute(placement.dest, host)
    parents = missing_directories(path, host)
    found = []
    for name, mode in directories:
        entry = follow(path / name, host)
        if entry.kind not in ("absent", "directory", "unknown"):
            raise TaskError(f"{path / name} is a {entry.state}, but must be a directory")
        found.append(DirectoryItem(entry if entry.exists else look(path / name, host), mode))
    return replace(
        _state(path, placement, host, [(source, path / source.name) for source in sources], parents=parents),
        tree=True,
        directories=tuple(found),
        links=tuple(LinkItem(look(path / name, host), target) for name, target in links),
    )


def _state(
    destination: Path,
    placement: Placement,
    host: HostView,
    files: Sequence[tuple[Source, Path]],
    *,
    parents: tuple[Entry, ...],
    follow_links: bool = False,
) -> State:
    attributes = read_attributes(placement.mode, placement.owner, placement.group, host)
    directory_mode = None if placement.directory_mode == "preserve" else placement.directory_mode
    validate = read_validate(placement.validate)
    looked = (
        _look_at(source, path, host, follow_links=follow_links, always_hash=placement.backup) for source, path in files
    )
    return State(
        destination,
        False,
        tuple(item for item in looked if placement.force or not item.entry.exists),
        parents,
        (),
        (),
        attributes,
        read_attributes(directory_mode, placement.owner, placement.group, host),
        backup_suffix() if placement.backup else "",
        validate,
    )


def read_validate(command: str | None) -> tuple[str, ...]:
    """The words of a `validate` argument; empty without one. Raises TaskError when it does not name the file."""
    words = tuple(shlex.split(command or ""))
    if words and not any("%s" in word for word in words):
        raise TaskError("`validate` must have %s where the new file is to be named")
    return words


def backup_suffix() -> str:
    """The end of the name of a copy that `backup: true` makes now, in Ansible's form."""
    return time.strftime(f".{os.getpid()}.%Y-%m-%d@%H:%M:%S~")


def _look_at(source: Source, path: Path, host: HostView, *, follow_links: bool, always_hash: bool) -> FileItem:
    entry = look(path, host)
    if entry.kind == "link" and follow_links:
        entry = follow(path, host)
    if entry.kind in ("directory", "other"):
        raise TaskError(f"{entry.path} is a directory, a device, a socket or a pipe: it is not replaced")
    current = entry.checksum
    before: Path | bytes | None = None
    if not entry.predicted and entry.path.is_file():
        before = entry.path
        hashed = always_hash or entry.kind == "link" or entry.size == source.size
        current = _digest(entry.path) if hashed else "another size"
    elif entry.predicted and entry.kind == "file":
        before = known_content(entry)
    if entry.kind == "file" and current == source.checksum:
        return FileItem(source, entry, current, None)
    after = source.content if source.checksum else b"(made by an earlier task)\n"
    if isinstance(after, Path) and not after.is_file():
        after = b"(made by an earlier task)\n"
    difference = None if source.sealed else content_difference(entry.path, before, after)
    return FileItem(source, entry, current, difference)


def _digest(path: Path) -> str:
    try:
        return file_digest(path)
    except PermissionError:
        return "not readable"


# ---- planning


def plan_placement(state: State, src: str) -> Plan:
    """`src` is the source as results name it; "" for content."""
    operations: list[Operation] = [
        MakeDirectory(
            entry,
            state.directory_attributes.new_directory_mode,
            state.directory_attributes.uid,
            state.directory_attributes.gid,
        )
        for entry in state.parents
    ]
    for directory in state.directories:
        operations += _directory_operations(directory, state.directory_attributes)
    backups: list[str] = []
    for item in state.files:
        operations += _file_operations(item, state, backups)
    for link in state.links:
        operations += _link_operations(link)
    values = _values(state, src, operations, backups)
    where = state.files[0].entry.path if len(state.files) == 1 else state.destination
    if not operations:
        return Unchanged(f"{where} is as asked", values)
    written = sum(isinstance(operation, WriteFile) for operation in operations) - len(backups)
    if not written and all(isinstance(operation, SetAttributes) for operation in operations):
        summary = f"set the attributes of {where}"
    elif len(state.files) == 1:
        summary = f"write {where}"
    else:
        summary = f"copy {src} to {where} ({written} of {len(state.files)} files)"
    change = plan_change(summary, operations, values, list(_differences(state, operations)))
    unknown = [item for item in state.files if not item.source.checksum]
    return replace(change, values_known=not unknown, uncertain=any(item.entry.exists for item in unknown))


def _directory_operations(item: DirectoryItem, attributes: Attributes) -> list[Operation]:
    if item.mode is not None and attributes.mode is None:
        attributes = replace(attributes, mode=item.mode)
    if not item.entry.exists:
        return [MakeDirectory(item.entry, attributes.new_directory_mode, attributes.uid, attributes.gid)]
    operation = attribute_operation(attributes, item.entry)
    return [] if operation is None else [operation]


def _file_operations(item: FileItem, state: State, backups: list[str]) -> list[Operation]:
    source, entry, attributes = item.source, item.entry, state.attributes
    if attributes.mode == "preserve":
        if source.mode is None:
            raise TaskError("`mode: preserve` takes the mode of a source file, and there is none")
        attributes = replace(attributes, mode=source.mode)
    if entry.kind == "file" and item.current == source.checksum and source.checksum:
        operation = attribute_operation(attributes, entry)
        return [] if operation is None else [operation]
    mode = attributes.new_file_mode
    if entry.kind == "file" and entry.mode is not None:
        asked = attributes.mode_of(entry.mode, directory=False)
        mode = entry.mode if asked is None else asked
    operations: list[Operation] = []
    if state.backup_suffix and entry.exists and item.current:
        operations += backup_operations(item.entry, item.current, state.backup_suffix)
        backups.append(str(operations[0].before.path))
    uid, gid = attributes.uid, attributes.gid
    return [
        *operations,
        WriteFile(entry, source.content, source.checksum, source.size, mode, uid, gid, state.validate),
    ]


def backup_operations(old: Entry, checksum: str, suffix: str) -> list[Operation]:
    """A copy beside the file, as `backup: true` asks for; undo takes it away again. `checksum` is the file's sha1."""
    place = Entry(old.path.with_name(old.path.name + suffix), "absent")
    mode = 0o600 if old.mode is None else old.mode
    copied = WriteFile(place, old.path, checksum, old.size or 0, mode, old.uid, old.gid)
    return [copied, SetAttributes(entry_after(copied), atime=old.atime, mtime=old.mtime)]


def _link_operations(item: LinkItem) -> list[Operation]:
    if item.entry.kind == "link" and item.entry.target == item.target:
        return []
    if item.entry.kind not in ("absent", "link", "file"):
        raise TaskError(f"{item.entry.path} is a {item.entry.state}: it is not replaced by a link")
    return [MakeLink(item.entry, item.target)]


def _differences(state: State, operations: Sequence[Operation]) -> Iterator[Difference]:
    for operation in operations:
        if isinstance(operation, MakeDirectory):
            yield Difference(str(operation.before.path), "absent", "directory")
        elif isinstance(operation, MakeLink):
            was = operation.before.target or operation.before.state
            yield Difference(str(operation.before.path), was, f"link to {operation.target}")
    for item in state.files:
        if item.difference is not None:
            yield item.difference


def _values(state: State, src: str, operations: Sequence[Operation], backups: list[str]) -> dict[str, Any]:
    if state.tree or len(state.files) != 1:
        values: dict[str, Any] = {"dest": f"{state.destination}/" if state.tree else str(state.destination)}
        return {**values, "src": src} if src else values
    item = state.files[0]
    after = item.entry
    values = {"dest": str(item.entry.path), "checksum": item.source.checksum}
    if src:
        values["src"] = src
    for operation in operations:
        if operation.before == item.entry:
            after = entry_after(operation)
            if isinstance(operation, WriteFile):
                values["md5sum"] = item.source.md5sum
    if "md5sum" not in values:
        values["path"] = values["dest"]
    if backups:
        values["backup_file"] = backups[0]
    return {**values, **path_values(after)}


# ---- doing


def apply_placement(change: Change, context: ApplyContext) -> Outcome:
    perform(change, context)
    entry = entry_at(Path(change.values["dest"]))
    return Outcome({**change.values, **(path_values(entry) if "checksum" in change.values else {})})
