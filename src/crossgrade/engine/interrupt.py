"""SIGINT, SIGTERM and SIGHUP become one exception in the main thread, and are held off while a rollback runs."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """The run was asked to stop. Not an Exception, so that no handler of errors swallows it."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.signal = signal.Signals(number)


def _raise(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the shape that `signal` asks for
    raise Interrupted(number)


@contextmanager
def interruptible() -> Iterator[None]:
    """Within the body, a signal raises Interrupted."""
    before = {number: signal.signal(number, _raise) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Within the body, signals are ignored: a second Ctrl-C must not break a rollback."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
