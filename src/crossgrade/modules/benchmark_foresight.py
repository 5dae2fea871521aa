"""What a `benchmark` task can tell, said in the plan: from the spread of launches that are on record on this host."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from crossgrade.bench.history import StoredLaunch
    from crossgrade.bench.load_profile import LoadProfile
    from crossgrade.bench.power import Spread, Test
    from crossgrade.gates.benchmark_rules import BenchmarkRules

UNKNOWN = "what it can tell is not known: no launches on record"


@dataclass(frozen=True)
class Foresight:
    """What one target can tell: the smallest loss (a share), of how many launches it is known, how many are needed.

    `allowed` is the allowed loss, None for an absolute limit. `needed` is the number of pairs or launches that would
    tell the allowed loss; None where those planned do or where none would.
    """

    title: str
    smallest: float
    spread: Spread
    allowed: float | None
    needed: int | None

    @property
    def strain(self) -> float:
        """Above 1: it cannot tell what is asked."""
        return self.smallest / self.allowed if self.allowed else 0.0


def foresee(
    profiles: Sequence[LoadProfile],
    rules: BenchmarkRules,
    recorded: Callable[[LoadProfile], Sequence[StoredLaunch]],
    test: Test,
) -> tuple[Foresight, ...]:
    """One for each target whose spread is on record. `recorded` gives the launches of one generation under a load."""
    from crossgrade.bench.history import by_run
    from crossgrade.bench.power import pooled_spread, smallest_loss

    found = []
    for profile in profiles:
        launches = recorded(profile)
        targets = rules.targets(profile.name)
        asked = [(name, float(loss)) for name, loss in targets.allowed_losses.items()]
        for name, allowed in [*asked, *((name, None) for name in targets.limits)]:
            spread = pooled_spread(by_run(launches, name))
            if spread is None:
                continue
            planned = test if allowed is not None else alone(rules)
            smallest = smallest_loss(planned, spread.sd_log)
            title = f"{profile.name}: {name}" if profile.name else name
            needed = None
            if allowed is not None and smallest > allowed > 0:
                needed = more_launches(planned, spread.sd_log, allowed, rules)
            found.append(Foresight(title, smallest, spread, allowed, needed))
    return tuple(found)


def alone(rules: BenchmarkRules) -> Test:
    """The test against an absolute limit."""
    from crossgrade.bench.power import Test

    return Test("alone", rules.maximum_pairs, rules.look_confidence)


def more_launches(test: Test, spread: float, allowed: float, rules: BenchmarkRules) -> int | None:
    """How many it takes; with more of them there are more looks, each at a higher confidence."""
    from crossgrade.bench.power import MOST_PAIRS, launches_needed
    from crossgrade.bench.statistics import planned_looks

    looks = {
        number: 1 - (1 - rules.confidence) / len(planned_looks(rules.minimum_pairs, number))
        for number in range(rules.maximum_pairs, MOST_PAIRS + 1)
    }
    return launches_needed(test, spread, allowed, looks_for=looks)


def told(foresights: Sequence[Foresight], rules: BenchmarkRules, targets: int, what: str) -> str:
    """`with 3 to 8 pairs it can tell a loss of 2.1% from none in 9 of 10 cases`. `what` is `pairs` or `launches`.

    Of several targets the one is told that is worst off.
    """
    if not foresights:
        return UNKNOWN
    worst = max(foresights, key=lambda one: (one.strain, one.smallest))
    of = f" in {worst.title}" if targets > 1 else ""
    numbers = f"with {rules.minimum_pairs} to {rules.maximum_pairs} {what}"
    share = f"{100 * worst.smallest:.2g}%"
    spread = (
        f"launches on record differ by {100 * worst.spread.sd_log:.2g}%, "
        f"{worst.spread.launches} in {worst.spread.runs} {'run' if worst.spread.runs == 1 else 'runs'}"
    )
    if worst.allowed is None:
        return f"{numbers} it passes in 9 of 10 cases what is {share} beyond the limit{of} ({spread})"
    text = f"{numbers} it can tell a loss of {share} from none{of} in 9 of 10 cases ({spread})"
    if worst.strain > 1:
        allowed = f"{100 * worst.allowed:g}%"
        if worst.needed:
            return f"{text}: too coarse for the allowed {allowed}, which needs maximum_pairs: {worst.needed}"
        return f"{text}: too coarse for the allowed {allowed}, and more {what} would hardly help"
    unknown = targets - len(foresights)
    return f"{text}; of {unknown} other targets nothing is on record" if unknown else text


def count_targets(profiles: Sequence[LoadProfile], rules: BenchmarkRules) -> int:
    return sum(
        len(rules.targets(profile.name).allowed_losses) + len(rules.targets(profile.name).limits)
        for profile in profiles
    )


def recorded_of(
    launches: Mapping[str, Sequence[StoredLaunch]],
) -> Callable[[LoadProfile], Sequence[StoredLaunch]]:
    """Launches by the name of their profile, as `foresee` asks for them."""
    return lambda profile: launches.get(profile.name, ())
