"""Shares and losses: against published examples, exact chances, and by simulation."""

from __future__ import annotations

import math
from functools import cache
from itertools import product

import numpy
import pytest

from crossgrade.errors import TaskError
from crossgrade.gates.proportions import (
    independent_loss,
    more_than_by_chance,
    paired_loss,
    questions_needed,
    wilson,
)


def pairs(only_old: int, only_new: int, count: int) -> list[tuple[bool, bool]]:
    return [(True, False)] * only_old + [(False, True)] * only_new + [(True, True)] * (count - only_old - only_new)


def test_wilson_as_published() -> None:
    """R. G. Newcombe, Statistics in Medicine 17, 1998, 857-872, table I, method 3."""
    for right, asked, low, high in (
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ):
        assert list(wilson(right, asked)) == pytest.approx([low, high], abs=5e-5)
    with pytest.raises(ValueError, match="2 of 1 is no share"):
        wilson(2, 1)


def test_independent_shares_as_published() -> None:
    """R. G. Newcombe, Statistics in Medicine 17, 1998, 873-890, table II, method 10: two-sided 95%, so 97.5% each."""
    for old, new, low, high in (
        ((56, 70), (48, 80), 0.0524, 0.3339),
        ((9, 10), (3, 10), 0.1705, 0.8090),
        ((10, 10), (0, 20), 0.6791, 1.0),
    ):
        found = independent_loss(old, new, 0.05, confidence=0.975)
        assert [found.lower, found.upper] == pytest.approx([low, high], abs=5e-5)


@pytest.mark.parametrize("count", [10, 48, 200])
def test_no_differing_answer_rules_out_what_zero_of_n_does(count: int) -> None:
    """With no answer lost, the bound is the loss that shows nothing in 5% of cases."""
    found = paired_loss(pairs(0, 0, count), 0.4)
    assert found.upper == pytest.approx(1 - 0.05 ** (1 / count), abs=1e-4)
    assert found.lower == -found.upper


def test_the_bounds_move_the_right_way() -> None:
    uppers = [paired_loss(pairs(lost, 2, 60), 0.1).upper for lost in range(8)]
    assert uppers == sorted(uppers)
    assert uppers[0] < uppers[-1]
    turned = paired_loss(pairs(2, 7, 60), 0.1)
    straight = paired_loss(pairs(7, 2, 60), 0.1)
    assert (turned.lower, turned.upper) == (-straight.upper, -straight.lower)


def test_outcomes() -> None:
    assert paired_loss(pairs(4, 4, 200), 0.05).outcome == "passed"
    assert paired_loss(pairs(40, 4, 200), 0.05).outcome == "failed"
    assert paired_loss(pairs(9, 4, 200), 0.05).outcome == "inconclusive"
    assert paired_loss(pairs(60, 0, 60), 0.4).outcome == "failed"
    assert independent_loss((180, 200), (178, 200), 0.1).outcome == "passed"
    assert independent_loss((180, 200), (100, 200), 0.1).outcome == "failed"
    assert independent_loss((180, 200), (175, 200), 0.05).outcome == "inconclusive"


@pytest.mark.parametrize("loss", [0.1, 0.4])
@pytest.mark.parametrize("excess", [0.0, 0.05, 0.2])
def test_no_more_than_a_twentieth_passes_wrongly(loss: float, excess: float) -> None:
    """Exactly: the chance of every result of 24 questions at a true loss as large as allowed, summed where it passes.

    `excess` is the rate of answers that only the new server has right.
    """
    count = 24
    lost, won = loss + excess, excess
    wrongly = 0.0
    for only_old, only_new in product(range(count + 1), repeat=2):
        rest = count - only_old - only_new
        if rest >= 0 and paired_loss(pairs(only_old, only_new, count), loss).outcome == "passed":
            ways = math.comb(count, only_old) * math.comb(count - only_old, only_new)
            wrongly += ways * lost**only_old * won**only_new * (1 - lost - won) ** rest
    assert wrongly <= 0.0501


def test_simulated_at_the_size_of_a_task() -> None:
    """100 questions, 15% allowed: wrong passes at a true loss of 15%, passes with none where 10% differ."""
    random = numpy.random.default_rng(1)
    trials = 400

    @cache  # most results are drawn several times
    def outcome_of(only_old: int, only_new: int) -> str:
        return paired_loss(pairs(only_old, only_new, 100), 0.15).outcome

    def passed(lost: float, won: float) -> float:
        drawn = random.multinomial(100, [lost, won, 1 - lost - won], size=trials)
        outcomes = [outcome_of(int(a), int(b)) for a, b, _ in drawn]
        return outcomes.count("passed") / trials

    assert passed(0.18, 0.03) <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / trials)
    assert passed(0.05, 0.05) > 0.95


def test_simulated_with_totals_only() -> None:
    """Newcombe's interval at a true loss as large as allowed, for a server that is right in 85% of cases."""
    random = numpy.random.default_rng(2)
    trials = 3000
    old, new = random.binomial(500, 0.85, trials), random.binomial(500, 0.80, trials)
    passed = [
        independent_loss((int(a), 500), (int(b), 500), 0.05).outcome == "passed" for a, b in zip(old, new, strict=True)
    ]
    assert sum(passed) / trials <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / trials)


@pytest.mark.parametrize("allowed", [0.4, 0.1, 0.05])
def test_the_least_number_of_questions(allowed: float) -> None:
    needed = questions_needed(allowed)
    assert paired_loss(pairs(0, 0, needed), allowed).outcome == "passed"
    assert paired_loss(pairs(0, 0, needed - 1), allowed).outcome == "inconclusive"


def test_more_than_by_chance() -> None:
    assert more_than_by_chance(0, 5) == pytest.approx(1 / 32)
    assert more_than_by_chance(3, 3) == pytest.approx(42 / 64)
    assert more_than_by_chance(4, 0) == 1.0


def test_what_cannot_be_judged() -> None:
    for asked, allowed in (([], 0.1), (pairs(0, 0, 5), 0.0), (pairs(0, 0, 5), 1.0)):
        with pytest.raises(TaskError):
            paired_loss(asked, allowed)
