"""Delta debugging: minimal for every monotone fault, in a bounded number of tests, and honest about the rest."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, log2

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossgrade.bench.delta_debugging import Answer, Changes, Found, minimize, most_tests, split


def run(
    count: int, oracle: Callable[[Changes], Answer], close: Callable[[Changes], Changes] = lambda changes: changes
) -> tuple[Found, list[Changes]]:
    tests = minimize(count, close)
    asked: list[Changes] = []
    try:
        changes = next(tests)
        while True:
            asked.append(changes)
            changes = tests.send(oracle(changes))
    except StopIteration as ended:
        found: Found = ended.value
        return found, asked


def fails_with(*causes: set[int]) -> Callable[[Changes], Answer]:
    return lambda changes: "fails" if any(cause <= changes for cause in causes) else "passes"


@pytest.mark.parametrize("culprit", range(30))
def test_one_among_thirty_takes_no_more_than_halving_and_one_look(culprit: int) -> None:
    found, asked = run(30, fails_with({culprit}))
    assert found == Found(frozenset({culprit}), frozenset({culprit}))
    assert len(asked) <= most_tests(30) == ceil(log2(30)) + 1 == 6


@st.composite
def monotone(draw: st.DrawFn) -> tuple[int, list[set[int]]]:
    count = draw(st.integers(1, 24))
    cause = st.sets(st.integers(0, count - 1), min_size=1, max_size=4)
    return count, draw(st.lists(cause, min_size=1, max_size=3))


@settings(max_examples=400, deadline=None)
@given(monotone())
def test_what_is_found_is_minimal_when_more_changes_never_mend(case: tuple[int, list[set[int]]]) -> None:
    count, causes = case
    oracle = fails_with(*causes)
    found, asked = run(count, oracle)
    assert oracle(found.changes) == "fails"
    assert all(oracle(found.changes - {each}) == "passes" for each in found.changes)
    assert not found.unseparated
    assert len(asked) == len(set(asked)), "no set is asked about twice"
    assert frozenset() not in asked
    assert len(asked) <= most_tests(count, len(found.changes))


@st.composite
def with_needs(draw: st.DrawFn) -> tuple[int, dict[int, set[int]], set[int]]:
    """Changes of which each may need earlier ones."""
    count = draw(st.integers(1, 16))
    needs = {each: draw(st.sets(st.integers(0, each - 1), max_size=3)) if each else set[int]() for each in range(count)}
    return count, needs, draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=3))


def closing(needs: dict[int, set[int]]) -> Callable[[Changes], Changes]:
    def close(changes: Changes) -> Changes:
        closed = set(changes)
        while more := {need for each in closed for need in needs[each]} - closed:
            closed |= more
        return frozenset(closed)

    return close


@settings(max_examples=400, deadline=None)
@given(with_needs())
def test_only_closed_sets_are_asked_about_and_no_smaller_closed_set_fails(
    case: tuple[int, dict[int, set[int]], set[int]],
) -> None:
    count, needs, cause = case
    close, oracle = closing(needs), fails_with(cause)
    found, asked = run(count, oracle, close)
    assert all(close(changes) == changes for changes in asked)
    assert found.closed == close(found.changes)
    # the one smallest closed set with the whole cause in it
    assert found.closed == close(frozenset(cause))


@settings(max_examples=400, deadline=None)
@given(st.integers(1, 12), st.data())
def test_any_answers_at_all_end_and_what_is_found_fails(count: int, data: st.DataObject) -> None:
    answers: dict[Changes, Answer] = {frozenset(range(count)): "fails"}

    def oracle(changes: Changes) -> Answer:
        if changes not in answers:
            answers[changes] = data.draw(st.sampled_from(["fails", "passes", "unresolved"]))
        return answers[changes]

    found, asked = run(count, oracle)
    assert found.changes
    assert answers[found.closed] == "fails"
    assert len(asked) == len(set(asked))
    for each in found.changes if len(found.changes) > 1 else ():
        rest = found.changes - {each}
        assert answers[rest] != "fails"
        assert (answers[rest] == "unresolved") == (each in found.unseparated)


def test_what_cannot_be_tested_apart_is_named() -> None:
    """3 and 4 only build together; 4 is to blame."""

    def oracle(changes: Changes) -> Answer:
        if len(changes & {3, 4}) == 1:
            return "unresolved"
        return "fails" if 4 in changes else "passes"

    found, asked = run(8, oracle)
    assert found.changes == {3, 4}
    assert found.unseparated == {3, 4}
    assert len(asked) <= 8


def test_two_that_only_together_fail() -> None:
    found, asked = run(30, fails_with({4, 21}))
    assert found.changes == {4, 21}
    assert len(asked) <= most_tests(30, 2) == 14


def test_one_change_needs_no_test() -> None:
    assert run(1, fails_with({0})) == (Found(frozenset({0}), frozenset({0})), [])


def test_parts_are_never_empty() -> None:
    assert split(range(7), 3) == [[0, 1], [2, 3], [4, 5, 6]]
    assert split(range(2), 5) == [[0], [1]]
