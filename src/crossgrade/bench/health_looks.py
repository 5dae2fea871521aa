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
    """The status code of a GET, or in words why there is none. Redirections are not followed."""
    import http.client

    address = urlsplit(url)
    connection = http.client.HTTPConnection(str(address.hostname), address.port or 80, timeout=timeout)
    try:
        path = (address.path or "/") + (f"?{address.query}" if address.query else "")
        connection.request("GET", path, headers={"Connection": "close"})
        response = connection.getresponse()
        response.read(1 << 16)
        return str(response.status)
    except TimeoutError:
        return f"none within {timeout:g} s"
    except (OSError, http.client.HTTPException) as error:
        return f"none ({str(error) or type(error).__name__})"
    finally:
        connection.close()


def listener(port: int) -> str:
    """Who listens on a TCP port of this machine: `pid 123 since 4567`, or `socket 89`, or "" for nobody.

    Of several processes that share the socket (a server and its workers) the oldest is taken. The processes of other
    users cannot be looked into; then the socket itself tells, for a new start opens a new one. Sources: proc(5),
    /proc/net/tcp (0A: listening), /proc/PID/fd, field 22 of /proc/PID/stat (start, in clock ticks since boot).
    """
    inodes = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError), Path(f"/proc/net/{table}").open(encoding="ascii") as lines:
            for line in lines:
                fields = line.split()
                if len(fields) > 9 and fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                    inodes.add(fields[9])
    if not inodes:
        return ""
    holders = [
        (started, pid)
        for entry in os.scandir("/proc")
        if entry.name.isdecimal() and _holds(entry.path, inodes)
        for pid, started in [(int(entry.name), _started(entry.path))]
    ]
    if not holders:
        return f"socket {min(inodes)}"
    started, pid = min(holders)
    return f"pid {pid} since {started}"


def _holds(process: str, inodes: set[str]) -> bool:
    with contextlib.suppress(OSError):  # it ended meanwhile, or is another user's
        for descriptor in os.scandir(f"{process}/fd"):
            with contextlib.suppress(OSError):  # it was closed meanwhile
                target = os.readlink(descriptor.path)  # noqa: PTH115 - a path from os.scandir
                if target.startswith("socket:[") and target[8:-1] in inodes:
                    return True
    return False


def _started(process: str) -> int:
    with contextlib.suppress(OSError, IndexError, ValueError):
        return int(Path(f"{process}/stat").read_text(errors="replace").rpartition(")")[2].split()[19])
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
