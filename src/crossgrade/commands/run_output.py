"""The output of a run: text for people, and events for programs when they are asked for."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from crossgrade.commands.common import complain, people
from crossgrade.engine.events import Listener
from crossgrade.report.records import JsonLines
from crossgrade.report.steady import SteadyStream
from crossgrade.report.terminal import Terminal


class RunOutput:
    """A run goes on when its output cannot be written any more: that is said at the end, and changes no exit code."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._text, self._lines = SteadyStream(people(options)), SteadyStream(sys.stdout)
        self.terminal = Terminal(self._text, verbosity=options["verbose"], show_diff=options.get("diff", False))
        self.listeners: tuple[Listener, ...] = (self.terminal,)
        if options["json"]:
            self.listeners += (JsonLines(self._lines),)

    def write_event(self, line: str) -> None:
        """An event that another crossgrade has written."""
        self._lines.write(line + "\n")
        self._lines.flush()

    def check(self) -> None:
        """Raises OSError when what was to be read could not be written: before a run begins it can still be left."""
        for stream in (self._text, self._lines):
            if stream.problem is not None:
                problem, stream.problem = stream.problem, None
                raise problem

    def close(self) -> None:
        self.terminal.close()
        problems = {str(stream.problem.strerror) for stream in (self._text, self._lines) if stream.problem}
        if problems:
            complain(f"the output could not be written to its end: {', '.join(sorted(problems))}")
