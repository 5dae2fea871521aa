"""abi_check: will every native file of an environment load? Nothing is imported or run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from crossgrade.modules import gate
from crossgrade.modules.contract import ApplyContext, Change, HostView, Module, Outcome, Plan, Sight
from crossgrade.playbook.arguments import argument

if TYPE_CHECKING:
    from crossgrade.gates.verdict import Verdict
    from crossgrade.inspect.native import NativeReport


ITSELF = "itself"  # stands for the manifest of what is compared with


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
    entry_points: tuple[str, ...] | None = argument(
        doc="The modules that the server starts with. What they are certain to load must load; what they reach on a "
        "condition is warned about, the rest is noted. By default those of the servers that are installed, such as "
        "SGLang; an empty list turns this off.",
        default=None,
    )
    on_not_run: gate.OnNotRun = argument(doc="What a verdict of `not run` does to the run.", default="fail")


def inspect(arguments: Arguments, host: HostView) -> gate.GateState:
    if arguments.compare_with is None:
        return _state(arguments, host, None)
    if arguments.compare_with == arguments.generation:
        return _state(arguments, host, ITSELF)
    working = gate.find_candidate(arguments.compare_with, None, host)
    return _state(arguments, host, working.generation.manifest if working.generation else "")


def _state(arguments: Arguments, host: HostView, compared_with: str | None) -> gate.GateState:
    matters: dict[str, Any] = {
        "ignore": list(arguments.ignore),
        "preload": list(arguments.preload),
        "entry_points": None if arguments.entry_points is None else list(arguments.entry_points),
        # LD_LIBRARY_PATH of the task decides as well; that of the generation is part of it anyway
        "library_path": host.environment.get("LD_LIBRARY_PATH", ""),
    }
    if compared_with is not None:
        matters["compare_with"] = compared_with
    return gate.gate_state("abi_check", gate.find_candidate(arguments.generation, arguments.path, host), host, matters)


def plan(arguments: Arguments, state: gate.GateState) -> Plan:
    return gate.plan_gate(state, "check the libraries and symbols of", arguments.on_not_run)


def apply(arguments: Arguments, change: Change, context: ApplyContext) -> Outcome:  # noqa: ARG001 (the contract's shape)
    verdict = _judge(arguments, gate.Present(context))
    if arguments.compare_with is not None and verdict.passed:
        # once it is active, a playbook compares it with itself: the verdict by which it got there still stands
        gate.conclude(verdict, _state(arguments, context.host, ITSELF), arguments.on_not_run, context)
    return gate.conclude(verdict, inspect(arguments, context.host), arguments.on_not_run, context)


def foresee(arguments: Arguments, sight: Sight) -> Outcome:
    return gate.outcome_of(_judge(arguments, sight), arguments.on_not_run)


def _judge(arguments: Arguments, sight: Sight) -> Verdict:
    from crossgrade.gates.abi import judge_abi
    from crossgrade.gates.comparison import Working, compared
    from crossgrade.gates.reachability import refused, sorted_by_reach
    from crossgrade.inspect.reach import followed_from, reach_of

    candidate = gate.find_candidate(arguments.generation, arguments.path, sight.host)
    with followed_from(sight.venv(candidate.venv, candidate.generation), arguments.entry_points) as ahead:
        report = _report(arguments, candidate, sight)
        verdict = judge_abi(report, ignore=arguments.ignore)
        reaches = reach_of(report, refused(verdict), ahead)
    if arguments.compare_with is None:
        return sorted_by_reach(verdict, report, reaches)
    other = gate.find_candidate(arguments.compare_with, None, sight.host)
    theirs = _report(arguments, other, sight)
    working = Working(other.title, theirs, judge_abi(theirs, ignore=arguments.ignore))
    return compared(verdict, report, working, reaches)


def _report(arguments: Arguments, candidate: gate.Candidate, sight: Sight) -> NativeReport:
    from crossgrade.inspect.native import inspect_native

    venv = sight.venv(candidate.venv, candidate.generation)
    sight.require_certain(venv)
    environment = gate.program_environment(candidate, sight.host)
    sight.progress(f"reading the native files of {candidate.title}")
    return inspect_native(
        venv,
        library_path=gate.library_path(environment, sight),
        preload=[sight.now(place) if place.startswith("/") else place for place in arguments.preload],
    )


MODULE = Module(
    name="abi_check",
    arguments=Arguments,
    effect="checks",
    inspect=inspect,
    plan=plan,
    apply=apply,
    foresee=foresee,
    summary="Gate: every library, version and symbol that native files need is there.",
)
