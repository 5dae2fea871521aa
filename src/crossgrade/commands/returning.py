"""`rollback`. It is wanted in a hurry: it imports only what it needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from crossgrade.commands.common import guarded, number, request_from
from crossgrade.commands.run_output import RunOutput
from crossgrade.engine.events import Event, Events
from crossgrade.engine.request import Request
from crossgrade.engine.rollback import rollback
from crossgrade.errors import ExitCode
from crossgrade.report.text import Line

Options = Mapping[str, Any]


def rollback_command(options: Options) -> int:
    return guarded(lambda: _rollback(options, request_from(options, "rollback")))


def _rollback(options: Options, request: Request) -> int:
    output = RunOutput(options)
    seen: list[Event] = []
    try:
        events = Events("localhost", (*output.listeners, seen.append))
        active = rollback(request, events, to=number("to", options["to"]))
        link = request.store.active_link
        standing = (
            f"generation {active} is active: {link}" if active else f"nothing is adopted: {link or 'no active link'}"
        )
        output.terminal.write([Line(standing if seen else f"{standing} (it was already)", "ok")])
    finally:
        output.close()
    return ExitCode.DONE
