"""Building a generation between two others, and measuring it: what a bisect does for each set of changes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from crossgrade.bench.delta_debugging import Answer
from crossgrade.errors import TaskError
from crossgrade.gates.verdict import Verdict
from crossgrade.inspect.dists import normalize_name
from crossgrade.inspect.mixing import unmet_names
from crossgrade.modules import abi_check, benchmark, candidate, gate
from crossgrade.modules.benchmark_asked import side_of
from crossgrade.modules.benchmark_run import Comparison, compare
from crossgrade.modules.bisect_parts import Ingredients, Part
from crossgrade.modules.contract import ApplyContext, Change, LockRequest
from crossgrade.modules.dists import parse_requirement
from crossgrade.modules.git_wheels import with_git_wheels
from crossgrade.modules.server import ServerArguments, read_mapping, server_spec
from crossgrade.modules.uv import UnreachableError
from crossgrade.modules.wheels import WheelSource

if TYPE_CHECKING:
    from crossgrade.bench.load_profile import LoadProfile
    from crossgrade.gates.benchmark_rules import BenchmarkRules
    from crossgrade.store.generation import Generation

Stage = Literal["resolve", "build", "abi_check", "start", "measure"]
NOWHERE = "; sys_platform == 'no such platform'"  # an override with it takes a requirement out of the resolution


class UnresolvedError(Exception):
    """A set of changes that cannot be judged, as delta debugging calls it; `stage` is where it ended."""

    def __init__(self, stage: Stage, reason: str, generation: int | None = None) -> None:
        super().__init__(reason)
        self.stage = stage
        self.reason = reason
        self.generation = generation


@dataclass(frozen=True)
class Judged:
    """What was found of one set of changes. The figures are None where nothing was measured."""

    answer: Answer
    reason: str
    generation: int | None = None
    ratio: float | None = None
    lower: float | None = None
    upper: float | None = None
    pairs: int = 0
    samples: str = ""
    stage: str = ""


def mixed(
    base: candidate.Wanted,
    older: Ingredients,
    newer: Ingredients,
    chosen: Collection[Part],
    environment: Mapping[str, str],
    trial: str,
) -> candidate.Wanted:
    """What makes the older generation with the chosen changes. Pure.

    `base` is how the playbook builds: its interpreter, its indexes, what becomes of local changes. Every dist is
    pinned, and they are resolved together, so that a set whose dists do not fit has no solution; only what does not fit
    within one of the two generations already is overridden.
    """
    names = {part.name for part in chosen if part.kind == "dist"}
    lines: dict[str, str] = {}
    wheels: dict[str, WheelSource] = {}
    for name in sorted({*older.dists, *newer.dists}):
        side = newer if name in names else older
        if name not in side.dists:
            continue
        if name in side.wheels:
            wheels[name] = side.wheels[name]
            lines[name] = f"{name} @ {_address(side.wheels[name])}"
        elif name in side.lines:
            lines[name] = side.lines[name]
    asked = base.request
    stated = {normalize_name(parse_requirement(text).name) for text in asked.overrides}
    loose = {*unmet_names(older.dists, environment), *unmet_names(newer.dists, environment), *stated}
    request = LockRequest(
        requirements=tuple(lines.values()),
        python=asked.python,
        overrides=tuple(lines.get(name, f"{name} {NOWHERE}") for name in sorted(loose)),
        index_url=asked.index_url,
        extra_index_urls=asked.extra_index_urls,
        find_links=asked.find_links,
        prerelease=asked.prerelease,
        exclude_newer=asked.exclude_newer,
        hashes=tuple(
            (name, some) for name, some in asked.hashes if lines.get(name) == newer.lines.get(name) is not None
        ),
        credentials=asked.credentials,
    )
    toolkit = newer.toolkit if any(part.kind == "toolkit" for part in chosen) else older.toolkit
    variables = dict(older.variables)
    for part in chosen:
        if part.kind == "variable":
            variables.pop(part.name, None)
            if part.after is not None:
                variables[part.name] = part.after
    return replace(
        base,
        request=request,
        wheels=tuple(wheels.values()),
        toolkit=toolkit,
        environment=variables,
        base=None,
        trial=trial,
    )


def _address(wheel: WheelSource) -> str:
    if wheel.file is None:
        raise TaskError(f"the wheel of {wheel.name} {wheel.version} is not there")
    return f"{wheel.file.as_uri()}#sha256={wheel.sha256}"


def build(wanted: candidate.Wanted, context: ApplyContext) -> int:
    """Build it as `python_env` builds a candidate, or find it built; its number.

    Raises UnresolvedError for what does not resolve or cannot be built, UnreachableError when the network is to blame.
    """
    try:
        state = candidate.inspect(wanted, context.host)
    except UnreachableError:
        raise
    except TaskError as error:
        raise UnresolvedError("resolve", error.message) from error
    if state.found is not None:
        return state.found.number
    if state.lock is not None:
        asked = {normalize_name(parse_requirement(line).name) for line in wanted.request.requirements}
        more = [f"{dist.name} {dist.version}" for dist in state.lock.dists if dist.name not in asked]
        if more:
            said = f"it would also need {', '.join(more)}, which is in neither generation in this version"
            raise UnresolvedError("resolve", said)
    planned = candidate.plan(state)
    assert isinstance(planned, Change)  # noqa: S101 - nothing was found
    try:
        recipe = with_git_wheels(planned.payload["recipe"], context)
        candidate.apply(state, recipe, planned, context)
    except UnreachableError:
        raise
    except TaskError as error:
        raise UnresolvedError("build", error.message) from error
    return state.number


def require_abi(number: int, arguments: abi_check.Arguments | None, context: ApplyContext) -> None:
    """Judge the native files as the playbook's `abi_check` does. Raises UnresolvedError unless they would all load."""
    asked = replace(arguments or abi_check.Arguments(), generation=number, path=None)
    planned = abi_check.MODULE.plan(asked, abi_check.MODULE.inspect(asked, context.host))
    if isinstance(planned, Change):
        outcome = abi_check.MODULE.apply(asked, planned, context)
        if outcome.failed:
            raise UnresolvedError("abi_check", f"abi_check: {outcome.message}", number)


@dataclass(frozen=True)
class Measurement:
    """How both sides are measured: as the playbook's `benchmark` says, for one metric under one load."""

    arguments: benchmark.Arguments
    metric: str
    profile: LoadProfile
    rules: BenchmarkRules
    older_command: tuple[str, ...]


def measure(
    measurement: Measurement, older: Generation, newer: Generation, command: tuple[str, ...], context: ApplyContext
) -> Judged:
    """Launch both in pairs, and judge as the benchmark gate does. Whether the metric fell too far is the answer.

    Raises UnresolvedError when the newer server does not serve, and TaskError when the older one does not.
    """
    host = context.host
    server = read_mapping(ServerArguments, measurement.arguments.server, "benchmark: server")
    servers = [replace(server, command=measurement.older_command), replace(server, command=command)]
    sides = [gate.find_candidate(one.number, None, host) for one in (older, newer)]
    for side in sides:
        gate.refuse_unfinished(side)
    specs = [server_spec(side, host, one, cwd=context.log_directory) for side, one in zip(sides, servers, strict=True)]
    comparison = Comparison(
        old=specs[0],
        new=specs[1],
        profiles=(measurement.profile,),
        rules=measurement.rules,
        side_by_side=measurement.arguments.side_by_side,
    )
    about: dict[str, Any] = {
        name: side_of(one.number, one.manifest, started)
        for name, one, started in zip(("old", "new"), (older, newer), servers, strict=True)
    }
    return judged(compare(comparison, about, context), measurement.metric, newer.number)


def judged(verdict: Verdict, metric: str, generation: int) -> Judged:
    """What a benchmark's verdict says of one metric. Raises as `measure` does. Pure."""
    figures = verdict.figures
    metrics = figures.get("metrics")
    result = metrics.get(metric) if isinstance(metrics, dict) else None
    if not isinstance(result, dict):
        if verdict.outcome == "not run":
            raise TaskError(f"it could not be measured: {verdict.reason}", remedy="What is known so far is on record.")
        raise UnresolvedError("start", verdict.reason, generation)
    found: Answer = {"failed": "fails", "passed": "passes"}.get(str(result["outcome"]), "unresolved")  # type: ignore[assignment]
    numbers = {name: result.get(name) for name in ("mean_ratio", "lower_bound_ratio", "upper_bound_ratio")}
    ratio, lower, upper = (value if isinstance(value, float | int) else None for value in numbers.values())
    pairs = figures.get("pairs")
    return Judged(
        found,
        verdict.reason,
        generation,
        ratio,
        lower,
        upper,
        pairs if isinstance(pairs, int) else 0,
        str(figures.get("samples", "")),
        "" if found != "unresolved" else "measure",
    )
