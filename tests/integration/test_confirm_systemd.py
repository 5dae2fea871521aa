"""The dead-man switch under a real systemd: its units really start, restart, survive a power cut, and go away."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.booted_systemd import BootedSystemd, booted, why_not
from tests.support.commands import Answer
from tests.support.small_upgrade import SmallUpgrade, make_small_upgrade

from crossgrade.store.confirmation import read_confirmation

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why_not()), reason=why_not())]


@pytest.fixture
def upgrade(tmp_path: Path) -> SmallUpgrade:
    return make_small_upgrade(tmp_path / "server")


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[BootedSystemd]:
    with booted(tmp_path / "machine") as made:
        yield made


def run(machine: BootedSystemd, upgrade: SmallUpgrade, command: str, *arguments: str, kill_at: str = "") -> Answer:
    done = machine.call(upgrade.argv(command, *arguments), {"CROSSGRADE_KILL_AT": kill_at} if kill_at else {})
    return Answer(done.returncode, done.stdout, done.stderr)


def waiting(machine: BootedSystemd, upgrade: SmallUpgrade) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(machine, upgrade, "status", "--json").stdout)["confirmation"]
    return found


def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)


def gone_back(machine: BootedSystemd, upgrade: SmallUpgrade) -> bool:
    """The old generation is active, and neither the record nor a unit is left."""
    return upgrade.store.active() == 1 and read_confirmation(upgrade.store) is None and machine.units == []


def activate(machine: BootedSystemd, upgrade: SmallUpgrade, within: int) -> tuple[str, str]:
    """Upgrade with a time limit; the names of the service and the timer that watch it."""
    answer = run(machine, upgrade, "upgrade", "--confirm-within", str(within))
    assert answer.code == 0, answer.stdout + answer.stderr
    assert "watched by systemd: it goes on after a reboot" in answer.stdout
    service, timer = machine.units
    return service, timer


def test_confirmed_in_time(machine: BootedSystemd, upgrade: SmallUpgrade) -> None:
    service, timer = activate(machine, upgrade, 300)
    found = waiting(machine, upgrade)
    assert found["watched_by"] == "systemd"
    # both pids are of the machine's own namespace: `status` runs in there
    assert str(found["watcher"]) == machine.property_of(service, "MainPID")
    for unit in (service, timer):
        assert machine.property_of(unit, "ActiveState") == "active"
        assert machine.property_of(unit, "UnitFileState") == "enabled"
    assert run(machine, upgrade, "confirm").code == 0
    assert machine.units == []
    assert machine.property_of(service, "LoadState") == "not-found"
    assert "crossgrade" not in machine.call(["systemctl", "--failed", "--plain"]).stdout
    assert machine.property_of(timer, "ActiveState") == "inactive"
    assert upgrade.outcome() == "new"
    assert run(machine, upgrade, "upgrade").code == 0


def test_not_confirmed(machine: BootedSystemd, upgrade: SmallUpgrade) -> None:
    service, _ = activate(machine, upgrade, 3)
    assert upgrade.outcome() == "new"
    until(lambda: gone_back(machine, upgrade))
    until(lambda: machine.property_of(service, "ActiveState") == "inactive")
    assert upgrade.outcome() == "old"
    assert "not confirmed in time: generation 2 -> 1" in run(machine, upgrade, "history").stdout


def test_the_run_and_the_service_are_killed(machine: BootedSystemd, upgrade: SmallUpgrade) -> None:
    killed = run(machine, upgrade, "upgrade", "--confirm-within", "20", kill_at="done:activate")
    assert killed.code in (-signal.SIGKILL, 128 + signal.SIGKILL)  # nsenter kills itself likewise
    service = machine.units[0]
    for number, name in enumerate(("KILL", "TERM"), start=1):
        machine.call(["systemctl", "kill", f"--signal={name}", service])
        until(lambda: machine.property_of(service, "NRestarts") == str(number))  # noqa: B023 - it is called here
        until(lambda: machine.property_of(service, "ActiveState") == "active")
    until(lambda: gone_back(machine, upgrade))
    assert upgrade.outcome() == "old"
    assert (upgrade.root / "files" / "settings").read_text() == "port = 1\n"


def test_the_timer_alone_is_enough(machine: BootedSystemd, upgrade: SmallUpgrade) -> None:
    service, _ = activate(machine, upgrade, 8)
    machine.call(["systemctl", "stop", service])
    assert machine.property_of(service, "ActiveState") == "inactive"
    until(lambda: gone_back(machine, upgrade))
    assert upgrade.outcome() == "old"


def test_a_power_cut_and_the_time_is_over_meanwhile(machine: BootedSystemd, upgrade: SmallUpgrade) -> None:
    activate(machine, upgrade, 5)
    machine.power_off()
    time.sleep(6)
    assert upgrade.outcome() == "new"
    machine.boot()
    until(lambda: gone_back(machine, upgrade))
    assert upgrade.outcome() == "old"


def test_a_power_cut_and_there_is_time_left(machine: BootedSystemd, upgrade: SmallUpgrade) -> None:
    service, _ = activate(machine, upgrade, 300)
    machine.power_off()
    machine.boot()
    until(lambda: machine.property_of(service, "ActiveState") == "active")
    until(lambda: waiting(machine, upgrade)["watcher"] is not None)
    assert upgrade.outcome() == "new"
    assert run(machine, upgrade, "confirm").code == 0
    assert machine.units == []
    assert upgrade.outcome() == "new"


def test_a_run_that_fails_leaves_no_unit(machine: BootedSystemd, upgrade: SmallUpgrade) -> None:
    text = upgrade.playbook.read_text()
    upgrade.playbook.write_text(f"{text}    - name: Too bad\n      command: 'false'\n")
    answer = run(machine, upgrade, "upgrade", "--confirm-within", "300")
    assert answer.code == 2, answer.stdout
    assert machine.units == []
    assert upgrade.outcome() == "old"


def test_units_that_cannot_be_written(machine: BootedSystemd, upgrade: SmallUpgrade) -> None:
    """A process watches instead, and why is said."""
    machine.call(["mount", "-o", "remount,ro,bind", "/etc/systemd/system"])
    answer = run(machine, upgrade, "upgrade", "--confirm-within", "4")
    assert answer.code == 0, answer.stdout + answer.stderr
    assert "watched by a process of its own (/etc/systemd/system" in answer.stdout
    until(lambda: gone_back(machine, upgrade))
    assert upgrade.outcome() == "old"
