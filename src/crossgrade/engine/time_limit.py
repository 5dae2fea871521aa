"""A task's `timeout`: an alarm that ends whatever it is doing."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from crossgrade.errors import CrossgradeError
from crossgrade.playbook.model import Task
from crossgrade.playbook.templating import Templar


class TaskTimedOut(BaseException):
    """The task's time is over. Not an Exception, so that no handler of errors in a module swallows it."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TaskTimedOut in the body after this many seconds; 0 means no limit.

    A program that is running then is stopped, as with Ctrl-C. It uses the process's real-time alarm, which nothing
    else here does, and works in the main thread only.
    """
    if seconds <= 0 or threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(_number: int, _frame: FrameType | None) -> None:
        raise TaskTimedOut

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)  # once: a second alarm would cut short the stopping of a program
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def seconds_of(task: Task, templar: Templar) -> float:
    """The task's `timeout`, 0 without one. Raises CrossgradeError for what is no number."""
    if task.conduct.timeout is None:
        return 0.0
    given = templar.template(task.conduct.timeout, task.spot_of("timeout"))
    try:
        return float(given)
    except (TypeError, ValueError):
        raise CrossgradeError(f"timeout needs seconds, not {given!r}", place=task.spot.place) from None


def plain_seconds(seconds: float) -> float:
    """As Ansible writes it: without a fraction where there is none."""
    return int(seconds) if seconds.is_integer() else seconds
