"""Ten upgrades at once, a holder that is dead or stopped, and who may work while a run is under way."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from tests.support.small_upgrade import SmallUpgrade, make_small_upgrade


@pytest.fixture
def upgrade(tmp_path: Path) -> SmallUpgrade:
    return make_small_upgrade(tmp_path / "server")


def start(upgrade: SmallUpgrade, command: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        upgrade.argv(command, *arguments),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@contextmanager
def under_way(upgrade: SmallUpgrade) -> Iterator[subprocess.Popen[str]]:
    """An upgrade that has begun and is stopped in its tracks: it goes on holding the lock."""
    with start(upgrade, "upgrade", "--json") as process:
        assert process.stdout is not None
        for line in process.stdout:
            if json.loads(line)["event"] == "task_started":
                break
        process.send_signal(signal.SIGSTOP)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGCONT)
            process.communicate(timeout=60)


def test_of_ten_one_runs_and_nine_name_it(upgrade: SmallUpgrade) -> None:
    upgrade.store.create()
    with under_way(upgrade) as holder:
        others = [start(upgrade, "upgrade") for _ in range(9)]
        for other in others:
            _, said = other.communicate(timeout=120)
            assert other.returncode == 75, said
            assert f"pid {holder.pid}" in said
            assert "`crossgrade upgrade`" in said
            started = re.search(r"started (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)", said)
            assert started is not None
            assert abs(time.mktime(time.strptime(started[1], "%Y-%m-%d %H:%M:%S")) - time.time()) < 300
    assert holder.returncode == 0
    assert upgrade.outcome() == "new"


def test_ten_that_start_together(upgrade: SmallUpgrade) -> None:
    """Nobody holds the lock beforehand: whoever gets it runs to its end, and no two run at the same time."""
    started = [start(upgrade, "upgrade") for _ in range(10)]
    for process in started:
        process.communicate(timeout=300)
    answers = [process.returncode for process in started]
    assert set(answers) <= {0, 75}
    assert answers.count(0) >= 1
    assert upgrade.outcome() == "new"
    history = json.loads(upgrade.run("history", "--json").stdout)
    runs = sorted((run["started"], run["ended"]) for run in history["runs"])
    assert len(runs) == answers.count(0)
    assert all(first[1] <= second[0] for first, second in pairwise(runs))


def test_a_dead_holder_is_taken_over_without_a_flag(upgrade: SmallUpgrade) -> None:
    answer = upgrade.run("upgrade", environment={"CROSSGRADE_KILL_AT": "effect:copy"})
    assert answer.code == -signal.SIGKILL
    assert b"crossgrade upgrade" in upgrade.store.lock_path.read_bytes(), "its record is still there"
    assert upgrade.status()["lock"] is None
    assert upgrade.run("upgrade").code == 0
    assert upgrade.outcome() == "new"


def test_who_changes_something_waits_and_who_looks_does_not(upgrade: SmallUpgrade) -> None:
    assert upgrade.run("upgrade").code == 0
    with under_way(upgrade) as holder:
        for command in ("rollback", "gc", "upgrade"):
            assert upgrade.run(command).code == 75, command
        for command in ("history", "verify", "plan"):
            assert upgrade.run(command).code == 0, command
        status = upgrade.status()
        assert status["lock"]["pid"] == holder.pid
        assert status["interrupted"] is None
    assert holder.returncode == 0
