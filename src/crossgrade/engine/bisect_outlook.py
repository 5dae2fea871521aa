"""What a bisect is about: the changes between two generations, and how the playbook builds and measures. Reads only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from crossgrade.engine.events import Events
from crossgrade.engine.planning import build_company, walk_in_check_mode
from crossgrade.engine.prepare import Prepared
from crossgrade.engine.view import Machine, TaskView
from crossgrade.errors import CrossgradeError, WrongOptionsError
from crossgrade.modules.bisect_parts import Ingredients, PartGroup, part_groups, read_ingredients
from crossgrade.store.bisects import BisectRecord, question_key, read_bisect
from crossgrade.store.generation import Generation

if TYPE_CHECKING:
    from crossgrade.bench.load_profile import LoadProfile
    from crossgrade.modules import abi_check, benchmark, python_env
    from crossgrade.modules.bisect_build import Measurement
    from crossgrade.modules.candidate import Wanted


@dataclass(frozen=True)
class Question:
    """Which generation lost how much of what: numbers of generations, a metric, the share that may be lost.

    `allowed_loss` None takes the playbook's. `load` is the name of one of its benchmark's profiles, "" the first that
    is judged by this metric.
    """

    older: int
    newer: int
    metric: str
    allowed_loss: float | None = None
    load: str = ""


@dataclass(frozen=True)
class Outlook:
    """All that a bisect rests on.

    `groups` are the changes; `inseparable` is what differs and cannot be tried apart, in words. `wanted` is how the
    playbook builds, seen by its task's `view`. `environment` holds the variables of markers. `record` is what is known.
    """

    question: Question
    older: Generation
    newer: Generation
    ingredients: tuple[Ingredients, Ingredients]
    groups: tuple[PartGroup, ...]
    inseparable: tuple[str, ...]
    wanted: Wanted
    view: TaskView
    abi: abi_check.Arguments | None
    measurement: Measurement
    command: tuple[str, ...]
    environment: Mapping[str, str]
    record: BisectRecord

    @property
    def rebuilt(self) -> bool:
        """Whether the older generation is built again as a test of its own: it holds more than what can be listed."""
        return bool(self.inseparable)


@dataclass
class _Watched:
    """The tasks of a playbook that a bisect needs, with their arguments, as a plan meets them."""

    environments: list[tuple[python_env.Arguments, TaskView]] = field(default_factory=list)
    abi_checks: list[abi_check.Arguments] = field(default_factory=list)
    benchmarks: list[benchmark.Arguments] = field(default_factory=list)

    def __call__(self, module: str, arguments: Any, view: TaskView) -> None:
        if module == "python_env" and arguments.path is None:
            self.environments.append((arguments, view))
        elif module == "abi_check" and arguments.generation is not None:
            self.abi_checks.append(arguments)
        elif module == "benchmark":
            self.benchmarks.append(arguments)


def look(prepared: Prepared, question: Question, *, anew: bool = False) -> Outlook:
    """Find out what there is to bisect. Raises WrongOptionsError and CrossgradeError for what cannot be."""
    from crossgrade.gates.benchmark_rules import METRICS

    store = prepared.request.store
    if question.metric not in METRICS:
        raise WrongOptionsError(
            f"--metric: there is no metric {question.metric}", remedy=f"There are {', '.join(METRICS)}."
        )
    if question.older == question.newer:
        raise WrongOptionsError(f"--from and --to are both {question.older}")
    pair = [store.generation(number) for number in (question.older, question.newer)]
    for generation in pair:
        if generation.state == "building" or not store.venv(generation.number).is_dir():
            raise CrossgradeError(f"generation {generation.number} is not complete: it cannot be bisected")
    watched, ended = _watch(prepared)
    return _outlook(prepared, question, pair, watched, ended, anew=anew)


def _watch(prepared: Prepared) -> tuple[_Watched, str]:
    """A plan of the playbook, for the arguments of its tasks; and where it ended early, "" normally."""
    request = prepared.request
    machine = Machine(request.store, prepared.playbook.directory, True)
    watched = _Watched()
    machine.watch = watched
    company, events = build_company(prepared), Events("localhost", ())
    walk_in_check_mode(prepared, machine, events, company, [])
    failed = company.memory.failure
    if failed is not None:
        return watched, f"its plan ends at {failed.name!r}: {failed.told.message.partition(chr(10))[0]}"
    return watched, ""


def _outlook(
    prepared: Prepared, question: Question, pair: Sequence[Generation], watched: _Watched, ended: str, *, anew: bool
) -> Outlook:
    from crossgrade.bench.history import digest_of, profile_digest
    from crossgrade.gates.benchmark_rules import BenchmarkRules
    from crossgrade.inspect.requirements import marker_environment
    from crossgrade.modules import gate
    from crossgrade.modules.benchmark_asked import baseline_of
    from crossgrade.modules.bisect_build import Measurement
    from crossgrade.modules.python_env import wanted_of
    from crossgrade.modules.server import read_server, what_starts

    store, (older, newer) = prepared.request.store, pair
    name = prepared.request.playbook.name
    if not watched.environments or not watched.benchmarks:
        lacking = "python_env without `path`" if not watched.environments else "benchmark"
        raise CrossgradeError(
            f"{name} has no task {lacking} that a plan comes to" + (f"; {ended}" if ended else ""),
            remedy="A bisect builds and measures as the playbook's own tasks do.",
        )
    arguments, view = watched.environments[-1]
    wanted = wanted_of(arguments, view)
    chosen = _benchmark(watched.benchmarks, question, newer)
    server = read_server(chosen.server, "benchmark: server")
    if obstacle := gate.lacking_gpu(server.needs_gpu):
        raise CrossgradeError(f"the servers cannot be measured: {obstacle}")
    profile, loss = _load(chosen, question)
    rules = BenchmarkRules(
        {question.metric: loss}, chosen.minimum_pairs, chosen.maximum_pairs, maximum_void=chosen.maximum_void
    )
    commands = baseline_of(chosen, server).command, server.command
    ingredients = read_ingredients(store, older), read_ingredients(store, newer, wanted.wheels)
    environment = marker_environment(store.venv(newer.number))
    groups = part_groups(*ingredients, commands, environment)
    asked = {
        "from": older.manifest,
        "to": newer.manifest,
        "metric": question.metric,
        "allowed_loss": loss,
        "pairs": [rules.minimum_pairs, rules.maximum_pairs],
        "profile": profile_digest(profile),
        "servers": [digest_of({**what_starts(server), "command": list(command)}) for command in commands],
        "changes": [
            [part.kind, part.name, digest_of([part.before, part.after])] for each in groups for part in each.parts
        ],
    }
    record = BisectRecord(question_key(asked), asked) if anew else read_bisect(store, asked)
    return Outlook(
        question,
        older,
        newer,
        ingredients,
        groups,
        tuple(_inseparable(*ingredients, wanted)),
        wanted,
        view,
        watched.abi_checks[-1] if watched.abi_checks else None,
        Measurement(chosen, question.metric, profile, rules, tuple(commands[0])),
        tuple(commands[1]),
        environment,
        record,
    )


def _benchmark(found: Sequence[benchmark.Arguments], question: Question, newer: Generation) -> benchmark.Arguments:
    """Of several benchmarks the first that judges this metric of this generation, else what comes next to it."""

    def distance(arguments: benchmark.Arguments) -> tuple[bool, bool]:
        return not _losses(arguments, question), arguments.generation != newer.number

    return min(found, key=distance)


def _losses(arguments: benchmark.Arguments, question: Question) -> dict[str, float]:
    """The loads that are judged by the metric: their names, and what they may lose of it."""
    from crossgrade.modules.benchmark_asked import losses_of, profiles_of, targets_by_profile

    targets = targets_by_profile(arguments)
    losses = {
        profile.name: targets[profile.name].allowed_losses if profile.name in targets else losses_of(arguments)
        for profile in profiles_of(arguments)
    }
    return {
        name: of[question.metric]
        for name, of in losses.items()
        if question.metric in of and question.load in ("", name)
    }


def _load(arguments: benchmark.Arguments, question: Question) -> tuple[LoadProfile, float]:
    """The load to measure under, and the loss that is allowed. Raises WrongOptionsError for one that is not there."""
    from crossgrade.modules.benchmark_asked import profiles_of

    losses = _losses(arguments, question)
    profiles = {profile.name: profile for profile in profiles_of(arguments)}
    if question.load and question.load not in profiles:
        raise WrongOptionsError(f"--load: there is no load {question.load}", remedy=f"There are {', '.join(profiles)}.")
    name = next(iter(losses), question.load or next(iter(profiles)))
    allowed = losses.get(name, arguments.allowed_loss) if question.allowed_loss is None else question.allowed_loss
    return profiles[name], allowed


def _inseparable(older: Ingredients, newer: Ingredients, wanted: Wanted) -> list[str]:
    """What makes the two differ besides the changes that are listed, in words."""
    found = []
    pythons = {older.python or newer.python, newer.python, wanted.python_version}
    if len(pythons) > 1:
        told = f"{older.python or 'unknown'} in generation {older.number}, {newer.python} in {newer.number}"
        found.append(f"Python: {told}; what is built gets {wanted.python_version}")
    if older.origin == "adopted":
        found.append(f"generation {older.number} was adopted: its files need not be what its dists' wheels hold")
    return found
