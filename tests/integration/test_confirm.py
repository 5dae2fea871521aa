"""The dead-man switch: without a confirmation the host goes back by itself, whoever has died meanwhile."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.support.small_upgrade import SmallUpgrade, make_small_upgrade

from crossgrade.store.confirmation import Confirmation, Instant, anchored, is_due, read_confirmation, seconds_left
from crossgrade.store.systemd_units import service_text, timer_text


def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def gone_back(upgrade: SmallUpgrade) -> Callable[[], bool]:
    return lambda: upgrade.store.active() == 1 and read_confirmation(upgrade.store) is None


def confirmation(upgrade: SmallUpgrade) -> dict[str, Any]:
    found: dict[str, Any] = upgrade.status()["confirmation"]
    return found


def stop_watcher(upgrade: SmallUpgrade) -> None:
    found = confirmation(upgrade)
    if found and found["watcher"]:
        os.kill(found["watcher"], signal.SIGKILL)


@pytest.fixture
def upgrade(tmp_path: Path) -> Iterator[SmallUpgrade]:
    made = make_small_upgrade(tmp_path / "server")
    yield made
    if made.store.exists:
        stop_watcher(made)
    until(lambda: not made.left_over())


def test_confirmed_in_time(upgrade: SmallUpgrade) -> None:
    answer = upgrade.run("upgrade", "--confirm-within", "300")
    assert answer.code == 0, answer.stderr
    assert "it goes back unless confirmed within 300 s" in answer.stdout
    assert re.search(r"confirm within (300|299) s: `?crossgrade confirm --root", answer.stdout)
    assert "watched by a process of its own (systemd does not run here)" in answer.stdout
    assert "not a reboot" in answer.stdout
    status = upgrade.run("status")
    assert "confirm within" in status.stdout
    assert "otherwise generation 1 is active again at" in status.stdout
    waiting = confirmation(upgrade)
    assert waiting["watched_by"] == "process"
    assert 200 < waiting["seconds_left"] <= 300
    refused = upgrade.run("upgrade")
    assert refused.code == 1
    assert "waits to be confirmed" in refused.stderr
    assert upgrade.run("gc", "--keep", "0").code == 0
    assert upgrade.run("confirm").code == 0
    until(lambda: not upgrade.left_over())
    assert upgrade.outcome() == "new"
    assert confirmation(upgrade) is None
    again = upgrade.run("confirm")
    assert again.code == 1
    assert "nothing to confirm" in again.stderr
    assert upgrade.run("upgrade").code == 0


def test_not_confirmed(upgrade: SmallUpgrade) -> None:
    answer = upgrade.run("upgrade", "--confirm-within", "2")
    assert answer.code == 0, answer.stderr
    assert upgrade.outcome() == "new"
    until(gone_back(upgrade))
    until(lambda: not upgrade.left_over())
    assert upgrade.outcome() == "old"
    assert upgrade.version() == "1.0"
    late = upgrade.run("confirm")
    assert late.code == 1
    assert "too late: the host went back at" in late.stderr
    assert "not confirmed in time: generation 2 -> 1" in upgrade.run("history").stdout
    assert upgrade.run("upgrade").code == 0, "what was built is used again"
    assert upgrade.outcome() == "new"


@pytest.mark.parametrize("point", ["effect:activate", "done:activate", "ending"])
def test_the_controller_is_killed_after_the_activation(upgrade: SmallUpgrade, point: str) -> None:
    killed = upgrade.run("upgrade", "--confirm-within", "2", environment={"CROSSGRADE_KILL_AT": point})
    assert killed.code == -signal.SIGKILL
    assert upgrade.outcome() == "new"
    until(gone_back(upgrade))
    until(lambda: not upgrade.left_over())
    assert upgrade.outcome() == "old"
    assert (upgrade.root / "files" / "settings").read_text() == "port = 1\n", "the whole run was taken back"
    assert upgrade.status()["interrupted"] is None


def test_killed_before_the_link_turns_leaves_a_harmless_watcher(upgrade: SmallUpgrade) -> None:
    killed = upgrade.run("upgrade", "--confirm-within", "2", environment={"CROSSGRADE_KILL_AT": "intended:activate"})
    assert killed.code == -signal.SIGKILL
    assert upgrade.outcome() == "old"
    time.sleep(3)
    until(lambda: not upgrade.left_over())
    assert upgrade.outcome() == "old"
    assert upgrade.run("upgrade").code == 0
    assert confirmation(upgrade) is None


@pytest.mark.parametrize("command", ["rollback", "upgrade", "confirm"])
def test_the_watcher_is_killed_too(upgrade: SmallUpgrade, command: str) -> None:
    assert upgrade.run("upgrade", "--confirm-within", "300").code == 0
    upgrade.let_the_confirmation_lapse()
    assert upgrade.store.active() == 2
    assert "not confirmed in time" in upgrade.run("status").stdout
    answer = upgrade.run(command)
    assert answer.code == (1 if command == "confirm" else 0), answer.stderr
    assert "not confirmed in time" in answer.stdout + answer.stderr
    assert upgrade.outcome() == ("new" if command == "upgrade" else "old")
    assert confirmation(upgrade) is None


def test_confirmations_and_the_return_race(upgrade: SmallUpgrade) -> None:
    """Whoever comes first decides, and all others are told so."""
    seen = set()
    for within, early in ((60, 60.0), (3, 0.9), (3, 0.6), (3, 0.3), (3, 0.0)):
        assert upgrade.run("upgrade", "--confirm-within", str(within)).code == 0
        record = read_confirmation(upgrade.store)
        assert record is not None
        time.sleep(max(0.0, seconds_left(record, Instant.now()) - early))
        argv = upgrade.argv("confirm")
        both = [subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
        words = [process.communicate(timeout=60) for process in both]
        codes = sorted(process.returncode for process in both)
        until(lambda: not upgrade.left_over())
        assert read_confirmation(upgrade.store) is None
        if upgrade.store.active() == 2:
            assert codes == [0, 1], words  # one confirmed; for the other there was nothing left to confirm
            assert upgrade.run("rollback").code == 0
            seen.add("confirmed")
        else:
            assert codes == [1, 1], words
            assert all("too late" in errors for _, errors in words), words
            seen.add("gone back")
        assert upgrade.outcome() == "old"
    assert seen == {"confirmed", "gone back"}


def test_a_rollback_by_hand_ends_the_waiting(upgrade: SmallUpgrade) -> None:
    assert upgrade.run("upgrade", "--confirm-within", "300").code == 0
    assert upgrade.run("rollback").code == 0
    until(lambda: not upgrade.left_over())
    assert confirmation(upgrade) is None
    assert upgrade.outcome() == "old"


def test_a_run_that_fails_leaves_no_watcher(upgrade: SmallUpgrade) -> None:
    text = upgrade.playbook.read_text()
    upgrade.playbook.write_text(
        text + "    - name: Too bad\n      fail: {msg: no}\n      when: candidate.generation == 2\n"
    )
    answer = upgrade.run("upgrade", "--confirm-within", "300")
    assert answer.code in (1, 2)
    until(lambda: not upgrade.left_over())
    assert upgrade.outcome() == "old"


def test_nothing_to_activate(upgrade: SmallUpgrade) -> None:
    assert upgrade.run("upgrade").code == 0
    answer = upgrade.run("upgrade", "--confirm-within", "5")
    assert answer.code == 0
    assert "this run activated nothing" in answer.stdout
    assert upgrade.run("upgrade", "--confirm-within", "0").code == 5
    assert upgrade.run("upgrade", "--confirm-within", "soon").code == 5


# ---- the service


SUPERVISOR = """
import os, subprocess, sys, time
env, port, kind = sys.argv[1:]
while True:
    version = subprocess.run([f"{env}/bin/python", "-c", "import small_engine as e; print(e.VERSION)"],
                             capture_output=True, text=True).stdout.strip()
    server = subprocess.Popen([f"{env}/bin/python", "-m", "small_engine.server", port])
    if version == "2.0" and kind == "crashes":
        time.sleep(0.7)
        server.kill()
    if version == "2.0" and kind == "dies":
        time.sleep(0.7)
        server.kill()
        break
    if version == "2.0" and kind == "dies late":
        time.sleep(6)
        server.kill()
        break
    server.wait()
"""


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number: int = free.getsockname()[1]
        return number


def with_service(upgrade: SmallUpgrade, port: int, kind: str, stay: float) -> subprocess.Popen[bytes]:
    """A service manager, which is not crossgrade's child, and a restart command that asks it to start the service."""
    folder = upgrade.folder
    (folder / "supervisor.py").write_text(SUPERVISOR)
    (folder / "manager.py").write_text(
        "import os, pathlib, signal, subprocess, sys, time\n"
        "asked = pathlib.Path(sys.argv[1]); service = None\n"
        "def stop():\n"
        "    if service:\n        os.killpg(service.pid, signal.SIGKILL); service.wait()\n"
        "signal.signal(signal.SIGTERM, lambda *_: (stop(), os._exit(0)))\n"
        "while True:\n"
        "    if asked.exists():\n"
        "        asked.unlink(); stop()\n"
        "        service = subprocess.Popen([sys.executable, *sys.argv[2:]], start_new_session=True,\n"
        "                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\n"
        "    time.sleep(0.02)\n"
    )
    programs = [str(folder / name) for name in ("manager.py", "asked", "supervisor.py")]
    manager = subprocess.Popen([sys.executable, *programs, str(upgrade.env), str(port), kind])
    (folder / "asked").touch()
    healthy = f"{{url: 'http://127.0.0.1:{port}/', for: {stay}, every: 0.2, start_timeout: 20, max_restarts: 2}}"
    words = f"restart: [touch, {folder}/asked], healthy: {healthy}"
    upgrade.playbook.write_text(upgrade.playbook.read_text().replace("activate: {", f"activate: {{{words}, "))
    return manager


@pytest.fixture
def service(upgrade: SmallUpgrade, port: int) -> Iterator[Callable[..., None]]:
    running: list[subprocess.Popen[bytes]] = []

    def start(kind: str, stay: float = 2.0) -> None:
        running.append(with_service(upgrade, port, kind, stay))

    yield start
    for manager in running:
        manager.terminate()
        manager.wait()


def answers(port: int) -> str:
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", "/")
        return str(json.loads(connection.getresponse().read())["version"])
    except OSError:
        return ""
    finally:
        connection.close()


def test_a_service_that_stays_healthy(upgrade: SmallUpgrade, service: Callable[..., None], port: int) -> None:
    service("well")
    until(lambda: answers(port) == "1.0")
    answer = upgrade.run("upgrade")
    assert answer.code == 0, answer.stdout + answer.stderr
    assert f"then watch http://127.0.0.1:{port}/ for 2 s" in answer.stdout
    assert answers(port) == "2.0"
    told = upgrade.run("report", "--format", "prometheus").stdout  # the restart and the first healthy look are known
    values = {each.name: each.samples[0].value for each in text_string_to_metric_families(told)}
    assert 0 <= values["crossgrade_run_downtime_seconds"] <= values["crossgrade_run_duration_seconds"] - 2


@pytest.mark.parametrize(("kind", "word"), [("crashes", "crash loop"), ("dies", "down")])
def test_a_service_that_does_not(
    upgrade: SmallUpgrade, service: Callable[..., None], port: int, kind: str, word: str
) -> None:
    service(kind, stay=5.0)
    until(lambda: answers(port) == "1.0")
    answer = upgrade.run("upgrade", "--json")
    assert answer.code == 2, answer.stderr
    assert f"{word}: http://127.0.0.1:{port}/" in answer.ended["reason"]
    assert upgrade.outcome() == "old"
    until(lambda: answers(port) == "1.0")


def test_the_watcher_goes_on_looking_until_it_is_confirmed(
    upgrade: SmallUpgrade, service: Callable[..., None], port: int
) -> None:
    service("dies late", stay=1.0)
    until(lambda: answers(port) == "1.0")
    answer = upgrade.run("upgrade", "--confirm-within", "300")
    assert answer.code == 0, answer.stdout
    assert upgrade.store.active() == 2
    until(gone_back(upgrade), 60)
    assert upgrade.outcome() == "old"
    until(lambda: answers(port) == "1.0")
    assert "down: http" in upgrade.run("history").stdout


# ---- clocks and units


def record(**changes: Any) -> Confirmation:
    values = {
        "token": "t", "run": "r", "generation": 2, "previous": 1, "within": 100.0, "deadline": 1100.0,
        "boot_deadline": 600.0, "boot_id": "this", "watched_by": "process",
    }  # fmt: skip
    return Confirmation(**{**values, **changes})


@pytest.mark.parametrize(
    ("now", "left"),
    [
        (Instant(1000.0, 500.0, "this"), 100.0),
        (Instant(9999.0, 500.0, "this"), 100.0),  # the wall clock was set forward: nothing changes
        (Instant(0.0, 590.0, "this"), 10.0),  # and back
        (Instant(1090.0, 3.0, "next"), 10.0),  # after a reboot only the wall clock is left
        (Instant(0.0, 3.0, "next"), 100.0),  # but never more than was asked for
        (Instant(2000.0, 3.0, "next"), -900.0),
    ],
)
def test_how_much_time_is_left(now: Instant, left: float) -> None:
    assert seconds_left(record(), now) == left
    assert is_due(record(), now) == (left <= 0)
    put = anchored(record(), now)
    assert seconds_left(put, Instant(-5.0, now.boot, now.boot_id)) == max(left, 0.0) or now.boot_id == "this"


def test_a_return_that_was_begun_is_always_due() -> None:
    assert is_due(record(returning="not confirmed in time"), Instant(1000.0, 500.0, "this"))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed here")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "crossgrade", "return-unless-confirmed", "--root", '/srv/with "quotes" %h $HOME']
    service = tmp_path / "crossgrade-return-test.service"
    service.write_text(service_text(argv, tmp_path, {"PATH": "/usr/bin", "HOME": "/root", "SECRET": "x"}, user=False))
    timer = tmp_path / "crossgrade-return-test.timer"
    timer.write_text(timer_text(service.name, 1_800_000_000.0))
    done = subprocess.run(["systemd-analyze", "verify", service, timer], capture_output=True, text=True, check=False)
    assert "crossgrade-return" not in done.stderr, done.stderr
    assert done.returncode == 0, done.stderr
    assert "SECRET" not in service.read_text()
    assert "OnCalendar=2027-01-15 08:00:01 UTC" in timer.read_text()
