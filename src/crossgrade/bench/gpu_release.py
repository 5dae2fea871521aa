"""Is the GPUs' memory given back after a server was stopped? The rule is pure, and who asks the driver is passed in.

A process that is gone may still hold memory on a GPU for seconds, while the driver takes its context down; one that a
server left behind holds it for good. The next server then fails with out of memory, and nobody knows why.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from crossgrade.errors import TaskError

SLACK_BYTES = 256 << 20  # other programs come and go: less than a CUDA context with its libraries takes
PAUSE_SECONDS = 0.5


@dataclass(frozen=True)
class GpuUse:
    """One GPU at one moment: bytes in use (None: the driver does not say), and the processes that it names."""

    index: int
    used_bytes: int | None
    processes: frozenset[int] = frozenset()


AskGpus = Callable[[], "Sequence[GpuUse] | str"]  # a text says why they cannot be watched


@dataclass(frozen=True)
class StillHeld:
    """What is held on a GPU that a server used: bytes more than before it started, and by whom."""

    index: int
    more_bytes: int
    processes: tuple[int, ...]


class GpuMemoryHeldError(TaskError):
    """After the server was stopped, GPUs still hold memory that they did not hold before it started."""

    def __init__(self, held: Sequence[StillHeld], seconds: float, describe: Callable[[int], str]) -> None:
        self.held = tuple(held)
        listed = "; ".join(
            f"GPU {one.index} holds {one.more_bytes / (1 << 30):.1f} GiB more than before"
            + (f" ({', '.join(map(describe, one.processes))})" if one.processes else " (by no process that it names)")
            for one in held
        )
        super().__init__(
            f"{seconds:g} s after the server was stopped its GPU memory is not given back: {listed}",
            remedy="`nvidia-smi` and `fuser -v /dev/nvidia*` show who holds it; the next server would not find room",
        )


def used_by_server(before: Sequence[GpuUse], running: Sequence[GpuUse], members: Collection[int]) -> frozenset[int]:
    """The GPUs that a server used: those on which the driver names a process of it, or whose use grew.

    In a container the driver may name processes by other numbers, so the growth counts too.
    """
    earlier = {use.index: use for use in before}
    return frozenset(
        use.index
        for use in running
        if use.processes & set(members) or _growth(earlier.get(use.index), use) > SLACK_BYTES
    )


def still_held(before: Sequence[GpuUse], now: Sequence[GpuUse], used: Collection[int]) -> tuple[StillHeld, ...]:
    """The used GPUs that hold more than before, by more than 256 MiB, or on which a process of then is named."""
    earlier = {use.index: use for use in before}
    found = []
    for use in now:
        was = earlier.get(use.index)
        if use.index in used and (more := _growth(was, use)) > SLACK_BYTES:
            strangers = use.processes - (was.processes if was else frozenset())
            found.append(StillHeld(use.index, more, tuple(sorted(strangers))))
    return tuple(found)


def _growth(before: GpuUse | None, now: GpuUse) -> int:
    if now.used_bytes is None or (before is not None and before.used_bytes is None):
        return 0
    return now.used_bytes - (before.used_bytes or 0 if before else 0)


@dataclass
class GpuWatch:
    """Follows the GPUs through one start of a server: `begin`, `running`, and after its end `wait`.

    `note` says what came of it: `not watched: …`, `given back after 1.2 s`, or "" before the end.
    """

    ask: AskGpus | None
    timeout: float = 60.0
    note: str = ""
    _before: Sequence[GpuUse] = ()
    _used: frozenset[int] = field(default_factory=frozenset)

    def begin(self) -> None:
        found = "nobody asked for it" if self.ask is None else self.ask()
        if isinstance(found, str):
            self.note = f"not watched: {found}"
        else:
            self._before = found

    def running(self, members: Collection[int]) -> None:
        """The moment before the stop: which GPUs are in use."""
        if self.ask is None or self.note:
            return
        found = self.ask()
        if isinstance(found, str):
            self.note = f"not watched: {found}"
        else:
            self._used |= used_by_server(self._before, found, members)

    def wait(self, describe: Callable[[int], str], sleep: Callable[[float], None] = time.sleep) -> None:
        """Until the memory is back. Raises GpuMemoryHeldError after `timeout` seconds."""
        if self.ask is None or self.note:
            return
        if not self._used:
            self.note = "it held no GPU memory"
            return
        began = time.monotonic()
        while True:
            found = self.ask()
            seconds = time.monotonic() - began
            if isinstance(found, str):
                self.note = f"not watched: {found}"
                return
            held = still_held(self._before, found, self._used)
            if not held:
                self.note = f"given back after {seconds:.1f} s"
                return
            if seconds >= self.timeout:
                raise GpuMemoryHeldError(held, self.timeout, describe)
            sleep(PAUSE_SECONDS)
