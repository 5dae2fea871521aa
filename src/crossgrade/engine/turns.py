"""Several hosts walk one play side by side, as Ansible's linear strategy has it.

A walk is a generator that stops before each task and says where it stands. The hosts that stand furthest back go
first, in their order, so that all have done a task before one of them does the next.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from crossgrade.playbook.model import Task

if TYPE_CHECKING:
    from crossgrade.engine.walk import HostFailed, Walk

Place = tuple[int, ...]
"""Where a task stands among all tasks of a play: section, step, part of a block, step in it, and so on."""


@dataclass(frozen=True)
class Turn:
    """What a walk says before a task (None: before it gathers facts)."""

    place: Place
    task: Task | None


Turns = Generator[Turn, bool, None]
"""A walk under way. It is sent whether it shall do the task, or leave it to the host that does it for all."""


class HostEnded(Exception):  # noqa: N818 - a turn in the walk: no more tasks for this host, and nothing has failed
    """`meta: end_host`, `end_batch` or `end_play`: not even `always` runs any more."""


@dataclass
class SideBySide:
    """The walks of one batch of `size` hosts. What nothing rescued is in the hosts' memories after `run`.

    `most_failed` is `max_fail_percentage`. `broken` says that too many have failed for the play to go on with other
    hosts, `ended` that the play asked to end.
    """

    walks: Sequence[Walk]
    size: int
    most_failed: float | None = None
    broken: bool = False
    ended: bool = False
    _waiting: dict[str, tuple[Walk, Turns, Turn]] = field(default_factory=dict)

    def run(self) -> None:
        """Until no host has anything left to do. Raises what a walk raises, but for HostFailed."""
        for walk in self.walks:
            self._advance(walk, walk.turns())
        while self._waiting:
            self._round()

    def _round(self) -> None:
        place, uid = min((turn.place, turn.task.uid if turn.task else "") for _, _, turn in self._waiting.values())
        group = [
            (walk, turns)
            for walk, turns, turn in self._waiting.values()
            if turn.place == place and (turn.task.uid if turn.task else "") == uid
        ]
        task = self._waiting[group[0][0].host][2].task
        for_all = task is not None and group[0][0].does_for_all(task)
        failures: list[HostFailed] = []
        for number, (walk, turns) in enumerate(group):
            if walk.host not in self._waiting:
                continue  # it was ended meanwhile
            sharing = for_all and task is not None and walk.shares(task)
            walk.sharing = [other.memory for other in self.walks if other is not walk] if sharing else []
            walk.failure = None
            self._advance(walk, turns, go=not for_all or number == 0)
            if walk.failure is not None:
                failures.append(walk.failure)
            if walk.ending:
                self._end(walk.ending)
            if for_all and failures:
                break  # the others fail here too, where their own blocks may rescue them
        if failures and (for_all or any(walk.is_fatal(task) for walk, _ in group if task is not None)):
            self._fail_others(failures[0], [failure.host for failure in failures])
        self._count_failed()

    def _advance(self, walk: Walk, turns: Turns, *, go: bool | None = None) -> None:
        from crossgrade.engine.walk import HostFailed

        try:
            turn = next(turns) if go is None else turns.send(go)
        except StopIteration:
            self._waiting.pop(walk.host, None)
        except HostFailed as failure:
            self._waiting.pop(walk.host, None)
            walk.memory.failure = failure
        except BaseException:
            self._waiting.clear()
            raise
        else:
            self._waiting[walk.host] = (walk, turns, turn)
            while walk.leaving and walk.host in self._waiting:  # an error that is no task's: its `always` runs, alone
                self._advance(walk, turns, go=True)

    def _fail_others(self, failure: HostFailed, own: Sequence[str]) -> None:
        """`any_errors_fatal`: every host has failed where it stands; its blocks may still rescue it."""
        from crossgrade.engine.walk import HostFailed

        for walk, turns, _ in list(self._waiting.values()):
            if walk.host in own:
                continue
            try:
                turn = turns.throw(
                    HostFailed(failure.task, failure.name, failure.result, failure.told, walk.host, own=False)
                )
            except StopIteration:
                del self._waiting[walk.host]
            except HostFailed as thrown:
                del self._waiting[walk.host]
                walk.memory.failure = thrown
            else:
                self._waiting[walk.host] = (walk, turns, turn)

    def _count_failed(self) -> None:
        failures = [walk.memory.failure for walk in self.walks]
        own = [failure for failure in failures if failure is not None and failure.own]
        if self.most_failed is None or not own or self.broken:
            return
        if 100 * len(own) / self.size > self.most_failed:
            self.broken = True
            self._fail_others(own[0], [])

    def _end(self, what: str) -> None:
        """`end_batch`, or `end_play`: all hosts stop where they stand."""
        self.ended = self.ended or what == "end_play"
        for _, turns, _ in self._waiting.values():
            turns.close()
        self._waiting.clear()
