"""Events as JSON lines, and the report of a run that lies in the store."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from crossgrade.engine.events import Event
from crossgrade.report.steady import Output
from crossgrade.store.atomic import write_json

SCHEMA = "crossgrade.report/1"
REPORT_FILE = "report.json"


class JsonLines:
    """Writes each event as one line of JSON, and flushes: whoever follows sees it at once."""

    def __init__(self, stream: Output) -> None:
        self._stream = stream

    def __call__(self, event: Event) -> None:
        self._stream.write(json.dumps(event.to_json(), default=str) + "\n")
        self._stream.flush()


class RunReport:
    """Collects what a run did and writes `report.json` into the run's folder when it ends.

    The file is there after every run, also a failed one; after a kill the journal tells instead.
    """

    def __init__(self) -> None:
        self._events: list[dict[str, Any]] = []

    def __call__(self, event: Event) -> None:
        if event.kind != "task_progress":
            self._events.append(event.to_json())

    @property
    def run(self) -> str:
        """The id of the run, "" before it began."""
        return next((str(event["run"]) for event in self._events if event["event"] == "run_started"), "")

    def write(self, path: Path) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_json(path, json.loads(json.dumps(arrange(self._events), default=str)))


def arrange(events: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The report that these events make. Pure."""
    by_kind: dict[str, list[Mapping[str, Any]]] = {}
    for event in events:
        by_kind.setdefault(event["event"], []).append(event)
    tasks = by_kind.get("task_result", [])
    return {
        "schema": SCHEMA,
        "run": by_kind.get("run_started", [{}])[0],
        "outcome": by_kind.get("run_ended", [{}])[-1],
        "recap": by_kind.get("recap", []),
        "plan": by_kind.get("plan", [None])[-1],
        "tasks": tasks,
        "verdicts": [task["verdict"] for task in tasks if task.get("verdict")],
        "rolled_back": by_kind.get("rolled_back", []),
        "completed": by_kind.get("completed", []),
        "rollback_failed": by_kind.get("rollback_failed", []),
        "prediction_differs": by_kind.get("prediction_differs", []),
        "warnings": by_kind.get("warning", []),
    }
