"""abi_check: will every native file of an environment load? Nothing is imported or run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from crossgrade.modules import gate
from crossgrade.modules.contract import ApplyContext, Change, HostView, Module, Outcome, Plan
from crossgrade.playbook.arguments import argument

if TYPE_CHECKING:
    from crossgrade.gates.comparison import Working


@dataclass(frozen=True)
class Arguments:
    """Checks each ELF file: libraries, versions, symbols, glibc, and the tag of the Python ABI."""

    required_one_of: ClassVar[Sequence[Sequence[str]]] = (("generation", "path"),)
    mutually_exclusive: ClassVar[Sequence[Sequence[str]]] = (("generation", "path"),)

    generation: int | None = argument(doc="The generation to check, as python_env returns it.", default=None)
    path: Path | None = argument(
        doc="A venv, or any directory, that is no generation. Its verdict is not kept.", default=None
    )
    ignore: tuple[str, ...] = argument(
        doc="Globs (relative to the environment; `*` also matches `/`) of files whose faults are only noted.",
        default=(),
    )
    preload: tuple[str, ...] = argument(
        doc="What Python code loads before anything else: paths or globs below site-packages, in order.",
        default=(),
    )
    compare_with: int | None = argument(
        doc="A generation that works, such as the backup: files that do not load there either are only noted, and new "
        "libraries that no Python module needs are warned about.",
        default=None,
    )
    on_not_run: gate.OnNotRun = argument(doc="What a verdict of `not run` does to the run.", default="fail")


def inspect(arguments: Arguments, host: HostView) -> gate.GateState:
    candidate = gate.find_candidate(arguments.generation, arguments.path, host)
    matters: dict[str, Any] = {
        "ignore": list(arguments.ignore),
        "preload": list(arguments.preload),
        # LD_LIBRARY_PATH of the task decides as well; that of the generation is part of it anyway
        "library_path": host.environment.get("LD_LIBRARY_PATH", ""),
    }
    if arguments.compare_with is not None:
        working = gate.find_candidate(arguments.compare_with, None, host)
        matters["compare_with"] = working.generation.manifest if working.generation else ""
    return gate.gate_state("abi_check", candidate, host, matters)


def plan(arguments: Arguments, state: gate.GateState) -> Plan:
    return gate.plan_gate(state, "check the libraries and symbols of", arguments.on_not_run)


def apply(arguments: Arguments, change: Change, context: ApplyContext) -> Outcome:  # noqa: ARG001 (the contract's shape)
    from crossgrade.gates.abi import judge_abi
    from crossgrade.gates.comparison import compared
    from crossgrade.inspect.native import inspect_native

    state = inspect(arguments, context.host)
    gate.refuse_unfinished(state.candidate)
    environment = gate.program_environment(state.candidate, context.host)
    context.progress(f"reading the native files of {state.candidate.title}")
    report = inspect_native(
        state.candidate.venv, library_path=gate.library_path(environment), preload=arguments.preload
    )
    verdict = judge_abi(report, ignore=arguments.ignore)
    if arguments.compare_with is not None:
        verdict = compared(verdict, report, _working(arguments, context))
    return gate.conclude(verdict, state, arguments.on_not_run, context)


def _working(arguments: Arguments, context: ApplyContext) -> Working:
    from crossgrade.gates.abi import judge_abi
    from crossgrade.gates.comparison import Working
    from crossgrade.inspect.native import inspect_native

    candidate = gate.find_candidate(arguments.compare_with, None, context.host)
    gate.refuse_unfinished(candidate)
    context.progress(f"reading the native files of {candidate.title}")
    environment = gate.program_environment(candidate, context.host)
    report = inspect_native(candidate.venv, library_path=gate.library_path(environment), preload=arguments.preload)
    return Working(candidate.title, report, judge_abi(report, ignore=arguments.ignore))


MODULE = Module(
    name="abi_check",
    arguments=Arguments,
    effect="checks",
    inspect=inspect,
    plan=plan,
    apply=apply,
    summary="Gate: every library, version and symbol that native files need is there.",
)
