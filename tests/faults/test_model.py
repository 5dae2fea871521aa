"""A model of a server's life: upgrades, failures, kills, recoveries, returns, clean-ups and archives in any order.

Hypothesis chooses the order and shrinks what goes wrong to the shortest story. The invariant after every command:
the path that people use leads to a complete generation that is what its manifest says, and its software is what runs.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.support.commands import PROGRAM
from tests.support.small_upgrade import SmallUpgrade, make_small_upgrade
from tests.support.tally import TALLY

VERSIONS = ("2.0", "3.0")
POINTS = [
    f"{kind}:{module}"
    for module in ("venv_backup", "copy", "python_env", "activate")
    for kind in ("intended", "effect", "done")
]
POINTS += ["begun", "ending"]


class Server(RuleBasedStateMachine):
    """`version` is what runs now, `before` what ran before the run that was interrupted."""

    @initialize()
    def make(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="crossgrade-model-"))
        self.upgrade: SmallUpgrade = make_small_upgrade(self.folder / "server")
        self.version = "1.0"
        self.before = "1.0"
        self.wanted = "2.0"
        self.interrupted = False
        self.pinned: set[int] = set()
        self.archives_made: list[tuple[Path, str]] = []

    def teardown(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    @rule(version=st.sampled_from(VERSIONS))
    def upgrades(self, version: str) -> None:
        answer = self.upgrade.run("upgrade", "-e", f"version={version}")
        assert answer.code == 0, answer.stderr
        self.version, self.interrupted = version, False

    @rule(version=st.sampled_from(VERSIONS))
    def fails_at_a_gate(self, version: str) -> None:
        # a gate's verdict is on record for a generation and its arguments: other imports are another gate
        answer = self.upgrade.run("upgrade", "-e", f"version={version}", "-e", '{"imports": ["missing"]}')
        assert answer.code == 2, (answer.code, answer.stdout, answer.stderr)
        self._settled()

    def _settled(self) -> None:
        """An interrupted run was past its commit point or not; whichever, it is no longer open."""
        if self.interrupted:
            self.version = self.upgrade.version()
            assert self.version in (self.before, self.wanted)
        self.interrupted = False

    @precondition(lambda self: not self.interrupted)
    @rule(version=st.sampled_from(VERSIONS), point=st.sampled_from(POINTS))
    def is_killed(self, version: str, point: str) -> None:
        before = self.version
        answer = self.upgrade.run("upgrade", "-e", f"version={version}", environment={"CROSSGRADE_KILL_AT": point})
        if answer.code == 0:  # nothing to do at this point: the run was not interrupted
            self.version = version
            return
        assert answer.code == -signal.SIGKILL, answer.stderr
        self.version = self.upgrade.version()
        assert self.version in (before, version)
        self.interrupted, self.before, self.wanted = True, before, version
        TALLY.add("kill, in the model", "old" if self.version == before else "new")

    @precondition(lambda self: self.interrupted)
    @rule(point=st.sampled_from(["undoing:activate", "reversed:copy", "undone:python_env", "ending"]))
    def is_killed_while_it_rolls_back(self, point: str) -> None:
        answer = self.upgrade.run("rollback", environment={"CROSSGRADE_KILL_AT": point})
        if answer.code == -signal.SIGKILL:
            self.version = self.upgrade.version()
            assert self.version in (self.before, self.wanted)
            TALLY.add("kill, in the model", "old" if self.version == self.before else "new")
            return
        assert answer.code == 0, answer.stderr
        self.version, self.interrupted = self.before, False

    @precondition(lambda self: self.interrupted)
    @rule()
    def resumes(self) -> None:
        answer = self.upgrade.run("upgrade", "--resume")
        assert answer.code == 0, answer.stderr
        self.version, self.interrupted = self.wanted, False

    @rule()
    def rolls_back(self) -> None:
        answer = self.upgrade.run("rollback")
        if self.interrupted:
            assert answer.code == 0, answer.stderr
            assert self.upgrade.version() == self.before
        elif answer.code == 0:
            assert self.upgrade.version() != self.version
        else:
            assert answer.code == 1, answer.stderr
            assert self.upgrade.version() == self.version
        self.version, self.interrupted = self.upgrade.version(), False

    @rule(keep=st.sampled_from(["0", "2"]))
    def collects(self, keep: str) -> None:
        if not self.upgrade.store.exists:
            return
        known = {each.number for each in self.upgrade.store.generations()}
        answer = self.upgrade.run("gc", "--keep", keep)
        assert (answer.code == 0) != self.interrupted, answer.stderr
        if self.interrupted:
            assert {each.number for each in self.upgrade.store.generations()} == known
        assert self.pinned & known <= {each.number for each in self.upgrade.store.generations()}

    @precondition(lambda self: self.upgrade.store.exists)
    @rule(data=st.data())
    def pins(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from([each.number for each in self.upgrade.store.generations()] or [1]))
        answer = self.upgrade.run("pin", str(number))
        assert answer.code in (0, 1), answer.stderr
        if answer.code == 0:
            self.pinned.add(number)

    @precondition(lambda self: self.upgrade.store.exists and self.upgrade.store.active() is not None)
    @rule()
    def archives(self) -> None:
        target = self.folder / f"{len(self.archives_made)}.tar.zst"
        answer = self.upgrade.run("export", "--to", str(target))
        if self.upgrade.store.generation(self.upgrade.store.active() or 0).state == "ready":
            assert answer.code == 0, answer.stderr
            self.archives_made.append((target, self.version))

    @precondition(lambda self: bool(self.archives_made))
    @rule(data=st.data(), go_there=st.booleans())
    def restores(self, data: st.DataObject, go_there: bool) -> None:
        archive, version = data.draw(st.sampled_from(self.archives_made))
        command = [str(PROGRAM), "restore", str(archive), "--root", str(self.upgrade.root), "--json"]
        completed = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        assert (completed.returncode == 0) != self.interrupted, completed.stderr
        if completed.returncode == 0 and go_there:
            number = json.loads(completed.stdout)["generation"]["number"]
            answer = self.upgrade.run("rollback", "--to", str(number))
            assert answer.code == 0, answer.stderr
            self.version = version

    @rule()
    def only_looks(self) -> None:
        for command in ("plan", "status", "history"):
            answer = self.upgrade.run(command)
            assert answer.code == 0 or (command == "history" and not self.upgrade.store.exists), answer.stderr

    @invariant()
    def the_environment_is_whole_and_runs(self) -> None:
        if hasattr(self, "upgrade"):
            self.upgrade.outcome()
            assert self.upgrade.version() == self.version


def tell_stories(examples: int, steps: int) -> None:
    run_state_machine_as_test(
        Server,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.generate, Phase.shrink),
        ),
    )


def test_short_stories() -> None:
    tell_stories(examples=2, steps=6)


@pytest.mark.faults
@pytest.mark.timeout(3600)
def test_long_stories() -> None:
    tell_stories(examples=12, steps=18)
