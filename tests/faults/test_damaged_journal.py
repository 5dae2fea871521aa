"""A journal that was damaged behind our back: refused, explained, and left behind by the commands that are shown."""

from __future__ import annotations

import re
import signal
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest
from tests.support.commands import snapshot
from tests.support.privileges import needs_strace
from tests.support.small_upgrade import SmallUpgrade, make_small_upgrade
from tests.support.strace import injecting

from crossgrade.engine.journal import moved_away


@pytest.fixture
def interrupted(tmp_path: Path) -> SmallUpgrade:
    upgrade = make_small_upgrade(tmp_path / "server")
    answer = upgrade.run("upgrade", environment={"CROSSGRADE_KILL_AT": "intended:activate"})
    assert answer.code == -signal.SIGKILL
    return upgrade


def change(upgrade: SmallUpgrade, statement: str) -> None:
    with closing(sqlite3.connect(upgrade.store.journal_path)) as database, database:
        database.execute(statement)


def move_away(upgrade: SmallUpgrade, said: str) -> None:
    """Do what the message says, word for word."""
    found = re.search(r"^ +(mkdir .* && mv .*)$", said, re.MULTILINE)
    assert found is not None, said
    subprocess.run(["sh", "-c", found[1]], check=True)
    assert not upgrade.store.journal_path.exists()


def test_it_is_explained_and_nothing_is_touched(interrupted: SmallUpgrade) -> None:
    change(interrupted, "UPDATE step SET undo = '{}' WHERE ordinal = 4")
    before = snapshot(interrupted.root)
    for command in ("upgrade", "rollback"):
        answer = interrupted.run(command)
        assert answer.code == 1, answer.stderr
        assert "Traceback" not in answer.stderr
        assert "does not fit its checksum" in answer.stderr
        assert "on the disk: generation 1 is active" in answer.stderr
        assert "on the disk: generation 2 is ready" in answer.stderr
        assert "activate generation 2: was begun and is not recorded as done" in answer.stderr
    status = interrupted.run("status")
    assert status.code == 1
    assert "does not fit its checksum" in status.stdout
    assert "generation 1" in status.stdout
    after = snapshot(interrupted.root)
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    assert changed <= {"store", "store/lock", "store/journal.db", "store/journal.db-wal", "store/journal.db-shm"}
    assert interrupted.outcome() == "old"


@pytest.mark.parametrize("command", ["rollback --to 2", "upgrade"])
def test_the_way_out_that_is_shown_works(interrupted: SmallUpgrade, command: str) -> None:
    for path in interrupted.store.root.glob("journal.db-*"):
        path.unlink()  # SQLite would mend the page from its log
    interrupted.store.journal_path.write_bytes(b"\0" * 4096)
    refused = interrupted.run("upgrade")
    assert refused.code == 1
    move_away(interrupted, refused.stderr)
    answer = interrupted.run(*command.split())
    assert answer.code == 0, answer.stderr
    assert interrupted.outcome() == "new"
    assert interrupted.version() == "2.0"
    back = interrupted.run("rollback", "--to", "1")
    assert back.code == 0, back.stderr
    assert interrupted.outcome() == "old"


def test_an_adoption_whose_journal_is_lost_is_recorded_anew(tmp_path: Path) -> None:
    upgrade = make_small_upgrade(tmp_path / "server")
    answer = upgrade.run("upgrade", environment={"CROSSGRADE_KILL_AT": "effect:venv_backup"})
    assert answer.code == -signal.SIGKILL
    record = upgrade.store.generation(1)
    upgrade.store.write_generation(record.with_state("building", manifest=""))  # killed a moment earlier
    move_away(upgrade, moved_away(upgrade.store.journal_path))
    answer = upgrade.run("upgrade")
    assert answer.code == 0, answer.stderr
    assert "record every file of generation 1" in answer.stdout
    assert upgrade.outcome() == "new"
    assert upgrade.run("rollback", "--to", "1").code == 0
    assert upgrade.outcome() == "old"


@needs_strace
def test_a_full_machine_is_not_called_damage(interrupted: SmallUpgrade) -> None:
    argv = [*injecting("pwrite64:error=ENOSPC:when=1+"), *interrupted.argv("rollback")]
    completed = subprocess.run(argv, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert completed.returncode != 0
    assert "damaged" not in completed.stderr
    assert "Traceback" not in completed.stderr
    assert "cannot be used" in completed.stderr
    assert interrupted.outcome() == "old"
    assert interrupted.run("rollback").code == 0
