"""How a `benchmark` task measures: launch by launch, with every sample kept, until the rules say that it is enough."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from crossgrade.bench.last_words import telling_line
from crossgrade.errors import TaskError
from crossgrade.gates.verdict import Finding, Verdict
from crossgrade.jsontype import JSON
from crossgrade.modules.benchmark_asked import turns_of
from crossgrade.modules.contract import ApplyContext
from crossgrade.modules.server import fresh_log, keep_server_info

if TYPE_CHECKING:
    from crossgrade.bench.load_profile import LoadProfile
    from crossgrade.bench.paired import Launch, Pair, PairedSamples, Side, Told, VoidReplicate
    from crossgrade.bench.samples import LoadResult
    from crossgrade.bench.server_process import RunningServer, ServerSpec
    from crossgrade.gates.benchmark import StoredBaseline
    from crossgrade.gates.benchmark_rules import BenchmarkRules

GATE = "benchmark"


@dataclass(frozen=True)
class Comparison:
    """Everything that one benchmark needs. `old` is None where the new server is measured alone."""

    old: ServerSpec | None
    new: ServerSpec
    profiles: tuple[LoadProfile, ...]
    rules: BenchmarkRules
    side_by_side: bool = False
    stored: StoredBaseline | None = None

    @property
    def replicate(self) -> Literal["pair", "launch"]:
        return "pair" if self.old is not None else "launch"


@dataclass
class Progress:
    """How far the benchmark has come: needed when a launch fails in the middle.

    `ended_workers` says of each launch which processes of the server ended while it was measured, `informed` which
    sides have told their settings.
    """

    pairs: list[Pair] = field(default_factory=list)
    alone: list[Launch] = field(default_factory=list)
    number: int = 0
    side: Side = "old"
    ended_workers: list[tuple[str, str]] = field(default_factory=list)
    informed: set[Side] = field(default_factory=set)


def compare(comparison: Comparison, sides: Mapping[str, Any], context: ApplyContext) -> Verdict:
    """Measure until the rules say that it is enough, keep every sample, and judge."""
    from crossgrade.bench.history import this_machine, update_index
    from crossgrade.bench.paired import Told
    from crossgrade.gates.benchmark import decided, judge_benchmark

    rules = comparison.rules
    file = fresh_log(context.log_directory, "benchmark", ".jsonl")
    header: dict[str, JSON] = {"schema": 1, "profile": comparison.profiles[0].to_json(), "sides": dict(sides)}
    if len(comparison.profiles) > 1:
        header["profiles"] = [profile.to_json() for profile in comparison.profiles]
    header["host"] = this_machine()
    append(file, header)
    done = Progress()
    what = comparison.replicate

    def on_launch(number: int, side: Side) -> None:
        done.number, done.side = number, side
        context.progress(f"{what} {number} of at most {rules.maximum_pairs}: measuring the {side} server")

    def on_pair(pair: Pair) -> None:
        done.pairs.append(pair)
        append(file, pair.to_json())
        context.progress(describe_pair(done.pairs, rules))

    def on_alone(number: int, launch: Launch) -> None:
        done.alone.append(launch)
        append(file, {"number": number, "new": launch.to_json()})
        context.progress(f"launch {number} of at most {rules.maximum_pairs}: {describe_launch(launch, rules)}")

    def on_void(void: VoidReplicate) -> None:
        append(file, void.to_json())
        context.progress(f"{what} {void.number} is void and measured again: {void.words}")

    def enough(samples: PairedSamples) -> bool:
        return decided(samples, rules, comparison.stored)

    told = Told(launch=on_launch, pair=on_pair, alone=on_alone, void=on_void)
    try:
        samples = _measure(comparison, sides, done, told, enough, context)
        verdict = judge_benchmark(samples, rules, comparison.stored)
    except TaskError as error:
        verdict = judge_broken(error, done, what)
    update_index(context.store)
    lost = tuple(Finding("warning", subject, words) for subject, words in done.ended_workers)
    figures = {**verdict.figures, "samples": str(file)}
    return replace(verdict, findings=(*verdict.findings, *lost), figures=figures)


def _measure(
    comparison: Comparison,
    sides: Mapping[str, Any],
    done: Progress,
    told: Told,
    enough: Callable[[PairedSamples], bool],
    context: ApplyContext,
) -> PairedSamples:
    """All launches, in pairs where there is an old server."""
    from crossgrade.bench.gpu_watch import gpu_watching
    from crossgrade.bench.load import run_load
    from crossgrade.bench.paired import run_alone, run_pairs, run_pairs_side_by_side
    from crossgrade.bench.profiles import run_profiles
    from crossgrade.bench.samples import LoadResult

    rules, profiles, old = comparison.rules, comparison.profiles, comparison.old
    turns = turns_of(profiles)
    watch = gpu_watching()

    @contextlib.contextmanager
    def launched(side: Side, spec: ServerSpec) -> Iterator[RunningServer]:
        from crossgrade.bench.server_process import launch

        log = fresh_log(context.log_directory, f"benchmark-{side}-{done.number:02}")
        number = done.number
        with launch(spec, log) as server:
            if side not in done.informed:
                done.informed.add(side)
                keep_server_info(server.base_url, sides[side]["generation"], context)
            yield server
            if words := server.losses().words():
                done.ended_workers.append((f"{side} server, {comparison.replicate} {number}", words))

    def load_all(server: RunningServer) -> list[LoadResult]:
        return run_profiles(server.base_url, profiles, stall_timeout=comparison.new.stall_timeout)

    def join(parts: Sequence[LoadResult]) -> list[LoadResult]:
        placed = [(place, part) for (place, _), part in zip(turns, parts, strict=True)]
        return [
            LoadResult.joined(profile, [part for place, part in placed if place == one])
            for one, profile in enumerate(profiles)
        ]

    if old is None:
        return run_alone(
            lambda: launched("new", comparison.new),
            load_all,
            enough=enough,
            maximum_launches=rules.maximum_pairs,
            told=told,
            watch=watch,
            maximum_void=rules.maximum_void,
        )
    if comparison.side_by_side:
        return run_pairs_side_by_side(
            lambda: launched("old", old),
            lambda: launched("new", comparison.new),
            lambda server, number: run_load(server.base_url, turns[number][1], comparison.new.stall_timeout),
            join,
            rounds=len(turns),
            enough=enough,
            maximum_pairs=rules.maximum_pairs,
            told=told,
            watch=watch,
            maximum_void=rules.maximum_void,
        )
    return run_pairs(
        lambda: launched("old", old),
        lambda: launched("new", comparison.new),
        load_all,
        enough=enough,
        maximum_pairs=rules.maximum_pairs,
        told=told,
        watch=watch,
        maximum_void=rules.maximum_void,
    )


def judge_broken(error: TaskError, done: Progress, replicate: str = "pair") -> Verdict:
    """A new server that does not serve fails the gate; an old one leaves nothing to compare with."""
    said, _, words = error.message.partition("; its last words:")
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    cause = telling_line(lines)
    reason = f"{replicate} {done.number}: the {done.side} server: {said}" + (f": {cause}" if cause else "")
    evidence: dict[str, JSON] = {"last_words": list(lines), "log": error.remedy}
    stacks = getattr(error, "stacks", None)
    if stacks is not None:
        evidence["stacks"] = str(stacks)
        reason += f"; {stacks}"
    findings = (Finding("failure", f"{done.side} server, {replicate} {done.number}", said, evidence),)
    figures: dict[str, JSON] = {"pairs": len(done.pairs)}
    return Verdict(GATE, "failed" if done.side == "new" else "not run", reason, findings, figures)


def describe_pair(pairs: Sequence[Pair], rules: BenchmarkRules) -> str:
    """`pair 2 of at most 12: old 812 tokens/s, new 805 tokens/s, ratio 0.99; so far 0.98 (0.91 to 1.06)`.

    With several profiles it is about the first of them.
    """
    from crossgrade.bench.statistics import non_inferiority
    from crossgrade.gates.benchmark_rules import METRICS

    text = f"pair {pairs[-1].number} of at most {rules.maximum_pairs}: "
    profile = pairs[-1].new.result.profile.name
    losses = rules.targets(profile).allowed_losses
    name = next(iter(losses), "")
    if not name:
        return text + describe_launch(pairs[-1].new, rules)
    metric = METRICS[name]
    values = [(pair.old.result.metrics().get(name), pair.new.result.metrics().get(name)) for pair in pairs]
    known = [(old, new) for old, new in values if old and new]
    if len(known) < len(values):
        return text + f"no {metric.label} in a launch: {len(pairs[-1].new.result.failed)} requests failed"
    old, new = known[-1]
    text += f"{profile}: " if profile else ""
    text += f"old {old * metric.scale:.4g} {metric.unit}, new {new * metric.scale:.4g} {metric.unit}, "
    text += f"ratio {new / old:.2f}"
    result = non_inferiority(
        known,
        allowed_loss=losses[name],
        higher_is_better=metric.higher_is_better,
        confidence=rules.confidence,
        looks=len(rules.looks),
    )
    if result.lower_bound_ratio is not None and result.upper_bound_ratio is not None:
        bounds = f"{result.lower_bound_ratio:.2f} to {result.upper_bound_ratio:.2f}"
        text += f"; mean {result.mean_ratio:.2f}, bounds {bounds}"
    return text


def describe_launch(launch: Launch, rules: BenchmarkRules) -> str:
    """`concurrency-1: output 90.2 tokens/s; concurrency-8: output 412 tokens/s`."""
    from crossgrade.gates.benchmark_rules import METRICS

    parts = []
    for result in launch.results:
        targets = rules.targets(result.profile.name)
        name = next(iter({**targets.allowed_losses, **targets.limits}))
        metric, value = METRICS[name], result.metrics().get(name)
        of = f"{result.profile.name}: " if result.profile.name else ""
        parts.append(f"{of}{metric.label} {f'{value * metric.scale:.4g} {metric.unit}' if value else 'not measured'}")
    return "; ".join(parts)


def append(file: Path, value: Mapping[str, JSON]) -> None:
    """One JSON object as a line; what was measured before a kill is there."""
    with file.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(value) + "\n")
