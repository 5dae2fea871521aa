"""benchmark: is the candidate's server no slower than the working one, within the loss allowed?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from crossgrade.gates.verdict import Verdict
from crossgrade.modules import against, gate
from crossgrade.modules.against import BASELINE_MANIFEST, manifest_of
from crossgrade.modules.benchmark_asked import baseline_of, matters, profiles_of, rules_of, side_of, starts
from crossgrade.modules.benchmark_run import Comparison, compare
from crossgrade.modules.contract import ApplyContext, Change, HostView, Module, Outcome, Plan
from crossgrade.modules.server import ServerArguments, read_server, server_spec
from crossgrade.playbook.arguments import argument

if TYPE_CHECKING:
    from crossgrade.bench.history import StoredLaunch
    from crossgrade.gates.benchmark import StoredBaseline

GATE = "benchmark"
LEAST_STORED = 2  # launches of the old server: with fewer there is no spread


@dataclass(frozen=True)
class Arguments:
    """Starts the old and the new server in turns, puts the same loads on each, and compares pair by pair."""

    mutually_exclusive: ClassVar[Sequence[Sequence[str]]] = (("allowed_loss", "metrics"),)

    server: Mapping[str, Any] = argument(
        doc="How both servers are started: `command` or `unit`, `health`, `start_timeout`, `stop_grace`, "
        "`stall_timeout` and so on, as in the module `server`."
    )
    generation: int = argument(doc="The generation to judge, as python_env returns it.")
    baseline_command: tuple[str, ...] = argument(
        doc="The command of the old server, where its version calls options differently (see `launch_check`); by "
        "default that of `server`.",
        default=(),
    )
    baseline: int | Literal["stored", "none"] | None = argument(
        doc="The generation to compare it with; without one, the active generation. `stored` takes the active one's "
        "launches that earlier benchmarks have left in the store, and does not start it: weaker than pairs. `none` "
        "judges `floors` and `ceilings` alone.",
        default=None,
    )
    allowed_loss: float = argument(
        doc="The share of output tokens per second that may be lost (0.05: 5%).", default=0.05
    )
    metrics: Mapping[str, float] = argument(
        doc="Figures to judge instead, each with its allowed loss, such as `ttft_median: 0.10`.",
        default_factory=dict,
    )
    floors: Mapping[str, float] = argument(
        doc="What must be exceeded whatever the old server does, such as `output_tokens_per_second: 89.5`.",
        default_factory=dict,
    )
    ceilings: Mapping[str, float] = argument(
        doc="What times must stay below, in seconds, such as `ttft_p99: 0.5`.", default_factory=dict
    )
    profiles: tuple[Any, ...] = argument(
        doc="Several loads, all measured in each launch and each judged by itself: mappings of `name`, `concurrency` "
        "and whatever else differs from the task's own load, with `allowed_loss` or `metrics`, `floors` and "
        "`ceilings` of their own where they differ too. All must pass.",
        default=(),
    )
    minimum_pairs: int = argument(
        doc="Pairs of launches (launches, where the old server is not started) before the first look at the evidence.",
        default=3,
    )
    maximum_pairs: int = argument(doc="Pairs after which inconclusive evidence fails the gate.", default=8)
    maximum_void: int = argument(
        doc="How many pairs may be void and are measured again: GPUs that throttle, another process on a GPU, failed "
        "requests, answers shorter than asked for. A candidate that twice causes it itself fails.",
        default=3,
    )
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
    """What is on record, and what to compare with; `obstacle` is why that cannot be done, "" normally.

    `launches` are those of the baseline (without one, of the candidate) that are on record, by the profile's name.
    """

    check: gate.GateState
    baseline: gate.Candidate | None
    obstacle: str
    launches: Mapping[str, Sequence[StoredLaunch]] = field(default_factory=dict)


def inspect(arguments: Arguments, host: HostView) -> State:
    candidate = gate.find_candidate(arguments.generation, None, host)
    number = arguments.baseline if isinstance(arguments.baseline, int) else host.active()
    if arguments.baseline == "none":
        number = None
    baseline = None if number is None else gate.find_candidate(number, None, host)
    server = read_server(arguments.server, "benchmark: server")
    rules_of(arguments)  # here for its errors: a plan shows them before anything is built
    launches = on_record(arguments, baseline or candidate, host)
    obstacle = gate.lacking_gpu(server.needs_gpu) or nothing_to_compare(arguments, candidate, number)
    if arguments.baseline == "stored" and baseline is not None and not obstacle:
        obstacle = too_few_stored(arguments, baseline, server, launches)
    state = gate.gate_state(GATE, candidate, host, matters(arguments, server))
    if state.recorded is not None and not holds(state.recorded, baseline, obstacle, arguments.baseline == "none"):
        state = replace(state, recorded=None)
    return State(state, baseline, obstacle, launches)


def on_record(arguments: Arguments, of: gate.Candidate, host: HostView) -> dict[str, Sequence[StoredLaunch]]:
    """The launches of a generation, with its files of today and on this machine, under each of the loads."""
    if of.generation is None or not (host.store.root / "runs").is_dir():
        return {}
    from crossgrade.bench.history import host_digest, stored_launches, this_machine

    number, here = of.generation.number, host_digest(this_machine())
    return {profile.name: stored_launches(host.store, number, profile, host=here) for profile in profiles_of(arguments)}


def stored_baseline(
    arguments: Arguments, number: int, server: ServerArguments, launches: Mapping[str, Sequence[StoredLaunch]]
) -> StoredBaseline:
    """The launches on record of a server that was started in the same way."""
    from crossgrade.gates.benchmark import StoredBaseline

    way = starts(baseline_of(arguments, server))
    chosen = {name: [one for one in found if one.starts == way] for name, found in launches.items()}
    days = sorted({one.day for found in chosen.values() for one in found})
    metrics = {name: [one.metrics for one in found] for name, found in chosen.items()}
    return StoredBaseline(number, metrics, tuple(days))


def too_few_stored(
    arguments: Arguments,
    baseline: gate.Candidate,
    server: ServerArguments,
    launches: Mapping[str, Sequence[StoredLaunch]],
) -> str:
    """Why stored launches cannot stand for the old server; "" when they can."""
    metrics = stored_baseline(arguments, baseline.number or 0, server, launches).metrics
    for profile in profiles_of(arguments):
        count = len(metrics.get(profile.name, ()))
        if count < LEAST_STORED:
            under = f"under the load {profile.name}" if profile.name else "under this load"
            return (
                f"{baseline.title} has {count or 'no'} {'launch' if count == 1 else 'launches'} on record {under}, "
                f"started in the same way; {LEAST_STORED} are needed"
            )
    return ""


def nothing_to_compare(arguments: Arguments, candidate: gate.Candidate, baseline: int | None) -> str:
    """Why there is nothing to compare the candidate with; "" when there is, or when nothing is compared."""
    if arguments.baseline == "none":
        return ""
    named = arguments.baseline if isinstance(arguments.baseline, int) else None
    return against.nothing_to_compare(candidate, baseline, named)


def holds(recorded: Verdict, baseline: gate.Candidate | None, obstacle: str, alone: bool = False) -> bool:
    """Whether a recorded verdict answers today's question (see `against.holds`); without an old server it does."""
    passing = recorded.outcome == "not run" and recorded.figures.get(BASELINE_MANIFEST) is None
    return (alone and not passing) or against.holds(recorded, baseline, obstacle)


def plan(arguments: Arguments, state: State) -> Plan:
    planned = gate.plan_gate(state.check, "benchmark", arguments.on_not_run)
    if not isinstance(planned, Change):
        return planned
    if state.obstacle:
        return replace(planned, summary=f"{planned.summary}: it will not run, {state.obstacle}")
    from crossgrade.modules.benchmark_foresight import count_targets, foresee, recorded_of, told

    rules, profiles = rules_of(arguments), profiles_of(arguments)
    what = "pairs" if arguments.baseline not in ("stored", "none") else "launches"
    numbers = f"{arguments.minimum_pairs} to {arguments.maximum_pairs}"
    if state.baseline is None:
        text = f"{numbers} launches of it alone, against limits"
    elif arguments.baseline == "stored":
        server = read_server(arguments.server, "benchmark: server")
        stored = stored_baseline(arguments, state.baseline.number or 0, server, state.launches)
        text = f"against {stored.words}, {numbers} launches"
    else:
        text = f"against {state.baseline.title}, {numbers} pairs of launches"
    if len(profiles) > 1:
        text += f" under {len(profiles)} loads"
    foreseen = foresee(profiles, rules, recorded_of(state.launches), planned_test(arguments, state))
    sentence = told(foreseen, rules, count_targets(profiles, rules), what)
    return replace(planned, summary=f"{planned.summary}: {text}; {sentence}")


def planned_test(arguments: Arguments, state: State) -> Any:
    """The test by which the loss is judged, as `bench.power` takes it."""
    from crossgrade.bench.power import Test

    rules = rules_of(arguments)
    fewest = min(map(len, state.launches.values()), default=0)
    if arguments.baseline == "stored":
        return Test("stored", rules.maximum_pairs, rules.look_confidence, max(LEAST_STORED, fewest))
    return Test("pairs", rules.maximum_pairs, rules.look_confidence)


def apply(arguments: Arguments, change: Change, context: ApplyContext) -> Outcome:  # noqa: ARG001 (the contract's shape)
    state = inspect(arguments, context.host)
    candidate, baseline = state.check.candidate, state.baseline
    gate.refuse_unfinished(candidate)
    if state.obstacle:
        verdict = Verdict(GATE, "not run", state.obstacle)
        return gate.conclude(verdict, state.check, arguments.on_not_run, context)
    server = read_server(arguments.server, "benchmark: server")
    comparison = Comparison(
        old=None,
        new=server_spec(candidate, context.host, server, cwd=context.log_directory),
        profiles=profiles_of(arguments),
        rules=rules_of(arguments),
        side_by_side=arguments.side_by_side,
    )
    sides = {"new": side_of(arguments.generation, manifest_of(candidate), server)}
    if baseline is None or baseline.number is None:
        return gate.conclude(compare(comparison, sides, context), state.check, arguments.on_not_run, context)
    if arguments.baseline == "stored":
        stored = stored_baseline(arguments, baseline.number, server, state.launches)
        comparison = replace(comparison, stored=stored)
    else:
        gate.refuse_unfinished(baseline)
        old = baseline_of(arguments, server)
        comparison = replace(comparison, old=server_spec(baseline, context.host, old, cwd=context.log_directory))
        sides = {"old": side_of(baseline.number, manifest_of(baseline), old), **sides}
    verdict = compare(comparison, sides, context)
    figures = {
        **verdict.figures,
        "baseline": baseline.number,
        BASELINE_MANIFEST: manifest_of(baseline),
    }
    reason = verdict.reason + _next(verdict, baseline.number, arguments.generation)
    return gate.conclude(replace(verdict, reason=reason, figures=figures), state.check, arguments.on_not_run, context)


def _next(verdict: Verdict, older: int, newer: int) -> str:
    """The command that finds out which change brings a loss, for one that was shown; "" for anything else."""
    from crossgrade.gates.benchmark_rules import METRICS

    shown = (one for one in verdict.findings if one.message.startswith("failed: ") and "mean_ratio" in one.evidence)
    metric = next((name for one in shown if (name := one.subject.rpartition(": ")[2]) in METRICS), None)
    if metric is None:
        return ""
    return f"; `crossgrade bisect --from {older} --to {newer} --metric {metric}` finds which change brings it"


MODULE = Module(
    name="benchmark",
    arguments=Arguments,
    effect="checks",
    inspect=inspect,
    plan=plan,
    apply=apply,
    summary="Gate: the candidate is no slower than the working environment, within the loss allowed.",
)
