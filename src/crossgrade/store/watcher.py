"""Starting and ending what watches a confirmation: systemd's service, or a process of our own.

The process is the one program that outlives a run on purpose, so it is not started through `process.py`: it has a
session of its own, no parent, none of our descriptors, its output in the store. It holds `watcher.lock`, by which
everybody sees that it lives; the kernel drops that with it. A service holds the same lock.
"""

from __future__ import annotations

import math
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from crossgrade.errors import LockedError, StoreError
from crossgrade.store import systemd_units
from crossgrade.store.confirmation import (
    Confirmation,
    Instant,
    read_confirmation,
    remove_confirmation,
    write_confirmation,
)
from crossgrade.store.layout import Store
from crossgrade.store.lock import Holder, hold, read_holder

COMMAND = "return-unless-confirmed"
START_SECONDS = 30.0  # how long a watcher may take to say that it watches
LOOK_SECONDS = 0.1


def watcher_lock(store: Store) -> Path:
    return store.root / "watcher.lock"


def watcher_log(store: Store) -> Path:
    return store.root / "watcher.log"


def watcher_title(token: str) -> str:
    """What the holder of the watcher's lock calls itself."""
    return f"crossgrade {COMMAND} {token}"


def watcher_of(store: Store, confirmation: Confirmation) -> Holder | None:
    """The process that watches this confirmation now, or None when nothing does."""
    holder = read_holder(watcher_lock(store))
    return holder if holder is not None and holder.command == watcher_title(confirmation.token) else None


def watcher_command(root: Path, *, detach: bool) -> list[str]:
    """The watcher's argument list, by absolute path.

    The folder of the interpreter is taken without links: when crossgrade lives in the environment that it changes,
    the active link will lead elsewhere.
    """
    program = Path(sys.executable).parent.resolve() / Path(sys.executable).name
    return [str(program), "-m", "crossgrade", COMMAND, "--root", str(root), *(["--detach"] if detach else [])]


def arm(
    store: Store,
    *,
    run: str,
    generation: int,
    previous: int,
    within: float,
    restart: Sequence[str],
    health: Mapping[str, Any],
) -> Confirmation:
    """Write the record and start its watcher; call it before the link is turned. It replaces an earlier one.

    Raises StoreError when no watcher comes to life: then nothing is left of it.
    """
    disarm(store)
    now = Instant.now()
    obstacle = systemd_units.why_no_systemd()
    confirmation = Confirmation(
        token=secrets.token_hex(8),
        run=run,
        generation=generation,
        previous=previous,
        within=within,
        deadline=now.wall + within,
        boot_deadline=now.boot + within,
        boot_id=now.boot_id,
        watched_by="process" if obstacle else "systemd",
        note=obstacle,
        restart=tuple(restart),
        health=health,
    )
    write_confirmation(store, confirmation)
    try:
        if not obstacle:
            obstacle = _start_service(store, confirmation)
            if obstacle:
                systemd_units.remove(store.root.parent, stop_service=True)
                confirmation = replace(confirmation, watched_by="process", note=obstacle)
                write_confirmation(store, confirmation)
            elif not systemd_units.lingers():
                confirmation = replace(confirmation, note="no lingering")
                write_confirmation(store, confirmation)
        if obstacle:
            _start_process(store, confirmation)
    except BaseException:
        disarm(store)
        raise
    return confirmation


def disarm(store: Store, *, by_the_watcher: bool = False) -> bool:
    """Remove the record, then what watched it. True when there was one.

    A process sees by itself that its record is gone. Left alone by a kill in between, a watcher without a record
    takes its units away and ends.
    """
    was_there = remove_confirmation(store)
    systemd_units.remove(store.root.parent, stop_service=not by_the_watcher)
    return was_there


def _start_service(store: Store, confirmation: Confirmation) -> str:
    """Why systemd does not watch, "" when it does."""
    root = store.root.parent
    try:
        problem = systemd_units.install(root, watcher_command(root, detach=False), confirmation.deadline)
    except OSError as error:
        return f"{error.filename or root}: {error.strerror or error}"
    if not problem and not _watches(store, confirmation):
        problem = f"its service did not begin to watch within {START_SECONDS:g} s"
    return problem


def _start_process(store: Store, confirmation: Confirmation) -> None:
    log = watcher_log(store)
    # What the fault tests set is meant for this run, not for its watcher.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CROSSGRADE_")}
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        # It forks once more and lets this one end, so that it is nobody's child.
        completed = subprocess.run(
            watcher_command(store.root.parent, detach=True),
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            cwd="/",
            env=environment,
            start_new_session=True,
            timeout=START_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise StoreError(f"the watcher did not start within {START_SECONDS:g} s") from error
    finally:
        os.close(descriptor)
    if completed.returncode or not _watches(store, confirmation):
        raise StoreError("the watcher did not start, so nothing is activated", remedy=f"Its output is in {log}.")


def _watches(store: Store, confirmation: Confirmation) -> bool:
    deadline = time.monotonic() + START_SECONDS
    while watcher_of(store, confirmation) is None:
        if time.monotonic() > deadline:
            return False
        time.sleep(LOOK_SECONDS)
    return True


@contextmanager
def hold_patiently(path: Path, command: str, most: float = math.inf) -> Iterator[None]:
    """Hold a lock for the body, after waiting for it as long as it takes, or `most` seconds: then LockedError."""
    until = time.monotonic() + most
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(hold(path, command))
                break
            except LockedError:
                if time.monotonic() >= until:
                    raise
                time.sleep(LOOK_SECONDS)
        yield


def limits(confirmation: Confirmation) -> str:
    """For people: what watches, and what that does not cover."""
    if confirmation.watched_by == "process":
        return (
            f"watched by a process of its own ({confirmation.note}): it outlives this run and its terminal, but not a "
            "reboot; after one, the next crossgrade command goes back"
        )
    if confirmation.note:
        return (
            "watched by this user's systemd: after a reboot it goes on when the user logs in, because lingering is off "
            "(`loginctl enable-linger` turns it on)"
        )
    return "watched by systemd: it goes on after a reboot"


def describe(store: Store) -> dict[str, Any] | None:
    """What waits to be confirmed, as plain data for `status` and the end of a run. Raises StoreError."""
    from crossgrade.store.confirmation import is_due, seconds_left

    confirmation = read_confirmation(store)
    if confirmation is None:
        return None
    now = Instant.now()
    watcher = watcher_of(store, confirmation)
    return {
        "generation": confirmation.generation,
        "previous": confirmation.previous,
        "run": confirmation.run,
        "within": confirmation.within,
        "deadline": now.wall + seconds_left(confirmation, now),
        "seconds_left": round(seconds_left(confirmation, now), 3),
        "activated": store.active() == confirmation.generation,
        "due": is_due(confirmation, now),
        "returning": confirmation.returning or None,
        "problem": confirmation.problem or None,
        "watched_by": confirmation.watched_by,
        "watcher": watcher.pid if watcher else None,
        "limits": limits(confirmation),
        "health": dict(confirmation.health) or None,
    }
