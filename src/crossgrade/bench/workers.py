"""Processes of a server that ended while it was in use. Source: proc(5), fields 3 and 22 of stat."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

EXEC_SECONDS = 0.05


@dataclass(frozen=True)
class Worker:
    """A process: when it started, in clock ticks since boot, and the digest of its command line.

    The digest, for a command line may hold a key, and only whether two are the same is asked.
    """

    started: int
    command: int
    name: str


@dataclass(frozen=True)
class Losses:
    """`ended` are the names of processes that were there at first and are gone.

    `replaced` counts those of them in whose place there is a new process with the same command line: somebody started
    the worker again.
    """

    ended: tuple[str, ...] = ()
    replaced: int = 0

    def words(self) -> str:
        """`2 of its processes ended while it was in use (scheduler, scheduler), 1 was started again`; "" for none."""
        if not self.ended:
            return ""
        count = len(self.ended)
        text = f"{count} of its processes ended while it was in use ({', '.join(self.ended[:8])})"
        return text + (f", {self.replaced} of them started again" if self.replaced else "")


def losses(before: Mapping[int, Worker], now: Mapping[int, Worker]) -> Losses:
    """Compare two looks at the same server. Pure."""
    ended = [worker for pid, worker in before.items() if now.get(pid) != worker]
    fresh = Counter(worker.command for pid, worker in now.items() if before.get(pid) != worker)
    gone = Counter(worker.command for worker in ended)
    return Losses(tuple(worker.name for worker in ended), sum((fresh & gone).values()))


def look_at(pids: Iterable[int]) -> dict[int, Worker]:
    """The processes that are there, zombies left out: those have ended."""
    found = {}
    for pid in pids:
        folder = Path(f"/proc/{pid}")
        with contextlib.suppress(OSError, IndexError, ValueError):
            before, _, after = (folder / "stat").read_text(errors="replace").rpartition(")")
            fields = after.split()
            if fields[0] not in ("Z", "X"):
                line = (folder / "cmdline").read_bytes()
                if not line:  # in the middle of its exec
                    time.sleep(EXEC_SECONDS)
                    line = (folder / "cmdline").read_bytes()
                found[pid] = Worker(int(fields[19]), hash(line), before.partition("(")[2])
    return found
