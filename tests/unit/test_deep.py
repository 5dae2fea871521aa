"""What a deep plan says when what it looks at is not what a run would make, or not whole."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.gate_host import make_venv
from tests.support.tiny_wheels import recorded_hash

from crossgrade.engine.deep import Foresight
from crossgrade.engine.plan import Foreseen
from crossgrade.engine.view import Machine, TaskView
from crossgrade.errors import NotForeseenError
from crossgrade.modules import abi_check, python_env
from crossgrade.modules.contract import Change, Prediction
from crossgrade.store.generation import Generation
from crossgrade.store.layout import Store

LayOut = Callable[[Path], tuple[str, ...]]


class Plan:
    """A plan in which python_env makes generation 1, as `lay` lays it out, and abi_check looks at it."""

    def __init__(self, folder: Path, lay: LayOut, environment: dict[str, str] | None = None) -> None:
        (folder / "scratch").mkdir()
        self.store = Store(folder / "store")
        self.machine = Machine(self.store, folder, True)
        self.foresight = Foresight(folder / "scratch", lambda _: None, lambda _: None)
        self.laid = 0
        generation = Generation(1, "i", "built", "ready", "2026-12-02T00:00:00Z", environment=environment or {})
        self.machine.predict([Prediction("generation", "1", generation.to_json())])

        def lay_out(_: Change, venv: Path, __: Any) -> tuple[str, ...]:
            self.laid += 1
            return lay(venv)

        module = replace(python_env.MODULE, lay_out=lay_out)
        assert self.foresight.look(module, None, Change("make", venv=self.store.venv(1)), self.view) is None
        assert self.laid == 0, "nothing is laid out before a gate asks"

    @property
    def view(self) -> TaskView:
        return TaskView(self.machine, dict(os.environ), lambda text, *_: text, lambda _: True)

    def abi(self, **arguments: Any) -> Foreseen:
        asked = abi_check.Arguments(**(arguments or {"generation": 1}))
        found = self.foresight.look(abi_check.MODULE, asked, Change("check"), self.view)
        assert found is not None
        return found


def whole(venv: Path) -> tuple[str, ...]:
    make_venv(venv)
    return ()


def test_it_is_laid_out_once(tmp_path: Path) -> None:
    plan = Plan(tmp_path, whole)
    assert plan.abi().outcome == plan.abi().outcome == "would pass"
    assert plan.laid == 1


def test_why_it_could_not_be_laid_out_is_said_each_time(tmp_path: Path) -> None:
    def lay(venv: Path) -> tuple[str, ...]:
        raise NotForeseenError(f"uv could not write {venv}")

    plan = Plan(tmp_path, lay)
    assert plan.abi() == plan.abi()
    assert plan.abi().outcome == "not run"
    assert "uv could not write" in plan.abi().reason
    assert plan.laid == 1


def test_a_toolkit_that_the_run_installs_is_not_looked_into(tmp_path: Path) -> None:
    libraries = str(Store(tmp_path / "store").toolkit("abc") / "lib")
    plan = Plan(tmp_path, whole, {"LD_LIBRARY_PATH": libraries})
    assert plan.abi().outcome == "would pass", "an empty place is one where nothing is found"
    plan.machine.predict([Prediction("toolkit", "abc", {})])
    assert plan.abi() == Foreseen("not run", f"the toolkit that {libraries} belongs to is installed by this run")


def test_a_link_that_leads_nowhere_is_no_missing_file(tmp_path: Path) -> None:
    def lay(venv: Path) -> tuple[str, ...]:
        (make_venv(venv) / "gone.so").symlink_to(tmp_path / "cache" / "gone.so")
        return ()

    found = Plan(tmp_path, lay).abi()
    assert found.outcome == "not run"
    assert "removed from uv's cache" in found.reason


def test_whose_native_file_stays_is_not_guessed(tmp_path: Path) -> None:
    def lay(venv: Path) -> tuple[str, ...]:
        site = make_venv(venv)
        for name in ("one", "other"):
            info = site / f"{name}-1.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(f"Name: {name}\nVersion: 1\n")
            (info / "RECORD").write_text(f"nvidia/nccl.so.2,{recorded_hash(name.encode())},{len(name)}\n")
        (site / "nvidia").mkdir()
        (site / "nvidia" / "nccl.so.2").write_bytes(b"one")
        return ()

    found = Plan(tmp_path, lay).abi()
    assert found.outcome == "not run"
    assert found.reason.startswith("one 1 and other 1 write nvidia/nccl.so.2")


def test_what_lacks_makes_it_no_verdict(tmp_path: Path) -> None:
    found = Plan(tmp_path, lambda venv: (*whole(venv), "kernels is built by this run")).abi()
    assert found.outcome == "not run"
    assert found.reason.startswith("kernels is built by this run; of what is there already: ")
    assert found.verdict is not None
    assert found.verdict["outcome"] == "passed"


def test_the_link_that_people_use_leads_to_what_the_plan_activates(tmp_path: Path) -> None:
    plan = Plan(tmp_path, whole)
    plan.store.create()
    make_venv(plan.store.venv(7))
    link = tmp_path / "env"
    link.symlink_to(plan.store.venv(7))
    plan.store.set_active_link(link)
    assert plan.abi(path=link).outcome == "would pass"
    assert plan.laid == 0
    plan.machine.predict([Prediction("active", "active", 1)])
    assert plan.abi(path=link).outcome == "would pass"
    assert plan.laid == 1


@pytest.mark.parametrize("state", ["ready", "building"])
def test_a_generation_that_is_there_is_judged_as_it_is(tmp_path: Path, state: Any) -> None:
    plan = Plan(tmp_path, whole)
    plan.store.create()
    plan.store.write_generation(Generation(3, "i", "built", state, "2026-12-02T00:00:00Z"))
    make_venv(plan.store.venv(3))
    assert plan.abi(generation=3).outcome == ("would pass" if state == "ready" else "not run")
    assert plan.laid == 0
