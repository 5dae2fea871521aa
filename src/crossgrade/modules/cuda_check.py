"""cuda_check: do torch, native files, libraries, toolkit and driver belong to one CUDA release? Nothing is run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from crossgrade.gates.verdict import Verdict
from crossgrade.knowledge import table
from crossgrade.modules import gate
from crossgrade.modules.contract import ApplyContext, Change, HostView, Module, Outcome, Plan, Sight
from crossgrade.playbook.arguments import argument


@dataclass(frozen=True)
class Arguments:
    """Checks that everything in an environment is for the CUDA major release that torch is built for."""

    required_one_of: ClassVar[Sequence[Sequence[str]]] = (("generation", "path"),)
    mutually_exclusive: ClassVar[Sequence[Sequence[str]]] = (("generation", "path"),)

    generation: int | None = argument(doc="The generation to check, as python_env returns it.", default=None)
    path: Path | None = argument(doc="A venv that is no generation. Its verdict is not kept.", default=None)
    driver: str | None = argument(
        doc='The NVIDIA driver to judge for, such as "580.95.05". By default that of this machine.',
        default=None,
    )
    cuda_home: Path | None = argument(
        doc="The toolkit that dists compile with while they run. By default what CUDA_HOME or CUDA_PATH names, in the "
        "generation's variables or the task's.",
        default=None,
    )
    ignore: tuple[str, ...] = argument(
        doc="Globs of names of dists that are only noted where they are for another CUDA release.", default=()
    )
    on_not_run: gate.OnNotRun = argument(
        doc="What a verdict of `not run` (nothing is built for CUDA) does to the run.", default="fail"
    )


def inspect(arguments: Arguments, host: HostView) -> gate.GateState:
    candidate = gate.find_candidate(arguments.generation, arguments.path, host)
    environment = gate.program_environment(candidate, host)
    toolkit = _toolkit(arguments, environment, host)
    matters = {
        "driver": gate.driver(arguments.driver),
        "cuda_home": str(toolkit or ""),
        "ignore": list(arguments.ignore),
        "chosen": {
            str(row["variable"]): environment.get(str(row["variable"]), "") for row in table("library_variants")
        },
        "library_path": host.environment.get("LD_LIBRARY_PATH", ""),
    }
    return gate.gate_state("cuda_check", candidate, host, matters)


def plan(arguments: Arguments, state: gate.GateState) -> Plan:
    return gate.plan_gate(state, "check the CUDA releases in", arguments.on_not_run)


def apply(arguments: Arguments, change: Change, context: ApplyContext) -> Outcome:  # noqa: ARG001 (the contract's shape)
    verdict = _judge(arguments, gate.Present(context))
    return gate.conclude(verdict, inspect(arguments, context.host), arguments.on_not_run, context)


def foresee(arguments: Arguments, sight: Sight) -> Outcome:
    return gate.outcome_of(_judge(arguments, sight), arguments.on_not_run)


def _judge(arguments: Arguments, sight: Sight) -> Verdict:
    from crossgrade.gates.cuda import judge_cuda
    from crossgrade.inspect.cuda_consistency import read_cuda
    from crossgrade.inspect.native import inspect_native
    from crossgrade.inspect.ownership import conflicts

    candidate = gate.find_candidate(arguments.generation, arguments.path, sight.host)
    venv = sight.venv(candidate.venv, candidate.generation)
    sight.require_certain(venv)
    environment = gate.program_environment(candidate, sight.host)
    sight.progress(f"reading the native files and toolkits of {candidate.title}")
    report = inspect_native(venv, library_path=gate.library_path(environment, sight))
    toolkit = _toolkit(arguments, environment, sight.host)
    named = Path(sight.now(str(toolkit))) if toolkit else None
    facts = read_cuda(report, conflicts(venv), named)
    return judge_cuda(facts, driver=gate.driver(arguments.driver), ignore=arguments.ignore, environment=environment)


def _toolkit(arguments: Arguments, environment: Mapping[str, str], host: HostView) -> Path | None:
    """What the programs of the candidate take for their toolkit."""
    if arguments.cuda_home is not None:
        return host.playbook_directory / arguments.cuda_home
    named = environment.get("CUDA_HOME") or environment.get("CUDA_PATH")
    return Path(named) if named else None


MODULE = Module(
    name="cuda_check",
    arguments=Arguments,
    effect="checks",
    inspect=inspect,
    plan=plan,
    apply=apply,
    foresee=foresee,
    summary="Gate: torch, native code, libraries, toolkit and driver are of CUDA releases that go together.",
)
