"""`confirm`, and the watcher that `upgrade --confirm-within` starts."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from crossgrade.commands.common import guarded, people, request_from
from crossgrade.engine.events import Events
from crossgrade.engine.request import Request
from crossgrade.errors import ExitCode, WrongOptionsError
from crossgrade.report.run_log import RunLog
from crossgrade.report.steady import SteadyStream
from crossgrade.report.terminal import Terminal
from crossgrade.report.text import Line

Options = Mapping[str, Any]
SCHEMA = 1


def confirm_command(options: Options) -> int:
    return guarded(lambda: _confirm(options, request_from(options, "confirm")))


def watch_command(options: Options) -> int:
    return guarded(lambda: _watch(options))


def _confirm(options: Options, request: Request) -> int:
    from crossgrade.engine.returning import confirm

    terminal = Terminal(SteadyStream(people(options)))
    generation = confirm(request, Events("localhost", (terminal,)))
    if options["json"]:
        sys.stdout.write(json.dumps({"schema": SCHEMA, "confirmed": generation}) + "\n")
    terminal.write([Line(f"generation {generation} is confirmed: it stays", "ok")])
    return ExitCode.DONE


def _watch(options: Options) -> int:
    """Watch until there is nothing to watch. With `detach`, in a process that is nobody's child and has no terminal."""
    if not options["root"]:
        raise WrongOptionsError("return-unless-confirmed needs --root")
    if options["detach"] and os.fork():
        os._exit(0)
    from crossgrade.engine.watching import watch

    root = Path(options["root"]).absolute()
    log, own = RunLog(), SteadyStream(sys.stdout)
    try:
        return watch(Request("return", root / "no playbook", root), Events("localhost", (log,)), partial(_tell, own))
    finally:
        log.close()


def _tell(log: SteadyStream, text: str) -> None:
    """A line of the watcher's log, which is its stdout."""
    log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
    log.flush()
