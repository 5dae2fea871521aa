"""copy: a file, a tree, or content that the playbook gives."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from crossgrade.errors import TaskError
from crossgrade.modules.contract import ApplyContext, Change, HostView, Module, Outcome, Plan, Skipped
from crossgrade.modules.file_undo import undo
from crossgrade.modules.files import entry_at, follow, path_values
from crossgrade.modules.placing import (
    Placement,
    Source,
    State,
    apply_placement,
    bytes_source,
    file_source,
    find_source,
    look_at_file,
    look_at_tree,
    plan_placement,
)
from crossgrade.modules.refusing import FILE
from crossgrade.playbook.arguments import argument


@dataclass(frozen=True)
class Arguments:
    """Puts a file, a tree of files, or a given content at a path; the old file is replaced in one rename."""

    dest: str = argument(doc="Where to. With a slash at its end it is a directory, made when it is missing.")
    src: str | None = argument(
        doc="The file or directory, looked for in `files/` and beside the playbook. A directory is copied "
        "itself; with a slash at its end, only what is in it.",
        default=None,
    )
    content: Any = argument(doc="The content of the file; a list or mapping is written as JSON.", default=None)
    mode: Any = argument(
        doc='The mode: "0644" (with quotes), u=rw,g=r,o=r, or `preserve`: that of the source.', default=None
    )
    owner: str | None = argument(doc="The user, by name or number.", default=None)
    group: str | None = argument(doc="The group, by name or number.", default=None)
    directory_mode: Any = argument(doc="The mode of directories in a tree.", default=None)
    backup: bool = argument(doc="Keep a copy of the old file beside the new one.", default=False)
    force: bool = argument(doc="Replace a file with another content.", default=True)
    follow: bool = argument(doc="When `dest` is a symlink, write what it leads to.", default=False)
    local_follow: bool | None = argument(
        doc="Copy what symlinks in a source tree lead to; without it: yes, but not with `remote_src`.", default=None
    )
    remote_src: bool = argument(doc="`src` is no file of the playbook: modes in a tree stay.", default=False)
    decrypt: bool = argument(
        doc="Of a file of the playbook that `ansible-vault` has encrypted, copy what is inside.", default=True
    )
    checksum: str | None = argument(doc="The sha1 that the source must have.", default=None)
    validate: str | None = argument(
        doc="A program that must accept the new file (`%s`) before it is put in its place.", default=None
    )
    mutually_exclusive: ClassVar[tuple[tuple[str, ...], ...]] = (("src", "content"),)
    required_one_of: ClassVar[tuple[tuple[str, ...], ...]] = (("src", "content"),)
    refused: ClassVar[Mapping[str, str]] = FILE


Found = tuple[Literal["file", "directory", "link"], Path, str]


def inspect(arguments: Arguments, host: HostView) -> State:
    placement = Placement(
        dest=arguments.dest,
        mode=arguments.mode,
        owner=arguments.owner,
        group=arguments.group,
        directory_mode=arguments.directory_mode,
        backup=arguments.backup,
        force=arguments.force,
        follow=arguments.follow,
        validate=arguments.validate,
    )
    if arguments.src is None:
        if arguments.dest.endswith("/"):
            raise TaskError("`content` needs the path of a file as `dest`, not that of a directory")
        return look_at_file(_checked(bytes_source(_content(arguments.content), ""), arguments), placement, host)
    root = find_source(arguments.src, "" if arguments.remote_src else "files", host)
    entry = follow(root, host)
    decrypt = arguments.decrypt and not arguments.remote_src
    if entry.kind != "directory":
        source = _checked(file_source(root, root.name, host, decrypt=decrypt), arguments)
        return look_at_file(source, placement, host)
    if entry.predicted:
        raise TaskError(
            f"{root} is made by an earlier task of this plan: what it will hold is not known yet",
            remedy="Run that task first, or copy single files.",
        )
    above = "" if arguments.src.endswith("/") else root.name
    follow_links = not arguments.remote_src if arguments.local_follow is None else arguments.local_follow
    found = list(_walk(root, above, follow_links=follow_links, ancestors=frozenset()))
    if above:
        found.insert(0, ("directory", root, above))
    keep = arguments.remote_src and arguments.mode is None
    if keep:
        placement = Placement(**{**vars(placement), "mode": "preserve"})
    keep_directories = keep or arguments.directory_mode == "preserve"
    return look_at_tree(
        [file_source(path, name, host, decrypt=decrypt) for kind, path, name in found if kind == "file"],
        [
            (name, path.stat().st_mode & 0o7777 if keep_directories else None)
            for kind, path, name in found
            if kind == "directory"
        ],
        [(name, os.readlink(path)) for kind, path, name in found if kind == "link"],  # noqa: PTH115 - as written
        placement,
        host,
    )


def _content(content: Any) -> bytes:
    if isinstance(content, list | tuple | dict):
        return json.dumps(content).encode()
    return str(content).encode(errors="surrogateescape")


def _checked(source: Source, arguments: Arguments) -> Source:
    if arguments.checksum and source.checksum and source.checksum != arguments.checksum.lower():
        raise TaskError(f"the source has the checksum {source.checksum}, not {arguments.checksum}")
    return source


def _walk(folder: Path, above: str, *, follow_links: bool, ancestors: frozenset[tuple[int, int]]) -> Iterator[Found]:
    """What is in a directory, by name. A symlink to a directory that we are in stays a symlink."""
    status = folder.stat()
    ancestors |= {(status.st_dev, status.st_ino)}
    for path in sorted(folder.iterdir()):
        name = os.path.join(above, path.name)  # noqa: PTH118 - a text, "" included
        link = path.is_symlink()
        if path.is_dir():
            inside = path.stat()
            if link and (not follow_links or (inside.st_dev, inside.st_ino) in ancestors):
                yield "link", path, name
            else:
                yield "directory", path, name
                yield from _walk(path, name, follow_links=follow_links, ancestors=ancestors)
        elif link and not (follow_links and path.exists()):
            yield "link", path, name
        else:
            yield "file", path, name


def plan(arguments: Arguments, state: State) -> Plan:
    planned = plan_placement(state, arguments.src or "")
    if not (arguments.remote_src and state.tree) or isinstance(planned, Skipped):
        return planned
    # of such a tree Ansible names the directory itself, and tells of it
    above = "" if arguments.src is None or arguments.src.endswith("/") else Path(arguments.src).name
    place = state.destination / above
    known = [item.entry for item in state.directories if item.entry.path == place and item.entry.exists]
    return replace(planned, values={**planned.values, "dest": str(place), **(path_values(known[0]) if known else {})})


def apply(arguments: Arguments, change: Change, context: ApplyContext) -> Outcome:
    outcome = apply_placement(change, context)
    if arguments.remote_src and "checksum" not in outcome.values:
        return Outcome({**outcome.values, **path_values(entry_at(Path(outcome.values["dest"])))})
    return outcome


MODULE = Module(
    name="copy",
    arguments=Arguments,
    effect="changes",
    inspect=inspect,
    plan=plan,
    apply=apply,
    undo=undo,
    summary="A file, a tree, or content from the playbook.",
)
