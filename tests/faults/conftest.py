"""The summary of the fault tests."""

from __future__ import annotations

import signal

import pytest
from tests.support.tally import TALLY, Tally


@pytest.fixture(autouse=True, scope="session")
def hangups_arrive() -> None:
    """Under `nohup` programs inherit that SIGHUP is ignored, and crossgrade leaves it so: the tests send it."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture
def tally() -> Tally:
    return TALLY


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    lines = TALLY.lines()
    if lines:
        terminalreporter.section("interruptions")
        for line in lines:
            terminalreporter.write_line(line)
