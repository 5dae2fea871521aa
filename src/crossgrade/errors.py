"""The errors that crossgrade shows to people, and the exit codes that they lead to.

The tree is small on purpose: one base that knows its exit code, its place in a file and its remedy.
Anything that is not a `CrossgradeError` is a defect of crossgrade and keeps its traceback.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of every command; the table in `docs/cli.md` says the same for people."""

    DONE = 0
    NOTHING_CHANGED = 1  # an error before anything was changed
    FAILED = 2  # a task or gate failed; the working environment is active
    WOULD_FAIL = 3  # `plan --deep`: a gate would fail; nothing was changed
    UNREACHABLE = 4  # a host is unreachable or the playbook cannot be read
    WRONG_OPTIONS = 5
    ROLLBACK_FAILED = 6
    LOCKED = 75  # EX_TEMPFAIL of sysexits.h: try again later
    INTERRUPTED = 99


@dataclass(frozen=True)
class Place:
    """A place in a text file. Line and column count from 1, as editors show them."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class CrossgradeError(Exception):
    """Something that a user can understand and mend.

    `message` says what is wrong, `remedy` how to mend it, `place` where it stands in a file.
    """

    exit_code: ExitCode = ExitCode.NOTHING_CHANGED

    def __init__(self, message: str, *, remedy: str = "", place: Place | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.place = place

    def __str__(self) -> str:
        text = f"{self.place}: {self.message}" if self.place else self.message
        return f"{text}\n  {self.remedy}" if self.remedy else text


class PlaybookError(CrossgradeError, ValueError):
    """The playbook, the inventory or a variables file cannot be read or is not valid."""

    exit_code = ExitCode.UNREACHABLE


class WrongOptionsError(CrossgradeError, ValueError):
    """The command line asks for something that does not exist or does not fit together."""

    exit_code = ExitCode.WRONG_OPTIONS


class HostUnreachableError(CrossgradeError, ConnectionError):
    """A host cannot be reached, or its key cannot be verified."""

    exit_code = ExitCode.UNREACHABLE


class TaskError(CrossgradeError, RuntimeError):
    """A task could not do its work; the engine turns this into a failed task."""

    exit_code = ExitCode.FAILED


class NotForeseenError(CrossgradeError, RuntimeError):
    """A deep plan cannot say what a gate would say; the message says why."""


class StoreError(CrossgradeError, RuntimeError):
    """The generation store is missing, damaged, or does not hold what was asked for."""


class LockedError(CrossgradeError, RuntimeError):
    """Another run holds the lock of the store."""

    exit_code = ExitCode.LOCKED
