"""gpu_arch_check: does every file with device code hold code for this GPU? No GPU is needed to know."""

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
    from crossgrade.inspect.jit_settings import JitSettings


@dataclass(frozen=True)
class Arguments:
    """Reads the fatbin headers of each file and decides for one compute capability."""

    required_one_of: ClassVar[Sequence[Sequence[str]]] = (("generation", "path"),)
    mutually_exclusive: ClassVar[Sequence[Sequence[str]]] = (("generation", "path"),)

    compute_capability: str = argument(doc='The capability of the GPU, "12.0" for an RTX PRO 6000 Blackwell.')
    generation: int | None = argument(doc="The generation to check, as python_env returns it.", default=None)
    path: Path | None = argument(
        doc="A venv, or any directory, that is no generation. Its verdict is not kept.", default=None
    )
    require: tuple[str, ...] = argument(
        doc="Globs (relative to the environment; `*` also matches `/`) of the modules that must have code for "
        "the GPU, each by itself; others are only noted. By default each dist that holds device code must cover the "
        "GPU in some module, and the modules that fall away are warned about.",
        default=(),
    )
    allow_ptx: bool = argument(
        doc="Only warn about files that have PTX alone, which the driver compiles at the first start.",
        default=False,
    )
    driver: str | None = argument(
        doc='The NVIDIA driver that must compile PTX, such as "580.95.05". By default that of this machine.',
        default=None,
    )
    on_not_run: gate.OnNotRun = argument(
        doc="What a verdict of `not run` (no file holds device code) does to the run.",
        default="fail",
    )


def inspect(arguments: Arguments, host: HostView) -> gate.GateState:
    from crossgrade.inspect.jit_settings import COMPILING

    candidate = gate.find_candidate(arguments.generation, arguments.path, host)
    environment = gate.program_environment(candidate, host)
    matters = {
        "compute_capability": arguments.compute_capability,
        "require": list(arguments.require),
        "allow_ptx": arguments.allow_ptx,
        "driver": gate.driver(arguments.driver),
        "compiling": {name: environment[name] for name in COMPILING if environment.get(name)},
    }
    return gate.gate_state("gpu_arch_check", candidate, host, matters)


def plan(arguments: Arguments, state: gate.GateState) -> Plan:
    what = f"check for device code for {arguments.compute_capability} in"
    return gate.plan_gate(state, what, arguments.on_not_run)


def apply(arguments: Arguments, change: Change, context: ApplyContext) -> Outcome:  # noqa: ARG001 (the contract's shape)
    verdict = _judge(arguments, gate.Present(context))
    return gate.conclude(verdict, inspect(arguments, context.host), arguments.on_not_run, context)


def foresee(arguments: Arguments, sight: Sight) -> Outcome:
    return gate.outcome_of(_judge(arguments, sight), arguments.on_not_run)


def _judge(arguments: Arguments, sight: Sight) -> Verdict:
    from crossgrade.gates.gpu_arch import judge_gpu_arch
    from crossgrade.gates.jit_settings import with_jit_settings
    from crossgrade.gates.reachability import with_callers, without_code
    from crossgrade.inspect.device_packages import device_packages
    from crossgrade.inspect.native import inspect_native
    from crossgrade.inspect.reach import followed_from, reach_of

    candidate = gate.find_candidate(arguments.generation, arguments.path, sight.host)
    venv = sight.venv(candidate.venv, candidate.generation)
    sight.require_certain(venv)
    sight.progress(f"reading the device code of {candidate.title}")
    with followed_from(venv, None) as ahead:
        report = inspect_native(venv)
        site = report.interpreter.site_packages if report.interpreter else None
        verdict = judge_gpu_arch(
            report,
            arguments.compute_capability,
            require=arguments.require or None,
            allow_ptx=arguments.allow_ptx,
            driver=gate.driver(arguments.driver),
            packages=device_packages(report.root, site),
        )
        verdict = with_callers(verdict, reach_of(report, without_code(verdict), ahead))
    return with_jit_settings(verdict, _jit_settings(arguments, candidate, venv, sight), arguments.compute_capability)


def _jit_settings(arguments: Arguments, candidate: gate.Candidate, venv: Path, sight: Sight) -> JitSettings:
    """What the generation's server would compile with; a toolkit that only the run brings is left to the run."""
    from crossgrade.errors import NotForeseenError
    from crossgrade.inspect.gpu_architecture import parse_compute_capability
    from crossgrade.inspect.jit_settings import named_toolkit, read_jit_settings

    environment = gate.program_environment(candidate, sight.host)
    home = named_toolkit(environment)
    try:
        toolkit = Path(sight.now(home)) if home else None
    except NotForeseenError:
        toolkit = None
    return read_jit_settings(venv, parse_compute_capability(arguments.compute_capability), environment, toolkit)


MODULE = Module(
    name="gpu_arch_check",
    arguments=Arguments,
    effect="checks",
    inspect=inspect,
    plan=plan,
    apply=apply,
    foresee=foresee,
    summary="Gate: there is device code for the GPU.",
)
