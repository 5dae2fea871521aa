"""Finding the smallest set of changes that brings a fault: delta debugging, as a generator. Pure.

Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input" (IEEE TSE 28(2), 2002): a set of changes is
tested, and the answer is `fails`, `passes` or `unresolved` (it cannot be tested). ddmin asks up to n² times. Here each
test is a build and some launches of a server, and of many changes mostly one is to blame, so it begins by halving:
the shortest beginning of the list that fails ends with a change that is needed, whatever else is. That change is kept,
and the next one is looked for before it, until what is kept fails by itself. Then ddmin takes what was found: it makes
sure that nothing more can be left out, and it goes on where a test was unresolved, or where changes work against each
other.

With answers that never go from `fails` back to `passes` when a change is added, the set found is minimal, and it takes
at most `most_tests(n, m)` tests to find m changes among n.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

Answer = Literal["fails", "passes", "unresolved"]
Changes = frozenset[int]
Tests = Generator[Changes, Answer, "Found"]

MOST_UNRESOLVED = 4  # tests of one halving that may be unresolved before ddmin takes its turn


@dataclass(frozen=True)
class Found:
    """The smallest set that fails. `changes` are what was asked for, `closed` is what was tested with what they need.

    Without a change of `unseparated` it could not be tested whether the rest fails: it may be no part of the cause.
    """

    changes: Changes
    closed: Changes
    unseparated: Changes = frozenset()


def most_tests(changes: int, found: int = 1) -> int:
    """The most tests that `minimize` takes to find `found` changes among `changes`, when every test has an answer.

    For each one ceil(log2) to halve, and one to see whether what is kept fails by itself; where there are several, one
    more for each, to see that it cannot be left out.
    """
    halving = max(0, changes - 1).bit_length()
    return found * (halving + 1) + (found if found > 1 else 0)


def minimize(count: int, close: Callable[[Changes], Changes] = lambda changes: changes) -> Tests:
    """Yields sets of changes (numbers below `count`) to be tested, takes the answers, returns the smallest that fails.

    That all of them fail and none passes is taken for granted. `close` adds what a set cannot be tested without; each
    beginning of 0, 1, 2, … must be closed already. No set is asked about twice.
    """
    everything = frozenset(range(count))
    answers: dict[Changes, Answer] = {frozenset(): "passes", everything: "fails"}

    def ask(changes: Changes) -> Generator[Changes, Answer, Answer]:
        closed = close(changes)
        if closed not in answers:
            answers[closed] = yield closed
        return answers[closed]

    kept: Changes = frozenset()
    before = list(range(count))  # kept and these together fail
    while not kept or (yield from ask(kept)) != "fails":
        low, high = 0, len(before)
        unresolved: set[int] = set()
        while places := sorted(set(range(low + 1, high)) - unresolved, key=lambda place: abs(2 * place - low - high)):
            answer = yield from ask(kept | frozenset(before[: places[0]]))
            if answer == "fails":
                high = places[0]
            elif answer == "passes":
                low = places[0]
            else:
                unresolved.add(places[0])
                if len(unresolved) > MOST_UNRESOLVED:
                    break
        kept |= frozenset(before[low:high])
        before = before[:low]
    whole = all(answer != "unresolved" for answer in answers.values())
    return (yield from _ddmin(sorted(kept), ask, close, answers, finest=whole))


def _ddmin(
    items: Sequence[int],
    ask: Callable[[Changes], Generator[Changes, Answer, Answer]],
    close: Callable[[Changes], Changes],
    answers: dict[Changes, Answer],
    *,
    finest: bool,
) -> Tests:
    """Zeller's algorithm on a list that fails. `finest` begins with single changes: more is not expected to go."""
    items = list(items)
    parts = len(items) if finest else 2
    while len(items) > 1:
        chunks = split(items, parts)
        smaller: list[int] | None = None
        # With single changes the rests are asked only: what fails alone fails with others too.
        tried = [] if finest or parts == 2 else chunks
        for chunk in [*tried, *([item for item in items if item not in chunk] for chunk in chunks)]:
            if (yield from ask(frozenset(chunk))) == "fails":
                smaller = chunk
                break
        if smaller is not None:
            parts = 2 if smaller in chunks else max(parts - 1, 2)
            items, finest = smaller, False
        elif parts >= len(items):
            break
        else:
            parts = min(len(items), 2 * parts)
    found = frozenset(items)
    rests = {item: close(found - {item}) for item in items}
    unseparated = frozenset(item for item, rest in rests.items() if answers.get(rest) == "unresolved")
    return Found(found, close(found), unseparated)


def split(items: Sequence[int], parts: int) -> list[list[int]]:
    """Into that many parts of nearly the same length, none of them empty."""
    ends = [len(items) * part // parts for part in range(parts + 1)]
    return [list(items[start:end]) for start, end in pairwise(ends) if end > start]
