"""Changing a part of a text file: what lineinfile, blockinfile and replace share.

The rest of the file stays byte for byte, its mode and owner too. A symlink is followed: what it leads to is written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from crossgrade.errors import TaskError
from crossgrade.modules.contract import ApplyContext, Change, Difference, HostView, Outcome, Plan, Unchanged
from crossgrade.modules.file_operations import (
    MakeDirectory,
    Operation,
    SetAttributes,
    WriteFile,
    attribute_operation,
    perform,
    plan_change,
)
from crossgrade.modules.files import (
    Attributes,
    Entry,
    absolute,
    content_difference,
    entry_at,
    follow,
    known_content,
    missing_directories,
    read_attributes,
)
from crossgrade.modules.placing import backup_operations, backup_suffix, read_validate

ATTRIBUTES_CHANGED = "mode or owner changed"

# A task whose pattern also matches what it writes has work left for ever, so the second look that proves every
# change must know what was written just now, in this process: path and sha1. A look takes its entry away.
_written: set[tuple[Path, str]] = set()


@dataclass(frozen=True)
class Target:
    """A file to edit, as it is. `content` is None where only the run makes it; b"" for a file that is missing.

    `just_written` says that this process wrote it so a moment ago, and is looking whether that came out.
    """

    path: Path
    entry: Entry
    content: bytes | None
    missing: tuple[Entry, ...]
    attributes: Attributes
    backup_suffix: str
    validate: tuple[str, ...]
    just_written: bool = False


@dataclass(frozen=True)
class Edit:
    """The content that a file is to have, and what the module says of it. None: it is to stay as it is."""

    content: bytes | None
    message: str = ""


def look_at_target(
    path: str,
    host: HostView,
    *,
    mode: Any = None,
    owner: str | None = None,
    group: str | None = None,
    backup: bool = False,
    validate: str | None = None,
    create: bool = False,
) -> Target:
    """Raises TaskError for what is no file, and for a missing one that is not to be made."""
    place = absolute(path, host)
    entry = follow(place, host)
    if entry.kind not in ("file", "absent", "unknown"):
        raise TaskError(f"{place} is a {entry.state}, no file whose text can be changed")
    if not entry.exists and not create:
        raise TaskError(f"there is no file {place}", remedy="With `create: true` it is made.")
    content = b"" if not entry.exists else None if entry.kind == "unknown" else known_content(entry)
    written = (entry.path, _sha1(content or b""))
    target = Target(
        place,
        entry,
        content,
        () if entry.exists else missing_directories(entry.path.parent, host),
        read_attributes(mode, owner, group, host),
        backup_suffix() if backup else "",
        read_validate(validate),
        just_written=written in _written,
    )
    _written.discard(written)
    return target


def plan_edit(
    target: Target,
    edit: Edit,
    values: Mapping[str, Any] | None = None,
    *,
    backup_key: str = "backup_file",
) -> Plan:
    """The plan that gives a file its new content and the attributes asked for. `values` are more results."""
    entry, attributes = target.entry, target.attributes
    if target.content is None:
        return _unknown(target)
    operations: list[Operation] = [
        MakeDirectory(missing, None) for missing in (target.missing if edit.content is not None else ())
    ]
    message = edit.message
    shown: list[Difference] = []
    found = dict(values or {})
    if edit.content is not None and not target.just_written:
        shown.append(content_difference(target.path, target.content if entry.exists else None, edit.content))
        if target.backup_suffix and entry.exists:
            operations += backup_operations(entry, _sha1(target.content), target.backup_suffix)
            found[backup_key] = str(operations[-1].before.path)
        operations.append(_write(target, edit.content))
        wanted = None if entry.mode is None else attributes.mode_of(entry.mode, directory=False)
        if _asked(attributes) and (not entry.exists or wanted not in (None, entry.mode) or _new_owner(target)):
            message = f"{message} and {ATTRIBUTES_CHANGED}"
    elif entry.exists and (given := attribute_operation(attributes, entry)) is not None:
        operations.append(given)
        message = ATTRIBUTES_CHANGED
    values = {"msg": message, **found}
    if not operations:
        return Unchanged(f"{target.path} is as asked", values)
    only_attributes = isinstance(operations[-1], SetAttributes)
    summary = f"set the attributes of {target.path}" if only_attributes else f"edit {target.path}: {edit.message}"
    return plan_change(summary, operations, values, shown)


def _write(target: Target, content: bytes) -> WriteFile:
    entry, attributes = target.entry, target.attributes
    mode = attributes.new_file_mode
    if entry.kind == "file" and entry.mode is not None:
        asked = attributes.mode_of(entry.mode, directory=False)
        mode = entry.mode if asked is None else asked
    return WriteFile(
        entry, content, _sha1(content), len(content), mode, attributes.uid, attributes.gid, target.validate
    )


def _asked(attributes: Attributes) -> bool:
    return any(wanted is not None for wanted in (attributes.mode, attributes.uid, attributes.gid))


def _new_owner(target: Target) -> bool:
    entry, attributes = target.entry, target.attributes
    return attributes.uid not in (None, entry.uid) or attributes.gid not in (None, entry.gid)


def _unknown(target: Target) -> Change:
    """An earlier task of the plan will make the file: what is to be changed in it, the run shows."""
    made = replace(target.entry, size=None, checksum="", content=None, content_of=None, predicted=True)
    change = plan_change(f"edit {target.path}, if what an earlier task makes of it needs it", [SetAttributes(made)], {})
    return replace(change, values_known=False, uncertain=True)


def _sha1(content: bytes) -> str:
    return hashlib.sha1(content, usedforsecurity=False).hexdigest()


def apply_edit(change: Change, context: ApplyContext) -> Outcome:
    perform(change, context)
    for operation in change.payload["operations"]:
        if isinstance(operation, WriteFile):
            _written.add((entry_at(operation.before.path).path, operation.checksum))
    return Outcome(change.values)


def compiled(pattern: str, what: str, flags: int = 0) -> Any:
    """A pattern for bytes. Raises TaskError with the place of its fault; `what` is the argument's name."""
    import re

    try:
        return re.compile(pattern.encode(errors="surrogateescape"), flags)
    except re.error as error:
        raise TaskError(f"`{what}` is no regular expression: {error}: {pattern!r}") from error
