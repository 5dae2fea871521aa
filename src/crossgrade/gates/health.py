"""Is a service healthy, down, or in a crash loop? Looks at it in, a judgement out; pure.

A crash loop hides from whoever asks now and then: between two crashes the service answers. So its restarts are counted
too, by what each look saw of the process that listens, or by systemd's own count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from crossgrade.jsontype import JSON

Health = Literal["healthy", "down", "crash loop", "undecided"]


@dataclass(frozen=True)
class HealthRules:
    """When a service counts as healthy, and when as failed. Times in seconds.

    It must be healthy for the first time within `start_timeout`, then stay so for `stay` without a failed look or a
    restart. `failures` failed looks in a row mean down, more than `max_restarts` restarts a crash loop.
    """

    stay: float = 30.0
    start_timeout: float = 600.0
    failures: int = 3
    max_restarts: int = 2


@dataclass(frozen=True)
class Look:
    """One look. `at` is seconds on a clock that only goes forward.

    `answer` says in words what the address answered. `process` names the process that listens, "" when none was seen;
    `unit_restarts` is systemd's count for the unit, None when there is no unit to ask about.
    """

    at: float
    healthy: bool
    answer: str
    process: str = ""
    unit_restarts: int | None = None


@dataclass(frozen=True)
class Judgement:
    """`reason` is one sentence for people, `evidence` the figures that it rests on."""

    health: Health
    reason: str
    evidence: Mapping[str, JSON] = field(default_factory=dict)


def restarts_seen(looks: Sequence[Look]) -> int:
    """How often the service was started again between the first look and the last.

    The larger of two counts: changes of the process that listens (looks that saw none are passed over), and the growth
    of systemd's count (a fall means that somebody reset it, and begins anew).
    """
    processes = [look.process for look in looks if look.process]
    changes = sum(one != other for one, other in pairwise(processes))
    counts = [look.unit_restarts for look in looks if look.unit_restarts is not None]
    growth = sum(max(0, later - earlier) for earlier, later in pairwise(counts))
    return max(changes, growth)


def judge_health(looks: Sequence[Look], rules: HealthRules) -> Judgement:
    """Judge all looks so far, oldest first. "undecided" means: look again.

    It comes to an end: a service that is neither down nor steady for `start_timeout` and `stay` together is down.
    """
    if not looks:
        return Judgement("undecided", "not looked at yet")
    restarts, last = restarts_seen(looks), looks[-1]
    passed = last.at - looks[0].at
    failed_in_a_row = _failed_at_the_end(looks)
    evidence: dict[str, JSON] = {
        "looks": len(looks),
        "failed_looks": sum(not look.healthy for look in looks),
        "restarts": restarts,
        "seconds": round(passed, 3),
        "last_answer": last.answer,
    }
    if restarts > rules.max_restarts:
        reason = f"it was restarted {restarts} times in {passed:.0f} s, more than {rules.max_restarts}"
        return Judgement("crash loop", reason, evidence)
    was_healthy = any(look.healthy for look in looks)
    if not was_healthy:
        if passed >= rules.start_timeout:
            reason = f"it was not healthy within {rules.start_timeout:g} s (last answer: {last.answer})"
            return Judgement("down", reason, evidence)
        return Judgement("undecided", f"not healthy yet (last answer: {last.answer})", evidence)
    if failed_in_a_row >= rules.failures:
        reason = f"it was healthy, then failed {failed_in_a_row} looks in a row (last answer: {last.answer})"
        return Judgement("down", reason, evidence)
    steady = last.at - _steady_since(looks) if last.healthy else 0.0
    evidence["healthy_seconds"] = round(steady, 3)
    if last.healthy and steady >= rules.stay:
        return Judgement("healthy", f"healthy for {steady:.0f} s", evidence)
    if passed >= rules.start_timeout + rules.stay:
        reason = f"it did not stay healthy for {rules.stay:g} s within {passed:.0f} s (last answer: {last.answer})"
        return Judgement("down", reason, evidence)
    return Judgement("undecided", f"healthy for {steady:.0f} s of {rules.stay:g} s", evidence)


def _failed_at_the_end(looks: Sequence[Look]) -> int:
    count = 0
    for look in reversed(looks):
        if look.healthy:
            break
        count += 1
    return count


def _steady_since(looks: Sequence[Look]) -> float:
    """The time of the first of the looks at the end that are healthy and saw the same process and count."""
    last = looks[-1]
    since = last.at
    for look in reversed(looks):
        if not look.healthy or look.process != last.process or look.unit_restarts != last.unit_restarts:
            break
        since = look.at
    return since
