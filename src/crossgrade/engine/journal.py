"""The journal: runs and their steps, in SQLite, committed before the effect and after it.

WAL with `synchronous=FULL` makes each commit durable before the call returns (sqlite.org/pragma.html). The
journal is the only record of what is under way; what is on the disk is always read from the disk.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from crossgrade.errors import StoreError
from crossgrade.jsontype import JSON

RunState = Literal["running", "done", "failed", "rolled back", "rollback failed"]
StepState = Literal["intended", "done", "undone"]

_SCHEMA = """
CREATE TABLE run (
  id TEXT PRIMARY KEY, command TEXT NOT NULL, state TEXT NOT NULL, started REAL NOT NULL, ended REAL,
  request TEXT NOT NULL, exit_code INTEGER, summary TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE TABLE step (
  run TEXT NOT NULL REFERENCES run(id), ordinal INTEGER NOT NULL, task TEXT NOT NULL, name TEXT NOT NULL,
  module TEXT NOT NULL, intent TEXT NOT NULL, undo TEXT NOT NULL, by_hand TEXT NOT NULL, state TEXT NOT NULL,
  time REAL NOT NULL, PRIMARY KEY (run, ordinal)
) STRICT;
CREATE TABLE activation (
  ordinal INTEGER PRIMARY KEY AUTOINCREMENT, run TEXT NOT NULL, previous INTEGER, active INTEGER, time REAL NOT NULL
) STRICT;
PRAGMA user_version = 1;
"""


@dataclass(frozen=True)
class RunRecord:
    """One run. `request` is what it was asked (playbook, variables, options). Times in seconds since 1970."""

    id: str
    command: str
    state: RunState
    started: float
    ended: float | None
    request: Mapping[str, Any]
    exit_code: int | None
    summary: str


@dataclass(frozen=True)
class StepRecord:
    """One journaled effect of a run."""

    run: str
    ordinal: int
    task: str
    name: str
    module: str
    intent: str
    undo: Mapping[str, JSON]
    by_hand: Sequence[str]
    state: StepState


@dataclass(frozen=True)
class Activation:
    """One turn of the active link, in order of time."""

    run: str
    previous: int | None
    active: int | None
    time: float


def kill_if_asked(point: str, environment: Mapping[str, str] = os.environ) -> None:
    """Die by SIGKILL at this point when CROSSGRADE_KILL_AT names it; the fault tests set that and nothing else does.

    The points are the journal's own: `intended:MODULE`, `effect:MODULE` (made, not yet recorded), `done:MODULE`.
    """
    if environment.get("CROSSGRADE_KILL_AT") == point:
        os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class Journal:
    """An open journal: see `open_journal` and `reading`."""

    path: Path
    _database: sqlite3.Connection

    def close(self) -> None:
        self._database.close()

    # ---- runs

    def begin_run(self, run: str, command: str, request: Mapping[str, Any]) -> None:
        self._database.execute(
            "INSERT INTO run (id, command, state, started, request) VALUES (?, ?, 'running', ?, ?)",
            (run, command, time.time(), json.dumps(request)),
        )

    def reopen_run(self, run: str) -> None:
        """Take an interrupted run up again (`--resume`)."""
        self._database.execute("UPDATE run SET state = 'running', ended = NULL WHERE id = ?", (run,))

    def end_run(self, run: str, state: RunState, exit_code: int, summary: str) -> None:
        self._database.execute(
            "UPDATE run SET state = ?, ended = ?, exit_code = ?, summary = ? WHERE id = ?",
            (state, time.time(), exit_code, summary, run),
        )

    def runs(self) -> list[RunRecord]:
        """All runs, oldest first."""
        rows = self._database.execute(
            "SELECT id, command, state, started, ended, request, exit_code, summary FROM run ORDER BY started"
        )
        return [
            RunRecord(id_, command, state, started, ended, json.loads(request), exit_code, summary)
            for id_, command, state, started, ended, request, exit_code, summary in rows
        ]

    def unfinished(self) -> RunRecord | None:
        """The run that has no end on record: interrupted, unless the lock is held."""
        open_runs = [run for run in self.runs() if run.state == "running"]
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
        """Commit that an effect is about to be made. Returns its ordinal within the run."""
        ordinal: int = self._database.execute(
            "INSERT INTO step SELECT ?, coalesce(max(ordinal), 0) + 1, ?, ?, ?, ?, ?, ?, 'intended', ? "
            "FROM step WHERE run = ? RETURNING ordinal",
            (run, task, name, module, intent, json.dumps(undo), json.dumps(list(by_hand)), time.time(), run),
        ).fetchone()[0]
        kill_if_asked(f"intended:{module}")
        return ordinal

    def complete(self, run: str, ordinal: int, module: str) -> None:
        """Commit that the effect is made and durable."""
        kill_if_asked(f"effect:{module}")
        self._set_step(run, ordinal, "done")
        kill_if_asked(f"done:{module}")

    def mark_undone(self, run: str, ordinal: int) -> None:
        self._set_step(run, ordinal, "undone")

    def _set_step(self, run: str, ordinal: int, state: StepState) -> None:
        self._database.execute(
            "UPDATE step SET state = ?, time = ? WHERE run = ? AND ordinal = ?",
            (state, time.time(), run, ordinal),
        )

    def steps(self, run: str) -> list[StepRecord]:
        """The steps of a run in the order in which they were intended."""
        rows = self._database.execute(
            "SELECT run, ordinal, task, name, module, intent, undo, by_hand, state FROM step"
            " WHERE run = ? ORDER BY ordinal",
            (run,),
        )
        return [
            StepRecord(run_, ordinal, task, name, module, intent, json.loads(undo), tuple(json.loads(by_hand)), state)
            for run_, ordinal, task, name, module, intent, undo, by_hand, state in rows
        ]

    # ---- activations

    def record_activation(self, run: str, previous: int | None, active: int | None) -> None:
        self._database.execute(
            "INSERT INTO activation (run, previous, active, time) VALUES (?, ?, ?, ?)",
            (run, previous, active, time.time()),
        )

    def activations(self) -> list[Activation]:
        rows = self._database.execute("SELECT run, previous, active, time FROM activation ORDER BY ordinal")
        return [Activation(*row) for row in rows]


@contextmanager
def reading(path: Path, *, in_use: bool) -> Iterator[Journal]:
    """The journal opened so that nothing is written, not even SQLite's own files beside it.

    `in_use` says that a run holds the lock: then its files are shared with it. Otherwise a log that a killed
    run left behind is read from a copy, and a journal without one is opened as immutable.
    Raises StoreError when it is missing or damaged.
    """
    if not path.exists():
        raise StoreError(f"there is no journal at {path}", remedy="Run `crossgrade upgrade` first.")
    log = path.with_name(path.name + "-wal")
    with ExitStack() as stack:
        mode = "ro"
        if not in_use:
            mode = "ro&immutable=1"
            if log.exists() and log.stat().st_size:
                import shutil  # only after a kill
                import tempfile

                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="crossgrade-journal-")))
                for source in (path, log):
                    shutil.copy2(source, folder)
                path, mode = folder / path.name, "rw"
        try:
            database = sqlite3.connect(f"file:{path}?mode={mode}", uri=True, isolation_level=None)
            stack.callback(database.close)
            yield Journal(path, database)
        except sqlite3.DatabaseError as error:
            raise _damaged(path, error) from error


def open_journal(path: Path, *, create: bool = False) -> Journal:
    """The journal opened for writing; `create` makes it when it is not there. Raises StoreError."""
    if not create and not path.exists():
        raise StoreError(f"there is no journal at {path}", remedy="Run `crossgrade upgrade` first.")
    try:
        if create and not path.exists():
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
        database = sqlite3.connect(f"file:{path}?mode=rw", uri=True, isolation_level=None)
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=FULL")
        version = database.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            database.executescript("BEGIN;" + _SCHEMA + "COMMIT;")
        elif version != 1:
            raise StoreError(
                f"the journal {path} has version {version}, this crossgrade knows version 1",
                remedy="Use the crossgrade version that wrote it.",
            )
    except sqlite3.DatabaseError as error:
        raise _damaged(path, error) from error
    return Journal(path, database)


def _damaged(path: Path, error: Exception) -> StoreError:
    return StoreError(
        f"the journal {path} is damaged: {error}",
        remedy="The active link was left alone. Move the file away to begin a new journal; generations stay.",
    )


def predecessor_of(active: int, activations: Sequence[Activation]) -> int | None:
    """The generation that was active before this one came to be, or None: where `rollback` without `--to` goes.

    A rollback undoes an activation, so it takes that pair from the stack: after 1 → 2 → 3 and two
    rollbacks the answer for 1 is None, not 2.
    """
    stack: list[int] = []
    for turn in activations:
        if turn.active is None:
            stack.clear()
        elif turn.active in stack:
            del stack[stack.index(turn.active) + 1 :]
        else:
            stack.append(turn.active)
    if active not in stack:
        return None
    position = stack.index(active)
    return stack[position - 1] if position else None
