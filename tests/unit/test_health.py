"""Looks in, a judgement out: healthy, down, crash loop, or look again."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from crossgrade.gates.health import HealthRules, Look, judge_health

RULES = HealthRules(stay=10.0, start_timeout=60.0, failures=3, max_restarts=2)


def looks(answers: str, *, every: float = 2.0, processes: Sequence[str] = ()) -> list[Look]:
    """`+` is a healthy look, `-` a failed one; processes are given for each look, or the same for all."""
    return [
        Look(at * every, mark == "+", "200" if mark == "+" else "none", processes[at] if processes else "pid 1")
        for at, mark in enumerate(answers)
    ]


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ("", "undecided"),
        ("-", "undecided"),
        ("-" * 30, "undecided"),
        ("-" * 31, "down"),  # 60 s and never healthy
        ("--+++++", "undecided"),
        ("--++++++", "healthy"),  # 10 s without a break
        ("+++--+", "undecided"),
        ("+++---", "down"),
        ("+-+-+-+-+-", "undecided"),
        ("+-" * 20, "down"),  # neither down nor steady: it comes to an end
        ("++--++++++", "healthy"),
    ],
)
def test_answers(answers: str, expected: str) -> None:
    assert judge_health(looks(answers), RULES).health == expected


def test_a_restart_begins_the_steady_time_anew() -> None:
    found = looks("+" * 8, processes=["a"] * 4 + ["b"] * 4)
    assert judge_health(found, RULES).health == "undecided"
    assert judge_health(looks("+" * 10, processes=["a"] * 4 + ["b"] * 6), RULES).health == "healthy"


def test_a_crash_loop_that_always_answers_when_asked() -> None:
    judgement = judge_health(looks("++++", processes=["a", "b", "c", "d"]), RULES)
    assert judgement.health == "crash loop"
    assert judgement.evidence["restarts"] == 3
    assert judge_health(looks("+-+-+", processes=["a", "", "b", "", "c"]), RULES).health == "undecided"


def test_systemd_counts_restarts_that_no_look_saw() -> None:
    found = [Look(at * 2.0, True, "200", "", count) for at, count in enumerate([4, 4, 6, 7])]
    assert judge_health(found, RULES).health == "crash loop"
    reset = [Look(at * 2.0, True, "200", "", count) for at, count in enumerate([9, 0, 1, 1])]
    assert judge_health(reset, RULES).health == "undecided"
