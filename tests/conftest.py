"""What every test may rely on, however the tests were started."""

from __future__ import annotations

import signal

import pytest


@pytest.fixture(autouse=True, scope="session")
def signals_arrive() -> None:
    """Programs inherit that signals are ignored: SIGHUP under `nohup`, SIGINT and SIGQUIT behind a shell's `&`.

    crossgrade leaves them so, and the tests send them.
    """
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
