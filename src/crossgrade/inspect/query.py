"""Asking a program a short question that changes nothing: its version, its search path.

`crossgrade.process` is the boundary for programs that do work. Its supervisor costs about 20 ms for each
start, more than all of these questions together, and guards against descendants that these programs don't
have; so they are started directly, with a time limit.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from crossgrade.process import Completed, StartError


class Runner(Protocol):
    """Runs a program that only reads; `HostView.run` is one, `run_query` another.

    The time limit is in seconds. Raises StartError when the program cannot be started.
    """

    def __call__(self, argv: Sequence[str], *, timeout: float = ...) -> Completed: ...


def run_query(argv: Sequence[str], *, timeout: float = 10.0) -> Completed:
    """Run a program with crossgrade's own environment, in English; its standard input is empty.

    `timeout` is in seconds; when it is over, the program is killed and `timed_out` is true.
    Raises StartError when the program cannot be started.
    """
    return _run(argv, {**os.environ, "LC_ALL": "C"}, timeout)


def _run(argv: Sequence[str], environment: Mapping[str, str], timeout: float) -> Completed:
    started_at = time.monotonic()
    try:
        answer = subprocess.run(
            argv, capture_output=True, stdin=subprocess.DEVNULL, env=environment, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired as error:
        parts = [part if isinstance(part, bytes) else b"" for part in (error.stdout, error.stderr)]
        returncode, stdout, stderr, timed_out = -9, *parts, True
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise StartError(f"{argv[0]}: cannot be started: {reason}") from error
    else:
        returncode, stdout, stderr, timed_out = answer.returncode, answer.stdout, answer.stderr, False
    return Completed(
        argv=tuple(argv),
        returncode=returncode,
        stdout=stdout.decode("utf-8", "replace"),
        stderr=stderr.decode("utf-8", "replace"),
        seconds=time.monotonic() - started_at,
        timed_out=timed_out,
    )


def programs_on_path(search_path: str, name: str) -> tuple[Path, ...]:
    """Every executable file of that name on a search path like $PATH, in the order of the path."""
    found = []
    for directory in search_path.split(os.pathsep):
        program = Path(directory or ".") / name
        if directory and os.access(program, os.X_OK) and program.is_file():
            found.append(program)
    return tuple(found)
