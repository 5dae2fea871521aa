"""`rollback` and `gc`. Rollback is wanted in a hurry: it imports only what it needs."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from crossgrade.commands.common import existing_store, guarded, number, people, request_from
from crossgrade.engine.events import Event, Events, Listener
from crossgrade.engine.request import Request
from crossgrade.engine.rollback import rollback
from crossgrade.errors import ExitCode, WrongOptionsError
from crossgrade.report.records import JsonLines
from crossgrade.report.terminal import Terminal
from crossgrade.report.text import Line

Options = Mapping[str, Any]


def rollback_command(options: Options) -> int:
    return guarded(lambda: _rollback(options, request_from(options, "rollback")))


def gc_command(options: Options) -> int:
    return guarded(lambda: _gc(options, request_from(options, "gc")))


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


def _gc(options: Options, request: Request) -> int:
    from crossgrade.engine.opening import opened_journal
    from crossgrade.engine.records import predecessor_of
    from crossgrade.store.gc import collect
    from crossgrade.store.lock import hold

    keep = number("keep", options["keep"])
    if keep is None:
        raise WrongOptionsError("--keep needs a whole number")
    store = existing_store(request)
    with hold(store.lock_path, "crossgrade gc"), opened_journal(store) as journal:
        active = store.active()
        predecessor = None if active is None else predecessor_of(active, journal.activations())
        if journal.unfinished() is not None:
            raise WrongOptionsError(
                "a run was interrupted: what it needs is not removed",
                remedy="`crossgrade upgrade --resume` finishes it, `crossgrade rollback` undoes it.",
            )
        collected = collect(store, predecessor=predecessor, keep=keep)
    if options["json"]:
        from dataclasses import asdict
        from json import dumps

        sys.stdout.write(dumps({"schema": 1, **asdict(collected)}) + "\n")
    terminal = Terminal(people(options))
    for what, names in (
        ("generation", collected.generations),
        ("toolkit", collected.toolkits),
        ("wheel", collected.wheels),
    ):
        terminal.write(Line(f"removed {what} {name}", "changed") for name in names)
    terminal.write(Line(f"kept generation {name}: a process runs from it", "warning") for name in collected.kept_in_use)
    terminal.write([Line(f"freed {collected.bytes:,} bytes")])
    return ExitCode.DONE
