"""smoke_check: do the modules that the server needs import, each in a Python process of its own?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from crossgrade.inspect.machine import driver_version
from crossgrade.modules import gate
from crossgrade.modules.contract import ApplyContext, Change, HostView, Module, Outcome, Plan
from crossgrade.playbook.arguments import argument

if TYPE_CHECKING:
    from crossgrade.gates.smoke import ImportOutcome


@dataclass(frozen=True)
class Arguments:
    """Imports each module with the environment's own Python and the environment variables of its server."""

    required_one_of: ClassVar[Sequence[Sequence[str]]] = (("generation", "path"),)
    mutually_exclusive: ClassVar[Sequence[Sequence[str]]] = (("generation", "path"),)

    imports: tuple[str, ...] = argument(
        doc="The modules to import, such as `flashinfer.comm`; each in its own process."
    )
    generation: int | None = argument(doc="The generation to check, as python_env returns it.", default=None)
    path: Path | None = argument(doc="A venv that is no generation. Its verdict is not kept.", default=None)
    timeout: float = argument(doc="Seconds that one import may take.", default=300.0)
    on_not_run: gate.OnNotRun = argument(
        doc="What a verdict of `not run` (no module is named, or one needs the NVIDIA driver and there is none) does "
        "to the run.",
        default="fail",
    )


def inspect(arguments: Arguments, host: HostView) -> gate.GateState:
    candidate = gate.find_candidate(arguments.generation, arguments.path, host)
    matters = {"imports": list(arguments.imports)}  # a failed gate runs again in any case, whatever the timeout
    state = gate.gate_state("smoke_check", candidate, host, matters)
    recorded = state.recorded
    if recorded is not None and recorded.outcome == "not run" and recorded.figures.get("not_run") and driver_version():
        return replace(state, recorded=None)  # what lacked then is there now
    return state


def plan(arguments: Arguments, state: gate.GateState) -> Plan:
    return gate.plan_gate(state, f"import {', '.join(arguments.imports)} in", arguments.on_not_run)


def apply(arguments: Arguments, change: Change, context: ApplyContext) -> Outcome:  # noqa: ARG001 (the contract's shape)
    from crossgrade.gates.smoke import judge_smoke, run_imports

    state = inspect(arguments, context.host)
    gate.refuse_unfinished(state.candidate)
    environment = gate.program_environment(state.candidate, context.host)
    outcomes: list[ImportOutcome] = []
    for number, name in enumerate(arguments.imports, start=1):
        context.progress(f"import {name} ({number} of {len(arguments.imports)})")
        outcomes += run_imports(state.candidate.python, [name], environment=environment, timeout=arguments.timeout)
    verdict = judge_smoke(outcomes, driver=driver_version() is not None)
    return gate.conclude(verdict, state, arguments.on_not_run, context)


MODULE = Module(
    name="smoke_check",
    arguments=Arguments,
    effect="checks",
    inspect=inspect,
    plan=plan,
    apply=apply,
    summary="Gate: the modules that the server needs import.",
)
