"""The watcher of a confirmation: it waits, looks after the server's health, and goes back when it must.

It never waits for a lock with its hands tied: each round begins with the record, so that it ends as soon as the record
is gone or is another's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from crossgrade.engine.events import Events
from crossgrade.engine.interrupt import undisturbed
from crossgrade.engine.opening import opened_journal
from crossgrade.engine.request import Request
from crossgrade.engine.returning import NOT_CONFIRMED, RETURN, go_back, waiting
from crossgrade.errors import CrossgradeError, ExitCode, LockedError
from crossgrade.store.confirmation import (
    Confirmation,
    Instant,
    anchored,
    is_due,
    read_confirmation,
    seconds_left,
    write_confirmation,
)
from crossgrade.store.layout import Store
from crossgrade.store.lock import hold, read_holder
from crossgrade.store.reserve import release_reserve
from crossgrade.store.watcher import disarm, hold_patiently, watcher_lock, watcher_title

if TYPE_CHECKING:
    from crossgrade.gates.health import Look

PAUSE_SECONDS = 1.0  # the longest time until it sees that the record is gone
SHORT_PAUSE_SECONDS = 0.05
RETRY_SECONDS = 10.0
RESTART_ATTEMPTS = 5  # how often a restart that fails is tried; everything else is tried for ever

Told = Callable[[str], None]
Step = Literal["over", "not yet", "busy", "gone back"]


@dataclass
class _Health:
    """The looks of the present spell: it begins anew when the service was steady, and after every run."""

    looks: list[Look] = field(default_factory=list)
    next_look: float = 0.0

    def failure(self, store: Store, confirmation: Confirmation) -> str:
        """Look, when it is time to. Why the service counts as failed, "" when it does not."""
        if not confirmation.health or time.monotonic() < self.next_look:
            return ""
        if read_holder(store.lock_path) is not None or store.active() != confirmation.generation:
            self.looks.clear()  # a run restarts the service, and looks after it by itself
            return ""
        from crossgrade.bench.health_looks import Watched, look_at
        from crossgrade.gates.health import judge_health

        watched = Watched.from_json(confirmation.health)
        self.looks.append(look_at(watched))
        self.next_look = time.monotonic() + watched.every
        judgement = judge_health(self.looks, watched.rules)
        if judgement.health == "healthy":
            del self.looks[:-1]
        if judgement.health in ("down", "crash loop"):
            return f"{judgement.health}: {watched.url}: {judgement.reason}"
        return ""


def watch(request: Request, events: Events, told: Told, sleep: Callable[[float], None] = time.sleep) -> int:
    """Until the record is gone, or the host has gone back. Returns the exit code. `told` gets lines for the log.

    What cannot be done (a full disk, a damaged journal) is tried again every 10 s; a restart that fails five times.
    """
    store = request.store
    own = read_confirmation(store)
    if own is not None:
        with hold_patiently(watcher_lock(store), watcher_title(own.token)):
            told(f"waiting {seconds_left(own, Instant.now()):.0f} s for generation {own.generation} to be confirmed")
            code = _watch(request, own, events, told, sleep)
        if code is not None:
            return code
    if own is None or own.watched_by == "systemd":
        _take_units_away(store)
    return ExitCode.DONE


def _watch(
    request: Request, own: Confirmation, events: Events, told: Told, sleep: Callable[[float], None]
) -> int | None:
    """The exit code after a return, None when there is nothing to watch any more."""
    health, restarts_tried, said = _Health(), 0, ""
    while True:
        pause = RETRY_SECONDS
        try:
            confirmation = read_confirmation(request.store)
            if confirmation is None or confirmation.token != own.token:
                told("nothing is left to watch")
                return None
            failure = health.failure(request.store, confirmation)
            step = _step(request, own, failure, events)
            if step == "over":
                told("nothing is left to watch")
                return None
            if step == "gone back":
                told(f"back at generation {own.previous}")
                return ExitCode.DONE
            left = seconds_left(confirmation, Instant.now())
            pause = PAUSE_SECONDS if step == "busy" else max(SHORT_PAUSE_SECONDS, min(PAUSE_SECONDS, left))
        except CrossgradeError as error:
            told(str(error))
            if error.exit_code == ExitCode.ROLLBACK_FAILED:
                restarts_tried += 1
                if restarts_tried == RESTART_ATTEMPTS:
                    return error.exit_code
        except Exception as error:  # noqa: BLE001 - the one thing that this process must not do is end
            if repr(error) != said:
                said = repr(error)
                told(f"it cannot go back yet, and tries again every {RETRY_SECONDS:g} s: {said}")
        sleep(pause)


def _step(request: Request, own: Confirmation, failure: str, events: Events) -> Step:
    """Go back when it is time to. Reads everything again once it holds the lock."""
    store, now = request.store, Instant.now()
    confirmation = read_confirmation(store)
    if confirmation is None or confirmation.token != own.token:
        return "over"
    if not failure and not is_due(confirmation, now) and confirmation.boot_id == now.boot_id:
        return "not yet"
    try:
        with hold(store.lock_path, f"crossgrade {RETURN}"), undisturbed():
            return _act(request, own, failure, events)
    except LockedError:
        return "busy"


def _act(request: Request, own: Confirmation, failure: str, events: Events) -> Step:
    store, now = request.store, Instant.now()
    release_reserve(store)  # a full disk must not stop the return
    confirmation = read_confirmation(store)
    if confirmation is None or confirmation.token != own.token:
        return "over"
    if confirmation.boot_id != now.boot_id:
        confirmation = anchored(confirmation, now)
        write_confirmation(store, confirmation)
    if not failure and not is_due(confirmation, now):
        return "not yet"
    if waiting(store) is None:  # its link was never turned, or somebody turned it back
        disarm(store, by_the_watcher=True)
        return "over"
    with opened_journal(store, create=True) as journal:
        go_back(request, journal, confirmation, confirmation.returning or failure or NOT_CONFIRMED, events)
    disarm(store, by_the_watcher=True)
    return "gone back"


def _take_units_away(store: Store) -> None:
    """Units whose record is gone: a confirmation, or a kill, left them behind."""
    with hold_patiently(store.lock_path, f"crossgrade {RETURN}"):
        if read_confirmation(store) is None:
            disarm(store, by_the_watcher=True)
