"""What must hold after every interruption, whatever made it."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from tests.support.commands import snapshot
from tests.support.small_upgrade import SmallUpgrade

T = TypeVar("T")


def nothing_left(upgrade: SmallUpgrade) -> None:
    """Every process that was started from there, or names it, ends soon."""
    deadline = time.monotonic() + 10
    while left := upgrade.left_over():
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def whole(upgrade: SmallUpgrade) -> str:
    """The outcome, after making sure that the software of that environment is what runs."""
    outcome = upgrade.outcome()
    assert upgrade.version() == {"old": "1.0", "new": "2.0"}[outcome]
    return outcome


def serves(upgrade: SmallUpgrade) -> str:
    """The version that the environment's own server answers, started through the path that people use."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with subprocess.Popen([upgrade.env / "bin" / "python", "-B", "-m", "small_engine.server", str(port)]) as server:
        try:
            deadline = time.monotonic() + 10
            while True:
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
                try:
                    connection.request("GET", "/")
                    return str(json.loads(connection.getresponse().read())["version"])
                except ConnectionRefusedError:
                    assert time.monotonic() < deadline, "the server does not start"
                    time.sleep(0.02)
                finally:
                    connection.close()
        finally:
            server.kill()


def recovered(upgrade: SmallUpgrade, command: str) -> None:
    """The recovery does its work, and a second one finds nothing left to do."""
    answer = upgrade.run(command, "--json")
    # a run that had not begun yet, or had ended already, leaves nothing that a rollback could go back from
    assert answer.code == 0 or (command == "rollback" and answer.code == 1), answer.stderr
    outcome = whole(upgrade)
    assert outcome == ("new" if command == "upgrade" else "old")
    assert upgrade.status()["interrupted"] is None
    before = snapshot(upgrade.root)
    again = upgrade.run(command, "--json")
    if command == "upgrade":
        assert again.code == 0
        assert again.recap["changed"] == 0
        assert not again.of_kind("recovered")
    else:
        assert again.code == 1, "there was still something to go back from"
        after = snapshot(upgrade.root)
        changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
        assert changed <= {"store", "store/lock"}  # the lock was held, and SQLite had files beside the journal
    assert whole(upgrade) == outcome
    assert serves(upgrade) == upgrade.version()


def each(folder: Path, cases: Iterable[T], act: Callable[[Path, T], None]) -> None:
    """Act on every case in a folder of its own, as many at once as there are processors; report all that went wrong."""
    wrong: list[str] = []

    def one(numbered: tuple[int, T]) -> None:
        number, case = numbered
        try:
            act(folder / str(number), case)
        except (AssertionError, OSError, subprocess.SubprocessError, KeyError, ValueError) as error:
            wrong.append(f"{case} (kept in {folder / str(number)}): {type(error).__name__}: {error}")

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(one, enumerate(cases)))
    assert not wrong, "\n\n".join(wrong)
