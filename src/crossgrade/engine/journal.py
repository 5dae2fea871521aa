"""The journal: runs and their steps, in SQLite, committed before the effect and after it.

WAL with `synchronous=FULL` makes each commit durable before the call returns (sqlite.org/pragma.html). The
journal is the only record of what is under way; what is on the disk is always read from the disk.

Every row carries a checksum over its columns, and the rows of a run are numbered without gaps. SQLite notices
a torn page or a torn log; the checksums notice the rest (a flipped bit, a row that something else wrote or
removed). A damaged journal is never guessed at: whoever reads it gets a JournalDamagedError.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossgrade.engine.failpoints import pass_point
from crossgrade.engine.records import (
    OPEN_STATES,
    Activation,
    RunRecord,
    RunState,
    StepRecord,
    StepState,
    checksum,
)
from crossgrade.errors import StoreError
from crossgrade.jsontype import JSON
from crossgrade.playbook.secrets import masked
from crossgrade.store.atomic import sync_directory

VERSION = 2
_COLUMNS = {
    "run": ("id", "command", "state", "started", "ended", "request", "exit_code", "summary"),
    "step": ("run", "ordinal", "task", "name", "module", "intent", "undo", "by_hand", "state", "time"),
    "activation": ("ordinal", "run", "previous", "active", "time"),
}
_SCHEMA = """
CREATE TABLE run (
  id TEXT PRIMARY KEY, command TEXT NOT NULL, state TEXT NOT NULL, started REAL NOT NULL, ended REAL,
  request TEXT NOT NULL, exit_code INTEGER, summary TEXT NOT NULL, checksum TEXT NOT NULL
) STRICT;
CREATE TABLE step (
  run TEXT NOT NULL REFERENCES run(id), ordinal INTEGER NOT NULL, task TEXT NOT NULL, name TEXT NOT NULL,
  module TEXT NOT NULL, intent TEXT NOT NULL, undo TEXT NOT NULL, by_hand TEXT NOT NULL, state TEXT NOT NULL,
  time REAL NOT NULL, checksum TEXT NOT NULL, PRIMARY KEY (run, ordinal)
) STRICT;
CREATE TABLE activation (
  ordinal INTEGER PRIMARY KEY, run TEXT NOT NULL, previous INTEGER, active INTEGER, time REAL NOT NULL,
  checksum TEXT NOT NULL
) STRICT;
PRAGMA user_version = 2;
"""


class JournalDamagedError(StoreError):
    """The journal holds something that nobody can have written like that."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"the journal {path} is damaged: {reason}", remedy=moved_away(path))
        self.path = path


# SQLITE_FULL, SQLITE_IOERR, SQLITE_READONLY, SQLITE_CANTOPEN, SQLITE_BUSY, SQLITE_NOMEM
_THE_MACHINE = ("disk is full", "I/O error", "readonly", "unable to open", "is locked", "out of memory")


# Python cannot decode what SQLite says about some kinds of damage
_REFUSALS = (sqlite3.DatabaseError, UnicodeDecodeError)


class JournalUnusableError(StoreError):
    """The machine does not let the journal be read or written: a full disk, say. What it holds is sound."""


def _problem(path: Path, error: Exception) -> StoreError:
    """SQLite's error as ours. The machine's own refusals are known by their words (sqlite.org/rescode.html)."""
    if any(words in str(error) for words in _THE_MACHINE):
        return JournalUnusableError(
            f"the journal {path} cannot be used: {error}", remedy="Look at the disk: is it full, or read-only?"
        )
    return JournalDamagedError(path, str(error))


def moved_away(path: Path) -> str:
    """How to begin a new journal: the words for a person."""
    return (
        "The active link was left alone. To begin a new journal (generations stay):\n"
        f"    mkdir {path.parent}/damaged-journal && mv {path}* {path.parent}/damaged-journal/"
    )


@dataclass(frozen=True)
class Journal:
    """An open journal: see `open_journal` and `reading`. Every method may raise JournalDamagedError."""

    path: Path
    _database: sqlite3.Connection
    _checked: bool = True

    def close(self) -> None:
        self._database.close()

    # ---- rows

    def _select(self, table: str, order: str, where: str = "", values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        columns = ", ".join(_COLUMNS[table]) + (", checksum" if self._checked else "")
        condition = f"WHERE {where}" if where else ""
        query = f"SELECT {columns} FROM {table} {condition} ORDER BY {order}"  # noqa: S608 - names from above only
        rows = self._execute(query, values).fetchall()
        if not self._checked:
            return rows
        for row in rows:
            if checksum(table, row[:-1]) != row[-1]:
                raise JournalDamagedError(self.path, f"the record {row[0]!r} of {table} does not fit its checksum")
        return [row[:-1] for row in rows]

    def _execute(self, query: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        try:
            return self._database.execute(query, values)
        except _REFUSALS as error:
            raise _problem(self.path, error) from error

    def _insert(self, table: str, values: Sequence[Any]) -> None:
        places = ", ".join("?" * (len(values) + 1))
        self._execute(f"INSERT INTO {table} VALUES ({places})", (*values, checksum(table, values)))  # noqa: S608 - the same

    def _update(self, table: str, where: str, key: Sequence[Any], **changes: Any) -> None:
        """Change columns of one row, and its checksum with them."""
        (row,) = self._select(table, "1", where, key)
        values = [changes.get(name, value) for name, value in zip(_COLUMNS[table], row, strict=True)]
        columns = ", ".join(f"{name} = ?" for name in (*_COLUMNS[table], "checksum"))
        query = f"UPDATE {table} SET {columns} WHERE {where}"  # noqa: S608 - names from above only
        self._execute(query, (*values, checksum(table, values), *key))

    # ---- runs

    def begin_run(self, run: str, command: str, request: Mapping[str, Any]) -> None:
        self._insert("run", (run, command, "running", time.time(), None, json.dumps(request), None, ""))
        pass_point("begun")

    def reopen_run(self, run: str) -> None:
        """Take an interrupted run up again (`--resume`)."""
        self._update("run", "id = ?", (run,), state="running", ended=None)

    def begin_rollback(self, run: str) -> None:
        """Commit that this run is to be taken back: from now on, recovery can only go on with that."""
        self._update("run", "id = ?", (run,), state="rolling back")

    def end_run(self, run: str, state: RunState, exit_code: int, summary: str) -> None:
        pass_point("ending")
        self._update(
            "run", "id = ?", (run,), state=state, ended=time.time(), exit_code=exit_code, summary=masked(summary)
        )
        pass_point("ended")

    def runs(self) -> list[RunRecord]:
        """All runs, oldest first."""
        return [
            RunRecord(id_, command, state, started, ended, json.loads(request), exit_code, summary)
            for id_, command, state, started, ended, request, exit_code, summary in self._select("run", "started")
        ]

    def unfinished(self) -> RunRecord | None:
        """The run that has no end on record: interrupted, unless the lock is held."""
        open_runs = [run for run in self.runs() if run.state in OPEN_STATES]
        return open_runs[-1] if open_runs else None

    # ---- steps

    def intend(
        self,
        run: str,
        task: str,
        name: str,
        module: str,
        intent: str,
        undo: Mapping[str, JSON],
        by_hand: Sequence[str],
    ) -> int:
        """Commit that an effect is about to be made. Returns its ordinal within the run, from 1."""
        ordinal = 1 + len(self._select("step", "ordinal", "run = ?", (run,)))
        # `undo` must stay as it is to undo anything
        words = (task, masked(name), module, masked(intent), json.dumps(undo), json.dumps(masked(list(by_hand))))
        self._insert("step", (run, ordinal, *words, "intended", time.time()))
        pass_point("intended", module, task)
        return ordinal

    def complete(self, run: str, ordinal: int, module: str, task: str = "") -> None:
        """Commit that the effect is made and durable."""
        pass_point("effect", module, task)
        self._set_step(run, ordinal, "done")
        pass_point("done", module, task)

    def mark_undone(self, run: str, ordinal: int) -> None:
        self._set_step(run, ordinal, "undone")

    def _set_step(self, run: str, ordinal: int, state: StepState) -> None:
        self._update("step", "run = ? AND ordinal = ?", (run, ordinal), state=state, time=time.time())

    def steps(self, run: str) -> list[StepRecord]:
        """The steps of a run in the order in which they were intended."""
        rows = self._select("step", "ordinal", "run = ?", (run,))
        if [row[1] for row in rows] != list(range(1, len(rows) + 1)):
            raise JournalDamagedError(self.path, f"steps of run {run} are missing")
        return [
            StepRecord(
                *(run_, ordinal, task, name, module, intent),
                *(json.loads(undo), tuple(json.loads(by_hand)), state, when),
            )
            for run_, ordinal, task, name, module, intent, undo, by_hand, state, when in rows
        ]

    # ---- activations

    def record_activation(self, run: str, previous: int | None, active: int | None) -> None:
        """Record a turn of the active link, unless the newest record says the same already."""
        turns = self.activations()
        if not turns or turns[-1].active != active:
            self._insert("activation", (len(turns) + 1, run, previous, active, time.time()))

    def activations(self) -> list[Activation]:
        rows = self._select("activation", "ordinal")
        if [row[0] for row in rows] != list(range(1, len(rows) + 1)):
            raise JournalDamagedError(self.path, "turns of the active link are missing")
        return [Activation(*row[1:]) for row in rows]


def readable_rows(database: sqlite3.Connection, table: str) -> Iterator[tuple[Any, ...]]:
    """The rows of a damaged journal that still fit their checksum, without it, one at a time."""
    query = f"SELECT {', '.join(_COLUMNS[table])}, checksum FROM {table} ORDER BY rowid"  # noqa: S608 - names from above only
    try:
        for row in database.execute(query):
            if checksum(table, row[:-1]) == row[-1]:
                yield row[:-1]
    except _REFUSALS:
        return


@contextmanager
def reading(path: Path, *, in_use: bool) -> Iterator[Journal]:
    """The journal opened so that nothing is written, not even SQLite's own files beside it.

    `in_use` says that a run holds the lock: then its files are shared with it. Otherwise a log that a killed
    run left behind is read from a copy, and a journal without one is opened as immutable.
    Raises StoreError when it is missing, JournalDamagedError when it is damaged.
    """
    if not path.exists():
        raise StoreError(f"there is no journal at {path}", remedy="Run `crossgrade upgrade` first.")
    log = path.with_name(path.name + "-wal")
    with ExitStack() as stack:
        source, mode = path, "ro"
        if not in_use:
            mode = "ro&immutable=1"
            if log.exists() and log.stat().st_size:
                import shutil  # only after a kill
                import tempfile

                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="crossgrade-journal-")))
                for file in (path, log):
                    shutil.copy2(file, folder)
                source, mode = folder / path.name, "rw"
        try:
            database = _connect(source, mode)
            stack.callback(database.close)
            yield Journal(path, database, _check(path, database) >= VERSION)
        except _REFUSALS as error:
            raise _problem(path, error) from error


def open_journal(path: Path, *, create: bool = False) -> Journal:
    """The journal opened for writing; `create` makes it when it is not there.

    Raises StoreError when it is missing or of a later version, JournalDamagedError when it is damaged,
    JournalUnusableError when the machine does not let it be written.
    """
    if not path.exists():
        if not create:
            raise StoreError(f"there is no journal at {path}", remedy="Run `crossgrade upgrade` first.")
        _create(path)
    try:
        database = _connect(path)
    except _REFUSALS as error:
        raise _problem(path, error) from error
    try:
        version = _check(path, database)
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=FULL")
        if version == 1:
            _add_checksums(path, database)
    except _REFUSALS as error:
        database.close()
        raise _problem(path, error) from error
    except BaseException:
        database.close()
        raise
    return Journal(path, database)


def _create(path: Path) -> None:
    """Make an empty journal whole or not at all, so that an empty file is always damage."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    database = _connect(temporary)
    try:
        database.execute("PRAGMA synchronous=FULL")
        database.executescript("BEGIN;" + _SCHEMA + "COMMIT;")
    except _REFUSALS as error:
        raise _problem(path, error) from error
    finally:
        database.close()
    temporary.rename(path)
    sync_directory(path.parent)


def _connect(path: Path, mode: str = "rw") -> sqlite3.Connection:
    from urllib.parse import quote

    database = sqlite3.connect(f"file:{quote(os.fspath(path))}?mode={mode}", uri=True, isolation_level=None)
    database.text_factory = lambda data: data.decode(errors="surrogateescape")  # damage is for the checksums to see
    return database


def _check(path: Path, database: sqlite3.Connection) -> int:
    """The version of a journal whose pages are sound."""
    said = database.execute("PRAGMA quick_check(1)").fetchone()[0]
    if said != "ok":
        raise JournalDamagedError(path, str(said))
    version: int = database.execute("PRAGMA user_version").fetchone()[0]
    if version == 0:
        raise JournalDamagedError(path, "it is empty")
    if version > VERSION:
        raise StoreError(
            f"the journal {path} has version {version}, this crossgrade knows version {VERSION}",
            remedy="Use the crossgrade version that wrote it.",
        )
    return version


def _add_checksums(path: Path, database: sqlite3.Connection) -> None:
    """Bring a journal of version 1 to version 2, in one transaction."""
    unchecked = Journal(path, database, _checked=False)
    with database:
        database.execute("BEGIN IMMEDIATE")
        for table in _COLUMNS:
            database.execute(f"ALTER TABLE {table} ADD COLUMN checksum TEXT NOT NULL DEFAULT ''")
            for row in unchecked._select(table, "1"):
                key = " AND ".join(f"{name} IS ?" for name in _COLUMNS[table])
                query = f"UPDATE {table} SET checksum = ? WHERE {key}"  # noqa: S608 - names from above only
                database.execute(query, (checksum(table, row), *row))
        database.execute("PRAGMA user_version = 2")
