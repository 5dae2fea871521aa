"""What is still known when the journal is damaged: the disk as it is, and the records that can still be read."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from contextlib import closing, suppress
from pathlib import Path

from crossgrade.engine.journal import JournalDamagedError, readable_rows
from crossgrade.engine.records import OPEN_STATES
from crossgrade.engine.standing import working_environment
from crossgrade.errors import StoreError
from crossgrade.store.layout import Store

_STATES = {"intended": "was begun and is not recorded as done", "done": "was done", "undone": "was taken back"}


def explained(error: JournalDamagedError, store: Store) -> StoreError:
    """The error with what is known, so that a person can decide. Nothing is decided here."""
    known = "\n".join(f"  {line}" for line in what_is_known(store))
    return StoreError(f"{error.message}\n{known}", remedy=error.remedy)


def what_is_known(store: Store) -> list[str]:
    """The state of the disk, and what the readable records say of runs that have no end. Reads only."""
    return [
        f"on the disk: {working_environment(store)}",
        *(f"on the disk: {generation}" for generation in _generations(store)),
        *_unfinished(store.journal_path),
    ]


def _generations(store: Store) -> list[str]:
    try:
        return [f"generation {each.number} is {each.state}" for each in store.generations()]
    except StoreError as error:
        return [error.message]


def _unfinished(path: Path) -> list[str]:
    lines: list[str] = []
    with tempfile.TemporaryDirectory(prefix="crossgrade-journal-") as folder:
        copy = Path(folder) / path.name
        for source in (path, path.with_name(path.name + "-wal")):
            with suppress(OSError):
                shutil.copy2(source, folder)
        if not copy.exists():
            return ["in the journal: nothing can be read"]
        with closing(sqlite3.connect(copy, isolation_level=None)) as database:
            runs = {row[0]: row for row in readable_rows(database, "run")}
            for run, _, task, name, module, intent, _, by_hand, state, _ in readable_rows(database, "step"):
                if run in runs and runs[run][2] not in OPEN_STATES:
                    continue
                what = _STATES.get(state, state)
                lines.append(f"in the journal: run {run}, {name or task} ({module}): {intent}: {what}")
                if state == "intended" and by_hand != "[]":
                    lines.append(f"    undone by hand with: {by_hand}")
            if not runs:
                lines.append("in the journal: no record of a run can be read")
    return lines
