"""consistency_check: do the dists fit together, by their files, requirements and builds? Nothing is run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from crossgrade.modules import gate
from crossgrade.modules.contract import ApplyContext, Change, HostView, Module, Outcome, Plan, Sight
from crossgrade.playbook.arguments import argument

if TYPE_CHECKING:
    from crossgrade.gates.verdict import Verdict


@dataclass(frozen=True)
class Arguments:
    """Checks that no dist has overwritten another's files, that each requirement is met, and that native modules were
    compiled against the numpy and torch that are installed."""

    required_one_of: ClassVar[Sequence[Sequence[str]]] = (("generation", "path"),)
    mutually_exclusive: ClassVar[Sequence[Sequence[str]]] = (("generation", "path"),)

    generation: int | None = argument(doc="The generation to check, as python_env returns it.", default=None)
    path: Path | None = argument(doc="A venv that is no generation. Its verdict is not kept.", default=None)
    ignore: tuple[str, ...] = argument(
        doc="Globs of names of dists whose faults are only noted: requirements, files that others write too, builds.",
        default=(),
    )
    on_not_run: gate.OnNotRun = argument(doc="What a verdict of `not run` does to the run.", default="fail")


def inspect(arguments: Arguments, host: HostView) -> gate.GateState:
    candidate = gate.find_candidate(arguments.generation, arguments.path, host)
    return gate.gate_state("consistency_check", candidate, host, {"ignore": list(arguments.ignore)})


def plan(arguments: Arguments, state: gate.GateState) -> Plan:
    return gate.plan_gate(state, "check the files and requirements of the dists of", arguments.on_not_run)


def apply(arguments: Arguments, change: Change, context: ApplyContext) -> Outcome:  # noqa: ARG001 (the contract's shape)
    verdict = _judge(arguments, gate.Present(context))
    return gate.conclude(verdict, inspect(arguments, context.host), arguments.on_not_run, context)


def foresee(arguments: Arguments, sight: Sight) -> Outcome:
    return gate.outcome_of(_judge(arguments, sight), arguments.on_not_run)


def _judge(arguments: Arguments, sight: Sight) -> Verdict:
    from crossgrade.gates.consistency import judge_consistency
    from crossgrade.inspect.consistency import read_consistency

    candidate = gate.find_candidate(arguments.generation, arguments.path, sight.host)
    venv = sight.venv(candidate.venv, candidate.generation)
    sight.progress(f"reading the records of {candidate.title}")
    return judge_consistency(read_consistency(venv), ignore=arguments.ignore)


MODULE = Module(
    name="consistency_check",
    arguments=Arguments,
    effect="checks",
    inspect=inspect,
    plan=plan,
    apply=apply,
    foresee=foresee,
    summary="Gate: no dist has overwritten another's files, every requirement is met, builds fit numpy and torch.",
)
