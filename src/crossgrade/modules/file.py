"""file: directories, links, modes and owners, and taking things away."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from crossgrade.errors import TaskError
from crossgrade.modules.contract import (
    ApplyContext,
    Change,
    Difference,
    HostView,
    Module,
    Outcome,
    Plan,
    Unchanged,
)
from crossgrade.modules.file_operations import (
    MakeDirectory,
    MakeHardLink,
    MakeLink,
    Operation,
    Remove,
    SetAttributes,
    Time,
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
    expand,
    follow,
    look,
    missing_directories,
    path_values,
    read_attributes,
)
from crossgrade.modules.refusing import FILE
from crossgrade.playbook.arguments import argument

FORMAT = "%Y%m%d%H%M.%S"
EMPTY_SHA1 = "da39a3ee5e6b4b0d3255bfef95601890afd80709"
States = Literal["absent", "directory", "file", "hard", "link", "touch"]

# `touch` always has work left, so the second look that proves every change must know what was touched just
# now, in this process: path and modification time. A look takes its entry away.
_touched: set[tuple[Path, int | None]] = set()


@dataclass(frozen=True)
class Arguments:
    """Makes a directory, a link or an empty file, sets mode and owner, or takes something away."""

    path: str = argument(doc="The path that is meant.", aliases=("dest", "name"))
    state: States | None = argument(
        doc="What is to be there. Without it: what is there now, else a directory (`recurse`) or a file.",
        default=None,
        choices=("absent", "directory", "file", "hard", "link", "touch"),
    )
    src: str | None = argument(doc="What a link (`link`, `hard`) leads to.", default=None)
    mode: Any = argument(doc='The mode: "0644" (with quotes) or u=rw,g=r,o=r.', default=None)
    owner: str | None = argument(doc="The user, by name or number.", default=None)
    group: str | None = argument(doc="The group, by name or number.", default=None)
    recurse: bool = argument(doc="Set mode and owner of all below a directory too.", default=False)
    force: bool = argument(
        doc="Links: replace a file or an empty directory, and allow a `src` that does not exist.",
        default=False,
    )
    follow: bool = argument(doc="Act on what a symlink leads to.", default=True)
    modification_time: str | None = argument(doc="`preserve`, `now`, or a time.", default=None)
    modification_time_format: str = argument(doc="How that time is written (strftime).", default=FORMAT)
    access_time: str | None = argument(doc="`preserve`, `now`, or a time.", default=None)
    access_time_format: str = argument(doc="How that time is written (strftime).", default=FORMAT)
    refused: ClassVar[Mapping[str, str]] = FILE


@dataclass(frozen=True)
class State:
    """What there is. `entry` is what the task acts on, `linked` what a link (to be) leads to.

    `missing` are the directories to make on the way, `below` everything under a directory, for `recurse`.
    """

    entry: Entry
    state: States
    attributes: Attributes
    atime: Time
    mtime: Time
    parent: Entry
    linked: Entry | None = None
    missing: tuple[Entry, ...] = ()
    below: tuple[Entry, ...] = ()
    empty: bool = True
    touched: bool = False


def inspect(arguments: Arguments, host: HostView) -> State:
    path = absolute(arguments.path, host)
    source = None if arguments.src is None else expand(arguments.src, host.environment)
    if arguments.state == "hard" and source and follow(path, host).kind == "directory":
        path /= Path(source).name
    entry = look(path, host)
    state = _state(arguments, entry)
    if arguments.recurse and state != "directory":
        raise TaskError("`recurse` goes with `state: directory` only")
    if source is not None and state not in ("link", "hard"):
        raise TaskError("`src` goes with `state: link` and `state: hard` only")
    if arguments.follow and entry.kind == "link" and state in ("file", "directory", "touch"):
        entry = follow(path, host)
    if state == "absent":
        _check_removable(entry.path, host)
    usual = "now" if state == "touch" else "preserve"
    touched = (entry.path, entry.mtime)
    seen = State(
        entry,
        state,
        read_attributes(arguments.mode, arguments.owner, arguments.group, host),
        _time(arguments.access_time or usual, arguments.access_time_format),
        _time(arguments.modification_time or usual, arguments.modification_time_format),
        parent=follow(entry.path.parent, host),
        touched=touched in _touched,
    )
    _touched.discard(touched)
    if state == "directory":
        missing = missing_directories(entry.path, host) if not entry.exists else ()
        recurse = arguments.recurse and entry.kind == "directory" and not entry.fresh
        below = tuple(_below(entry.path, follow_links=arguments.follow)) if recurse else ()
        return replace(seen, missing=missing, below=below)
    if state in ("link", "hard"):
        empty = entry.kind != "directory" or entry.fresh or not any(entry.path.iterdir())
        if source is None:
            return replace(seen, linked=follow(path, host), empty=empty)
        # what a relative link leads to depends on where it lies; a hard link's source does not
        base = path if entry.kind == "directory" else path.parent
        leads_to = base / source if state == "link" else absolute(source, host)
        return replace(seen, linked=follow(leads_to, host), empty=empty)
    return seen


def _state(arguments: Arguments, entry: Entry) -> States:
    if arguments.state is not None:
        return arguments.state
    states: dict[str, States] = {"link": "link", "directory": "directory", "hard": "hard"}
    if entry.exists:
        return states.get(entry.state, "file")
    return "directory" if arguments.recurse else "file"


def _check_removable(path: Path, host: HostView) -> None:
    place = path.resolve() if path.name in ("", "..") else path.parent.resolve() / path.name
    needed = (host.store.root, host.playbook_directory)
    for directory in needed:
        if directory.resolve().is_relative_to(place):
            raise TaskError(f"{path} is not removed: {directory}, which this run needs, lies inside it")


def _below(root: Path, *, follow_links: bool, seen: frozenset[tuple[int, int]] = frozenset()) -> Iterator[Entry]:
    """Everything below a directory; what links lead to as well, as Ansible does when it follows them."""
    here = entry_at(root)
    if here.inode is None or here.inode in seen:
        return
    seen |= {here.inode}
    for path in sorted(root.iterdir()):
        entry = entry_at(path)
        yield entry
        if entry.kind == "directory":
            yield from _below(entry.path, follow_links=follow_links, seen=seen)
        elif entry.kind == "link" and follow_links and entry.path.exists():
            target = entry_at(entry.path.resolve())
            yield target
            if target.kind == "directory":
                yield from _below(target.path, follow_links=follow_links, seen=seen)


def _time(text: str, layout: str) -> Time:
    if text == "preserve":
        return None
    if text == "now":
        return "now"
    try:
        return int(time.mktime(time.strptime(text, layout))) * 10**9
    except (ValueError, OverflowError) as error:
        raise TaskError(f"{text!r} is not a time of the form {layout!r}: {error}") from error


# ---- planning


def plan(arguments: Arguments, state: State) -> Plan:
    planners = {
        "absent": _plan_absent,
        "file": _plan_file,
        "directory": _plan_directory,
        "link": _plan_link,
        "hard": _plan_hard,
        "touch": _plan_touch,
    }
    return planners[state.state](arguments, state)


def _plan_absent(arguments: Arguments, state: State) -> Plan:  # noqa: ARG001 (all planners are called alike)
    path = state.entry.path
    values = {"path": str(path), "state": "absent"}
    if not state.entry.exists:
        return Unchanged(f"{path} is absent", values)
    return plan_change(
        f"remove {path}",
        [Remove(state.entry)],
        values,
        [Difference(str(path), state.entry.state, "absent")],
    )


def _plan_file(arguments: Arguments, state: State) -> Plan:  # noqa: ARG001
    entry = state.entry
    if entry.kind not in ("file", "other", "unknown"):
        raise TaskError(
            f"{entry.path} is {'' if entry.kind == 'absent' else 'a '}{entry.state}: "
            "with `state: file` it must be a file that exists",
            remedy="`state: touch` makes an empty file; copy and template make one with content.",
        )
    return _attributes_only(state, "path")


def _plan_directory(arguments: Arguments, state: State) -> Plan:  # noqa: ARG001
    entry, attributes = state.entry, state.attributes
    if entry.exists and entry.kind not in ("directory", "unknown"):
        raise TaskError(
            f"{entry.path} exists already, as a {entry.state}: it is not made a directory",
            remedy="Remove it first with `state: absent`.",
        )
    if state.missing:
        operations: list[Operation] = [
            MakeDirectory(missing, attributes.new_directory_mode, attributes.uid, attributes.gid)
            for missing in state.missing
        ]
        made = entry_after(operations[-1])
        operations += _times(replace(made, path=entry.path), state)
        return plan_change(
            f"make the directory {entry.path}",
            operations,
            {"path": str(entry.path), **path_values(made)},
            [Difference(str(missing.path), "absent", "directory") for missing in state.missing],
        )
    return _attributes_only(state, "path")


def _plan_link(arguments: Arguments, state: State) -> Plan:
    entry, linked = state.entry, state.linked
    if arguments.src is None:
        if entry.kind != "link":
            raise TaskError("a new link needs `src`: what it leads to")
        return _with_target(arguments, state, [], entry.target, "")
    target = os.path.expanduser(arguments.src)  # noqa: PTH111 - a link's target is text, not a path of ours
    if not arguments.force and linked is not None and not linked.exists:
        raise TaskError(
            f"the link {entry.path} would lead to {linked.path}, which does not exist",
            remedy="With `force: true` it is made all the same.",
        )
    if entry.kind == "link" and entry.target == target:
        return _with_target(arguments, state, [], target, "")
    if entry.kind not in ("absent", "link"):
        if not arguments.force:
            raise TaskError(f"{entry.path} is a {entry.state}, no link", remedy="With `force: true` it is replaced.")
        if not state.empty:
            raise TaskError(f"the directory {entry.path} is not empty: it is not replaced by a link")
        if entry.kind == "other":
            raise TaskError(f"{entry.path} is a device, a socket or a pipe: it is not replaced by a link")
    _check_parent(state)
    return _with_target(arguments, state, [MakeLink(entry, target)], target, f"link {entry.path} to {target}")


def _with_target(arguments: Arguments, state: State, operations: list[Operation], target: str, summary: str) -> Plan:
    """Mode and owner go to what the link leads to; with `follow: false` to the link, which has no mode of its own."""
    entry = state.entry
    given_to = state.linked if arguments.follow else entry_after(operations[0]) if operations else entry
    if given_to is not None and given_to.exists:
        given = attribute_operation(state.attributes, given_to, atime=state.atime, mtime=state.mtime)
        operations += [] if given is None else [given]
    values = {"dest": str(entry.path), "src": target}
    if not operations:
        return Unchanged(f"{entry.path} leads to {target}", {**values, **path_values(entry)})
    after = entry_after(operations[0]) if isinstance(operations[0], MakeLink) else entry
    was = f"link to {entry.target}" if entry.kind == "link" else entry.state
    shown = [Difference(str(entry.path), was, f"link to {target}")] if after is not entry else []
    summary = summary or f"set the attributes of {'what ' if arguments.follow else ''}{entry.path}" + (
        " leads to" if arguments.follow else ""
    )
    return plan_change(summary, operations, {**values, **path_values(after)}, shown)


def _plan_hard(arguments: Arguments, state: State) -> Plan:
    entry, source = state.entry, state.linked
    if arguments.src is None:
        if entry.state != "hard":
            raise TaskError("a new hard link needs `src`: the file that it is another name of")
        return _attributes_only(state, "dest")
    if source is None or not source.exists:
        raise TaskError(f"src {arguments.src} does not exist")
    if source.kind == "directory":
        raise TaskError(f"{source.path} is a directory: it can have no second name")
    values = {"dest": str(entry.path), "src": arguments.src}
    if entry.inode is not None and entry.inode == source.inode:
        return _attributes_only(state, "dest", values)
    if entry.kind not in ("absent", "file", "link"):
        raise TaskError(f"{entry.path} is a {entry.state}: it is not replaced by a hard link")
    if entry.kind == "file" and not arguments.force:
        raise TaskError(f"{entry.path} is another file than {source.path}", remedy="With `force: true` it is replaced.")
    _check_parent(state)
    made = replace(source, path=entry.path, links=source.links + 1, other_path=entry.other_path)
    given = attribute_operation(state.attributes, made, atime=state.atime, mtime=state.mtime)
    return plan_change(
        f"make {entry.path} another name of {source.path}",
        [MakeHardLink(entry, source.path), *([] if given is None else [given])],
        {**values, **path_values(made)},
        [Difference(str(entry.path), entry.state, f"hard link to {source.path}")],
    )


def _plan_touch(arguments: Arguments, state: State) -> Plan:  # noqa: ARG001
    entry = state.entry
    if entry.exists:
        return _attributes_only(state, "dest", summary=f"touch {entry.path}")
    _check_parent(state)
    attributes = state.attributes
    new = WriteFile(entry, b"", EMPTY_SHA1, 0, attributes.new_file_mode, uid=attributes.uid, gid=attributes.gid)
    return plan_change(
        f"make the empty file {entry.path}",
        [new, *_times(entry_after(new), state)],
        {"dest": str(entry.path), **path_values(entry_after(new))},
        [Difference(str(entry.path), "absent", "file")],
    )


def _attributes_only(state: State, key: str, values: dict[str, Any] | None = None, *, summary: str = "") -> Plan:
    entry, attributes = state.entry, state.attributes
    times: dict[str, Time] = {} if state.touched else {"atime": state.atime, "mtime": state.mtime}
    wanted = (attribute_operation(attributes, found, **times) for found in (entry, *state.below))
    # the same file may be below a directory by several ways
    operations = list({found.before.path: found for found in wanted if found is not None}.values())
    after = entry_after(operations[0]) if operations and operations[0].before == entry else entry
    values = {key: str(entry.path), **(values or {}), **path_values(after)}
    if not operations:
        return Unchanged(f"{entry.path} is as asked", values)
    inside = f" and of {len(state.below)} below it" if state.below else ""
    return plan_change(summary or f"set the attributes of {entry.path}{inside}", operations, values)


def _times(made: Entry, state: State) -> list[Operation]:
    """Times for something that is new: it has the present time anyway."""
    atime, mtime = (None if wanted == "now" else wanted for wanted in (state.atime, state.mtime))
    return [] if atime is None and mtime is None else [SetAttributes(made, atime=atime, mtime=mtime)]


def _check_parent(state: State) -> None:
    if state.parent.kind not in ("directory", "unknown"):
        raise TaskError(f"there is no directory {state.parent.path}", remedy="Make it first with `state: directory`.")


# ---- doing


def apply(arguments: Arguments, change: Change, context: ApplyContext) -> Outcome:  # noqa: ARG001 (the contract's shape)
    perform(change, context)
    path = Path(change.values.get("path") or change.values["dest"])
    entry = entry_at(path)
    for operation in change.payload["operations"]:
        if isinstance(operation, WriteFile) or (
            isinstance(operation, SetAttributes) and "now" in (operation.atime, operation.mtime)
        ):
            done = entry_at(operation.before.path)
            _touched.add((done.path, done.mtime))
    return Outcome({**change.values, **(path_values(entry) if entry.exists else {})})


MODULE = Module(
    name="file",
    arguments=Arguments,
    effect="changes",
    inspect=inspect,
    plan=plan,
    apply=apply,
    undo=undo,
    summary="Directories, links, modes and owners; taking files and directories away.",
)
