"""Whether a generation is slower than it used to be, on the same machine under the same load. Pure.

Launches of one generation are compared run by run, one metric at a time. A run is flagged when its mean is worse than
the middle (median) of the earlier runs' means by more than chance explains; better is never flagged. Chance is taken
from the generation's own launches, which differ in nothing that is known (A/A):

* the spread of launches within a run, from the differences of one launch to the next, so that a slow change within a
  run does not count as spread (von Neumann's estimator);
* how much runs as a whole differ. With fewer than three earlier runs nobody knows: then a run as a whole is taken to
  differ from the others as much as single launches of a run do. With three or more, their own spread counts where it is
  larger.

The bound is one-sided Student's t, at 99% for all metrics of a run together (Bonferroni), and never below 1%. Runs that
were flagged do not become the measure of later ones. With fewer than `LEAST_DIFFERENCES` differences in all, nothing
is judged. The tests simulate how often stable noise is flagged: in 1 of 100 runs or less while runs differ no more than
their launches, and in 7 of 100 at most when they differ twice as much.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from crossgrade.bench.history import StoredLaunch
from crossgrade.bench.statistics import median, t_quantile

ERROR = 0.01  # that a run of a stable server is flagged
LEAST_CHANGE = 0.01
LEAST_DIFFERENCES = 3
KNOWN_RUNS = 3  # from so many earlier runs on, their own spread is looked at


@dataclass(frozen=True)
class Drift:
    """A run's mean of one metric against the earlier runs'. `ratio` is run to earlier, as measured (0.9: a tenth less).

    `bound` is the share by which it may be worse before it is flagged; None where there is too little to judge it by.
    """

    run: str
    metric: str
    launches: int
    earlier_runs: int
    ratio: float
    bound: float | None
    flagged: bool


def spread_within(runs: Iterable[Sequence[float]]) -> tuple[float, int]:
    """The standard deviation of logs within runs, from successive differences, and how many differences there are."""
    squares = [(after - before) ** 2 for run in runs for before, after in pairwise(run)]
    return (math.sqrt(math.fsum(squares) / (2 * len(squares))) if squares else 0.0), len(squares)


def drift_of(launches: Sequence[StoredLaunch], higher_is_better: Mapping[str, bool]) -> list[Drift]:
    """Judge each run after the first by those before it, for each metric (name → whether more is better).

    `launches` are of one generation, one load, one launch line and one machine: `alike` gives them so.
    """
    found: list[Drift] = []
    for metric, higher in higher_is_better.items():
        runs: dict[str, list[float]] = {}
        for launch in sorted(launches, key=lambda launch: launch.started_at):
            value = launch.metrics.get(metric, 0.0)
            if launch.counts and math.isfinite(value) and value > 0:
                runs.setdefault(launch.run, []).append(math.log(value) * (1 if higher else -1))
        found += _drift_of(metric, runs, higher, ERROR / len(higher_is_better))
    return found


def _drift_of(metric: str, runs: Mapping[str, Sequence[float]], higher: bool, error: float) -> list[Drift]:
    found: list[Drift] = []
    good: list[Sequence[float]] = []
    for run, values in runs.items():
        mean = math.fsum(values) / len(values)
        if not good:
            good.append(values)
            continue
        means = [math.fsum(one) / len(one) for one in good]
        change = mean - median(means)
        bound = _bound([*good, values], means, error)
        flagged = bound is not None and -change > bound
        ratio = math.exp(change if higher else -change)
        share = None if bound is None else -math.expm1(-bound)
        found.append(Drift(run, metric, len(values), len(good), ratio, share, flagged))
        if not flagged:
            good.append(values)
    return found


def _bound(runs: Sequence[Sequence[float]], means: Sequence[float], error: float) -> float | None:
    """How much worse the last run may be, on the log scale; None where too little is known."""
    spread, differences = spread_within(runs)
    if differences < LEAST_DIFFERENCES:
        return None
    known = len(means)
    # successive differences overlap: they are worth two thirds as many independent ones
    freedom = max(1, 2 * differences // 3)
    earlier = sum(len(run) for run in runs[:-1])
    parts = 1 + 1 / known + 1 / len(runs[-1]) + 1 / earlier
    bound = t_quantile(1 - error, freedom) * spread * math.sqrt(parts)
    if known >= KNOWN_RUNS:
        middle = math.fsum(means) / known
        between = math.sqrt(math.fsum((mean - middle) ** 2 for mean in means) / (known - 1))
        bound = max(bound, t_quantile(1 - error, known - 1) * between * math.sqrt(1 + 1 / known))
    return max(bound, LEAST_CHANGE)


def alike(launches: Iterable[StoredLaunch]) -> dict[tuple[str, str, str, str], list[StoredLaunch]]:
    """Launches that differ in nothing that is known, by manifest, load, launch line and machine."""
    found: dict[tuple[str, str, str, str], list[StoredLaunch]] = {}
    for launch in launches:
        found.setdefault((launch.manifest, launch.profile, launch.starts, launch.host), []).append(launch)
    return found
