"""benchmark: is the candidate's server no slower than the working one, within the loss allowed?"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from crossgrade.bench.last_words import telling_line
from crossgrade.errors import TaskError
from crossgrade.gates.verdict import Finding, Verdict
from crossgrade.jsontype import JSON
from crossgrade.modules import gate
from crossgrade.modules.contract import ApplyContext, Change, HostView, Module, Outcome, Plan
from crossgrade.modules.server import ServerArguments, fresh_log, read_mapping, server_spec, what_starts
from crossgrade.playbook.arguments import argument

if TYPE_CHECKING:
    from crossgrade.bench.paired import Pair, PairedSamples, Side
    from crossgrade.bench.samples import LoadProfile
    from crossgrade.bench.server_process import RunningServer, ServerSpec
    from crossgrade.gates.benchmark import BenchmarkRules

GATE = "benchmark"
BASELINE_MANIFEST = "baseline_manifest"  # the figure that says what a recorded verdict compares with


@dataclass(frozen=True)
class Arguments:
    """Starts the old and the new server in turns, puts the same load on each, and compares pair by pair."""

    mutually_exclusive: ClassVar[Sequence[Sequence[str]]] = (("allowed_loss", "metrics"),)

    server: Mapping[str, Any] = argument(
        doc="How both servers are started: `command`, `health`, `start_timeout`, `stop_grace` and "
        "`environment`, as in the module `server`."
    )
    generation: int = argument(doc="The generation to judge, as python_env returns it.")
    baseline_command: tuple[str, ...] = argument(
        doc="The command of the old server, where its version calls options differently (see `launch_check`); by "
        "default that of `server`.",
        default=(),
    )
    baseline: int | None = argument(
        doc="The generation to compare it with; without one, the active generation.", default=None
    )
    allowed_loss: float = argument(
        doc="The share of output tokens per second that may be lost (0.05: 5%).", default=0.05
    )
    metrics: Mapping[str, float] = argument(
        doc="Figures to judge instead, each with its allowed loss, such as `ttft_median: 0.10`.",
        default_factory=dict,
    )
    minimum_pairs: int = argument(doc="Pairs of launches before the first look at the evidence.", default=3)
    maximum_pairs: int = argument(doc="Pairs after which inconclusive evidence fails the gate.", default=8)
    side_by_side: bool = argument(
        doc="Run both servers of a pair at once and measure them in short turns. It evens out what else happens on "
        "the machine, and needs room for both servers at the same time.",
        default=False,
    )
    concurrency: int = argument(doc="Streams at any moment.", default=2)
    requests: int = argument(doc="Measured requests for each launch.", default=16)
    warmup_requests: int = argument(doc="Requests before them, which are discarded.", default=4)
    max_tokens: int = argument(doc="Tokens to generate for each request.", default=96)
    prompts: tuple[str, ...] = argument(
        doc="Texts to send, in a fixed shuffled order; without any, made-up ones, all different.",
        default=(),
        aliases=("prompt",),
    )
    prompt_words: int = argument(doc="Length of a made-up prompt.", default=24)
    endpoint: Literal["completions", "chat"] = argument(
        doc="`completions` (/v1/completions) or `chat` (/v1/chat/completions).", default="completions"
    )
    model: str | None = argument(
        doc="The model's name for the API; without one, the first that the server lists.", default=None
    )
    timeout: float = argument(doc="Seconds that one request may take.", default=60.0)
    on_not_run: gate.OnNotRun = argument(
        doc="What a verdict of `not run` (there is nothing to compare with) does to the run.", default="fail"
    )


@dataclass(frozen=True)
class State:
    """What is on record, and what to compare with; `obstacle` is why that cannot be done, "" normally."""

    check: gate.GateState
    baseline: gate.Candidate | None
    obstacle: str


@dataclass(frozen=True)
class Comparison:
    """Everything that one benchmark needs."""

    old: ServerSpec
    new: ServerSpec
    profile: LoadProfile
    rules: BenchmarkRules
    side_by_side: bool


@dataclass
class Progress:
    """How far the benchmark has come: needed when a launch fails in the middle."""

    pairs: list[Pair] = field(default_factory=list)
    number: int = 0
    side: Side = "old"


def inspect(arguments: Arguments, host: HostView) -> State:
    candidate = gate.find_candidate(arguments.generation, None, host)
    number = host.active() if arguments.baseline is None else arguments.baseline
    baseline = None if number is None else gate.find_candidate(number, None, host)
    server = read_mapping(ServerArguments, arguments.server, "benchmark: server")
    obstacle = gate.lacking_gpu(server.needs_gpu) or nothing_to_compare(arguments, candidate, number)
    rules_of(arguments)  # here for its errors: a plan shows them before anything is built
    old = {"baseline_command": what_starts(baseline_of(arguments, server))["command"]}
    matters = {
        "server": what_starts(server),
        **(old if arguments.baseline_command else {}),  # verdicts on record have no such word
        "profile": profile_of(arguments).to_json(),
        "losses": losses_of(arguments),
        "pairs": [arguments.minimum_pairs, arguments.maximum_pairs],
        "side_by_side": arguments.side_by_side,
    }
    state = gate.gate_state(GATE, candidate, host, matters)
    if state.recorded is not None and not holds(state.recorded, baseline, obstacle):
        state = replace(state, recorded=None)
    return State(state, baseline, obstacle)


def nothing_to_compare(arguments: Arguments, candidate: gate.Candidate, baseline: int | None) -> str:
    """Why there is nothing to compare the candidate with; "" when there is."""
    if baseline is None:
        return "no generation is active yet, so there is nothing to compare with"
    if baseline != arguments.generation:
        return ""
    if arguments.baseline is not None:
        return f"{candidate.title} cannot be compared with itself"
    return f"{candidate.title} is itself the active one, so there is nothing to compare it with"


def holds(recorded: Verdict, baseline: gate.Candidate | None, obstacle: str) -> bool:
    """Whether a recorded verdict answers today's question.

    It does when it compared with the same files. Once the candidate is the active one, there is nothing left
    to compare it with, and the verdict by which it got there still says what it is worth.
    """
    compared_with = recorded.figures.get(BASELINE_MANIFEST)
    if recorded.outcome == "not run" and compared_with is None:
        return recorded.reason == obstacle
    if obstacle:
        return True
    return baseline is not None and compared_with == manifest_of(baseline)


def plan(arguments: Arguments, state: State) -> Plan:
    planned = gate.plan_gate(state.check, "benchmark", arguments.on_not_run)
    if not isinstance(planned, Change):
        return planned
    if state.baseline is None or state.obstacle:
        return replace(planned, summary=f"{planned.summary}: it will not run, {state.obstacle}")
    pairs = f"{arguments.minimum_pairs} to {arguments.maximum_pairs} pairs of launches"
    return replace(planned, summary=f"{planned.summary}: against {state.baseline.title}, {pairs}")


def apply(arguments: Arguments, change: Change, context: ApplyContext) -> Outcome:  # noqa: ARG001 (the contract's shape)
    state = inspect(arguments, context.host)
    candidate, baseline = state.check.candidate, state.baseline
    gate.refuse_unfinished(candidate)
    if baseline is None or state.obstacle:
        verdict = Verdict(GATE, "not run", state.obstacle)
        return gate.conclude(verdict, state.check, arguments.on_not_run, context)
    gate.refuse_unfinished(baseline)
    server = read_mapping(ServerArguments, arguments.server, "benchmark: server")
    comparison = Comparison(
        old=server_spec(baseline, context.host, baseline_of(arguments, server), cwd=context.log_directory),
        new=server_spec(candidate, context.host, server, cwd=context.log_directory),
        profile=profile_of(arguments),
        rules=rules_of(arguments),
        side_by_side=arguments.side_by_side,
    )
    sides = {
        "old": {"generation": baseline.number, "manifest": manifest_of(baseline)},
        "new": {"generation": candidate.number, "manifest": manifest_of(candidate)},
    }
    verdict = compare(comparison, sides, context)
    figures = {
        **verdict.figures,
        "baseline": baseline.number,
        BASELINE_MANIFEST: manifest_of(baseline),
    }
    return gate.conclude(replace(verdict, figures=figures), state.check, arguments.on_not_run, context)


def compare(comparison: Comparison, sides: Mapping[str, Any], context: ApplyContext) -> Verdict:
    """Measure pairs until the rules say that it is enough, keep every sample, and judge."""
    from crossgrade.bench.load import run_load
    from crossgrade.bench.paired import run_pairs, run_pairs_side_by_side
    from crossgrade.bench.samples import LoadResult
    from crossgrade.gates.benchmark import decided, judge_benchmark

    profile, rules = comparison.profile, comparison.rules
    file = fresh_log(context.log_directory, "benchmark", ".jsonl")
    append(file, {"schema": 1, "profile": profile.to_json(), "sides": dict(sides)})
    done = Progress()

    def on_launch(number: int, side: Side) -> None:
        done.number, done.side = number, side
        context.progress(f"pair {number} of at most {rules.maximum_pairs}: measuring the {side} server")

    def on_pair(pair: Pair) -> None:
        done.pairs.append(pair)
        append(file, pair.to_json())
        context.progress(describe_pair(done.pairs, rules))

    def enough(samples: PairedSamples) -> bool:
        return decided(samples, rules)

    @contextlib.contextmanager
    def launched(side: Side, spec: ServerSpec) -> Iterator[RunningServer]:
        from crossgrade.bench.server_process import launch

        log = fresh_log(context.log_directory, f"benchmark-{side}-{done.number:02}")
        with launch(spec, log) as server:
            yield server

    turns = turns_of(profile)
    try:
        if comparison.side_by_side:
            samples = run_pairs_side_by_side(
                lambda: launched("old", comparison.old),
                lambda: launched("new", comparison.new),
                lambda server, number: run_load(server.base_url, turns[number]),
                lambda parts: LoadResult.joined(profile, parts),
                rounds=len(turns),
                enough=enough,
                maximum_pairs=rules.maximum_pairs,
                on_pair=on_pair,
                on_launch=on_launch,
            )
        else:
            samples = run_pairs(
                lambda: launched("old", comparison.old),
                lambda: launched("new", comparison.new),
                lambda server: run_load(server.base_url, profile),
                enough=enough,
                maximum_pairs=rules.maximum_pairs,
                on_pair=on_pair,
                on_launch=on_launch,
            )
        verdict = judge_benchmark(samples, rules)
    except TaskError as error:
        verdict = judge_broken(error, done)
    return replace(verdict, figures={**verdict.figures, "samples": str(file)})


def turns_of(profile: LoadProfile) -> list[LoadProfile]:
    """The profile cut into turns of two requests for each stream; the first has the warm-up."""
    length = 2 * profile.concurrency
    return [
        replace(
            profile,
            requests=min(length, profile.requests - start),
            warmup_requests=profile.warmup_requests if start == 0 else 0,
            seed=profile.seed + start,
        )
        for start in range(0, profile.requests, length)
    ]


def judge_broken(error: TaskError, done: Progress) -> Verdict:
    """A new server that does not serve fails the gate; an old one leaves nothing to compare with."""
    said, _, words = error.message.partition("; its last words:")
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    cause = telling_line(lines)
    reason = f"pair {done.number}: the {done.side} server: {said}" + (f": {cause}" if cause else "")
    evidence: dict[str, JSON] = {"last_words": list(lines), "log": error.remedy}
    findings = (Finding("failure", f"{done.side} server, pair {done.number}", said, evidence),)
    figures: dict[str, JSON] = {"pairs": len(done.pairs)}
    return Verdict(GATE, "failed" if done.side == "new" else "not run", reason, findings, figures)


def describe_pair(pairs: Sequence[Pair], rules: BenchmarkRules) -> str:
    """`pair 2 of at most 12: old 812 tokens/s, new 805 tokens/s, ratio 0.99; so far 0.98 (0.91 to 1.06)`."""
    from crossgrade.bench.statistics import non_inferiority
    from crossgrade.gates.benchmark import METRICS

    name = next(iter(rules.allowed_losses))
    metric = METRICS[name]
    values = [(pair.old.result.metrics().get(name), pair.new.result.metrics().get(name)) for pair in pairs]
    known = [(old, new) for old, new in values if old and new]
    text = f"pair {pairs[-1].number} of at most {rules.maximum_pairs}: "
    if len(known) < len(values):
        return text + f"no {metric.label} in a launch: {len(pairs[-1].new.result.failed)} requests failed"
    old, new = known[-1]
    text += f"old {old * metric.scale:.4g} {metric.unit}, new {new * metric.scale:.4g} {metric.unit}, "
    text += f"ratio {new / old:.2f}"
    result = non_inferiority(
        known,
        allowed_loss=rules.allowed_losses[name],
        higher_is_better=metric.higher_is_better,
        confidence=rules.confidence,
        looks=len(rules.looks),
    )
    if result.lower_bound_ratio is not None and result.upper_bound_ratio is not None:
        bounds = f"{result.lower_bound_ratio:.2f} to {result.upper_bound_ratio:.2f}"
        text += f"; mean {result.mean_ratio:.2f}, bounds {bounds}"
    return text


def profile_of(arguments: Arguments) -> LoadProfile:
    """Raises TaskError for numbers that make no load."""
    from crossgrade.bench.samples import LoadProfile

    return LoadProfile(
        concurrency=arguments.concurrency,
        requests=arguments.requests,
        warmup_requests=arguments.warmup_requests,
        max_tokens=arguments.max_tokens,
        prompts=arguments.prompts,
        prompt_words=arguments.prompt_words,
        timeout=arguments.timeout,
        endpoint=arguments.endpoint,
        model=arguments.model,
    )


def baseline_of(arguments: Arguments, server: ServerArguments) -> ServerArguments:
    """How the old server is started."""
    return replace(server, command=arguments.baseline_command) if arguments.baseline_command else server


def losses_of(arguments: Arguments) -> dict[str, float]:
    return dict(arguments.metrics) or {"output_tokens_per_second": arguments.allowed_loss}


def rules_of(arguments: Arguments) -> BenchmarkRules:
    """Raises TaskError for an unknown metric, a loss that is no share, and pairs that cannot be planned."""
    from crossgrade.gates.benchmark import BenchmarkRules

    return BenchmarkRules(losses_of(arguments), arguments.minimum_pairs, arguments.maximum_pairs)


def manifest_of(candidate: gate.Candidate) -> str:
    return candidate.generation.manifest if candidate.generation else ""


def append(file: Path, value: Mapping[str, JSON]) -> None:
    """One JSON object as a line; what was measured before a kill is there."""
    with file.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(value) + "\n")


MODULE = Module(
    name="benchmark",
    arguments=Arguments,
    effect="checks",
    inspect=inspect,
    plan=plan,
    apply=apply,
    summary="Gate: the candidate is no slower than the working environment, within the loss allowed.",
)
