"""The terminal as a listener of events: colours where they are wanted, a live line where there is a terminal.

Colours follow NO_COLOR (no-color.org) and FORCE_COLOR; rich is loaded only where a live line is shown.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from typing import IO, TYPE_CHECKING, cast

from crossgrade.engine.events import Event
from crossgrade.report.steady import Output
from crossgrade.report.text import Line, render
from crossgrade.report.visible import visible

if TYPE_CHECKING:
    from rich.status import Status
    from rich.text import Text

_SGR = {
    "ok": "32",
    "changed": "33",
    "failed": "31",
    "skipped": "36",
    "check": "34",
    "heading": "1",
    "faint": "2",
    "warning": "35",
}


def wants_colour(stream: Output, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether escape sequences may be written to this stream."""
    if environment.get("NO_COLOR"):
        return False
    return bool(environment.get("FORCE_COLOR")) or (stream.isatty() and environment.get("TERM") != "dumb")


class Terminal:
    """Writes lines to a stream, and shows what is under way in a line of its own when it is a terminal."""

    def __init__(self, stream: Output, *, verbosity: int = 0, show_diff: bool = False) -> None:
        self._stream = stream
        self._verbosity = verbosity
        self._show_diff = show_diff
        self._colour = wants_colour(stream)
        self._live = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._status: Status | None = None
        self._task = ""
        self._heading: tuple[object, object] | None = None
        self._hosts: set[str] = set()
        self._message = ""
        self._task_began = 0.0
        self._began = time.monotonic()

    def __call__(self, event: Event) -> None:
        if event.kind == "task_progress":
            self._show_progress(str(event.data["message"]))
            return
        self._stop_live()
        if self._repeats_heading(event):
            return
        self.write(render(event, verbosity=self._verbosity, show_diff=self._show_diff))
        if event.kind == "task_started":
            self._task = str(event.data["name"])
            self._task_began = time.monotonic()
            self._show_progress("")

    def _repeats_heading(self, event: Event) -> bool:
        """Whether this begins a task for one more host, right after another host has begun and done it."""
        if event.kind == "task_started":
            heading = (event.data["task"], event.data.get("handler"))
            if heading == self._heading and event.host not in self._hosts:
                self._hosts.add(event.host)
                return True
            self._heading, self._hosts = heading, {event.host}
        elif event.kind != "task_result":
            self._heading = None
        return False

    def write(self, lines: Iterable[Line]) -> None:
        for line in lines:
            code = _SGR.get(line.style, "") if self._colour else ""
            said = visible(line.text)
            text = f"\x1b[{code}m{said}\x1b[0m" if code else said
            self._stream.write(text + "\n")
        self._stream.flush()

    def close(self) -> None:
        self._stop_live()

    def _show_progress(self, message: str) -> None:
        if not self._live:
            if self._verbosity > 1 and message:
                self.write([Line(f"    {message}", "faint")])
            return
        if self._status is None:
            from rich.console import Console
            from rich.status import Status

            console = Console(file=cast("IO[str]", self._stream), no_color=not self._colour, highlight=False)
            self._status = Status(_LiveLine(self), console=console, refresh_per_second=4)
            self._status.start()
        self._message = message

    def live_text(self) -> str:
        """What is under way: the task, its seconds and the run's, and what it said last."""
        now = time.monotonic()
        return f"{self._task} [{now - self._task_began:.0f}s of {now - self._began:.0f}s] {self._message}"

    def _stop_live(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None


class _LiveLine:
    """The live line as rich draws it: anew four times a second, so that the seconds run on."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal

    def __rich__(self) -> Text:
        from rich.text import Text

        return Text(self._terminal.live_text(), style="dim", overflow="ellipsis", no_wrap=True)
