"""Paired, interleaved launches of the old and the new server, as data for a verdict.

A replicate is one server launch: requests to the same running server share its memory layout, its caches and
its luck, so more of them say nothing about the next launch. The order is ABBA (pair 1: old, new; pair 2: new,
old; …), so that a machine that grows warmer or busier harms both sides alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Literal

from crossgrade.bench.machine import processor_times, share_of_others
from crossgrade.bench.samples import LoadResult
from crossgrade.bench.server_process import RunningServer
from crossgrade.jsontype import JSON

Side = Literal["old", "new"]
Launcher = Callable[[], AbstractContextManager[RunningServer]]


@dataclass(frozen=True)
class Launch:
    """One replicate.

    `started_at`: seconds since the Epoch; `start_seconds`: until the server was healthy; `others`: the share of
    the machine's processor time that other processes took while it was measured (None: not known).
    """

    side: Side
    started_at: float
    start_seconds: float
    result: LoadResult
    others: float | None = None

    def to_json(self) -> dict[str, JSON]:
        return {
            "side": self.side,
            "started_at": round(self.started_at, 3),
            "start_seconds": round(self.start_seconds, 3),
            "others": None if self.others is None else round(self.others, 3),
            "result": self.result.to_json(),
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
class PairedSamples:
    """All pairs, in the order in which they were measured."""

    pairs: tuple[Pair, ...] = ()

    def to_json(self) -> dict[str, JSON]:
        return {"schema": 1, "pairs": [pair.to_json() for pair in self.pairs]}


def order_of(number: int) -> tuple[Side, Side]:
    """Which side goes first in pair `number`, counted from 1."""
    return ("old", "new") if number % 2 else ("new", "old")


def run_pairs(
    launch_old: Launcher,
    launch_new: Launcher,
    measure: Callable[[RunningServer], LoadResult],
    *,
    enough: Callable[[PairedSamples], bool],
    maximum_pairs: int,
    on_pair: Callable[[Pair], None] | None = None,
    on_launch: Callable[[int, Side], None] | None = None,
) -> PairedSamples:
    """Measure pairs until `enough` says so, at most `maximum_pairs`.

    `measure` puts the load, warm-up included, on a server that has just become healthy. `enough` is asked
    after each pair (`gates.benchmark.decided` is made for it); `on_launch` is told the pair's number and the
    side before each launch. Errors of launching (ServerStartError and so on) and of `measure` pass through; by
    then the server has been stopped.
    """
    launchers = {"old": launch_old, "new": launch_new}
    tell = on_launch or (lambda _number, _side: None)

    def in_turn(number: int) -> dict[Side, Launch]:
        launches: dict[Side, Launch] = {}
        for side in order_of(number):
            tell(number, side)
            started_at = time.time()
            with launchers[side]() as server:
                before = processor_times(server.process.members())
                result = measure(server)
                others = share_of_others(before, processor_times(server.process.members()))
            launches[side] = Launch(side, started_at, server.start_seconds, result, others)
        return launches

    return _pairs(in_turn, enough, maximum_pairs, on_pair)


def run_pairs_side_by_side(
    launch_old: Launcher,
    launch_new: Launcher,
    measure: Callable[[RunningServer, int], LoadResult],
    join: Callable[[Sequence[LoadResult]], LoadResult],
    *,
    rounds: int,
    enough: Callable[[PairedSamples], bool],
    maximum_pairs: int,
    on_pair: Callable[[Pair], None] | None = None,
    on_launch: Callable[[int, Side], None] | None = None,
) -> PairedSamples:
    """The same with both servers of a pair running at once: they are measured in short turns, `rounds` each.

    While one is measured the other has nothing to do. What else happens on the machine then meets both sides
    alike, which launches some seconds apart cannot promise; it needs room for both servers at once. `measure`
    gets the number of the round, from 0; `join` makes one result of all turns of a launch.
    """
    launchers = {"old": launch_old, "new": launch_new}
    tell = on_launch or (lambda _number, _side: None)

    def side_by_side(number: int) -> dict[Side, Launch]:
        order = order_of(number)
        servers: dict[Side, RunningServer] = {}
        started_at: dict[Side, float] = {}
        turns: dict[Side, list[LoadResult]] = {"old": [], "new": []}
        with ExitStack() as stack:
            for side in order:
                tell(number, side)
                started_at[side] = time.time()
                servers[side] = stack.enter_context(launchers[side]())
            before = processor_times([*servers["old"].process.members(), *servers["new"].process.members()])
            for round_number in range(rounds):
                for side in order if round_number % 2 == 0 else tuple(reversed(order)):
                    turns[side].append(measure(servers[side], round_number))
            after = processor_times([*servers["old"].process.members(), *servers["new"].process.members()])
        others = share_of_others(before, after)
        return {
            side: Launch(side, started_at[side], servers[side].start_seconds, join(turns[side]), others)
            for side in order
        }

    return _pairs(side_by_side, enough, maximum_pairs, on_pair)


def _pairs(
    launch_pair: Callable[[int], Mapping[Side, Launch]],
    enough: Callable[[PairedSamples], bool],
    maximum_pairs: int,
    on_pair: Callable[[Pair], None] | None,
) -> PairedSamples:
    samples = PairedSamples()
    for number in range(1, maximum_pairs + 1):
        launches = launch_pair(number)
        pair = Pair(number, order_of(number)[0], launches["old"], launches["new"])
        samples = PairedSamples((*samples.pairs, pair))
        if on_pair is not None:
            on_pair(pair)
        if enough(samples):
            break
    return samples
