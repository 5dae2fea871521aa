"""SIGKILL to the whole process group at every point of a run and of its recovery.

The points are not listed here: a run that is not killed writes down those that it passes, and every change of the
plan must be among them. So a step that is added to a module, or a module to a playbook, is covered by itself.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support.commands import Answer
from tests.support.interruptions import each, nothing_left, recovered, whole
from tests.support.small_upgrade import SmallUpgrade, make_small_upgrade
from tests.support.tally import Tally

STEP_KINDS = ("intended", "effect", "done")


@dataclass(frozen=True)
class Interruption:
    """Die at `first`; then let `recovery` run, and let it die at `second` once, when that is given."""

    first: str
    recovery: str
    second: str = ""

    def __str__(self) -> str:
        return f"{self.first}, then {self.recovery}" + (f" killed at {self.second}" if self.second else "")


def points(upgrade: SmallUpgrade, command: str) -> tuple[int, list[str]]:
    """The exit code, and the points that a command passes when nothing kills it, in their order."""
    log = upgrade.folder / "points"
    answer = upgrade.run(command, environment={"CROSSGRADE_KILL_LOG": str(log)})
    return answer.code, log.read_text().splitlines() if log.exists() else []


def killed(upgrade: SmallUpgrade, command: str, point: str) -> Answer:
    answer = upgrade.run(command, environment={"CROSSGRADE_KILL_AT": point})
    assert answer.code == -signal.SIGKILL, f"{command} was not killed at {point}: {answer.code} {answer.stderr}"
    nothing_left(upgrade)
    return answer


def interrupt(folder: Path, interruption: Interruption, tally: Tally) -> None:
    upgrade = make_small_upgrade(folder)
    outcome = "lost"
    try:
        killed(upgrade, "upgrade", interruption.first)
        outcome = whole(upgrade)
        if interruption.second:
            tally.add("kill", outcome)  # type: ignore[arg-type]  # old or new
            outcome = "lost"
            killed(upgrade, interruption.recovery, interruption.second)
            outcome = whole(upgrade)
        recovered(upgrade, interruption.recovery)
    finally:
        kind = "kill during recovery" if interruption.second else "kill"
        tally.add(kind, outcome)  # type: ignore[arg-type]  # old, new or lost
    shutil.rmtree(folder)


def carry_out(folder: Path, interruptions: Iterable[Interruption], tally: Tally) -> None:
    each(folder, interruptions, lambda place, interruption: interrupt(place, interruption, tally))


def first_points(folder: Path) -> list[str]:
    """Every point of an upgrade; among them are three for each change of its plan."""
    upgrade = make_small_upgrade(folder)
    plan = upgrade.run("plan", "--json").of_kind("plan")[-1]["plan"]
    changes = [task["task"] for task in plan["tasks"] if task["action"] == "change"]
    assert len(changes) >= 8
    code, passed = points(upgrade, "upgrade")
    assert code == 0
    assert {f"{kind}:{task}#1" for task in changes for kind in STEP_KINDS} <= set(passed)
    assert whole(upgrade) == "new"
    shutil.rmtree(folder)
    return passed


def second_points(folder: Path, first: str, recovery: str) -> list[str]:
    """The points of a recovery from a kill at `first`; of an upgrade, only those before it goes on."""
    upgrade = make_small_upgrade(folder)
    killed(upgrade, "upgrade", first)
    passed = points(upgrade, recovery)[1]  # a rollback of a run that had not begun finds nothing: exit code 1
    if recovery == "upgrade" and "begun#1" in passed:
        passed = passed[: passed.index("begun#1")]
    shutil.rmtree(folder)
    return passed


def test_some_points_and_the_recovery_from_each(tmp_path: Path, tally: Tally) -> None:
    passed = first_points(tmp_path / "points")
    plan_order = [point for point in passed if point.startswith(STEP_KINDS)]
    # around the adoption and the activation, and one in between of each kind
    chosen = [*plan_order[:3], *plan_order[-3:], plan_order[10], plan_order[-4], passed[-2]]
    interruptions = [Interruption(point, ("rollback", "upgrade")[number % 2]) for number, point in enumerate(chosen)]
    interruptions.append(Interruption(plan_order[-2], "rollback", "reversed:activate#1"))
    interruptions.append(Interruption(plan_order[-2], "upgrade", "completed:activate#1"))
    interruptions.append(Interruption(plan_order[-5], "rollback", "undoing:python_env#1"))
    carry_out(tmp_path, interruptions, tally)


@pytest.mark.faults
@pytest.mark.timeout(3600)
def test_every_point_and_both_recoveries(tmp_path: Path, tally: Tally) -> None:
    passed = first_points(tmp_path / "points")
    carry_out(tmp_path, [Interruption(point, way) for point in passed[:-1] for way in ("rollback", "upgrade")], tally)


@pytest.mark.faults
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("recovery", ["rollback", "upgrade"])
def test_every_point_of_the_recovery_from_every_point(tmp_path: Path, tally: Tally, recovery: str) -> None:
    first = first_points(tmp_path / "points")[:-1]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = pool.map(lambda n: second_points(tmp_path / f"second{n}", first[n], recovery), range(len(first)))
        interruptions = [
            Interruption(point, recovery, second)
            for point, seconds in zip(first, found, strict=True)
            for second in seconds
        ]
    assert len(interruptions) > 50
    carry_out(tmp_path, interruptions, tally)


def killed_after(folder: Path, interruption: Interruption, tally: Tally) -> None:
    """Kill the whole group so many seconds after the start, wherever it is then."""
    upgrade = make_small_upgrade(folder)
    outcome = "lost"
    process = subprocess.Popen(
        upgrade.argv("upgrade"), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    try:
        process.wait(float(interruption.first))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    try:
        nothing_left(upgrade)
        outcome = whole(upgrade)
        recovered(upgrade, interruption.recovery)
    finally:
        if process.returncode == -signal.SIGKILL:
            tally.add("kill at any moment", outcome)  # type: ignore[arg-type]  # old, new or lost
    shutil.rmtree(folder)


@pytest.mark.faults
@pytest.mark.timeout(3600)
def test_any_moment(tmp_path: Path, tally: Tally) -> None:
    dice = random.Random(3)  # noqa: S311 - the same moments in every run of the tests
    moments = [f"{dice.uniform(0.3, 2.0):.3f}" for _ in range(100)]
    interruptions = [Interruption(moment, ("rollback", "upgrade")[number % 2]) for number, moment in enumerate(moments)]
    each(tmp_path, interruptions, lambda place, interruption: killed_after(place, interruption, tally))
