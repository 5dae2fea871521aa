"""What a benchmark measured, read from its file of samples. Pure; times are seconds."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from crossgrade.gates.benchmark import METRICS

Side = Literal["old", "new"]
SIDES: tuple[Side, Side] = ("old", "new")
_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, IndexError)


@dataclass(frozen=True)
class Launch:
    """One launch of one side under one load: its figures by the names of METRICS, and those of each good request.

    `others` is the share of the machine's processor time that other processes took, None where it is not known.
    """

    pair: int
    side: Side
    metrics: Mapping[str, float]
    others: float | None = None
    times_to_first_token: tuple[float, ...] = ()
    inter_token_latencies: tuple[float, ...] = ()
    ends_to_end: tuple[float, ...] = ()
    errors: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Measurements:
    """All launches under one load that count.

    `profile` is the load that was put on them, {} where it is not known. `void` says why each replicate that was
    measured again was void; `problem` is what could not be read, "" when everything was.
    """

    profile: Mapping[str, Any]
    launches: tuple[Launch, ...]
    problem: str = ""
    void: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What a playbook with several loads calls this one; "" where there is one."""
        return str(self.profile.get("name") or "")

    @property
    def concurrency(self) -> int | None:
        """Streams at any moment; None for an open loop, and where the load is not known."""
        value = self.profile.get("concurrency")
        return value if isinstance(value, int) and self.rate is None else None

    @property
    def rate(self) -> float | None:
        """Requests that an open loop sends each second; None for a closed one."""
        value = self.profile.get("rate")
        return float(value) if isinstance(value, (int, float)) else None

    @property
    def sides(self) -> tuple[Side, ...]:
        """Those that were launched: the old server is not, where only limits are judged."""
        return tuple(side for side in SIDES if self.of(side))

    def of(self, side: Side) -> tuple[Launch, ...]:
        return tuple(launch for launch in self.launches if launch.side == side)

    def pairs(self, name: str) -> tuple[tuple[int, float, float], ...]:
        """Number, old and new figure of each pair in which both sides measured this metric."""
        old, new = ({launch.pair: launch.metrics.get(name) for launch in self.of(side)} for side in SIDES)
        return tuple(
            (number, before, after)
            for number, before in sorted(old.items())
            if before is not None and (after := new.get(number)) is not None
        )


@dataclass(frozen=True)
class _Header:
    profiles: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class _Void:
    words: str


def read_samples(lines: Iterable[str]) -> tuple[Measurements, ...]:
    """The measurements in a file of samples (`modules.benchmark`), one for each load; none for a file without a launch.

    After a header there is a line for each pair, or each launch of the new server alone, and for each void replicate,
    whose launches do not count. A line that cannot be read is named in `problem`, and the others count: a file may end
    in the middle of a line.
    """
    profiles: tuple[Mapping[str, Any], ...] = ()
    launches: list[list[Launch]] = []
    void: list[str] = []
    unreadable: list[int] = []
    for number, line in enumerate(lines, 1):
        found = _read_line(line)
        if found is None:
            unreadable.append(number)
        elif isinstance(found, _Header):
            profiles = found.profiles
        elif isinstance(found, _Void):
            void.append(found.words)
        else:
            launches.append(found)
    problem = f"unreadable: line {', '.join(map(str, unreadable[:5]))} of the samples" if unreadable else ""
    loads = max((len(found) // _sides_in(found) for found in launches), default=0)
    return tuple(
        Measurements(
            profiles[load] if load < len(profiles) else {},
            tuple(launch for found in launches for launch in found[load :: len(found) // _sides_in(found)]),
            problem,
            tuple(void),
        )
        for load in range(loads)
    )


def from_figures(figures: Mapping[str, Any], problem: str) -> tuple[Measurements, ...]:
    """What the verdict itself tells of each launch, where the file of samples cannot be had."""
    by_load: dict[str, list[Launch]] = {}
    try:
        for value in figures.get("launches") or ():
            loads = value.get("profiles") or {"": value["metrics"]}
            for name, metrics in loads.items():
                launch = Launch(int(value["pair"]), _side(value["side"]), _numbers(metrics), value.get("others"))
                by_load.setdefault(str(name), []).append(launch)
    except _UNREADABLE:
        return (Measurements({}, (), f"{problem}; the launches in the verdict are unreadable too"),)
    return tuple(
        Measurements({"name": name} if name else {}, tuple(launches), problem) for name, launches in by_load.items()
    )


def _read_line(line: str) -> _Header | _Void | list[Launch] | None:
    """What one line holds: launches are those of one side, load by load, then of the other. None: unreadable."""
    try:
        value = json.loads(line)
        if "void" in value:
            causes = [f"{cause['side']} server: {cause['detail']}" for cause in value["causes"]]
            return _Void(f"replicate {value['void']}: {'; '.join(causes)}")
        if "number" in value:
            sides = [side for side in SIDES if side in value]
            found = [launch for side in sides for launch in _launches(int(value["number"]), side, value[side])]
            return found or None
        return _Header(tuple(dict(profile) for profile in value.get("profiles") or [value["profile"]]))
    except _UNREADABLE:
        return None


def _sides_in(launches: Sequence[Launch]) -> int:
    return len({launch.side for launch in launches})


def _launches(number: int, side: Side, value: Mapping[str, Any]) -> list[Launch]:
    """One launch of a server as the launches under each of its loads."""
    results = [value["result"], *value.get("further_results", ())]
    return [_launch(number, side, result, value.get("others")) for result in results]


def _launch(number: int, side: Side, result: Mapping[str, Any], others: float | None) -> Launch:
    good = [sample for sample in result["samples"] if not sample.get("error")]
    first = (sample.get("time_to_first_token") for sample in good)
    return Launch(
        number,
        side,
        _numbers(result["metrics"]),
        others,
        tuple(float(seconds) for seconds in first if seconds is not None),
        tuple(float(latency) for sample in good for latency in sample["inter_token_latencies"]),
        tuple(float(sample["end_to_end"]) for sample in good),
        {str(kind): int(count) for kind, count in (result.get("errors") or {}).items()},
    )


def _side(value: Any) -> Side:
    if value not in SIDES:
        raise ValueError(f"{value!r} is no side")
    return "old" if value == "old" else "new"


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """The figures that can be compared and drawn: finite, above zero, and of a metric that is known here."""
    numbers = {str(name): float(value) for name, value in values.items() if name in METRICS}
    return {name: value for name, value in numbers.items() if math.isfinite(value) and value > 0}
