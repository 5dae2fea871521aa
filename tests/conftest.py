"""What every test may rely on, however the tests were started; and the summary of the fault tests."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from hypothesis import settings

from tests.support.tally import TALLY

settings.register_profile("crossgrade", deadline=None)  # no test asserts a time
settings.load_profile("crossgrade")

# Files whose tests measure time, or are about who else is at work: they get the machine to themselves.
ALONE = {
    "test_bench_store.py",
    "test_benchmark_loads.py",
    "test_benchmark_module.py",
    "test_contention.py",
    "test_experiments.py",
    "test_kill.py",
    "test_load.py",
    "test_process.py",
    "test_rehearsal_upgrade.py",
    "test_server_process.py",
    "test_signals.py",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.name in ALONE:
            item.add_marker("alone")


@pytest.fixture(autouse=True, scope="session")
def signals_arrive() -> None:
    """Programs inherit that signals are ignored: SIGHUP under `nohup`, SIGINT and SIGQUIT behind a shell's `&`.

    crossgrade leaves them so, and the tests send them.
    """
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


# ---- the summary of the fault tests, also of those that workers of pytest-xdist have run


def pytest_sessionfinish(session: pytest.Session) -> None:
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["tally"] = TALLY.to_json()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    TALLY.take(getattr(node, "workeroutput", {}).get("tally", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    lines = TALLY.lines()
    if lines:
        terminalreporter.section("interruptions")
        for line in lines:
            terminalreporter.write_line(line)
