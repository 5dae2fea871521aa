"""How many requests a server has, and waiting until it has none. What tells it: `knowledge/load_endpoints.yml`."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from crossgrade.bench.listening import fetch
from crossgrade.knowledge import Row, table

ANSWER_SECONDS = 10.0
EVERY_SECONDS = 0.5
IDLE_LOOKS = 2  # in a row: between two of them a request may be on its way from the front to the scheduler


@dataclass(frozen=True)
class InFlight:
    """`requests` is how many run or wait, None where no path tells. `path` told it, `engine` is whose that is."""

    requests: int | None
    path: str = ""
    engine: str = ""


@dataclass(frozen=True)
class Drained:
    """What waiting came to. `first` and `left` are numbers of requests, None where nobody told; times are seconds.

    `why` is `idle`, `ended` (the server has gone), `deadline` or `untold`.
    """

    why: str
    first: int | None
    left: int | None
    seconds: float


def count(row: Row, body: bytes) -> int:
    """The number of requests in an answer. Raises ValueError for one of another shape. Pure."""
    gauges = row.get("gauges")
    if isinstance(gauges, list):
        names = "|".join(re.escape(str(name)) for name in gauges)
        pattern = re.compile(rf"^(?:{names})(?:\{{.*\}})? (\S+)$", re.MULTILINE)
        found = [float(value) for value in pattern.findall(body.decode("utf-8", "replace"))]
        if not found:
            raise ValueError("none of its metrics is there")
        return round(sum(found))
    document = json.loads(body)
    ranks = document.get(row["list"]) if row["list"] and isinstance(document, dict) else document
    keys = row["sum"]
    if not isinstance(ranks, list) or not ranks or not isinstance(keys, list):
        raise ValueError("it lists no ranks")
    return sum(_number(rank, str(key)) for rank in ranks for key in keys)


def _number(rank: Any, key: str) -> int:
    value = rank.get(key) if isinstance(rank, dict) else None
    if type(value) is not int:
        raise ValueError(f"{key} is no number")
    return value


def in_flight(host: str, port: int, path: str = "") -> InFlight:
    """Ask the path, or else each in turn until one tells."""
    for row in table("load_endpoints"):
        if path and row["path"] != path:
            continue
        try:
            status, body = fetch(host, port, str(row["path"]), ANSWER_SECONDS)
            if status == "200":
                return InFlight(count(row, body), str(row["path"]), str(row["engine"]))
        except (TimeoutError, ValueError):
            continue
    return InFlight(None, path)


def ends_when_done(engine: str) -> bool:
    """Whether a SIGTERM to a server's main process lets it finish its requests and then end."""
    return any(row["engine"] == engine and row.get("sigterm") == "drains" for row in table("servers"))


def wait_until_idle(
    ask: Callable[[], InFlight],
    here: Callable[[], bool],
    timeout: float,
    told: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
) -> Drained:
    """Until the server has no request, is not `here` any more, or `timeout` seconds are over.

    A server that has told once and tells no more is waited for, too: it may be too busy to answer.
    """
    began = time.monotonic()
    first = left = None
    idle = 0
    while True:
        seconds = time.monotonic() - began
        if not here():
            return Drained("ended", first, 0 if first is not None else None, seconds)
        found = ask().requests
        if found is None and first is None:
            return Drained("untold", None, None, seconds)
        if found is not None:
            first = found if first is None else first
            if found != left:
                told(f"{found} requests are under way")
            left = found
        idle = idle + 1 if found == 0 else 0
        if idle >= IDLE_LOOKS:
            return Drained("idle", first, 0, seconds)
        if seconds >= timeout:
            return Drained("deadline", first, left, seconds)
        sleep(EVERY_SECONDS)
