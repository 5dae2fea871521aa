"""`inspect` of what has not changed: the answer of the last time. Imports nothing of the inspector."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from crossgrade.commands.common import guarded, people
from crossgrade.commands.inspection_cache import cache_for


def inspect_command(options: Mapping[str, Any]) -> int:
    """The exit code of the last time, or of a new inspection."""
    return guarded(lambda: _inspect(options))


def _inspect(options: Mapping[str, Any]) -> int:
    cache = cache_for(options)
    answer = cache.read(document=options["json"]) if cache else None
    if answer is None:
        from crossgrade.commands.inspecting import inspect_anew

        return inspect_anew(options, cache)
    if options["json"]:
        sys.stdout.write(answer.document)
        return answer.code
    from crossgrade.report.terminal import Terminal
    from crossgrade.report.text import Line

    lines = [Line(*line) for line in (answer.verbose_lines if options["verbose"] else answer.lines)]
    unchanged = Line("(nothing has changed since this was read; --no-cache reads it again)", "faint")
    Terminal(people(options)).write([*lines, unchanged])
    return answer.code
