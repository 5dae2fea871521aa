"""The benchmark gate: is the new generation as fast as it must be? Pure.

Evidence: launches (`bench.paired`), each with one result for every load profile. Verdict, for each profile and each
metric that has a target: non-inferiority to the old server (`bench.statistics`), by pairs or against stored launches,
and absolute limits. All of them must pass; requiring all needs no further correction, since a candidate that is too
slow in one passes only if that one's own test errs. Evidence that is inconclusive after the greatest number of pairs
fails the gate; void launches are measured again, a bounded number of them, and told.
"""

from __future__ import annotations

from collections.abc import Sequence

from crossgrade.bench.paired import Launch, PairedSamples
from crossgrade.bench.samples import LoadResult, RequestSample
from crossgrade.bench.statistics import AgainstLimit, NonInferiority
from crossgrade.gates.benchmark_rules import METRICS, BenchmarkRules, Metric, Targets
from crossgrade.gates.benchmark_targets import Judged, StoredBaseline, describe, judge_targets
from crossgrade.gates.verdict import Finding, Verdict, counted
from crossgrade.jsontype import JSON

__all__ = ["METRICS", "BenchmarkRules", "Metric", "StoredBaseline", "Targets", "decided", "describe", "judge_benchmark"]

GATE = "benchmark"
DISTURBING_SHARE = 0.1  # of the processor time: from here on other processes are worth a warning
ERRORS_SHOWN = 5  # failed requests that become findings of their own
OWN_VOID = 2  # void launches by the candidate's own doing that fail it: once may be chance, twice is a fault


def decided(samples: PairedSamples, rules: BenchmarkRules, stored: StoredBaseline | None = None) -> bool:
    """Whether more launches could not change the verdict, or none may be added."""
    count = samples.count
    if count >= rules.maximum_pairs or _failed_requests(samples) or _void_verdict(samples, rules):
        return True
    if count == 0:
        return False
    judged = judge_targets(samples, rules, stored)
    if any(one.result is None for one in judged):
        return True
    if count not in rules.looks:
        return False
    outcomes = {one.outcome for one in judged}
    return "failed" in outcomes or outcomes == {"passed"}


def judge_benchmark(samples: PairedSamples, rules: BenchmarkRules, stored: StoredBaseline | None = None) -> Verdict:
    """The verdict on all launches there are. Raises SampleError for figures that cannot be compared."""
    count = samples.count
    if void := _void_verdict(samples, rules):
        return void
    if count == 0:
        return Verdict(GATE, "not run", "no pair of launches was measured")
    if failed_requests := _failed_requests(samples):
        return _request_errors(samples, rules, failed_requests)
    judged = judge_targets(samples, rules, stored)
    if missing := [one.words for one in judged if one.result is None]:
        reason = f"not measured in every launch: {', '.join(missing)}"
        return Verdict(GATE, "failed", reason, figures=_figures(samples, rules))
    busy = _busy(samples)
    # The reason is about what decided: a failed target first, then an inconclusive one.
    worst = min(judged, key=lambda one: ("failed", "inconclusive", "passed").index(one.outcome))
    text = worst.words
    if worst.outcome == "inconclusive":
        more = "" if count >= rules.maximum_pairs else f" of at most {rules.maximum_pairs}"
        text = f"inconclusive after {_replicates(samples)}{more}: {text}"
        text += f"; {busy}" if busy else ""
    elif worst.outcome == "passed" and len(judged) > 1:
        text += f"; all {len(judged)} {'metrics' if len(samples.new[0].results) == 1 else 'targets'} passed"
    if stored is not None and any(isinstance(one.result, NonInferiority) for one in judged):
        text += f"; against {stored.words}, which is weaker than pairs"
    if samples.void:
        text += f"; {counted(len(samples.void), 'void launch', 'void launches')} measured again"
    findings = [*map(_finding, judged), *_remarks(samples, stored)]
    if busy:
        findings.append(Finding("warning", "this machine", busy))
    return Verdict(
        gate=GATE,
        outcome="passed" if worst.outcome == "passed" else "failed",
        reason=text,
        findings=tuple(findings),
        figures={**_figures(samples, rules), **_judged_figures(judged)},
    )


def _replicates(samples: PairedSamples) -> str:
    return counted(len(samples.alone), "launch", "launches") if samples.alone else counted(len(samples.pairs), "pair")


def _finding(one: Judged) -> Finding:
    evidence = one.result.to_json() if one.result else {}
    words = describe(one.metric, one.result) if one.result else one.words
    return Finding("note" if one.outcome == "passed" else "failure", one.title, f"{one.outcome}: {words}", evidence)


def _remarks(samples: PairedSamples, stored: StoredBaseline | None) -> list[Finding]:
    """What a reader of the verdict should know besides the figures."""
    findings = [Finding("note", side, note) for side, note in _notes(samples)]
    if stored is not None:
        findings.append(
            Finding(
                "note",
                "old server",
                f"not started: {stored.words} stand for it, so whatever has changed on this machine since then "
                f"counts as the candidate's doing",
            )
        )
    findings += [
        Finding("warning", f"void: replicate {void.number}", f"measured again: {void.words}") for void in samples.void
    ]
    records = [launch.gpus for launch in (*samples.old, *samples.new) if launch.gpus is not None]
    for problem in dict.fromkeys(record.problem for record in records if record.problem):
        findings.append(Finding("note", "GPUs", f"GPUs not watched: {problem}"))
    for process in dict.fromkeys(process for record in records for process in record.standing):
        findings.append(Finding("warning", "GPUs", f"on a GPU all the while: {process}"))
    held = sorted({reason for record in records for reason in record.reasons or {}})
    findings += [Finding("note", "GPUs", f"seen, and no reason to measure again: {reason}") for reason in held]
    return findings


def _void_verdict(samples: PairedSamples, rules: BenchmarkRules) -> Verdict | None:
    """The verdict where too much was void; None where the evidence decides.

    A candidate that twice fails requests or ends answers early has failed. What else voids launches (GPUs, the old
    server) says nothing about the candidate: the gate could not be run.
    """
    own = [void for void in samples.void if void.own("new")]
    if len(own) >= min(OWN_VOID, rules.maximum_void + 1):
        outcome, told = "failed", own
        times = "once" if len(own) == 1 else f"{len(own)} times"
        reason = f"the new server made its launch void {times}: {own[-1].words.partition('new server: ')[2]}"
    elif len(samples.void) > rules.maximum_void:
        outcome, told = "not run", list(samples.void)
        reason = f"{counted(len(told), 'void launch', 'void launches')}, the last because of the {told[-1].words}"
    else:
        return None
    findings: list[Finding] = []
    for void in told:
        findings.append(Finding("failure", f"void: replicate {void.number}", void.words))
        failed = [(launch, sample) for launch in void.launches for one in launch.results for sample in one.failed]
        findings += [_failed_request(void.number, launch, sample) for launch, sample in failed[:ERRORS_SHOWN]]
    figures = _figures(samples, rules)
    return Verdict(GATE, "failed" if outcome == "failed" else "not run", reason, tuple(findings), figures)


def _launches(samples: PairedSamples) -> list[tuple[int, Launch]]:
    alone = [(number, launch) for number, launch in enumerate(samples.alone, 1)]
    return [(pair.number, launch) for pair in samples.pairs for launch in (pair.old, pair.new)] + alone


def _failed_requests(samples: PairedSamples) -> list[tuple[int, Launch, RequestSample]]:
    """Those in launches that count: there are none where void launches are measured again."""
    return [
        (number, launch, sample)
        for number, launch in _launches(samples)
        for result in launch.results
        for sample in result.failed
    ]


def _failed_request(number: int, launch: Launch, sample: RequestSample) -> Finding:
    return Finding(
        level="failure",
        subject=f"pair {number}, {launch.side}, request {sample.index}",
        message=f"{sample.error}: {sample.detail}",
        evidence=sample.to_json(),
    )


def _request_errors(
    samples: PairedSamples, rules: BenchmarkRules, failed: list[tuple[int, Launch, RequestSample]]
) -> Verdict:
    kinds: dict[tuple[str, str], int] = {}
    for _, launch, sample in failed:
        key = launch.side, str(sample.error)
        kinds[key] = kinds.get(key, 0) + 1
    listed = ", ".join(f"{number} {kind} ({side})" for (side, kind), number in sorted(kinds.items()))
    findings = [_failed_request(*one) for one in failed[:ERRORS_SHOWN]]
    reason = f"{counted(len(failed), 'request')} failed: {listed}"
    return Verdict(GATE, "failed", reason, tuple(findings), _figures(samples, rules))


def _notes(samples: PairedSamples) -> list[tuple[str, str]]:
    """What the launches noted, each once for each side and profile."""
    return list(
        dict.fromkeys(
            _note(launch, result, note)
            for _, launch in _launches(samples)
            for result in launch.results
            for note in result.notes()
        )
    )


def _note(launch: Launch, result: LoadResult, note: str) -> tuple[str, str]:
    return launch.side, f"{result.profile.name}: {note}" if result.profile.name else note


def _busy(samples: PairedSamples) -> str:
    """A sentence when other processes disturbed the measurement, else nothing."""
    shares = [launch.others for _, launch in _launches(samples) if launch.others is not None]
    mean = sum(shares) / len(shares) if shares else 0.0
    if mean < DISTURBING_SHARE:
        return ""
    return f"other processes took {100 * mean:.0f}% of this machine's processor time meanwhile"


def _judged_figures(judged: Sequence[Judged]) -> dict[str, JSON]:
    """Results by profile. Those of the first profile also stand by themselves, as they do where there is only one."""
    profiles: dict[str, dict[str, JSON]] = {}
    for one in judged:
        if one.result is not None:
            kind = "limits" if isinstance(one.result, AgainstLimit) else "metrics"
            of_profile = profiles.setdefault(one.profile, {"metrics": {}, "limits": {}})
            found = of_profile[kind]
            if isinstance(found, dict):
                found[one.metric] = one.result.to_json()
    first = next(iter(profiles.values()), {})
    figures: dict[str, JSON] = {"metrics": first.get("metrics", {})}
    if first.get("limits"):
        figures["limits"] = first["limits"]
    if set(profiles) != {""}:
        figures["profiles"] = dict(profiles)
    return figures


def _figures(samples: PairedSamples, rules: BenchmarkRules) -> dict[str, JSON]:
    return {
        "pairs": len(samples.pairs),
        "minimum_pairs": rules.minimum_pairs,
        "maximum_pairs": rules.maximum_pairs,
        "looks": list(rules.looks),
        "confidence": rules.confidence,
        "allowed_losses": dict(rules.allowed_losses),
        "void": [void.words for void in samples.void],
        "launches": [
            {
                "pair": number,
                "side": launch.side,
                "others": launch.others,
                "metrics": dict(launch.result.metrics()),
                **_by_profile(launch),
            }
            for number, launch in _launches(samples)
        ],
    }


def _by_profile(launch: Launch) -> dict[str, JSON]:
    if not launch.further:
        return {}
    return {"profiles": {result.profile.name: dict(result.metrics()) for result in launch.results}}
