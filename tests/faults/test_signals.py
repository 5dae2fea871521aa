"""SIGINT, SIGTERM and SIGHUP in each phase: rolled back, exit code 99, and no second signal breaks the rollback.

The phases are the tasks of the plan, whatever they are, and the times before the first and after the last of them.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.support.commands import snapshot
from tests.support.small_upgrade import SmallUpgrade, make_small_upgrade
from tests.support.tally import Tally

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def stopped(
    upgrade: SmallUpgrade, number: signal.Signals, task: str, *, again: int = 0, group: bool = False
) -> tuple[int, list[dict[str, Any]]]:
    """Send the signal when this task begins, and `again` as often while the rollback runs. Exit code and events."""
    events = []
    with subprocess.Popen(
        upgrade.argv("upgrade", "--json"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            events.append(json.loads(line))
            if events[-1]["event"] == "task_started" and events[-1]["task"] == task:
                os.killpg(process.pid, number) if group else process.send_signal(number)
                for _ in range(again):
                    time.sleep(0.02)
                    process.send_signal(number)
        code = process.wait(60)
    return code, events


def tasks(folder: Path) -> list[str]:
    upgrade = make_small_upgrade(folder)
    plan = upgrade.run("plan", "--json").of_kind("plan")[-1]["plan"]
    shutil.rmtree(folder)
    found = [task["task"] for task in plan["tasks"]]
    assert len(found) >= 10
    return found


def rolled_back(folder: Path, number: signal.Signals, task: str, tally: Tally, **how: Any) -> None:
    upgrade = make_small_upgrade(folder)
    files = snapshot(upgrade.root / "files")
    code, events = stopped(upgrade, number, task, **how)
    outcome = upgrade.outcome()
    assert code == 99, (code, events[-3:])
    assert events[-1]["reason"] == f"stopped by {number.name}"
    assert outcome == "old"
    assert upgrade.version() == "1.0"
    assert snapshot(upgrade.root / "files") == files
    assert upgrade.status()["interrupted"] is None
    assert not upgrade.left_over()
    tally.add(number.name, "old")
    shutil.rmtree(folder)


def test_one_of_each(tmp_path: Path, tally: Tally) -> None:
    found = tasks(tmp_path / "plan")
    for number, task in zip(SIGNALS, (found[6], found[3], found[-2]), strict=True):
        rolled_back(tmp_path / number.name, number, task, tally)


def test_more_signals_do_not_break_the_rollback(tmp_path: Path, tally: Tally) -> None:
    found = tasks(tmp_path / "plan")
    rolled_back(tmp_path / "again", signal.SIGINT, found[6], tally, again=10)


def test_the_terminal_reaches_the_whole_group(tmp_path: Path, tally: Tally) -> None:
    found = tasks(tmp_path / "plan")
    rolled_back(tmp_path / "group", signal.SIGINT, found[6], tally, group=True)


@pytest.mark.faults
@pytest.mark.timeout(1800)
def test_every_phase(tmp_path: Path, tally: Tally) -> None:
    found = tasks(tmp_path / "plan")
    cases = [(number, task) for number in SIGNALS for task in found]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = [
            pool.submit(rolled_back, tmp_path / f"{number.name}-{place}", number, task, tally)
            for place, (number, task) in enumerate(cases)
        ]
        for job in jobs:
            job.result()


@pytest.mark.faults
@pytest.mark.timeout(1800)
def test_any_moment(tmp_path: Path, tally: Tally) -> None:
    """Also before the first task and after the last: the exit code is 99, or 0 when all was done already."""

    def one(number: int) -> None:
        upgrade = make_small_upgrade(tmp_path / str(number))
        chosen = SIGNALS[number % 3]
        with subprocess.Popen(
            upgrade.argv("upgrade"), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            text=True, start_new_session=True,
        ) as process:  # fmt: skip
            time.sleep(0.3 + number * 0.05)
            process.send_signal(chosen)
            _, said = process.communicate(timeout=60)
        outcome = upgrade.outcome()
        assert "Traceback" not in said or process.returncode < 0, said
        assert (process.returncode, outcome) in ((99, "old"), (0, "new"), (-chosen, "old")), (process.returncode, said)
        assert upgrade.status()["interrupted"] is None
        tally.add(chosen.name, "old" if outcome == "old" else "new")
        shutil.rmtree(tmp_path / str(number))

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(one, range(45)))


def test_what_a_rollback_restarts_can_be_stopped(tmp_path: Path) -> None:
    """The restarted service inherits no ignored signals from the rollback that started it."""
    upgrade = make_small_upgrade(tmp_path / "server")
    told = tmp_path / "status"
    show = f"import pathlib; pathlib.Path({str(told)!r}).write_text(pathlib.Path('/proc/self/status').read_text())"
    words = f"restart: [{sys.executable}, -c, {json.dumps(show)}]"
    text = upgrade.playbook.read_text().replace("activate: {", f"activate: {{{words}, ")
    upgrade.playbook.write_text(text)
    assert upgrade.run("upgrade").code == 0
    told.unlink()
    assert upgrade.run("rollback").code == 0
    lines = dict(line.split(":", 1) for line in told.read_text().splitlines() if ":" in line)
    for name in ("SigIgn", "SigBlk"):
        mask = int(lines[name], 16)
        assert not [number.name for number in SIGNALS if mask & 1 << (number - 1)], name
