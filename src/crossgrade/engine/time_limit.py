"""A task's `timeout`: an alarm that ends whatever it is doing."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


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
