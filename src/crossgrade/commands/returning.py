"""`rollback`. It is wanted in a hurry: it imports only what it needs."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from crossgrade.commands.common import guarded, number, people, request_from
from crossgrade.engine.events import Event, Events, Listener
from crossgrade.engine.request import Request
from crossgrade.engine.rollback import rollback
from crossgrade.errors import ExitCode
from crossgrade.report.records import JsonLines
from crossgrade.report.terminal import Terminal
from crossgrade.report.text import Line

Options = Mapping[str, Any]


def rollback_command(options: Options) -> int:
    return guarded(lambda: _rollback(options, request_from(options, "rollback")))


def _rollback(options: Options, request: Request) -> int:
    terminal = Terminal(people(options), verbosity=options["verbose"])
    seen: list[Event] = []
    listeners: tuple[Listener, ...] = (terminal, seen.append)
    if options["json"]:
        listeners += (JsonLines(sys.stdout),)
    active = rollback(request, Events("localhost", listeners), to=number("to", options["to"]))
    link = request.store.active_link
    standing = f"generation {active} is active: {link}" if active else f"nothing is adopted: {link or 'no active link'}"
    terminal.write([Line(standing if seen else f"{standing} (it was already)", "ok")])
    return ExitCode.DONE
