"""Looking at the GPUs while a server is measured: what holds their clocks down, and who else is on them."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from crossgrade.bench.void import GpuRecord
from crossgrade.facts.gpus import GpuFacts, GpuProcess

LOOK_SECONDS = 2.0  # between two looks; each asks NVML in a process of its own
NO_DRIVER = "no driver"
FOREIGN_NUMBERS = (
    "the driver numbers processes otherwise than this system (a container): who else is there is not known"
)

ReadGpus = Callable[[], GpuFacts]


@dataclass
class Seen:
    """What the looks have shown so far; `standing` are the processes that were there before."""

    standing: frozenset[int] = frozenset()
    looks: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    others: dict[int, str] = field(default_factory=dict)
    ours_seen: bool = False
    problem: str = ""

    def take(self, facts: GpuFacts, ours: Sequence[int]) -> None:
        """One look. `ours` are the servers' processes and all below them."""
        if not facts.gpus:
            self.problem = facts.unknown.get("gpus", "no GPU was found")
            return
        self.looks += 1
        own = {*ours, os.getpid()}
        for gpu in facts.gpus:
            if gpu.clock_reasons is None:
                self.problem = self.problem or facts.unknown.get("clock_reasons", "clock reasons are not told")
            for reason in gpu.clock_reasons or ():
                self.reasons[f"GPU {gpu.index}: {reason}"] += 1
            for process in gpu.processes or ():
                if process.pid in own:
                    self.ours_seen = True
                else:
                    self.others[process.pid] = told(process, gpu.index)

    def record(self) -> GpuRecord:
        """A server whose own processes are never seen cannot be told from strangers: then nobody is called one."""
        strangers = {pid: words for pid, words in self.others.items() if pid not in self.standing}
        problem = self.problem
        if strangers and not self.ours_seen:
            strangers, problem = {}, problem or FOREIGN_NUMBERS
        return GpuRecord(
            looks=self.looks,
            reasons=dict(self.reasons),
            strangers=tuple(strangers.values()),
            standing=tuple(words for pid, words in self.others.items() if pid in self.standing),
            problem=problem,
        )


def told(process: GpuProcess, gpu: int) -> str:
    """`pid 4711 (python) on GPU 0`."""
    name = f" ({process.name})" if process.name else ""
    return f"pid {process.pid}{name} on GPU {gpu}"


class GpuWatching:
    """Watches GPUs during launches. Those who are on a GPU when it is made were there before.

    `read` asks for the GPUs (`facts.gpu_reading.read_gpus`); None says that there is no driver to ask.
    """

    def __init__(self, read: ReadGpus | None, every: float = LOOK_SECONDS) -> None:
        self._read = read
        self._every = every
        self._standing: frozenset[int] = frozenset()
        if read is not None:
            self._standing = frozenset(process.pid for gpu in read().gpus for process in gpu.processes or ())

    @contextmanager
    def __call__(self, ours: Callable[[], Sequence[int]]) -> Iterator[Callable[[], GpuRecord]]:
        """Look at once, every few seconds, and at the end; afterwards the record is complete."""
        read = self._read
        if read is None:
            yield lambda: GpuRecord(problem=NO_DRIVER)
            return
        seen = Seen(self._standing)
        over = threading.Event()

        def look() -> None:
            before = list(ours())  # one of them may end while the driver is asked
            seen.take(read(), [*before, *ours()])

        def look_on() -> None:
            look()
            while not over.wait(self._every):
                look()

        thread = threading.Thread(target=look_on, name="GPU watch", daemon=True)
        thread.start()
        try:
            yield seen.record
        finally:
            over.set()
            thread.join()
            look()


def gpu_watching() -> GpuWatching:
    """For this machine: NVML or nvidia-smi where a driver is loaded."""
    from crossgrade.facts.gpu_reading import read_gpus
    from crossgrade.inspect.machine import driver_version
    from crossgrade.inspect.query import run_query

    return GpuWatching((lambda: read_gpus(os.environ, run_query)) if driver_version() is not None else None)
