"""What happens in a run, as data: the terminal, `--json` and the report are made from nothing else."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from crossgrade.playbook.secrets import masked

SCHEMA = "crossgrade.event/1"

EventKind = Literal[
    "run_started",  # run, command, playbook, root
    "recovered",  # run, task, undone: an earlier run was found interrupted
    "plan",  # the whole plan, as saved by `plan -o`
    "play_started",  # play, host
    "section_started",  # section: "handlers", "rescue", "always"
    "task_started",  # task, name, module
    "task_progress",  # task, message
    "task_result",  # task, name, module, status, item?, message, values, differences?, verdict?, seconds
    "prediction_differs",  # task, predicted, happened
    "rollback_started",  # reason
    "rolled_back",  # task, what
    "rollback_failed",  # task, what, by_hand
    "completed",  # task, what: recovery finished a step that was past its commit point
    "bisect_test",  # changes, answer, reason, details, recorded: one set of changes was judged
    "bisect_ended",  # outcome, reason, changes, moved_with_them, unseparated, …
    "warning",  # message
    "recap",  # host, ok, changed, unreachable, failed, skipped, rescued, ignored, rolled_back
    "run_ended",  # exit_code, outcome, reason, evidence, active, seconds, next_command, report, gates_not_run
]


@dataclass(frozen=True)
class Event:
    """One event. `time` is seconds since 1970 (UTC), `sequence` counts from 1 within a run."""

    kind: EventKind
    sequence: int
    time: float
    host: str
    data: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "event": self.kind,
            "sequence": self.sequence,
            "time": round(self.time, 6),
            "host": self.host,
            **self.data,
        }


Listener = Callable[[Event], None]


class Events:
    """Numbers events and hands each to every listener, in order, without the secrets of vaults."""

    def __init__(
        self,
        host: str,
        listeners: tuple[Listener, ...],
        clock: Callable[[], float] = time.time,
        numbers: Iterator[int] | None = None,
    ) -> None:
        self._host = host
        self._listeners = listeners
        self._clock = clock
        self._numbers = itertools.count(1) if numbers is None else numbers

    def of_host(self, host: str) -> Events:
        """The same stream of events, for those of this host."""
        return Events(host, self._listeners, self._clock, self._numbers)

    def emit(self, kind: EventKind, **data: Any) -> None:
        event = Event(kind, next(self._numbers), self._clock(), self._host, masked(data))
        for listener in self._listeners:
            listener(event)
