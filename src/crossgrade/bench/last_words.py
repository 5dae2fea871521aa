"""Which lines of a server's log say why it did not serve. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

# How a Python traceback ends, with or without the prefix of a log line before it.
_EXCEPTION = re.compile(r"^(?:\S.*[\s\]])?(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)(?:: .*)?$")


def without_requests(lines: Sequence[str], path: str) -> list[str]:
    """The lines with text, less those that report a GET of `path`: questions for health bury all else."""
    asked = f"GET {path} "
    return [line for line in lines if line.strip() and asked not in line]


def telling_line(lines: Sequence[str]) -> str:
    """The line to put first: the end of the last traceback, else the last line with text, else "".

    SGLang reports after a child's traceback that a child has failed (`Received sigquit from a child process`) and
    kills itself (seen with 0.5.9 and 0.5.23): its last line and its exit status say nothing of the cause.
    """
    said = [line.strip() for line in lines if line.strip()]
    exceptions = [line.strip() for line in lines if _EXCEPTION.match(line)]
    return exceptions[-1] if exceptions else said[-1] if said else ""
