"""The log of a run: everything that happened, progress lines too, as JSON lines in the run's folder.

It is for whoever looks into a run afterwards; people at the terminal see `report.terminal`. What `no_log`
hides is hidden here as well, because events do not hold it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

from crossgrade.engine.events import Event
from crossgrade.report.steady import SteadyStream

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

LOG_FILE = "log.jsonl"

# Events that a reader would look for first when something went wrong.
_LEVELS = {"warning": "warning", "prediction_differs": "warning", "rollback_failed": "error"}


class RunLog:
    """A listener that opens `log.jsonl` in the run's folder when the run begins, and writes through structlog."""

    def __init__(self) -> None:
        self._stream: SteadyStream | None = None
        self._logger: FilteringBoundLogger | None = None

    def __call__(self, event: Event) -> None:
        if event.kind == "run_started":
            self._open(Path(event.data["store"]) / "runs" / str(event.data["run"]), str(event.data["run"]))
        if self._logger is None or event.kind == "plan":  # the plan is in the report, whole
            return
        level = _LEVELS.get(event.kind, "info")
        if event.kind == "task_result" and event.data["status"] == "failed":
            level = "error"
        getattr(self._logger, level)(event.kind, **_fields(event))

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
        self._stream = self._logger = None

    def _open(self, folder: Path, run: str) -> None:
        import structlog

        descriptor = os.open(folder / LOG_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._stream = SteadyStream(os.fdopen(descriptor, "a", encoding="utf-8", buffering=1))
        self._logger = structlog.wrap_logger(
            structlog.WriteLogger(cast("TextIO", self._stream)),
            processors=[
                structlog.processors.add_log_level,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                structlog.processors.JSONRenderer(default=str),
            ],
            wrapper_class=structlog.make_filtering_bound_logger(0),
        ).bind(run=run)


def _fields(event: Event) -> dict[str, Any]:
    """The event's data under names that structlog does not use itself."""
    fields = {
        f"{name}_" if name in ("event", "level", "timestamp", "run") else name: v for name, v in event.data.items()
    }
    return {"host": event.host, "sequence": event.sequence, **fields}
