"""SIGINT, SIGTERM and SIGHUP: one exception in the main thread, once, and none while a rollback runs.

A second signal while the first one is being dealt with must change nothing, wherever it comes. So the handler
that raises takes itself away first, and whoever deals with the exception calls `hold_off`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from crossgrade.errors import ExitCode

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """The run was asked to stop. Not an Exception, so that no handler of errors swallows it."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.signal = signal.Signals(number)


def _raise_once(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the shape that `signal` asks for
    hold_off()
    raise Interrupted(number)


def _leave(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the shape that `signal` asks for
    os.write(2, b"crossgrade: interrupted\n")
    raise SystemExit(int(ExitCode.INTERRUPTED))


def _nothing(number: int, frame: FrameType | None) -> None:
    """Not SIG_IGN: that would be inherited by the service that a rollback restarts."""


def leave_when_interrupted() -> None:
    """From now on a signal ends the program with exit code 99: for the time before anything is changed."""
    for number in _SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:  # `nohup` had SIGHUP ignored, and so it stays
            signal.signal(number, _leave)


def hold_off() -> None:
    """From now on signals do nothing. Programs that are started meanwhile get them as usual."""
    for number in _SIGNALS:
        signal.signal(number, _nothing)


def ignore_to_the_end() -> None:
    """No program is started any more: ignore signals also while Python itself shuts down."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def defer() -> None:
    """Keep signals waiting until `deliver`."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)


def deliver() -> None:
    """Let waiting signals come, here."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


@contextmanager
def interruptible() -> Iterator[None]:
    """Within the body, the first signal raises Interrupted, and later ones do nothing.

    After `hold_off` the handlers from before do not come back: what has ended must not be called interrupted.
    """
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    for number, handler in before.items():
        if handler != signal.SIG_IGN:
            signal.signal(number, _raise_once)
    try:
        yield
    finally:
        deliver()
        for number, handler in before.items():
            if signal.getsignal(number) == _raise_once:
                signal.signal(number, handler)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Within the body, signals are ignored: a second Ctrl-C must not break a rollback."""
    before = {number: signal.signal(number, _nothing) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
