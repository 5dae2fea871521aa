"""Comparing answers and judging them, on data made by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy
import pytest

from crossgrade.bench.given_answers import Answer, AnswerSheet, Pass, Token, ToolScore
from crossgrade.errors import TaskError
from crossgrade.gates.accuracy import AccuracyRules, judge_accuracy, judge_distance
from crossgrade.gates.answer_comparison import compare_passes, first_divergence
from crossgrade.gates.task_score import Question

RULES = AccuracyRules()


def answer(words: str, logprob: float = -0.5, gap: float = 0.1, finish: str = "length") -> Answer:
    tokens = tuple(Token(word, logprob, {word: logprob, "second": logprob - gap}) for word in words.split())
    return Answer(words, finish, tokens, 3)


def sheet(texts: Sequence[str], again: Sequence[str] | None = None, **more: object) -> AnswerSheet:
    first = tuple(answer(text) for text in texts)
    second = tuple(answer(text) for text in (again or texts))
    return AnswerSheet((Pass(1, 1, first), Pass(1, 2, second)), **more)  # type: ignore[arg-type]


TEXTS = [f"answer number {n} of a few" for n in range(40)]


# ---- comparing


def test_where_answers_part() -> None:
    assert first_divergence(0, answer("a b c"), answer("a b c", -0.7)) is None
    parted = first_divergence(7, answer("a b c d"), answer("a b second d"))
    assert parted is not None
    assert (parted.prompt, parted.unit, parted.index) == (7, "token", 2)
    assert (parted.old, parted.new) == ("c d", "second d")
    assert parted.gap == pytest.approx(0.1)
    assert not parted.at_least
    unknown = first_divergence(0, answer("a b c"), answer("a b x"))
    assert unknown is not None
    assert unknown.gap == pytest.approx(0.1), "the other token was not even the second"
    assert unknown.at_least


def test_where_texts_part_without_tokens() -> None:
    parted = first_divergence(0, Answer("the same beginning, then this"), Answer("the same beginning, and that"))
    assert parted is not None
    assert (parted.unit, parted.index) == ("character", 20)
    shorter = first_divergence(0, Answer("abc"), Answer("ab"))
    assert shorter is not None
    assert shorter.index == 2
    assert first_divergence(0, Answer(error="timeout"), Answer(error="timeout")) is not None, "no answer is no match"


def test_no_more_than_eighty_characters_are_shown() -> None:
    parted = first_divergence(0, Answer("a" + "b" * 500), Answer("a" + "c" * 500))
    assert parted is not None
    assert len(parted.old) + len(parted.new) == 80


def test_distances() -> None:
    old = Pass(1, 1, (answer("a b c"), answer("a b"), answer("x")), ((Token("a", -1.0), Token("b", -2.0)), (), ()))
    new = Pass(
        1, 1, (answer("a b z", -0.6), answer("a b"), answer("y")), ((Token("a", -1.5), Token("b", -2.0)), (), ())
    )
    found = compare_passes(old, new)
    assert found.same == (False, True, False)
    assert found.share == pytest.approx(1 / 3)
    assert found.on_prefix[0] == pytest.approx(0.1)
    assert found.on_prefix[1:] == (0.0, None)
    assert found.on_reference[0] == pytest.approx(0.25)
    assert found.on_reference[1:] == (None, None)


def test_other_tokens_of_the_reference_are_not_compared() -> None:
    old = Pass(1, 1, (answer("a"),), ((Token("a", -1.0),),))
    new = Pass(1, 1, (answer("a"),), ((Token("aa", -1.0),),))
    assert compare_passes(old, new).on_reference == (None,)
    assert compare_passes(old, Pass(1, 1, (answer("a"),))).on_reference == (None,)


# ---- judging


def test_the_same_passes() -> None:
    verdict = judge_accuracy(sheet(TEXTS), sheet(TEXTS), (), RULES)
    assert verdict.passed
    assert not [finding for finding in verdict.findings if finding.level != "note"]


def test_distance_is_judged_beyond_the_old_servers_own() -> None:
    noisy = [0.2] * 30
    assert judge_distance(noisy, [0.25] * 30, RULES) is not None
    (outcome, evidence) = judge_distance(noisy, [0.25] * 30, RULES) or ("", {})
    assert outcome == "passed"
    assert evidence["upper"] == pytest.approx(0.05)
    assert (judge_distance(noisy, [0.35] * 30, RULES) or ("",))[0] == "failed"
    spread = [0.2 + (0.9 if n % 5 == 0 else -0.1) for n in range(30)]
    assert (judge_distance(noisy, spread, RULES) or ("",))[0] == "inconclusive"
    assert judge_distance([None, 0.1], [0.1, 0.1], RULES) is None


def test_a_true_excess_as_large_as_allowed_rarely_passes() -> None:
    """By simulation with normal noise: one-sided 5%."""
    draw = numpy.random.default_rng(3)
    passed = 0
    for _ in range(1000):
        own = [abs(draw.normal(0.05, 0.02)) for _ in range(40)]
        other = [value + draw.normal(0.1, 0.05) for value in own]
        passed += (judge_distance(own, other, RULES) or ("",))[0] == "passed"
    assert passed <= 50 + 3 * 7


def loops(texts: Sequence[str], places: Sequence[int]) -> list[str]:
    return [text if place not in places else text + " and so on" * 20 for place, text in enumerate(texts)]


def test_a_model_that_loops_anyway() -> None:
    """One more loop among loops is chance; many more are not; any loop of a model without loops fails."""
    before = sheet(loops(TEXTS, [1, 2]))
    assert judge_accuracy(before, sheet(loops(TEXTS, [1, 3])), (), RULES).passed
    many = judge_accuracy(before, sheet(loops(TEXTS, range(12))), (), RULES)
    assert many.outcome == "failed"
    assert "repeats itself" in many.reason
    one = judge_accuracy(sheet(TEXTS), sheet(loops(TEXTS, [5])), (), RULES)
    assert one.outcome == "failed"
    assert one.reason.startswith("concurrency 1, pass 1, prompt 6: the answer repeats itself without end")


def test_a_fault_in_the_second_pass_only() -> None:
    again = [*TEXTS[:-1], ""]
    verdict = judge_accuracy(sheet(TEXTS), sheet(TEXTS, again), (), RULES)
    assert verdict.outcome == "failed"
    assert verdict.reason.startswith("concurrency 1, pass 2, prompt 40: the answer is empty")


def test_hundreds_of_faults_are_counted_and_a_few_shown() -> None:
    verdict = judge_accuracy(sheet(TEXTS), sheet([""] * 40), (), RULES)
    assert verdict.figures["faults"] == 80
    assert verdict.reason.endswith("79 more")
    assert sum("fault" in finding.evidence for finding in verdict.findings) == 5


def test_a_tool_that_lost_requests() -> None:
    old = sheet(TEXTS, tool=ToolScore("sgl_eval", 90, 100))
    new = sheet(TEXTS, tool=ToolScore("sgl_eval", 90, 100, 2))
    rules = AccuracyRules(allowed_score_loss=0.15)
    assert judge_accuracy(old, sheet(TEXTS, tool=ToolScore("sgl_eval", 90, 100)), (), rules).passed
    assert judge_accuracy(old, new, (), rules).reason == "sgl_eval: sgl_eval counts 2 failed requests"
    assert judge_accuracy(new, old, (), rules).outcome == "not run"


def test_what_decided_is_the_reason() -> None:
    questions = tuple(Question(f"{n}?", "", str(n)) for n in range(100))
    right = tuple(Answer(str(n), "stop") for n in range(100))
    wrong = tuple(Answer(str(n if n > 20 else -n - 1), "stop") for n in range(100))
    rules = AccuracyRules(allowed_score_loss=0.1)
    verdict = judge_accuracy(sheet(TEXTS, task=right), sheet(TEXTS, task=wrong), questions, rules)
    assert verdict.outcome == "failed"
    assert verdict.reason.startswith("questions: 100 of 100 right before, 79 of 100 now (70.0% to 85.8%), loss 21.0%")
    few = tuple(Answer(str(n if n > 5 else -n - 1), "stop") for n in range(100))
    verdict = judge_accuracy(sheet(TEXTS, task=right), sheet(TEXTS, task=few), questions, rules)
    assert verdict.reason.startswith("inconclusive: questions: 100 of 100 right before, 94 of 100 now")


def test_a_task_that_the_old_server_cannot_do_shows_nothing() -> None:
    questions = tuple(Question(f"{n}?", "", str(n)) for n in range(100))
    wrong = tuple(Answer("I do not know", "stop") for _ in range(100))
    verdict = judge_accuracy(sheet(TEXTS, task=wrong), sheet(TEXTS, task=wrong), questions, RULES)
    assert verdict.outcome == "failed"
    assert verdict.reason.startswith("inconclusive: questions: 0 of 100 right before, 0 of 100 now")
    assert verdict.reason.endswith("right too seldom for this task to show a loss")


def test_numbers_that_could_never_pass() -> None:
    for name, value in (
        ("allowed_divergence", 1.0),
        ("allowed_score_loss", 0.0),
        ("allowed_distance", float("inf")),
        ("minimum_score", 1.2),
    ):
        with pytest.raises(TaskError, match=name):
            AccuracyRules(**{name: value})
    RULES.require_enough(6, 0)
    with pytest.raises(TaskError, match="5 prompts cannot rule out"):
        RULES.require_enough(5, 0)
    with pytest.raises(TaskError, match="58 questions cannot rule out"):
        RULES.require_enough(48, 58)
