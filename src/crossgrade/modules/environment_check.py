"""environment_check: what is wrong with the environment of today, by name, in a plan too; only reads."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from crossgrade.errors import TaskError
from crossgrade.modules import gate
from crossgrade.modules.contract import ApplyContext, Change, HostView, Module, Outcome, Plan, Skipped
from crossgrade.playbook.arguments import argument

if TYPE_CHECKING:
    from crossgrade.gates.verdict import Verdict


@dataclass(frozen=True)
class Arguments:
    """Names each fault of the environment that people work with, and says what an upgrade makes of it. It stops
    nothing, unless `fail_on` says so."""

    path: Path | None = argument(doc="The environment of today; without it, the active generation.", default=None)
    fail_on: tuple[str, ...] = argument(
        doc="Globs of names of faults that end the run, such as `two-dists-one-path`; `*` is all of them.", default=()
    )
    ignore: tuple[str, ...] = argument(doc="Globs of names of faults, or of dists, that are only noted.", default=())
    native: bool = argument(
        doc="Whether native files are opened, too, for the numpy, torch and CUDA that they were built against; "
        "`plan --deep` always does.",
        default=False,
    )
    on_not_run: gate.OnNotRun = argument(
        doc="What a verdict of `not run` (a part could not be looked at) does to the run.", default="warn"
    )


@dataclass(frozen=True)
class State:
    """The environment, and what was found in it; None where an earlier task of the plan will make it."""

    venv: Path
    verdict: Verdict | None


def inspect(arguments: Arguments, host: HostView) -> State:
    from crossgrade.facts.environment import read_environment
    from crossgrade.gates.environment import judge_environment

    active = host.active()
    venv = gate.environment_of_today(arguments.path, host)
    if venv is None and active is not None and host.check_mode:
        return State(host.store.venv(active), None)
    if venv is None:
        raise TaskError(
            "no generation is active yet, so that nobody knows which environment is meant",
            remedy="`path` names a venv, such as ~/ml-env.",
        )
    # The engine keeps these of the shell from the programs of tasks; here they are what is looked for
    shell = {name: os.environ[name] for name in ("PYTHONPATH", "PYTHONHOME") if name in os.environ}
    whose = "the task" if shell.keys() & host.environment.keys() else "this shell"
    facts = read_environment(
        venv,
        {**shell, **host.environment},
        whose=whose,
        runner=host.run,
        native=arguments.native or host.deep,
    )
    return State(venv, judge_environment(facts, ignore=arguments.ignore, fail_on=arguments.fail_on))


def plan(arguments: Arguments, state: State) -> Plan:  # noqa: ARG001 (the contract's shape)
    if state.verdict is None:
        return Skipped(f"{state.venv} is not there yet")
    return Change(f"name the faults of {state.venv}", payload={"verdict": state.verdict})


def apply(arguments: Arguments, change: Change, context: ApplyContext) -> Outcome:  # noqa: ARG001 (the contract's shape)
    verdict: Verdict = change.payload["verdict"]
    return gate.outcome_of(verdict, arguments.on_not_run)


MODULE = Module(
    name="environment_check",
    arguments=Arguments,
    effect="reads",
    inspect=inspect,
    plan=plan,
    apply=apply,
    summary="Gate: the faults of the environment of today, by name, before anything is done.",
)
