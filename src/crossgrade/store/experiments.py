"""The record of experiments in a store: one JSON object a line, only ever appended to.

    ROOT/experiments/records.jsonl

It is not part of a generation: what was tried on one is worth knowing after `gc` has removed it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from crossgrade.jsontype import JSON
from crossgrade.store.atomic import make_folder, sync_directory

SCHEMA = 1


@dataclass(frozen=True)
class Records:
    """What was recorded, oldest first, and in words which lines could not be read."""

    records: tuple[Mapping[str, JSON], ...]
    unreadable: tuple[str, ...] = ()

    def last(self, key: str) -> Mapping[str, JSON] | None:
        """The newest record under this key."""
        return next((each for each in reversed(self.records) if each["key"] == key), None)


def records_path(root: Path) -> Path:
    return root / "experiments" / "records.jsonl"


def append_record(root: Path, record: Mapping[str, JSON]) -> None:
    """Add a record, durably. A line that a kill or a full disk left half written is ended first."""
    path = records_path(root)
    make_folder(path.parent, 0o700)
    line = (json.dumps({"schema": SCHEMA, **record}, sort_keys=True) + "\n").encode()
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        size = os.lseek(descriptor, 0, os.SEEK_END)
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            line = b"\n" + line
        os.write(descriptor, line)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    sync_directory(path.parent)


def read_records(root: Path) -> Records:
    """All records of a store; a line that is none is named, not guessed at."""
    path = records_path(root)
    if not path.is_file():
        return Records(())
    records, unreadable = [], []
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError:
            value = None
        if isinstance(value, dict) and {"key", "experiment", "outcome", "when", "reason"} <= set(value):
            records.append(value)
        else:
            unreadable.append(f"{path}:{number} is no record of an experiment")
    return Records(tuple(records), tuple(unreadable))
