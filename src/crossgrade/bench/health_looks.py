"""Looking at a service: one question over HTTP, who listens on its port, and systemd's count of restarts."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from crossgrade.bench.listening import get, holds_socket, listening_sockets
from crossgrade.gates.health import HealthRules, Judgement, Look, judge_health

ANSWER_SECONDS = 10.0  # how long one answer may take: /health_generate makes a token
SYSTEMCTL_SECONDS = 10.0


@dataclass(frozen=True)
class Watched:
    """What is looked at, and how often. `every` is seconds between looks; `unit` is "" without one."""

    url: str
    every: float
    unit: str
    rules: HealthRules

    @classmethod
    def from_json(cls, value: Any) -> Watched:
        """Raises KeyError or TypeError for what `to_json` did not write."""
        return cls(value["url"], value["every"], value["unit"], HealthRules(**value["rules"]))

    def to_json(self) -> dict[str, Any]:
        return {"url": self.url, "every": self.every, "unit": self.unit, "rules": dict(vars(self.rules))}


def look_at(watched: Watched, clock: Callable[[], float] = time.monotonic) -> Look:
    """One look. The answer may take up to 10 s; what cannot be found out is left empty."""
    answer = ask(watched.url, ANSWER_SECONDS)
    port = urlsplit(watched.url).port or 80
    restarts = unit_restarts(watched.unit) if watched.unit else None
    return Look(clock(), answer == "200", answer, listener(port), restarts)


def watch_until_decided(
    watched: Watched, told: Callable[[Judgement], None], sleep: Callable[[float], None] = time.sleep
) -> Judgement:
    """Look again and again until it is decided: healthy, down or a crash loop. `told` gets each judgement."""
    looks: list[Look] = []
    while True:
        looks.append(look_at(watched))
        judgement = judge_health(looks, watched.rules)
        told(judgement)
        if judgement.health != "undecided":
            return judgement
        sleep(watched.every)


def ask(url: str, timeout: float) -> str:
    """The status code of a GET, or in words why there is none."""
    address = urlsplit(url)
    path = (address.path or "/") + (f"?{address.query}" if address.query else "")
    try:
        return get(str(address.hostname), address.port or 80, path, timeout, most=1 << 16)
    except TimeoutError:
        return f"none within {timeout:g} s"


def listener(port: int) -> str:
    """Who listens on a TCP port of this machine: `pid 123 since 4567`, or `socket 89`, or "" for nobody.

    Of several processes that share the socket (a server and its workers) the oldest is taken. The processes of other
    users cannot be looked into; then the socket itself tells, for a new start opens a new one. The start is field 22
    of /proc/PID/stat (proc(5)), in clock ticks since boot.
    """
    inodes: frozenset[str] = frozenset()
    with contextlib.suppress(OSError):
        inodes = listening_sockets(port)
    if not inodes:
        return ""
    holders = [
        (_started(pid), pid)
        for pid in map(int, filter(str.isdecimal, os.listdir("/proc")))  # noqa: PTH208 - names are enough
        if holds_socket(pid, inodes)
    ]
    if not holders:
        return f"socket {min(inodes)}"
    started, pid = min(holders)
    return f"pid {pid} since {started}"


def _started(pid: int) -> int:
    with contextlib.suppress(OSError, IndexError, ValueError):
        return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19])
    return 0


def unit_restarts(unit: str) -> int | None:
    """How often systemd restarted the unit by itself (NRestarts), or None when it cannot say."""
    from crossgrade.process import StartError, run_process

    argv = ["systemctl", "show", "--property=NRestarts", "--value", "--", unit]
    try:
        completed = run_process(argv, env=os.environ, timeout=SYSTEMCTL_SECONDS)
    except StartError:
        return None
    text = completed.stdout.strip()
    return int(text) if completed.succeeded and text.isdecimal() else None
