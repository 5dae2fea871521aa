"""What every test may rely on, however the tests were started; and the summary of the fault tests."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from hypothesis import settings

from tests.support.tally import TALLY

settings.register_profile("crossgrade", deadline=None)  # no test asserts a time
settings.load_profile("crossgrade")

# Files whose tests are about moments and about who else is at work: they get the machine to themselves. Tests of
# verdicts on speed do not need it: what they compare is far apart.
ALONE = {
    "test_load.py",
    "test_process.py",
    "test_server_process.py",
}


# Files that run ansible-playbook for a minute and more. In each run test_playbooks.py, test_random_playbooks.py,
# test_expressions.py and others hold the language to Ansible's; run these before you land what they are about.
SLOW = {
    "test_asking_and_waiting.py",
    "test_executor.py",
    "test_fetching.py",
    "test_filters_and_lookups.py",
    "test_includes.py",
    "test_magic_variables.py",
    "test_placing_files.py",
    "test_system_modules_alike.py",
    "test_words.py",
}


def pytest_configure(config: pytest.Config) -> None:
    """The workers of pytest-xdist take the files as they are collected: the long ones first, and unit tests at the end.

    By itself it begins with the files of many tests, and a long file of few tests keeps one worker busy at the end.
    """
    config.option.loadscopereorder = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.name in ALONE:
            item.add_marker("alone")
        if item.path.name in SLOW:
            item.add_marker("slow")


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
