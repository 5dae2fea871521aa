"""unarchive: the files of an archive, in a directory."""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from crossgrade.errors import TaskError
from crossgrade.modules.archive_members import check_links, check_parents, chosen_members
from crossgrade.modules.contract import (
    ApplyContext,
    Change,
    Difference,
    HostView,
    Module,
    Outcome,
    Plan,
    Prediction,
    Skipped,
    Space,
    Unchanged,
)
from crossgrade.modules.file_operations import (
    MakeDirectory,
    MakeHardLink,
    MakeLink,
    Operation,
    SetAttributes,
    WriteFile,
    attribute_operation,
    entry_after,
    perform,
    plan_change,
)
from crossgrade.modules.file_undo import undo
from crossgrade.modules.files import (
    Attributes,
    Entry,
    absolute,
    entry_at,
    exists,
    file_digest,
    follow,
    look,
    missing_directories,
    path_values,
    read_attributes,
)
from crossgrade.modules.placing import find_source
from crossgrade.modules.refusing import DECRYPT, FILE
from crossgrade.modules.unpacking import Archive, Contents, Member, MemberContent, read_members, recognized
from crossgrade.playbook.arguments import argument

HANDLERS = ("TgzArchive", "ZipArchive", "TarArchive")  # the words for what was unpacked


@dataclass(frozen=True)
class Arguments:
    """Unpacks a tar archive (also compressed with gzip, bzip2, xz or Zstandard) or a zip archive.

    What already is as in the archive is left alone. An archive with a member or a link that leads out of the
    directory is not unpacked at all.
    """

    src: str = argument(doc="The archive, looked for in `files/` and beside the playbook.")
    dest: str = argument(doc="The directory to unpack in; it must exist.")
    remote_src: bool = argument(doc="`src` is no file of the playbook.", default=False)
    copy: bool = argument(doc="False is an old word for `remote_src: true`.", default=True)
    creates: str | None = argument(doc="Do nothing when this path exists.", default=None)
    list_files: bool = argument(doc="Return the names of the members as `files`.", default=False)
    exclude: tuple[str, ...] = argument(doc="Members not to unpack: names or shell patterns.", default=())
    include: tuple[str, ...] = argument(
        doc="The only members to unpack: names; in a zip archive patterns too.", default=()
    )
    keep_newer: bool = argument(doc="Leave files that are newer than those of the archive.", default=False)
    io_buffer_size: int = argument(doc="Without effect: blocks of 1 MiB are read.", default=64 << 10)
    extra_opts: tuple[str, ...] = argument(doc="Refused: no program is called here.", default=())
    mode: Any = argument(doc="The mode of all that is unpacked, directories too.", default=None)
    owner: str | None = argument(doc="The user, by name or number.", default=None)
    group: str | None = argument(doc="The group, by name or number.", default=None)
    mutually_exclusive: ClassVar[tuple[tuple[str, ...], ...]] = (("include", "exclude"), ("copy", "remote_src"))
    refused: ClassVar[Mapping[str, str]] = {
        **FILE,
        **DECRYPT,
        "validate_certs": "an address is not fetched here; `get_url` fetches it, with its checksum",
    }


@dataclass(frozen=True)
class Item:
    """A member to be, what lies at its place, and the sha1 of that where it may be the same.

    `empty` says that there is an empty directory.
    """

    member: Member
    entry: Entry
    current: str = ""
    empty: bool = False


@dataclass(frozen=True)
class State:
    """`items` is None where only the run makes the archive.

    `missing` are directories that no member makes, `tops` those right in `dest` that are there already.
    """

    source: Path
    dest: Entry
    attributes: Attributes
    archive: Archive | None = None
    items: tuple[Item, ...] | None = None
    missing: tuple[Entry, ...] = ()
    tops: tuple[Entry, ...] = ()
    satisfied: str = ""


def inspect(arguments: Arguments, host: HostView) -> State:
    if arguments.extra_opts:
        raise TaskError(
            "`extra_opts` are options of tar and unzip, which are not called here", remedy="Use `command` with tar."
        )
    dest = follow(absolute(arguments.dest, host), host)
    attributes = read_attributes(arguments.mode, arguments.owner, arguments.group, host)
    if arguments.creates is not None and exists(absolute(arguments.creates, host), host):
        return State(Path(arguments.src), dest, attributes, satisfied=f"{arguments.creates} exists")
    source = _source(arguments, host)
    if dest.kind not in ("directory", "unknown"):
        raise TaskError(f"there is no directory {dest.path} to unpack in", remedy="Make it with the file module.")
    entry = follow(source, host)
    readable = entry.path
    if entry.predicted:
        copied = entry.content_of
        if copied is None or not copied.is_file() or (entry.checksum and file_digest(copied) != entry.checksum):
            return State(source, dest, attributes)
        readable = copied
    elif entry.kind != "file":
        raise TaskError(f"{source} is a {entry.state}, no archive")
    archive = recognized(readable)
    members = chosen_members(read_members(archive), archive, include=arguments.include, exclude=arguments.exclude)
    check_links(members, dest.path)
    items = []
    made = {member.name for member in members if member.kind == "directory"}
    missing: dict[Path, Entry] = {}
    for member in members:
        check_parents(member, members, made, dest.path)
        place = look(dest.path / member.name, host) if member.name else dest
        if member.name:
            for above in missing_directories(place.path.parent, host) if _is_clear(place, dest.path, made) else ():
                if str(above.path.relative_to(dest.path)) not in made:
                    missing[above.path] = above
        same_size = place.kind == "file" and member.kind == "file" and place.size == member.size
        current = place.checksum if place.predicted else file_digest(place.path) if same_size else ""
        empty = place.kind == "directory" and member.kind in ("file", "link") and not place.predicted
        items.append(Item(member, place, current, empty and not any(place.path.iterdir())))
    ordered = sorted(missing.values(), key=lambda one: one.path)
    names = {member.name.partition("/")[0] for member in members if "/" in member.name} - made
    tops = [place for name in sorted(names) if (place := look(dest.path / name, host)).kind == "directory"]
    kind = Archive(entry.path, archive.handler)
    return State(source, dest, attributes, kind, tuple(items), tuple(ordered), tuple(tops))


def _source(arguments: Arguments, host: HostView) -> Path:
    if "://" in arguments.src:
        raise TaskError(f"{arguments.src} is an address", remedy="Fetch it with `get_url`, with its checksum.")
    here = arguments.remote_src or not arguments.copy
    return find_source(arguments.src, "" if here else "files", host)


def _is_clear(place: Entry, dest: Path, made: set[str]) -> bool:
    """Whether no directory above it takes the place of a file or a link, which would be in the way now."""
    above = place.path.parent
    while above != dest:
        if str(above.relative_to(dest)) in made and entry_at(above).kind != "directory":
            return False
        above = above.parent
    return True


# ---- planning


def plan(arguments: Arguments, state: State) -> Plan:
    if state.satisfied:
        return Skipped(f"not unpacked, since {state.satisfied}", {"msg": f"skipped, since {state.satisfied}"})
    dest = state.dest.path
    values: dict[str, Any] = {"dest": str(dest), "src": str(state.source)}
    if state.items is None or state.archive is None:
        return Change(
            f"unpack {state.source}, which an earlier task makes, in {dest}",
            values_known=False,
            uncertain=True,
            predicts=(Prediction("path", str(dest), {"exists": True, "isdir": True, "unknown_below": "new"}),),
        )
    # what tar unpacks by itself is Ansible's TarArchive, whatever compressed it, unless gzip did
    values["handler"] = state.archive.handler if state.archive.handler in HANDLERS else "TarArchive"
    if arguments.list_files:
        values["files"] = [
            f"{item.member.name}/" if item.member.kind == "directory" else item.member.name
            for item in state.items
            if item.member.name
        ]
    values.update(path_values(state.dest))
    operations, written = _operations(arguments, state, Contents(state.archive))
    if not operations:
        return Unchanged(f"{dest} has all of {state.source}", values)
    change = plan_change(
        f"unpack {state.source} in {dest} ({len(written)} of {len(state.items)} members)",
        operations,
        values,
        [Difference(str(item.entry.path), item.entry.state, item.member.kind) for item in written],
    )
    needed = sum(item.member.size for item in written)
    return replace(change, space=(Space(dest, needed, f"what {state.source.name} holds"),))


def _operations(arguments: Arguments, state: State, contents: Contents) -> tuple[list[Operation], list[Item]]:
    """What is to be done, and the members that are new or have another content."""
    operations: list[Operation] = []
    for entry in state.missing:
        # of the directories that no member makes, the uppermost gets what the task asks for, as with Ansible
        asked = state.attributes if entry.path.parent == state.dest.path else replace(state.attributes, mode=None)
        operations.append(MakeDirectory(entry, asked.new_directory_mode, asked.uid, asked.gid))
    operations += [given for top in state.tops if (given := attribute_operation(state.attributes, top)) is not None]
    last: list[Operation] = []
    written: list[Item] = []
    fresh: set[str] = set()  # names of files that are written, whose other names must be made anew
    for item in state.items or ():
        member, entry = item.member, item.entry
        if entry.kind == "directory" and member.kind != "directory" and not item.empty:
            raise TaskError(f"{entry.path} is a directory, and a {member.kind} in the archive: it is not replaced")
        if arguments.keep_newer and entry.kind == "file" and entry.mtime is not None and entry.mtime >= member.mtime:
            continue
        asked = _asked(member, state.attributes)
        if member.kind == "directory":
            made, later = _directory(member, entry, asked)
        elif member.kind == "file":
            made, later = _file(member, entry, item.current, asked, contents)
        elif member.kind == "link":
            made, later = _link(member, entry, asked)
        else:
            made, later = _hard_link(member, entry, state.dest.path, fresh), []
        if any(not isinstance(one, SetAttributes) for one in made):
            fresh.add(member.name)
            written.append(item)
        operations += made
        last = [*later, *last]  # directories from below, when all that is in them is there
    return [*operations, *last], written


def _asked(member: Member, attributes: Attributes) -> Attributes:
    """Mode and owner that it is to have: those of the task, else of the archive; only root can give files away."""
    root = os.geteuid() == 0
    mode = member.mode if root else member.mode & ~attributes.umask
    if attributes.mode is not None:
        asked = attributes.mode_of(mode, directory=member.kind == "directory")
        mode = mode if asked is None else asked
    uid, gid = attributes.uid, attributes.gid
    if root and uid is None:
        uid = _number(member.user, member.uid, lambda name: pwd.getpwnam(name).pw_uid)
    if root and gid is None:
        gid = _number(member.group, member.gid, lambda name: grp.getgrnam(name).gr_gid)
    return replace(attributes, mode=mode, uid=uid, gid=gid)


def _number(name: str, number: int | None, find: Any) -> int | None:
    """A user or group of the archive: by name where this machine has it, as tar does, else by number."""
    try:
        return int(find(name)) if name else number
    except KeyError:
        return number


def _directory(member: Member, entry: Entry, asked: Attributes) -> tuple[list[Operation], list[Operation]]:
    if entry.kind == "directory":
        given = attribute_operation(asked, entry)
        return [], [] if given is None else [given]
    if entry.kind == "other":
        raise TaskError(f"{entry.path} is a device, a socket or a pipe: it is not replaced by a directory")
    mode = asked.mode if isinstance(asked.mode, int) else member.mode
    new = MakeDirectory(entry, mode | 0o700, asked.uid, asked.gid)  # what is in it must be written first
    after = entry_after(new)
    return [new], [SetAttributes(after, mode=mode if mode != after.mode else None, mtime=member.mtime)]


def _file(
    member: Member, entry: Entry, current: str, asked: Attributes, contents: Contents
) -> tuple[list[Operation], list[Operation]]:
    if entry.kind == "file" and entry.size == member.size and current == member.sha1:
        # whole seconds; what an earlier task of the plan makes has no time yet
        timely = entry.mtime is None or entry.mtime // 10**9 == member.mtime // 10**9
        given = attribute_operation(asked, entry, mtime=None if timely else member.mtime)
        return [] if given is None else [given], []
    mode = asked.mode if isinstance(asked.mode, int) else member.mode
    content = MemberContent(contents, member)
    new = WriteFile(entry, content, member.sha1, member.size, mode, asked.uid, asked.gid)
    return [new, SetAttributes(entry_after(new), mtime=member.mtime)], []


def _link(member: Member, entry: Entry, asked: Attributes) -> tuple[list[Operation], list[Operation]]:
    if entry.kind == "link" and entry.target == member.target:
        given = attribute_operation(asked, entry)
        return [] if given is None else [given], []
    new = MakeLink(entry, member.target)
    return [new, SetAttributes(entry_after(new), uid=asked.uid, gid=asked.gid, mtime=member.mtime)], []


def _hard_link(member: Member, entry: Entry, dest: Path, fresh: set[str]) -> list[Operation]:
    source = entry_at(dest / member.target)
    if member.target not in fresh and source.inode is not None and entry.inode == source.inode:
        return []
    return [MakeHardLink(entry, dest / member.target)]


# ---- doing


def apply(arguments: Arguments, change: Change, context: ApplyContext) -> Outcome:  # noqa: ARG001 (the contract's shape)
    perform(change, context)
    return Outcome({**change.values, **path_values(entry_at(Path(change.values["dest"])))})


MODULE = Module(
    name="unarchive",
    arguments=Arguments,
    effect="changes",
    inspect=inspect,
    plan=plan,
    apply=apply,
    undo=undo,
    summary="The files of an archive.",
)
