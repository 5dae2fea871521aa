"""Noticing that a server has stopped making tokens while requests wait for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from crossgrade.errors import TaskError

_LOOKS_PER_LIMIT = 20
_LONGEST_PAUSE_SECONDS = 0.5
ResultT = TypeVar("ResultT")


class StallError(TaskError):
    """No token came for too long, from any stream. `stacks` is the file with what the server was doing, if any."""

    def __init__(self, message: str) -> None:
        super().__init__(message, remedy="`stall_timeout` says how long a server may be silent")
        self.stacks: Path | None = None


class Pulse:
    """What a load tells of itself: when a request began, when bytes of any answer came, when a request ended.

    With requests under way, silence of `limit` seconds on all of them together is a stall: one that waits in a queue
    while others get their tokens is not. None: nothing is watched.
    """

    def __init__(self, limit: float | None) -> None:
        self.limit = limit
        self._under_way = 0
        self._last = time.monotonic()

    def began(self) -> None:
        if not self._under_way:
            self._last = time.monotonic()
        self._under_way += 1

    def beat(self) -> None:
        self._last = time.monotonic()

    def ended(self) -> None:
        self._under_way -= 1
        self.beat()

    async def guard(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Do the work, and give it up at a stall. Raises StallError, and what the work raises."""
        if self.limit is None:
            return await work
        task = asyncio.ensure_future(work)
        watch = asyncio.ensure_future(self._watch(self.limit))
        try:
            await asyncio.wait([task, watch], return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                watch.result()
            return await task
        finally:
            for each in (task, watch):
                each.cancel()
            await asyncio.gather(task, watch, return_exceptions=True)

    async def _watch(self, limit: float) -> None:
        while True:
            await asyncio.sleep(min(limit / _LOOKS_PER_LIMIT, _LONGEST_PAUSE_SECONDS))
            if self._under_way and time.monotonic() - self._last >= limit:
                requests = "1 request was" if self._under_way == 1 else f"{self._under_way} requests were"
                raise StallError(f"no token for {limit:g} s, while {requests} under way")
