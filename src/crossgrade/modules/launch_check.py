"""launch_check: does the new version's own argument parser take the server's launch line? No server is started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from crossgrade.facts.launch_line import LaunchLine, Translation, read_line, translate
from crossgrade.gates.verdict import Finding, Verdict
from crossgrade.jsontype import Concealed
from crossgrade.modules import gate
from crossgrade.modules.contract import ApplyContext, Change, HostView, Module, Outcome, Plan, Sight, Unchanged
from crossgrade.modules.server import check_command
from crossgrade.playbook.arguments import argument

if TYPE_CHECKING:
    from crossgrade.gates.launch import Examination
    from crossgrade.knowledge import Row

GATE = "launch_check"


@dataclass(frozen=True)
class Arguments:
    """Asks the candidate's argument parser about each option, and gives the line that this version understands.

    `register` sees that line as `command`: give it to `server`, and to `benchmark` for the candidate.
    """

    required_one_of: ClassVar[Sequence[Sequence[str]]] = (("generation", "path"),)
    mutually_exclusive: ClassVar[Sequence[Sequence[str]]] = (("generation", "path"),)

    command: tuple[str, ...] = argument(
        doc="The program that starts the server, and its arguments, as in the module `server`."
    )
    generation: int | None = argument(doc="The generation to ask, as python_env returns it.", default=None)
    path: Path | None = argument(doc="A venv that is no generation. Its verdict is not kept.", default=None)
    translate: bool = argument(
        doc="Write options that this version calls differently as it calls them. Without it they fail the gate.",
        default=True,
    )
    environment: Mapping[str, Any] = argument(
        doc="The server's environment variables: what its version says of them is told.", default_factory=dict
    )
    unit: str = argument(
        doc="The systemd service that starts the server: what its own command line needs is told. It is not changed.",
        default="",
    )
    user_unit: bool = argument(doc="Whether that is a service of the user's own systemd.", default=False)
    timeout: float = argument(doc="Seconds that the parser's import may take.", default=300.0)
    on_not_run: gate.OnNotRun = argument(
        doc="What a verdict of `not run` (the parser cannot be imported) does to the run.", default="fail"
    )


@dataclass(frozen=True)
class State:
    """`line` is None for a command that starts no server that is known; `row` says where its parser is, or None."""

    check: gate.GateState
    line: LaunchLine | None
    row: Row | None
    version: str
    translation: Translation | None
    unit: tuple[Finding, ...] = ()


def inspect(arguments: Arguments, host: HostView) -> State:
    from crossgrade.gates.launch import parser_row

    check_command(arguments.command)
    candidate = gate.find_candidate(arguments.generation, arguments.path, host)
    line = read_line(arguments.command)
    row = parser_row(line.engine) if line else None
    version = _version(line.engine, candidate) if line else ""
    translation = translate(line, version) if line else None
    unit = _of_unit(arguments, host, version) if arguments.unit and line else ()
    matters = {
        "command": list(line.concealed().words if line else arguments.command),
        "translate": arguments.translate,
        "environment": sorted(gate.text_map(arguments.environment, "launch_check: environment")),
        "unit": [finding.message for finding in unit],
    }
    return State(gate.gate_state(GATE, candidate, host, matters), line, row, version, translation, unit)


def plan(arguments: Arguments, state: State) -> Plan:
    planned = gate.plan_gate(state.check, "ask the server's own parser about its launch line in", arguments.on_not_run)
    values = _values(arguments, state)
    if isinstance(planned, Unchanged):
        return replace(planned, values={**planned.values, **values})
    assert isinstance(planned, Change)  # noqa: S101 - a gate is never skipped
    told = [f"{each}{f': {each.why}' if each.why else ''}" for each in _rewritten(arguments, state)]
    told += [f"{option}: {advice}" for option, advice in (state.translation.advice if state.translation else ())]
    told += [finding.message for finding in state.unit]
    not_yet = {"verdict": "not run", "reason": "a plan does not ask", "figures": {}, "findings": []}
    return replace(
        planned, summary="\n".join([planned.summary, *told]), values={**not_yet, **values}, values_known=True
    )


def apply(arguments: Arguments, change: Change, context: ApplyContext) -> Outcome:  # noqa: ARG001 (the contract's shape)
    from crossgrade.gates.launch import ask_parser

    state = inspect(arguments, context.host)
    candidate = state.check.candidate
    gate.refuse_unfinished(candidate)

    def ask(row: Row, groups: Any, config: str) -> Examination:
        from tempfile import TemporaryDirectory

        with TemporaryDirectory(prefix="crossgrade-launch-") as folder:
            context.progress(f"asking the parser of {state.line.engine if state.line else ''} {state.version}")
            return ask_parser(
                candidate.python, row, groups, file=_copied(config, Path(folder)), folder=Path(folder),
                environment=_environment(arguments, candidate, context.host), timeout=arguments.timeout,
            )  # fmt: skip

    verdict = _judge(arguments, state, candidate.venv, ask)
    outcome = gate.conclude(verdict, state.check, arguments.on_not_run, context)
    return replace(outcome, values={**outcome.values, **_values(arguments, state)})


def foresee(arguments: Arguments, sight: Sight) -> Outcome:
    """What the parser would say by its source: a plan executes nothing."""
    state = inspect(arguments, sight.host)
    candidate = state.check.candidate
    venv = sight.venv(candidate.venv, candidate.generation)
    return gate.outcome_of(_judge(arguments, state, venv, None), arguments.on_not_run)


def _judge(arguments: Arguments, state: State, venv: Path, ask: Any) -> Verdict:
    """Ask the parser, or read its source where `ask` is None or could not import it."""
    from crossgrade.gates.launch import LaunchQuestion, for_the_parser, judge_launch, read_parser
    from crossgrade.inspect.dists import site_packages

    if state.line is None or state.translation is None:
        return Verdict("launch", "not run", "the command starts no server that is known", state.unit)
    if state.row is None:
        return Verdict("launch", "not run", f"where the parser of {state.line.engine} is, is not known", state.unit)
    line = state.translation.line if arguments.translate else state.line
    groups, config, other = for_the_parser(line, state.row)
    if other:
        return Verdict("launch", "not run", f"{other} has another parser, which is not known", state.unit)
    question = LaunchQuestion(
        state.line.engine, state.version, state.translation, arguments.translate, config, state.unit
    )
    problem = None
    if ask is not None:
        seen = ask(state.row, groups, config)
        if not seen.problem:
            return judge_launch(question, seen)
        problem = seen
    read = read_parser(site_packages(venv), state.row, groups)
    if config:
        text = "the options of its file are not looked at: only the parser itself can read it"
        question = replace(question, more=(*question.more, Finding("warning", "--config", text)))
    if problem is not None:  # a fault that the source shows is one; that it shows none is not enough
        read = replace(read, problem=problem.problem, output=problem.output)
    return judge_launch(question, read)


def _values(arguments: Arguments, state: State) -> dict[str, Any]:
    """What `register` sees beside the verdict: the line for this version, and what was written in another way."""
    line = state.translation.line if state.translation and arguments.translate else state.line
    words: list[str] = list(line.words if line else arguments.command)
    if line is not None:
        shown = line.concealed().words
        words = [word if word == seen else Concealed(word) for word, seen in zip(words, shown, strict=True)]
    return {"command": words, "translated": [str(each) for each in _rewritten(arguments, state)]}


def _rewritten(arguments: Arguments, state: State) -> tuple[Any, ...]:
    return state.translation.rewritten if state.translation and arguments.translate else ()


def _version(engine: str, candidate: gate.Candidate) -> str:
    """The server's version in the candidate: in a plan from the lock, else as installed; "" if neither says."""
    from crossgrade.errors import CrossgradeError
    from crossgrade.inspect.dists import installed_dists

    if candidate.generation is not None and (dists := candidate.generation.contents.get("dists")):
        return str(dists.get(engine, ""))
    try:
        return next((dist.version for dist in installed_dists(candidate.venv) if dist.name == engine), "")
    except (CrossgradeError, OSError):
        return ""


def _environment(arguments: Arguments, candidate: gate.Candidate, host: HostView) -> dict[str, str]:
    """The environment of the server, without its secrets: parsing needs none."""
    from crossgrade.facts.secrets import is_secret

    given = gate.text_map(arguments.environment, "launch_check: environment")
    whole = gate.program_environment(candidate, host, given)
    return {name: value for name, value in whole.items() if not is_secret(name, value)}


def _copied(config: str, folder: Path) -> str:
    """A copy of the server's configuration file without secrets, for the parser; the path itself where it is none."""
    import yaml

    from crossgrade.facts.launch_line import CONCEALED
    from crossgrade.facts.secrets import is_secret

    path = Path(config)
    if not config or not path.is_absolute() or path.suffix.lower() not in (".yaml", ".yml"):
        return config  # the server's own words about it are the best
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return config
    if not isinstance(found, dict):
        return config
    shown = {
        key: CONCEALED if isinstance(value, str) and is_secret(f"--{key}".replace("_", "-"), value) else value
        for key, value in found.items()
    }
    copy = folder / path.name
    copy.write_text(yaml.safe_dump(shown, sort_keys=False), encoding="utf-8")
    return str(copy)


def _of_unit(arguments: Arguments, host: HostView, version: str) -> tuple[Finding, ...]:
    """What the service's own command line needs for this version: it is used after the activation."""
    from crossgrade.facts.units import read_exec_start
    from crossgrade.gates.launch_unit import judge_unit

    home = Path(host.environment.get("HOME") or "/")
    started = read_exec_start(arguments.unit, user=arguments.user_unit, home=home)
    return judge_unit(arguments.unit, started, version, user=arguments.user_unit)


MODULE = Module(
    name="launch_check",
    arguments=Arguments,
    effect="checks",
    inspect=inspect,
    plan=plan,
    apply=apply,
    foresee=foresee,
    summary="Gate: the server's launch line is one that its new version takes; renamed options are translated.",
)
