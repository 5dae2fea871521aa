"""How busy the machine was with other things while a server was measured: what explains a noisy result."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ProcessorTimes:
    """Seconds of processor time since some fixed moment: of all processes, and of those of the benchmark."""

    taken_at: float  # of time.monotonic()
    all_processes: float
    ours: float


def processor_times(pids: Sequence[int]) -> ProcessorTimes:
    """Now; `pids` are the server's processes, and crossgrade's own is added (proc(5): stat and PID/stat)."""
    ticks = os.sysconf("SC_CLK_TCK")
    user, nice, system, _, _, interrupt, soft_interrupt, steal = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    )
    ours = sum(map(_ticks, (*pids, os.getpid())))
    total = user + nice + system + interrupt + soft_interrupt + steal
    return ProcessorTimes(time.monotonic(), total / ticks, ours / ticks)


def _ticks(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0  # it ended meanwhile
    return int(fields[11]) + int(fields[12])  # utime and stime


def share_of_others(before: ProcessorTimes, after: ProcessorTimes) -> float | None:
    """The share (0 to 1) of the machine's processor time that went to other processes; None for no time."""
    available = (after.taken_at - before.taken_at) * (os.cpu_count() or 1)
    if available <= 0:
        return None
    others = (after.all_processes - before.all_processes) - (after.ours - before.ours)
    return min(1.0, max(0.0, others / available))
