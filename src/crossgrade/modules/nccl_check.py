"""nccl_check: do GPUs exchange data with the environment's own NCCL, in time? A few processes try it first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from crossgrade.gates.verdict import Verdict
from crossgrade.modules import gate
from crossgrade.modules.contract import ApplyContext, Change, HostView, Module, Outcome, Plan
from crossgrade.playbook.arguments import argument


@dataclass(frozen=True)
class Arguments:
    """Starts some processes of the environment that add up tensors together, and ends them when the time is over."""

    required_one_of: ClassVar[Sequence[Sequence[str]]] = (("generation", "path"),)
    mutually_exclusive: ClassVar[Sequence[Sequence[str]]] = (("generation", "path"),)

    generation: int | None = argument(doc="The generation to check, as python_env returns it.", default=None)
    path: Path | None = argument(doc="A venv that is no generation. Its verdict is not kept.", default=None)
    ranks: int = argument(doc="How many processes, each with a GPU of its own, from the first on.", default=2)
    backend: Literal["nccl", "gloo"] = argument(
        doc="What torch exchanges the data with. `gloo` needs no GPU, and says nothing about one.", default="nccl"
    )
    timeout: float = argument(doc="Seconds that all of it may take.", default=120.0)
    environment: Mapping[str, str] = argument(
        doc="Variables for this check, such as NCCL_P2P_DISABLE, over those of the generation.", default_factory=dict
    )
    on_not_run: gate.OnNotRun = argument(
        doc="What a verdict of `not run` (no driver, or fewer GPUs than ranks) does to the run.", default="fail"
    )


def inspect(arguments: Arguments, host: HostView) -> gate.GateState:
    candidate = gate.find_candidate(arguments.generation, arguments.path, host)
    matters = {
        "ranks": arguments.ranks,
        "backend": arguments.backend,
        "environment": dict(arguments.environment),
        "driver": gate.driver(None),
    }
    return gate.gate_state("nccl_check", candidate, host, matters)


def plan(arguments: Arguments, state: gate.GateState) -> Plan:
    return gate.plan_gate(state, f"let {arguments.ranks} ranks add up tensors with", arguments.on_not_run)


def apply(arguments: Arguments, change: Change, context: ApplyContext) -> Outcome:  # noqa: ARG001 (the contract's shape)
    state = inspect(arguments, context.host)
    gate.refuse_unfinished(state.candidate)
    return gate.conclude(_judge(arguments, state.candidate, context), state, arguments.on_not_run, context)


def _judge(arguments: Arguments, candidate: gate.Candidate, context: ApplyContext) -> Verdict:
    from crossgrade.gates.collective import GATE, judge_ranks, run_ranks

    if obstacle := _obstacle(arguments):
        return Verdict(GATE, "not run", obstacle)
    variables = dict(arguments.environment)
    tried = run_ranks(
        candidate.python,
        ranks=arguments.ranks,
        backend=arguments.backend,
        environment=gate.program_environment(candidate, context.host, variables),
        timeout=arguments.timeout,
        progress=context.progress,
    )
    return judge_ranks(tried)


def _obstacle(arguments: Arguments) -> str:
    return gate.lacking_gpu(arguments.backend == "nccl")


MODULE = Module(
    name="nccl_check",
    arguments=Arguments,
    effect="checks",
    inspect=inspect,
    plan=plan,
    apply=apply,
    summary="Gate: GPUs exchange data with the environment's NCCL, in time.",
)
