"""What a benchmark can tell, before it is run: power from the spread between launches of one server. Pure.

The spread comes from launches of the same generation in the same run (an A/A comparison): nothing but the machine and
the luck of a launch differs between them. The power of a one-sided t test at a true effect is a probability of the
noncentral t distribution; here it is that of the last planned look alone, at that look's confidence. The earlier looks
can only add to it, so what is stated is a little too careful. The tests simulate it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from crossgrade.bench.statistics import LEAST_PAIRS, t_quantile, variance

Layout = Literal["pairs", "stored", "alone"]

POWER = 0.9  # "in 9 of 10 cases"
MOST_PAIRS = 200  # nobody starts a server more often for one verdict


@dataclass(frozen=True)
class Spread:
    """How much one launch differs from the next: the standard deviation of the log of a figure (0.01: about 1%).

    Pooled over `runs` runs with `launches` launches in all, each run about its own mean: what a machine does from one
    day to the next is not in it. `freedom` is the degrees of freedom that it rests on.
    """

    sd_log: float
    launches: int
    runs: int

    @property
    def freedom(self) -> int:
        return self.launches - self.runs


@dataclass(frozen=True)
class Test:
    """One test as planned: `launches` new ones at the last look, at `look_confidence`, and the old ones it goes with.

    `pairs`: as many old ones, in pairs. `stored`: `old_launches` of them, measured earlier. `alone`: none, the new
    server is judged against a limit.
    """

    layout: Layout
    launches: int
    look_confidence: float
    old_launches: int = 0

    def standard_error(self, spread: float) -> float:
        """Of the estimate, from the SD of one launch's log."""
        if self.layout == "stored":
            return spread * math.sqrt(1 / self.launches + 1 / self.old_launches)
        return spread * math.sqrt((2 if self.layout == "pairs" else 1) / self.launches)

    @property
    def freedom(self) -> float:
        """Degrees of freedom; for stored launches Satterthwaite's, as if both sides had the same spread."""
        if self.layout != "stored":
            return self.launches - 1
        new, old = 1 / self.launches, 1 / self.old_launches
        return (new + old) ** 2 / (new**2 / (self.launches - 1) + old**2 / (self.old_launches - 1))


def pooled_spread(runs: Sequence[Sequence[float]]) -> Spread | None:
    """The spread within each run, pooled. Runs with one launch say nothing; None where no run says anything."""
    logs = [[math.log(value) for value in run] for run in runs if len(run) >= LEAST_PAIRS]
    launches = sum(map(len, logs))
    if not logs:
        return None
    squares = math.fsum(variance(run) * (len(run) - 1) for run in logs)
    return Spread(math.sqrt(squares / (launches - len(logs))), launches, len(logs))


def power_to_pass(test: Test, spread: float, allowed_loss: float, true_loss: float = 0.0) -> float:
    """The chance that a candidate with this true loss passes at the last look; losses are shares from 0 to below 1."""
    from scipy.special import nctdtr

    distance = math.log1p(-true_loss) - math.log1p(-allowed_loss)
    error = test.standard_error(spread)
    if error <= 0:
        return float(distance > 0)
    critical = t_quantile(test.look_confidence, test.freedom)
    return float(1 - nctdtr(test.freedom, distance / error, critical))


def smallest_loss(test: Test, spread: float, power: float = POWER) -> float:
    """The smallest allowed loss under which a candidate without any loss passes with this chance (0.021: 2.1%).

    It is the minimum detectable effect: a loss smaller than this cannot be told from none that often.
    """
    from scipy.special import nctdtrinc

    critical = t_quantile(test.look_confidence, test.freedom)
    return -math.expm1(-float(nctdtrinc(test.freedom, 1 - power, critical)) * test.standard_error(spread))


def launches_needed(
    test: Test, spread: float, allowed_loss: float, *, looks_for: Mapping[int, float] | None = None
) -> int | None:
    """How many pairs (or new launches) it takes to tell the allowed loss from none in 9 of 10 cases.

    `looks_for` gives the look confidence for a number of launches, as more of them mean more looks; without it that of
    `test` is taken. None where even MOST_PAIRS do not suffice (or where the stored launches are too few).
    """
    for launches in range(max(LEAST_PAIRS, test.launches), MOST_PAIRS + 1):
        confidence = (looks_for or {}).get(launches, test.look_confidence)
        asked = Test(test.layout, launches, confidence, test.old_launches)
        if smallest_loss(asked, spread) <= allowed_loss:
            return launches
    return None
