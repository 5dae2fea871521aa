"""The accuracy gate: does the new server answer as the old one did? Pure.

Evidence: the greedy answers of both to the same prompts, each asked twice at each concurrency, what each thinks of
the old server's answers, and results of a task. The old server's own difference between its two passes is the
yardstick, since no server gives the same answers to the last bit in other batches. In this order:

1. An answer of the new server with a fault (`gates.answer_faults`) fails, unless the old one has the same fault at that
   prompt. Where the old server's answers loop too, more loops than chance explains fail.
2. For each concurrency: the share of answers that are the same as before may fall below the old server's own share by
   less than `allowed_divergence`, and the mean distance of log-probabilities may exceed its own by less than
   `allowed_distance`.
3. The share of right results of the task, and of a tool, may fall by less than `allowed_score_loss`.

All must pass, each with 95% confidence; evidence that cannot tell fails as inconclusive. Judging all needs no
correction: a candidate that is worse in one of them passes only if that one's own test errs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from crossgrade.bench.given_answers import Answer, AnswerSheet
from crossgrade.errors import TaskError
from crossgrade.gates.answer_comparison import Divergence, PassComparison, compare_passes
from crossgrade.gates.answer_faults import WORDS, Fault, fault_of
from crossgrade.gates.proportions import (
    Loss,
    independent_loss,
    more_than_by_chance,
    paired_loss,
    questions_needed,
    wilson,
)
from crossgrade.gates.task_score import Question, is_right
from crossgrade.gates.verdict import Finding, Verdict, counted
from crossgrade.jsontype import JSON

GATE = "accuracy"
FAULTS_SHOWN = 5
DIVERGENCES_SHOWN = 5
SURE = 1.0  # nats by which the old server preferred its own token: no last bit turns that
FEW_PROMPTS = 4  # of so few, the same answer to all of them says nothing
UNFIT_SHARE = 0.5  # of the old answers with a fault: from here on they are no yardstick
BY_CHANCE = 0.05

Outcome = Literal["passed", "failed", "inconclusive"]


@dataclass(frozen=True)
class AccuracyRules:
    """How strictly is judged: shares from 0 to 1, `allowed_distance` in nats. `minimum_score` None asks for none."""

    allowed_divergence: float = 0.4
    allowed_distance: float = 0.1
    allowed_score_loss: float = 0.05
    minimum_score: float | None = None
    confidence: float = 0.95

    def __post_init__(self) -> None:
        for name in ("allowed_divergence", "allowed_score_loss"):
            if not 0.0 < getattr(self, name) < 1.0:
                raise TaskError(f"accuracy: {name} is {getattr(self, name)}, not between 0 and 1")
        if not (self.allowed_distance > 0 and math.isfinite(self.allowed_distance)):
            raise TaskError(f"accuracy: allowed_distance is {self.allowed_distance}, it must be above 0")
        if self.minimum_score is not None and not 0.0 <= self.minimum_score <= 1.0:
            raise TaskError(f"accuracy: minimum_score is {self.minimum_score}, not from 0 to 1")

    def require_enough(self, prompts: int, questions: int, tool_questions: int = 0) -> None:
        """Raises TaskError for numbers that could not pass even if nothing had changed."""
        asked = (
            ("prompts", prompts, "allowed_divergence", self.allowed_divergence),
            ("questions", questions, "allowed_score_loss", self.allowed_score_loss),
            ("questions of the tool", tool_questions, "allowed_score_loss", self.allowed_score_loss),
        )
        for what, count, name, allowed in asked:
            needed = questions_needed(allowed, self.confidence)
            if 0 < count < needed:
                raise TaskError(
                    f"accuracy: {count} {what} cannot rule out a loss of {allowed:g}, even if no answer changes",
                    remedy=f"Give at least {needed}, or a larger `{name}`.",
                )


@dataclass(frozen=True)
class Judged:
    """One criterion: its name, its outcome, one line about it, and the numbers behind it."""

    name: str
    outcome: Outcome
    text: str
    evidence: dict[str, JSON]


def unfit_baseline(old: AnswerSheet) -> str:
    """Why the old server's answers are no yardstick, "" when they are one."""
    answers = old.all_answers()
    faults = [fault for answer in answers if (fault := fault_of(answer))]
    if errors := [fault for fault in faults if fault.kind in ("error", "aborted")]:
        return f"{len(errors)} of {len(answers)} requests to the old server failed: {errors[0].detail}"
    wrong = [fault for fault in faults if fault.kind != "loop"]
    if len(wrong) >= UNFIT_SHARE * len(answers):
        return f"{len(wrong)} of {len(answers)} answers of the old server are faulty: {wrong[0].detail}"
    if old.tool and old.tool.failed:
        return f"{old.tool.tool} counts {counted(old.tool.failed, 'failed request')} of the old server"
    return ""


def judge_accuracy(old: AnswerSheet, new: AnswerSheet, questions: Sequence[Question], rules: AccuracyRules) -> Verdict:
    """The verdict on all answers. Raises ValueError for sheets that do not belong to the same questions."""
    if reason := unfit_baseline(old):
        return Verdict(GATE, "not run", reason)
    failures, warnings = judge_faults(old, new)
    compared = compare_sheets(old, new)
    judged = [*judge_passes(compared, rules), *judge_task(old, new, questions, rules)]
    findings = [*failures, *(_finding(one) for one in judged), *warnings, *_about_divergences(compared)]
    figures: dict[str, JSON] = {
        "prompts": len(old.passes[0].answers),
        "concurrencies": [one.concurrency for one in compared],
        "criteria": {one.name: {"outcome": one.outcome, **one.evidence} for one in judged},
        "faults": len(failures),
    }
    if failures:
        more = f"; {len(failures) - 1} more" if len(failures) > 1 else ""
        reason = f"{failures[0].subject}: {failures[0].message}{more}"
        return Verdict(GATE, "failed", reason, tuple(_few(findings)), figures)
    worst = min(judged, key=lambda one: ("failed", "inconclusive", "passed").index(one.outcome))
    reason = worst.text if worst.outcome != "inconclusive" else f"inconclusive: {worst.text}"
    if worst.outcome == "passed":
        reason = "; ".join(one.text for one in judged if one.name.startswith(("same_answers", "task", "tool")))
    outcome: Literal["passed", "failed"] = "passed" if worst.outcome == "passed" else "failed"
    return Verdict(GATE, outcome, reason, tuple(_few(findings)), figures)


def _few(findings: Sequence[Finding]) -> list[Finding]:
    """Without the faults beyond the first few: a server that answers nothing right has hundreds."""
    kept, faults = [], 0
    for finding in findings:
        faults += "fault" in finding.evidence
        if "fault" not in finding.evidence or faults <= FAULTS_SHOWN:
            kept.append(finding)
    return kept


# ---- faults


def judge_faults(old: AnswerSheet, new: AnswerSheet) -> tuple[list[Finding], list[Finding]]:
    """What fails by itself, and what is only worth a warning because the old server does the same."""
    failures: list[Finding] = []
    warnings: list[Finding] = []
    loops: list[Finding] = []
    looped_before = looped_now = 0
    for place, group in _groups(old, new):
        for prompt, (before, now) in enumerate(group):
            known = {fault.kind for answer in before if (fault := fault_of(answer))}
            fault = fault_of(now)
            looped_before += "loop" in known and not (fault and fault.kind == "loop")
            if fault is None:
                continue
            finding = _fault_finding(f"{place}, prompt {prompt + 1}", fault)
            if fault.kind in known:
                warnings.append(_milder(finding, "; so is the old server's"))
            elif fault.kind == "loop":
                looped_now += 1
                loops.append(finding)
            else:
                failures.append(finding)
    model_loops = any((fault := fault_of(answer)) and fault.kind == "loop" for answer in old.all_answers())
    if model_loops and more_than_by_chance(looped_before, looped_now) > BY_CHANCE:
        warnings += [_milder(each, "; the old server's answers to other prompts do so too") for each in loops]
    else:
        failures += loops
    failures += _uniform(old, new)
    if new.tool and new.tool.failed:
        message = f"{new.tool.tool} counts {counted(new.tool.failed, 'failed request')}"
        failures.append(Finding("failure", new.tool.tool, message, {"fault": "error"}))
    return failures, warnings


def _groups(old: AnswerSheet, new: AnswerSheet) -> list[tuple[str, list[tuple[tuple[Answer, ...], Answer]]]]:
    """For each pass of the new server: its answers, each beside all that the old one gave to this prompt."""
    given = list(zip(*(one.answers for one in old.passes), strict=True))
    groups = [
        (f"concurrency {one.concurrency}, pass {one.number}", list(zip(given, one.answers, strict=True)))
        for one in new.passes
    ]
    if old.task and new.task:
        groups.append(("task", [((before,), now) for before, now in zip(old.task, new.task, strict=True)]))
    return groups


def _fault_finding(subject: str, fault: Fault) -> Finding:
    return Finding("failure", subject, f"the answer {WORDS[fault.kind]}: {fault.detail}", {"fault": fault.kind})


def _milder(finding: Finding, why: str) -> Finding:
    return Finding("warning", finding.subject, finding.message + why, finding.evidence)


def _uniform(old: AnswerSheet, new: AnswerSheet) -> list[Finding]:
    """One and the same answer to all prompts, which the old server does not give."""
    before = {answer.text for one in old.passes for answer in one.answers}
    for one in new.passes:
        texts = {answer.text for answer in one.answers if not answer.error}
        if len(one.answers) >= FEW_PROMPTS and len(texts) == 1 and len(before) > 1 and next(iter(texts)).strip():
            subject = f"concurrency {one.concurrency}, pass {one.number}"
            message = f"all {len(one.answers)} prompts have the same answer"
            return [Finding("failure", subject, message, {"fault": "uniform"})]
    return []


# ---- the same as before?


@dataclass(frozen=True)
class Compared:
    """One concurrency: the old server against itself, the new against the old one and against itself."""

    concurrency: int
    old_old: PassComparison
    old_new: PassComparison
    new_new: PassComparison


def compare_sheets(old: AnswerSheet, new: AnswerSheet) -> list[Compared]:
    """Raises ValueError when they were not asked at the same concurrencies, twice at each."""
    compared = []
    for concurrency in sorted({one.concurrency for one in old.passes}):
        (first, second), (now, again) = old.at(concurrency), new.at(concurrency)
        compared.append(
            Compared(concurrency, compare_passes(first, second), compare_passes(first, now), compare_passes(now, again))
        )
    return compared


def judge_passes(compared: Sequence[Compared], rules: AccuracyRules) -> list[Judged]:
    judged = []
    for one in compared:
        at = f"concurrency {one.concurrency}"
        pairs = list(zip(one.old_old.same, one.old_new.same, strict=True))
        loss = paired_loss(pairs, rules.allowed_divergence, rules.confidence)
        same, total = sum(one.old_new.same), len(pairs)
        text = (
            f"{same} of {total} answers as before at {at} (old against itself: {sum(one.old_old.same)}, new against "
            f"itself: {sum(one.new_new.same)}), {_bounds(loss)}"
        )
        judged.append(Judged(f"same_answers_at_{one.concurrency}", loss.outcome, text, loss.to_json()))
        views: tuple[tuple[str, str, Callable[[PassComparison], Sequence[float | None]]], ...] = (
            ("on common beginnings", "distance_on_prefix", lambda comparison: comparison.on_prefix),
            ("on the old answers", "distance_on_reference", lambda comparison: comparison.on_reference),
        )
        for words, name, view in views:
            distance = judge_distance(view(one.old_old), view(one.old_new), rules)
            if distance is not None:
                outcome, evidence = distance
                text = (
                    f"log-probabilities {words} at {at} differ by {evidence['mean']:.4g} nats on average (old against "
                    f"itself: {evidence['own']:.4g}), excess at most {evidence['upper']:.4g}, allowed "
                    f"{rules.allowed_distance:g}"
                )
                judged.append(Judged(f"{name}_at_{one.concurrency}", outcome, text, dict(evidence)))
    return judged


def judge_distance(
    own: Sequence[float | None], other: Sequence[float | None], rules: AccuracyRules
) -> tuple[Outcome, dict[str, float]] | None:
    """Whether distances to the new server exceed the old one's own by less than allowed: one-sided t bounds.

    None with fewer than two prompts whose distances are known.
    """
    from crossgrade.bench.statistics import t_quantile

    known = [(one, two) for one, two in zip(own, other, strict=True) if one is not None and two is not None]
    count = len(known)
    if count < 2:
        return None
    excess = [two - one for one, two in known]
    mean = math.fsum(excess) / count
    spread = math.sqrt(math.fsum((each - mean) ** 2 for each in excess) / (count - 1))
    half = t_quantile(rules.confidence, count - 1) * spread / math.sqrt(count)
    outcome: Outcome = "inconclusive"
    if mean + half < rules.allowed_distance:
        outcome = "passed"
    elif mean - half > rules.allowed_distance:
        outcome = "failed"
    return outcome, {
        "prompts": count,
        "own": math.fsum(one for one, _ in known) / count,
        "mean": math.fsum(two for _, two in known) / count,
        "lower": mean - half,
        "upper": mean + half,
        "allowed": rules.allowed_distance,
    }


def _about_divergences(compared: Sequence[Compared]) -> list[Finding]:
    """The first places where answers part, those first where the old server was surest of its own token."""
    findings = []
    for one in compared:
        parted = one.old_new.divergences
        if not parted:
            continue
        subject = f"concurrency {one.concurrency}"
        sure = [each for each in parted if each.gap is not None and each.gap >= SURE]
        if sure:
            own = sum(each.gap is not None and each.gap >= SURE for each in one.old_old.divergences)
            message = (
                f"{counted(len(sure), 'answer')} parted where the old server was sure of its own token, by {SURE:g} "
                f"nat or more (old against itself: {own}): no rounding"
            )
            findings.append(Finding("warning", subject, message))
        shown = sorted(parted, key=lambda each: (-(each.gap or 0.0), each.prompt))[:DIVERGENCES_SHOWN]
        findings += [
            Finding("note", f"{subject}, prompt {each.prompt + 1}", _where(each), each.to_json()) for each in shown
        ]
    return findings


def _where(divergence: Divergence) -> str:
    text = f"parts at {divergence.unit} {divergence.index}: {divergence.old!r} before, {divergence.new!r} now"
    if divergence.gap is None:
        return text
    least = "at least " if divergence.at_least else ""
    return f"{text}; the old server preferred its own by {least}{divergence.gap:.2f} nats"


# ---- the task


def judge_task(old: AnswerSheet, new: AnswerSheet, questions: Sequence[Question], rules: AccuracyRules) -> list[Judged]:
    judged = []
    if questions:
        pairs = [
            (is_right(question, before.text), is_right(question, now.text))
            for question, before, now in zip(questions, old.task, new.task, strict=True)
        ]
        loss = paired_loss(pairs, rules.allowed_score_loss, rules.confidence)
        right = sum(before for before, _ in pairs), sum(now for _, now in pairs)
        judged.append(_score("task", "questions", loss, (right[0], len(pairs)), (right[1], len(pairs)), rules))
    if old.tool and new.tool:
        before, now = (old.tool.right, old.tool.asked), (new.tool.right, new.tool.asked)
        loss = independent_loss(before, now, rules.allowed_score_loss, rules.confidence)
        judged.append(_score("tool", f"questions of {new.tool.tool}", loss, before, now, rules))
    return judged


def _score(
    name: str, what: str, loss: Loss, old: tuple[int, int], new: tuple[int, int], rules: AccuracyRules
) -> Judged:
    low, high = wilson(*new, rules.confidence)
    now = f"{new[0]} of {new[1]} now ({low:.1%} to {high:.1%})"
    text = f"{what}: {old[0]} of {old[1]} right before, {now}, {_bounds(loss)}"
    evidence: dict[str, JSON] = {
        **loss.to_json(),
        "wilson": [low, high],
        "old_wilson": list(wilson(*old, rules.confidence)),
    }
    outcome: Outcome = loss.outcome
    if outcome == "passed" and loss.old <= loss.allowed:
        outcome = "inconclusive"
        text = f"{text}; the old server is right too seldom for this task to show a loss"
    if rules.minimum_score is not None and loss.new < rules.minimum_score:
        outcome = "failed"
        text = f"{text}; at least {rules.minimum_score:.1%} is asked for"
    return Judged(name, outcome, text, evidence)


def _bounds(loss: Loss) -> str:
    """`loss 2.1% (95% bounds -1.0% to 5.2%), allowed 40%`."""
    return (
        f"loss {loss.loss:.1%} ({loss.confidence:.0%} bounds {loss.lower:.1%} to {loss.upper:.1%}), "
        f"allowed {100 * loss.allowed:g}%"
    )


def _finding(one: Judged) -> Finding:
    level: Literal["note", "failure"] = "note" if one.outcome == "passed" else "failure"
    return Finding(level, one.name, f"{one.outcome}: {one.text}", one.evidence)
