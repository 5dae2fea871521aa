"""SIGKILL while a run builds, installs, benchmarks, adopts and activates: the environment is whole each time.

The tests run in order on one root, each from where the one before left it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.commands import PROGRAM, REHEARSAL, Answer, crossgrade, processes_below

from crossgrade.store.layout import Store
from crossgrade.store.manifest import build_manifest, compare, read_manifest

BUILD = "Native code rebuilt for SM120 by nvcc 13"
INSTALL = "The candidate environment"
BENCHMARK = "Gate: no slower than the working environment"
# The benchmark passes after few pairs, however busy the machine is.
WIDE = ("-e", "allowed_loss=0.5", "-e", "benchmark_requests=12")
Event = dict[str, Any]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("killed") / "root"


def run(command: str, root: Path, *arguments: str, kill_at: str = "") -> Answer:
    environment = {"CROSSGRADE_KILL_AT": kill_at} if kill_at else {}
    wide = WIDE if command == "upgrade" else ()
    return crossgrade(command, "--playbook", REHEARSAL, "--root", root, *wide, *arguments, environment=environment)


def status(root: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run("status", root, "--json").stdout)
    return found


def starts(name: str) -> Callable[[Event], bool]:
    """The task with this name begins."""
    return lambda event: event["event"] == "task_started" and event["name"] == name


def first_progress_of(name: str) -> Callable[[Event], bool]:
    """The task with this name tells for the first time what it is doing."""
    begun: list[str] = []

    def condition(event: Event) -> bool:
        if event["event"] == "task_started" and event["name"] == name:
            begun.append(event["task"])
        return event["event"] == "task_progress" and event["task"] in begun

    return condition


def killed_when(root: Path, condition: Callable[[Event], bool], *arguments: str, delay: float = 0.0) -> None:
    """Start an upgrade and kill it, and only it, when an event fits; all that it started must be gone soon after."""
    argv = [str(PROGRAM), "upgrade", "--playbook", str(REHEARSAL), "--root", str(root), "--json", *WIDE, *arguments]
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if condition(json.loads(line)):
                time.sleep(delay)
                break
        process.send_signal(signal.SIGKILL)
        process.stdout.read()
    assert process.returncode == -signal.SIGKILL, "the run had ended before it was killed"
    nothing_left(root)


def nothing_left(root: Path) -> None:
    deadline = time.monotonic() + 60
    while left := processes_below(root):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def killed_at(root: Path, point: str, *arguments: str) -> None:
    answer = run("upgrade", root, *arguments, kill_at=point)
    assert answer.code == -signal.SIGKILL, answer.stderr
    nothing_left(root)
    interrupted = status(root)["interrupted"]
    assert interrupted is not None
    assert interrupted["done" if point.startswith("done") else "unfinished"]


def whole(root: Path, active: int) -> None:
    """The active generation is this one, byte for byte, and runs."""
    store = Store(root / "store")
    assert store.active() == active
    manifest = read_manifest(store.manifest_path(active))
    assert compare(manifest, store.venv(active), full=True).identical
    runs(root)


def runs(root: Path) -> None:
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run([root / "ml-env" / "bin" / "python", "-c", "import rehearsal_engine"], check=True, env=environment)


def test_1_killed_while_it_adopts(root: Path) -> None:
    killed_at(root, "intended:venv_backup")
    assert not (root / "ml-env").is_symlink()
    working = build_manifest(root / "ml-env").digest
    runs(root)
    killed_at(root, "effect:venv_backup")  # goes on from there, with the environment that is there
    whole(root, 1)
    # a backup that is complete is the way back: it stays, whatever happens to the run that made it
    assert run("rollback", root).code == 0
    whole(root, 1)
    assert build_manifest(Store(root / "store").venv(1)).digest == working


def test_2_killed_while_it_builds(root: Path) -> None:
    killed_when(root, starts(BUILD), delay=1.0)
    whole(root, 1)
    found = status(root)
    assert found["interrupted"]["command"] == "upgrade"
    assert found["lock"] is None
    assert run("rollback", root).code == 0
    assert status(root)["interrupted"] is None
    assert list((root / "store" / "tmp").iterdir()) == []
    whole(root, 1)


def test_3_killed_while_it_installs(root: Path) -> None:
    killed_when(root, first_progress_of(INSTALL), delay=0.3)
    whole(root, 1)
    states = {generation["number"]: generation["state"] for generation in status(root)["generations"]}
    assert "building" in states.values() or list(states) == [1]


def test_4_killed_while_it_benchmarks_in_the_resumed_run(root: Path) -> None:
    killed_when(root, starts(BENCHMARK), "--resume", delay=2.0)
    whole(root, 1)


def test_5_killed_before_and_after_the_link_turns(root: Path) -> None:
    killed_at(root, "intended:activate", "--resume")
    whole(root, 1)
    killed_at(root, "effect:activate", "--resume")
    whole(root, status(root)["active"])
    assert status(root)["active"] != 1
    assert run("rollback", root).code == 0
    whole(root, 1)
    again = run("rollback", root)
    assert again.code == 1, "a second recovery has nothing to do"
    whole(root, 1)


def test_6_killed_when_all_is_done_but_the_end(root: Path) -> None:
    killed_at(root, "done:activate")
    candidate = status(root)["active"]
    assert candidate != 1
    resumed = run("upgrade", root, "--resume", "--json")
    assert resumed.code == 0, resumed.stderr
    assert resumed.recap["changed"] == 0
    whole(root, candidate)
    assert run("upgrade", root, "--resume").code == 1, "there is nothing left to resume"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_7_a_signal_rolls_back_and_exits_99(root: Path, number: signal.Signals) -> None:
    if status(root)["active"] != 1:
        assert run("rollback", root).code == 0
    run("gc", root, "--keep", "0")
    argv = [str(PROGRAM), "upgrade", "--playbook", str(REHEARSAL), "--root", str(root), "--json", *WIDE]
    with subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            event = json.loads(line)
            if event["event"] == "task_started" and event["name"] == INSTALL:
                break
        process.send_signal(number)
        rest, errors = process.communicate(timeout=60)
    assert process.returncode == 99, errors
    assert json.loads(rest.splitlines()[-1])["reason"] == f"stopped by {number.name}"
    assert status(root)["interrupted"] is None
    nothing_left(root)
    whole(root, 1)
    if number == signal.SIGINT:
        assert run("upgrade", root).code == 0


def test_8_a_second_run_is_refused_and_names_the_first(root: Path) -> None:
    argv = [str(PROGRAM), "upgrade", "--playbook", str(REHEARSAL), "--root", str(root), "--json", *WIDE]
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        refused = run("upgrade", root)
        assert refused.code == 75
        assert f"pid {process.pid}" in refused.stderr
        assert status(root)["lock"]["pid"] == process.pid
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 99
