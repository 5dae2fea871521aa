"""The journal: committed means durable, reading writes nothing, damage is recognised."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from crossgrade.engine.journal import Journal, JournalDamagedError, open_journal, reading
from crossgrade.engine.records import Activation, predecessor_of
from crossgrade.errors import StoreError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


def begun(path: Path) -> Journal:
    journal = open_journal(path, create=True)
    journal.begin_run("r1", "upgrade", {"playbook": "p.yml"})
    return journal


def test_a_run_and_its_steps_come_back_as_they_were(path: Path) -> None:
    journal = begun(path)
    first = journal.intend("r1", "play0/tasks/0", "copy it", "copy", "write /x", {"path": "/x"}, ["rm /x"])
    second = journal.intend("r1", "play0/tasks/1", "link it", "file", "link /y", {}, [])
    journal.complete("r1", first, "copy")
    journal.close()
    journal = open_journal(path)
    steps = journal.steps("r1")
    assert [(step.ordinal, step.state) for step in steps] == [(first, "done"), (second, "intended")]
    assert steps[0].undo == {"path": "/x"}
    assert steps[0].by_hand == ("rm /x",)
    unfinished = journal.unfinished()
    assert unfinished is not None
    assert unfinished.request == {"playbook": "p.yml"}
    journal.end_run("r1", "done", 0, "fine")
    assert journal.unfinished() is None
    journal.close()
    assert path.stat().st_mode & 0o777 == 0o600


def test_reading_after_a_kill_changes_no_file(path: Path) -> None:
    script = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom crossgrade.engine.journal import open_journal\n"
        "journal = open_journal(Path(sys.argv[1]), create=True)\njournal.begin_run('r1', 'upgrade', {})\n"
        "journal.intend('r1', 't', 'n', 'copy', 'write', {}, [])\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run([sys.executable, "-c", script, str(path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    before = {entry.name: (entry.stat().st_mtime_ns, entry.read_bytes()) for entry in path.parent.iterdir()}
    assert len(before) > 1, "the log of the killed process should lie beside the journal"
    with reading(path, in_use=False) as journal:
        unfinished = journal.unfinished()
        assert unfinished is not None
        assert [step.state for step in journal.steps(unfinished.id)] == ["intended"]
    assert {entry.name: (entry.stat().st_mtime_ns, entry.read_bytes()) for entry in path.parent.iterdir()} == before


@pytest.mark.parametrize("point", ["intended:copy", "effect:copy", "done:copy"])
def test_the_points_to_die_at_are_where_they_say(path: Path, point: str) -> None:
    script = (
        "import sys\nfrom pathlib import Path\nfrom crossgrade.engine.journal import open_journal\n"
        "journal = open_journal(Path(sys.argv[1]), create=True)\njournal.begin_run('r1', 'upgrade', {})\n"
        "step = journal.intend('r1', 't', 'n', 'copy', 'write', {}, [])\nprint('effect', flush=True)\n"
        "journal.complete('r1', step, 'copy')\n"
    )
    killed = subprocess.run(
        [sys.executable, "-c", script, str(path)],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "CROSSGRADE_KILL_AT": point},
        start_new_session=True,
    )
    assert killed.returncode == -signal.SIGKILL
    assert killed.stdout == ("" if point == "intended:copy" else "effect\n")
    with reading(path, in_use=False) as journal:
        assert [step.state for step in journal.steps("r1")] == ["done" if point == "done:copy" else "intended"]


@pytest.mark.parametrize("data", [b"", b"not a database at all, but long enough to be read as one" * 40])
def test_a_damaged_journal_is_named(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    with pytest.raises(JournalDamagedError, match=r"journal\.db"), reading(path, in_use=False) as journal:
        journal.runs()
    with pytest.raises(JournalDamagedError, match=r"journal\.db"):
        open_journal(path, create=True)
    assert path.read_bytes() == data


def filled(path: Path) -> Journal:
    journal = begun(path)
    for number in range(1, 6):
        step = journal.intend("r1", f"play0/tasks/{number}", "write", "copy", "write", {"n": number}, ["rm x"])
        journal.complete("r1", step, "copy")
    journal.record_activation("r1", None, 1)
    journal.record_activation("r1", 1, 2)
    return journal


def everything(journal: Journal) -> list[object]:
    return [journal.runs(), journal.steps("r1"), journal.activations()]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE step SET state = 'undone' WHERE ordinal = 3",
        "UPDATE step SET undo = '{\"n\": 4}' WHERE ordinal = 3",
        "UPDATE step SET checksum = (SELECT checksum FROM step WHERE ordinal = 2) WHERE ordinal = 3",
        "DELETE FROM step WHERE ordinal = 3",
        "DELETE FROM activation WHERE ordinal = 1",
        "UPDATE activation SET active = 1 WHERE ordinal = 2",
        "UPDATE run SET state = 'done'",
        "DROP TABLE activation",
    ],
)
def test_a_record_that_something_else_wrote_is_recognised(path: Path, statement: str) -> None:
    filled(path).close()
    with sqlite3.connect(path) as database:
        database.execute(statement)
    database.close()
    with pytest.raises(JournalDamagedError, match=r"journal\.db"), reading(path, in_use=False) as journal:
        everything(journal)


def test_flipped_bytes_are_recognised_or_harmless(path: Path) -> None:
    journal = filled(path)
    expected = everything(journal)
    journal.close()
    sound = path.read_bytes()
    noticed = 0
    for position in range(0, len(sound), 61):
        path.write_bytes(sound[:position] + bytes([sound[position] ^ 0xFF]) + sound[position + 1 :])
        try:
            with reading(path, in_use=False) as journal:
                assert everything(journal) == expected, position
        except StoreError:  # a later version is what a flipped version number looks like
            noticed += 1
    assert noticed > 20, "most of an SQLite file of this size is free space, but not all of it"


def test_a_torn_log_loses_at_most_what_was_not_committed(path: Path) -> None:
    journal = filled(path)
    expected = journal.steps("r1")
    log = path.with_name(path.name + "-wal").read_bytes()
    data = path.read_bytes()
    journal.close()
    for length in range(0, len(log), 1013):
        path.write_bytes(data)
        path.with_name(path.name + "-wal").write_bytes(log[:length])
        with reading(path, in_use=False) as torn:
            steps = torn.steps("r1")
            assert [step.ordinal for step in steps] == [step.ordinal for step in expected[: len(steps)]]


def test_a_journal_of_version_1_gets_its_checksums(path: Path) -> None:
    filled(path).close()
    with sqlite3.connect(path) as database:
        for table in ("run", "step", "activation"):
            database.execute(f"ALTER TABLE {table} DROP COLUMN checksum")
        database.execute("PRAGMA user_version = 1")
    database.close()
    with reading(path, in_use=False) as journal:
        expected = everything(journal)
    journal = open_journal(path)
    assert everything(journal) == expected
    journal.mark_undone("r1", 2)
    assert journal.steps("r1")[1].state == "undone"
    journal.close()


def test_a_turn_that_is_on_record_is_not_recorded_twice(path: Path) -> None:
    journal = filled(path)
    journal.record_activation("r1", 1, 2)
    assert [turn.active for turn in journal.activations()] == [1, 2]
    journal.close()


def test_a_journal_that_is_not_there(path: Path) -> None:
    with pytest.raises(StoreError, match="no journal"):
        open_journal(path)
    with pytest.raises(StoreError, match="no journal"), reading(path, in_use=False):
        pass
    assert not path.exists()


@pytest.mark.parametrize(
    ("turns", "active", "expected"),
    [
        ([(None, 1)], 1, None),
        ([(None, 1), (1, 2)], 2, 1),
        ([(None, 1), (1, 2), (2, 1)], 1, None),
        ([(None, 1), (1, 2), (2, 3)], 3, 2),
        ([(None, 1), (1, 2), (2, 3), (3, 2)], 2, 1),
        ([(None, 1), (1, 2), (2, 3), (3, 2), (2, 1)], 1, None),
        ([(None, 1), (1, 2), (2, 1), (1, 2)], 2, 1),
        ([(None, 1), (1, None), (None, 1)], 1, None),
        ([], 4, None),
    ],
)
def test_where_rollback_goes(turns: list[tuple[int | None, int | None]], active: int, expected: int | None) -> None:
    activations = [Activation("r", previous, now, float(n)) for n, (previous, now) in enumerate(turns)]
    assert predecessor_of(active, activations) == expected
