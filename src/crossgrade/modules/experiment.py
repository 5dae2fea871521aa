"""experiment: does a launch variant that used to fail work now, and is it faster than the plain launch line?

What comes of it is a result, not a failure: a matrix of experiments goes on whatever one of them does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crossgrade.errors import TaskError
from crossgrade.gates.experiment_outcome import (
    Result,
    gpus_of,
    lacking_values,
    plain_words,
    variant_words,
)
from crossgrade.gates.experiments import (
    Experiment,
    Sources,
    StaticAnswer,
    ask_sources,
    find_experiment,
    parser_question,
)
from crossgrade.jsontype import JSON
from crossgrade.modules import gate
from crossgrade.modules.contract import ApplyContext, Change, HostView, Module, Outcome, Plan, Unchanged
from crossgrade.modules.server import ServerArguments, check_command, read_server
from crossgrade.playbook.arguments import argument

if TYPE_CHECKING:
    from crossgrade.bench.samples import LoadProfile
    from crossgrade.gates.experiment_probes import Target

NAME = "experiment"


@dataclass(frozen=True)
class Arguments:
    """Starts the plain server and the variant in turns on one generation, and compares them; no outcome fails it."""

    experiment: str = argument(
        doc="Its name in `knowledge/experiments.yml` (`crossgrade experiments --dry-run` lists them), or your own."
    )
    generation: int = argument(doc="The generation to try it on.")
    server: Mapping[str, Any] = argument(
        doc="The plain server, as in the module `server`: `command`, `health`, `start_timeout`, `needs_gpu` and so on."
    )
    variant: Mapping[str, Any] = argument(
        doc="An experiment of your own, in the words of a row of the table: `flags`, `environment`, `without`, "
        "`title`, `failures`, `refused`, `shown`, `probes`, `concurrencies`.",
        default_factory=dict,
    )
    values: Mapping[str, Any] = argument(
        doc="What words in the flags stand for, such as `draft_model`.", default_factory=dict
    )
    compute_capability: str | None = argument(
        doc="For what GPU the sources are read, such as 12.0; without one, the GPUs of this machine.", default=None
    )
    even_if_refused: bool = argument(doc="Start it even where the sources say that it cannot work.", default=False)
    again: bool = argument(doc="Try it again although its outcome is on record.", default=False)
    pairs: int = argument(
        doc="Launches of each server, in turns. From 2 on there is an interval; with one, `noise` decides.", default=3
    )
    noise: float = argument(doc="With one pair: the share of difference that counts as none.", default=0.05)
    time_limit: float = argument(doc="Seconds that the whole experiment may take.", default=14400.0)
    concurrencies: tuple[int, ...] = argument(
        doc="Streams at any moment, each measured by itself; without any, those of the table.", default=()
    )
    requests: int = argument(doc="Measured requests for each stream.", default=8)
    warmup_requests: int = argument(doc="Requests for each stream before them, which are discarded.", default=1)
    max_tokens: int = argument(doc="Tokens to generate for each request.", default=256)
    prompts: tuple[str, ...] = argument(
        doc="Texts to send; without any, made-up ones.", default=(), aliases=("prompt",)
    )
    timeout: float = argument(doc="Seconds that one request may take.", default=600.0)


@dataclass(frozen=True)
class State:
    """What is to be tried: both launch lines, what the sources say, and why it is not tried ("" normally)."""

    candidate: gate.Candidate
    experiment: Experiment
    static: StaticAnswer
    version: str
    key: str
    plain: ServerArguments
    variant: ServerArguments
    obstacle: str
    recorded: Mapping[str, JSON] | None
    conditions: tuple[str, ...] = ()
    profiles: tuple[LoadProfile, ...] = field(default=())


def inspect(arguments: Arguments, host: HostView) -> State:
    from crossgrade.gates.experiment_probes import Target
    from crossgrade.inspect.dists import installed_dists, site_packages
    from crossgrade.store.experiments import read_records

    candidate = gate.find_candidate(arguments.generation, None, host)
    experiment = find_experiment(arguments.experiment, arguments.variant)
    server = read_server(arguments.server, "experiment: server")
    check_command(server.command)
    check(arguments)
    versions: dict[str, str] = {}
    site = Path()
    if candidate.venv.is_dir():  # a plan may foresee one that is not there yet
        versions = {dist.name: dist.version for dist in installed_dists(candidate.venv)}
        site = site_packages(candidate.venv)
    version = versions.get(experiment.engine, "") if experiment.engine else ""
    plain = replace(server, command=plain_words(server.command, version))
    gpus = gpus_of(plain.command)
    # 12.0 is what crossgrade is for: a plan on a laptop reads the sources for it
    target = read_target(arguments.compute_capability or "", site, gpus, host.environment) or Target(
        12, 0, gpus, None, cuda_of(site)
    )
    values = gate.text_map(arguments.values, "experiment: values")
    question = parser_question(site, [experiment], version) if versions else None
    static = ask_sources([experiment], Sources(site), target, versions, question)[0]
    flags = [filled(word, values) for word in static.flags]
    variant = replace(
        plain,
        command=variant_words(plain.command, flags, experiment.without, gpus),
        environment={**plain.environment, **experiment.environment},
    )
    profiles = profiles_of(arguments, experiment)
    obstacle = why_not(arguments, experiment, static, plain, variant, values)
    key = gate.verdict_key(
        NAME,
        candidate,
        {
            "experiment": experiment.name,
            "plain": [list(plain.command), gate.text_map(plain.environment, "experiment: server: environment")],
            "variant": [list(variant.command), gate.text_map(variant.environment, "experiment: environment")],
            "profiles": [profile.to_json() for profile in profiles],
            "pairs": arguments.pairs,
        },
    )
    recorded = read_records(host.store.root).last(key)
    conditions = tuple(reading.text for reading in static.conditions)
    return State(candidate, experiment, static, version, key, plain, variant, obstacle, recorded, conditions, profiles)


def check(arguments: Arguments) -> None:
    """Raises TaskError for numbers that make no experiment."""
    if arguments.pairs < 1:
        raise TaskError(f"experiment: pairs is {arguments.pairs}, at least 1 is needed")
    if not arguments.time_limit > 0:
        raise TaskError(f"experiment: time_limit is {arguments.time_limit} s, it must be above 0")
    if not 0 <= arguments.noise < 1:
        raise TaskError(f"experiment: noise is {arguments.noise}; it must be from 0 to less than 1")


def why_not(
    arguments: Arguments,
    experiment: Experiment,
    static: StaticAnswer,
    plain: ServerArguments,
    variant: ServerArguments,
    values: Mapping[str, str],
) -> str:
    """Why an experiment is not tried, "" when it is."""
    if static.answer == "refused" and not arguments.even_if_refused:
        said = static.reasons[0]
        where = f" ({said.quotes[0]})" if said.quotes else ""
        return f"the sources say that it cannot work: {said.text}{where}"
    if lacking := lacking_values(experiment, values):
        return lacking
    if (plain.command, dict(plain.environment)) == (variant.command, dict(variant.environment)):
        return "the plain launch line is this variant already: there is nothing to compare it with"
    return gate.lacking_gpu(plain.needs_gpu)


def filled(word: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        word = word.replace(f"{{{name}}}", value)
    return word


def read_target(named: str, site: Path, gpus: int | None, environment: Mapping[str, str]) -> Target | None:
    """For what the sources are read: the GPU that is named, else this machine's; None without either.

    How the GPUs reach each other is this machine's too. Raises WrongOptionsError for what is no compute capability.
    """
    from crossgrade.gates.experiment_probes import Target
    from crossgrade.inspect.gpu_architecture import parse_compute_capability
    from crossgrade.inspect.machine import driver_version

    nvlink: bool | None = None
    if driver_version() is not None:
        from crossgrade.facts.gpu_reading import read_gpus
        from crossgrade.inspect.query import run_query

        found = read_gpus(environment, run_query)
        named = named or next((gpu.compute_capability for gpu in found.gpus if gpu.compute_capability), "")
        paths = [pair.path for pair in found.pairs]
        nvlink = all(path and path.startswith("NV") for path in paths) if paths and all(paths) else None
    if not named:
        return None
    major, minor = parse_compute_capability(named)
    return Target(major, minor, gpus, nvlink, cuda_of(site))


def cuda_of(site: Path) -> str:
    """The CUDA release of torch below site-packages, "" where it does not say."""
    from crossgrade.inspect.cuda_consistency import torch_build

    build = torch_build(site, ()) if site.parts else None
    return (build.cuda or "") if build else ""


def profiles_of(arguments: Arguments, experiment: Experiment) -> tuple[LoadProfile, ...]:
    """Raises TaskError for numbers that make no load."""
    from crossgrade.bench.samples import LoadProfile

    return tuple(
        LoadProfile(
            concurrency=concurrency,
            requests=concurrency * arguments.requests,
            warmup_requests=concurrency * arguments.warmup_requests,
            max_tokens=arguments.max_tokens,
            prompts=arguments.prompts,
            timeout=arguments.timeout,
        )
        for concurrency in arguments.concurrencies or experiment.concurrencies
    )


def plan(arguments: Arguments, state: State) -> Plan:
    recorded = state.recorded
    if recorded is not None and not arguments.again and still_holds(recorded, state):
        when = str(recorded["when"])[:10]
        summary = f"{state.experiment.title}: {recorded['outcome']} (on {when}): {recorded['reason']}"
        return Unchanged(summary, values_of(recorded))
    if state.obstacle:
        summary = f"{state.experiment.title} on {state.candidate.title}: it will not be tried: {state.obstacle}"
    else:
        summary = f"try {state.experiment.title} on {state.candidate.title}: {state.static.difference}"
        summary += f"; {arguments.pairs} launches of it and {arguments.pairs} of the plain line"
        summary += "".join(f"\n{condition}" for condition in state.conditions)
    return Change(summary, values_known=False)


def still_holds(recorded: Mapping[str, JSON], state: State) -> bool:
    """What was tried stays tried; what was not is looked at again unless the same stands in its way."""
    return recorded["outcome"] != "not tried" or (bool(state.obstacle) and recorded["reason"] == state.obstacle)


def apply(arguments: Arguments, change: Change, context: ApplyContext) -> Outcome:  # noqa: ARG001 (the contract's shape)
    from crossgrade.store.experiments import append_record

    state = inspect(arguments, context.host)
    gate.refuse_unfinished(state.candidate)
    if state.obstacle:
        evidence = tuple(str(quote) for reading in state.static.reasons for quote in reading.quotes)
        result = Result("not tried", state.obstacle, evidence)
    else:
        from crossgrade.modules.experiment_trial import try_variant

        result = try_variant(arguments, state, context)
    record = record_of(result, state)
    append_record(context.store.root, record)
    return Outcome(values=values_of(record), changed=False, message=f"{record['outcome']}: {record['reason']}")


def record_of(result: Result, state: State) -> dict[str, JSON]:
    from datetime import datetime, timezone

    from crossgrade.facts.launch_line import read_line
    from crossgrade.failures.secrets import without_secrets

    line = read_line(state.variant.command)  # shown without its secrets
    shown = replace(  # what a server wrote goes into documents that others may read
        result,
        reason=without_secrets(result.reason),
        evidence=tuple(map(without_secrets, result.evidence)),
    )
    generation = state.candidate.generation
    return {
        "key": state.key,
        "experiment": state.experiment.name,
        "title": state.experiment.title,
        "before": state.experiment.before,
        "when": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "generation": state.candidate.number,
        "manifest": generation.manifest if generation else "",
        "version": f"{state.experiment.engine} {state.version}".strip(),
        "command": list(line.concealed().words if line else state.variant.command),
        "environment": dict(state.experiment.environment),
        "difference": state.static.difference,
        "static": state.static.answer,
        **shown.to_json(),
    }


def values_of(record: Mapping[str, JSON]) -> dict[str, Any]:
    """What `register` sees."""
    names = ("experiment", "outcome", "reason", "evidence", "measured", "kinds")
    return {name: record.get(name, []) for name in names}


MODULE = Module(
    name=NAME,
    arguments=Arguments,
    effect="checks",
    inspect=inspect,
    plan=plan,
    apply=apply,
    summary="Try a launch variant that used to fail, against the plain launch line. No outcome fails the task.",
)
