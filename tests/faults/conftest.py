"""The summary of the fault tests."""

from __future__ import annotations

import pytest
from tests.support.tally import TALLY, Tally


@pytest.fixture
def tally() -> Tally:
    return TALLY


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    lines = TALLY.lines()
    if lines:
        terminalreporter.section("interruptions")
        for line in lines:
            terminalreporter.write_line(line)
