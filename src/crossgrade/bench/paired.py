"""Launches of the old and the new server, as data for a verdict: in pairs, or of the new server alone.

A replicate is one server launch: requests to the same running server share its memory layout, its caches and
its luck, so more of them say nothing about the next launch. One launch measures every load profile. The order of pairs
is ABBA (pair 1: old, new; pair 2: new, old; …), so that a machine that grows warmer or busier harms both sides alike.
A void launch (`bench.void`) voids its pair, which is measured again: a pair stands for one stretch of time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal

from crossgrade.bench.machine import processor_times, share_of_others
from crossgrade.bench.samples import LoadResult
from crossgrade.bench.server_process import RunningServer
from crossgrade.bench.void import OWN, GpuRecord, VoidCause, void_causes
from crossgrade.jsontype import JSON

Side = Literal["old", "new"]
Launcher = Callable[[], AbstractContextManager[RunningServer]]
# Watches the GPUs for the length of a block, given what tells the servers' processes; asked afterwards, it tells.
Watch = Callable[[Callable[[], Sequence[int]]], AbstractContextManager[Callable[[], GpuRecord]]]

MAXIMUM_VOID = 3  # replicates that may be void and measured again, in one benchmark


@dataclass(frozen=True)
class Launch:
    """One replicate.

    `started_at`: seconds since the Epoch; `start_seconds`: until the server was healthy; `others`: the share of
    the machine's processor time that other processes took while it was measured (None: not known). `result` is that of
    the first load profile, `further` those of the others; `gpus` is None where nobody watched.
    """

    side: Side
    started_at: float
    start_seconds: float
    result: LoadResult
    others: float | None = None
    further: tuple[LoadResult, ...] = ()
    gpus: GpuRecord | None = None

    @property
    def results(self) -> tuple[LoadResult, ...]:
        """One for each load profile, in their order."""
        return (self.result, *self.further)

    @property
    def void(self) -> tuple[VoidCause, ...]:
        """Why it does not count; empty when it does."""
        return void_causes(self.results, self.gpus)

    def to_json(self) -> dict[str, JSON]:
        further: dict[str, JSON] = {"further_results": [result.to_json() for result in self.further]}
        return {
            "side": self.side,
            "started_at": round(self.started_at, 3),
            "start_seconds": round(self.start_seconds, 3),
            "others": None if self.others is None else round(self.others, 3),
            "result": self.result.to_json(),
            **(further if self.further else {}),
            **({"gpus": self.gpus.to_json()} if self.gpus else {}),
        }


@dataclass(frozen=True)
class Pair:
    """One launch of each; `first` is the side that was launched first. `number` counts from 1."""

    number: int
    first: Side
    old: Launch
    new: Launch

    def to_json(self) -> dict[str, JSON]:
        return {
            "number": self.number,
            "first": self.first,
            "old": self.old.to_json(),
            "new": self.new.to_json(),
        }


@dataclass(frozen=True)
class VoidReplicate:
    """A replicate that does not count and is measured again: a pair, or the launches made of it until one was void."""

    number: int
    launches: tuple[Launch, ...]

    def own(self, side: Side) -> bool:
        """Whether it was this server's own doing."""
        return any(cause.kind in OWN for launch in self.launches if launch.side == side for cause in launch.void)

    @property
    def words(self) -> str:
        """`new server: failed requests: 2 http_status`."""
        return "; ".join(f"{launch.side} server: {cause.detail}" for launch in self.launches for cause in launch.void)

    def to_json(self) -> dict[str, JSON]:
        """Not with the keys of a pair: a reader of pairs must not take it for one."""
        return {
            "void": self.number,
            "causes": [{"side": launch.side, **cause.to_json()} for launch in self.launches for cause in launch.void],
            "launches": [launch.to_json() for launch in self.launches],
        }


@dataclass(frozen=True)
class PairedSamples:
    """What was measured, in order: pairs, or launches of the new server alone (`alone`); and what was void."""

    pairs: tuple[Pair, ...] = ()
    alone: tuple[Launch, ...] = ()
    void: tuple[VoidReplicate, ...] = ()

    @property
    def count(self) -> int:
        """Replicates that count: pairs, or launches of the new server."""
        return len(self.pairs) or len(self.alone)

    @property
    def old(self) -> tuple[Launch, ...]:
        return tuple(pair.old for pair in self.pairs)

    @property
    def new(self) -> tuple[Launch, ...]:
        return tuple(pair.new for pair in self.pairs) or self.alone

    def to_json(self) -> dict[str, JSON]:
        return {
            "schema": 1,
            "pairs": [pair.to_json() for pair in self.pairs],
            "alone": [launch.to_json() for launch in self.alone],
            "void": [replicate.to_json() for replicate in self.void],
        }


@dataclass(frozen=True)
class Told:
    """Who is told of what happens. `launch`: the replicate's number and the side, before each launch."""

    launch: Callable[[int, Side], None] = field(default=lambda _number, _side: None)
    pair: Callable[[Pair], None] = field(default=lambda _pair: None)
    alone: Callable[[int, Launch], None] = field(default=lambda _number, _launch: None)
    void: Callable[[VoidReplicate], None] = field(default=lambda _void: None)


@contextmanager
def unwatched(_: Callable[[], Sequence[int]]) -> Iterator[Callable[[], GpuRecord]]:
    """For servers that use no GPU."""
    yield GpuRecord


def order_of(number: int) -> tuple[Side, Side]:
    """Which side goes first in pair `number`, counted from 1."""
    return ("old", "new") if number % 2 else ("new", "old")


def run_pairs(
    launch_old: Launcher,
    launch_new: Launcher,
    measure: Callable[[RunningServer], Sequence[LoadResult]],
    *,
    enough: Callable[[PairedSamples], bool],
    maximum_pairs: int,
    told: Told | None = None,
    watch: Watch | None = None,
    maximum_void: int = MAXIMUM_VOID,
) -> PairedSamples:
    """Measure pairs until `enough` says so, at most `maximum_pairs`, and at most `maximum_void` + 1 void ones.

    `measure` puts the loads, warm-up included, on a server that has just become healthy: one result for each profile.
    `enough` is asked after each pair, void ones too (`gates.benchmark.decided` is made for it). Errors of
    launching (ServerStartError and so on) and of `measure` pass through; by then the server has been stopped.
    """
    launchers = {"old": launch_old, "new": launch_new}
    tell = told or Told()

    def in_turn(number: int) -> dict[Side, Launch]:
        launches: dict[Side, Launch] = {}
        for side in order_of(number):
            tell.launch(number, side)
            launches[side] = _one_launch(side, launchers[side], measure, watch)
            if launches[side].void:
                break  # the other launch would be thrown away
        return launches

    return _pairs(in_turn, enough, maximum_pairs, maximum_void, tell)


def run_alone(
    launch_new: Launcher,
    measure: Callable[[RunningServer], Sequence[LoadResult]],
    *,
    enough: Callable[[PairedSamples], bool],
    maximum_launches: int,
    told: Told | None = None,
    watch: Watch | None = None,
    maximum_void: int = MAXIMUM_VOID,
) -> PairedSamples:
    """Launches of the new server alone, for limits and for stored launches of the old one; otherwise as `run_pairs`."""
    tell = told or Told()
    samples = PairedSamples()
    while samples.count < maximum_launches and len(samples.void) <= maximum_void:
        number = samples.count + 1
        tell.launch(number, "new")
        launch = _one_launch("new", launch_new, measure, watch)
        if launch.void:
            samples = _with_void(samples, number, [launch], tell)
        else:
            samples = replace(samples, alone=(*samples.alone, launch))
            tell.alone(number, launch)
        if enough(samples):
            break
    return samples


def run_pairs_side_by_side(
    launch_old: Launcher,
    launch_new: Launcher,
    measure: Callable[[RunningServer, int], LoadResult],
    join: Callable[[Sequence[LoadResult]], Sequence[LoadResult]],
    *,
    rounds: int,
    enough: Callable[[PairedSamples], bool],
    maximum_pairs: int,
    told: Told | None = None,
    watch: Watch | None = None,
    maximum_void: int = MAXIMUM_VOID,
) -> PairedSamples:
    """The same as `run_pairs` with both servers of a pair running at once, measured in short turns, `rounds` each.

    While one is measured the other has nothing to do. What else happens on the machine then meets both sides
    alike, which launches some seconds apart cannot promise; it needs room for both servers at once. `measure`
    gets the number of the round, from 0; `join` makes the results of a launch, one for each profile, of all its turns.
    """
    launchers = {"old": launch_old, "new": launch_new}
    tell = told or Told()

    def side_by_side(number: int) -> dict[Side, Launch]:
        order = order_of(number)
        servers: dict[Side, RunningServer] = {}
        started_at: dict[Side, float] = {}
        turns: dict[Side, list[LoadResult]] = {"old": [], "new": []}

        def members() -> list[int]:
            return [pid for server in servers.values() for pid in server.process.members()]

        with ExitStack() as stack:
            for side in order:
                tell.launch(number, side)
                started_at[side] = time.time()
                servers[side] = stack.enter_context(launchers[side]())
            with (watch or unwatched)(members) as record:
                before = processor_times(members())
                for round_number in range(rounds):
                    for side in order if round_number % 2 == 0 else tuple(reversed(order)):
                        turns[side].append(measure(servers[side], round_number))
                after = processor_times(members())
        others = share_of_others(before, after)
        return {
            side: _launch_of(
                side,
                started_at[side],
                servers[side].start_seconds,
                join(turns[side]),
                others,
                record() if watch else None,
            )
            for side in order
        }

    return _pairs(side_by_side, enough, maximum_pairs, maximum_void, tell)


def _one_launch(
    side: Side, launcher: Launcher, measure: Callable[[RunningServer], Sequence[LoadResult]], watch: Watch | None
) -> Launch:
    started_at = time.time()
    with launcher() as server, (watch or unwatched)(server.process.members) as record:
        before = processor_times(server.process.members())
        results = measure(server)
        others = share_of_others(before, processor_times(server.process.members()))
    return _launch_of(side, started_at, server.start_seconds, results, others, record() if watch else None)


def _launch_of(
    side: Side,
    started_at: float,
    start_seconds: float,
    results: Sequence[LoadResult],
    others: float | None,
    gpus: GpuRecord | None,
) -> Launch:
    first, *further = results
    return Launch(side, started_at, start_seconds, first, others, tuple(further), gpus)


def _with_void(samples: PairedSamples, number: int, launches: Sequence[Launch], tell: Told) -> PairedSamples:
    void = VoidReplicate(number, tuple(launches))
    tell.void(void)
    return replace(samples, void=(*samples.void, void))


def _pairs(
    launch_pair: Callable[[int], Mapping[Side, Launch]],
    enough: Callable[[PairedSamples], bool],
    maximum_pairs: int,
    maximum_void: int,
    tell: Told,
) -> PairedSamples:
    samples = PairedSamples()
    while samples.count < maximum_pairs and len(samples.void) <= maximum_void:
        number = samples.count + 1
        launches = launch_pair(number)
        if any(launch.void for launch in launches.values()):
            samples = _with_void(samples, number, list(launches.values()), tell)
        else:
            pair = Pair(number, order_of(number)[0], launches["old"], launches["new"])
            samples = replace(samples, pairs=(*samples.pairs, pair))
            tell.pair(pair)
        if enough(samples):
            break
    return samples
