"""Load on an OpenAI-compatible server: streamed requests in a closed loop, timed as their tokens arrive."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from crossgrade.bench.event_stream import EventStreamParser
from crossgrade.bench.load_profile import PATHS, LoadProfile
from crossgrade.bench.samples import ErrorKind, LoadResult, RequestSample
from crossgrade.errors import TaskError

if TYPE_CHECKING:
    import aiohttp

__all__ = ["LoadError", "LoadProfile", "LoadResult", "RequestSample", "load", "run_load"]

MODEL_LIST_SECONDS = 30.0
DETAIL_CHARACTERS = 500
DONE = "[DONE]"
ABORTED = ("abort", "error")  # finish reasons that mean a failure (SGLang says `abort`)

# What prompts are made of when none are given.
WORDS = """
after again air also and animal answer any ask back because before big boy but came change come
could country day different do does earth end even every eye far father few find first follow form
found give good great hand hard head help here high home house how just kind know land large last
learn leave left letter light line little live long look low made make man many mean men might
mother mountain move much must name near need never new night number off often old only open other
our out over page paper part
"""


class LoadError(TaskError):
    """The load could not begin: the server does not say which model it serves."""


class _RequestError(Exception):
    def __init__(self, kind: ErrorKind, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail


def run_load(base_url: str, profile: LoadProfile) -> LoadResult:
    """Put the profile's load on the server at `base_url` (`http://127.0.0.1:30000`) and measure it.

    Failed requests are part of the result. With a server that hangs it takes about
    `error_limit / concurrency * timeout` seconds. Raises LoadError.
    """
    return asyncio.run(load(base_url, profile))


async def load(base_url: str, profile: LoadProfile) -> LoadResult:
    """The same, inside an event loop."""
    import aiohttp

    # No limits of aiohttp's own: the closed loop decides how many connections there are. asyncio sets
    # TCP_NODELAY on all of them.
    connector = aiohttp.TCPConnector(limit=0)
    no_timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(base_url, connector=connector, timeout=no_timeout) as session:
        model = profile.model if profile.model is not None else await first_model(session)
        return await _ClosedLoop(session, profile, model).run()


async def first_model(session: aiohttp.ClientSession) -> str:
    """The id of the first model that the server lists under /v1/models."""
    import aiohttp

    try:
        async with session.get("/v1/models", timeout=aiohttp.ClientTimeout(MODEL_LIST_SECONDS)) as response:
            listed = json.loads(await response.read())
            return str(listed["data"][0]["id"])
    except (aiohttp.ClientError, OSError, ValueError, LookupError, TypeError, asyncio.TimeoutError) as error:
        reason = str(error) or type(error).__name__
        raise LoadError(
            f"the server does not say which model it serves (/v1/models: {reason})",
            remedy="name the model in the benchmark's arguments",
        ) from error


def prompts(profile: LoadProfile) -> Iterator[str]:
    """The prompts of request 0, 1, 2, …: the same for the same profile, on old and new."""
    words = WORDS.split()
    choose = random.Random(profile.seed)  # noqa: S311 - nothing secret: a repeatable choice
    while True:
        if profile.prompts:
            shuffled = list(profile.prompts)
            choose.shuffle(shuffled)
            yield from shuffled
        else:
            yield " ".join(choose.choice(words) for _ in range(profile.prompt_words))


@dataclass
class _Arrivals:
    """What has arrived of one answer."""

    times: list[float] = field(default_factory=list)  # of time.monotonic(), one for each chunk with text
    usage: int | None = None
    done: bool = False

    def take(self, data: str, now: float) -> None:
        """One event's data."""
        if data == DONE:
            self.done = True
            return
        try:
            event = json.loads(data)
        except ValueError:
            raise _RequestError("malformed_stream", f"an event is not JSON: {data}") from None
        if not isinstance(event, dict):
            raise _RequestError("malformed_stream", f"an event is not an object: {data}")
        if event.get("error") or event.get("object") == "error":
            raise _RequestError("server_error", data)
        usage = event.get("usage")
        if isinstance(usage, dict) and type(usage.get("completion_tokens")) is int:
            self.usage = usage["completion_tokens"]
        choices = event.get("choices")
        if not isinstance(choices, list):
            raise _RequestError("malformed_stream", f"an event has no choices: {data}")
        for choice in choices:
            if not isinstance(choice, dict):
                raise _RequestError("malformed_stream", f"a choice is not an object: {data}")
            if _has_text(choice):
                self.times.append(now)
            if choice.get("finish_reason") in ABORTED:
                raise _RequestError("server_error", f"the server aborted the generation: {data}")

    def check_end(self, content_type: str) -> None:
        if not self.done:
            detail = f"{len(self.times)} chunks, then the end without {DONE} (Content-Type: {content_type})"
            raise _RequestError("truncated_stream" if self.times else "malformed_stream", detail)
        if not self.times and not self.usage:
            raise _RequestError("empty_output", "the stream has no token")


def _has_text(choice: dict[str, Any]) -> bool:
    delta = choice.get("delta")
    if isinstance(delta, dict):
        return bool(delta.get("content") or delta.get("reasoning_content"))
    return bool(choice.get("text"))


class _ClosedLoop:
    """Workers that each send one request after the other: warm-up, measured, and then, so that the last
    measured requests meet the same load as the first, more of them until those have ended."""

    def __init__(self, session: aiohttp.ClientSession, profile: LoadProfile, model: str) -> None:
        self._session = session
        self._profile = profile
        self._model = model
        self._prompts = prompts(profile)
        self._next_index = -profile.warmup_requests  # measured requests count from 0
        self._began = time.monotonic()
        self._window_start = 0.0
        self._window_end = 0.0
        self._measured: list[tuple[RequestSample, _Arrivals]] = []
        self._others: list[tuple[RequestSample | None, _Arrivals]] = []  # None: still running at the end
        self._errors = 0
        self._finished = asyncio.Event()

    async def run(self) -> LoadResult:
        workers = [asyncio.ensure_future(self._work()) for _ in range(self._profile.concurrency)]
        finished = asyncio.ensure_future(self._finished.wait())
        try:
            done, _ = await asyncio.wait([finished, *workers], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # a defect in a worker comes out here
        finally:
            for task in (finished, *workers):
                task.cancel()
            await asyncio.gather(finished, *workers, return_exceptions=True)
        return self._result()

    async def _work(self) -> None:
        while not self._finished.is_set():
            index = self._next_index
            self._next_index += 1
            measured = 0 <= index < self._profile.requests
            if index == 0:
                self._window_start = time.monotonic()
            arrivals = _Arrivals()
            try:
                sample = await self._request(index, next(self._prompts), arrivals)
            except asyncio.CancelledError:
                self._others.append((None, arrivals))
                raise
            if measured:
                self._measured.append((sample, arrivals))
            else:
                self._others.append((sample, arrivals))
            self._errors += sample.error is not None
            if (
                len(self._measured) == self._profile.requests or self._errors >= self._profile.error_limit
            ) and not self._finished.is_set():
                self._window_end = time.monotonic()
                self._finished.set()

    async def _request(self, index: int, prompt: str, arrivals: _Arrivals) -> RequestSample:
        started = time.monotonic()
        error: ErrorKind | None = None
        detail = ""
        try:
            await asyncio.wait_for(self._stream(prompt, arrivals), self._profile.timeout)
        except asyncio.TimeoutError:
            error = "timeout"
            detail = f"{len(arrivals.times)} chunks within {self._profile.timeout:g} s"
        except _RequestError as failure:
            error, detail = failure.kind, failure.detail[:DETAIL_CHARACTERS]
        ended = time.monotonic()
        times = arrivals.times
        return RequestSample(
            index=index,
            started=started - self._began,
            end_to_end=ended - started,
            time_to_first_token=times[0] - started if times else None,
            inter_token_latencies=tuple(later - earlier for earlier, later in itertools.pairwise(times)),
            output_tokens=len(times) if arrivals.usage is None else arrivals.usage,
            chunks=len(times),
            counted_by="chunks" if arrivals.usage is None else "usage",
            error=error,
            detail=detail,
        )

    async def _stream(self, prompt: str, arrivals: _Arrivals) -> None:
        import aiohttp

        try:
            async with self._session.post(PATHS[self._profile.endpoint], json=self._body(prompt)) as response:
                if response.status != 200:
                    text = (await response.content.read(DETAIL_CHARACTERS)).decode("utf-8", "replace")
                    raise _RequestError("http_status", f"{response.status} {response.reason}: {text}")
                parser = EventStreamParser()
                with _broken_stream(arrivals):
                    async for piece in response.content.iter_any():
                        now = time.monotonic()
                        for data in parser.feed(piece):
                            arrivals.take(data, now)
                arrivals.check_end(response.content_type)
        except aiohttp.ClientConnectorError as error:
            raise _RequestError("connect", str(error)) from error
        except (aiohttp.ClientError, OSError) as error:
            raise _RequestError("disconnected", str(error) or type(error).__name__) from error

    def _body(self, prompt: str) -> dict[str, Any]:
        chat = self._profile.endpoint == "chat"
        return {
            "model": self._model,
            **({"messages": [{"role": "user", "content": prompt}]} if chat else {"prompt": prompt}),
            "max_tokens": self._profile.max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._profile.extra_body,
        }

    def _result(self) -> LoadResult:
        self._measured.sort(key=lambda pair: pair[0].index)
        window_end = self._window_end
        start = self._window_start or window_end
        tokens = 0.0
        for sample, arrivals in (*self._measured, *self._others):
            # A chunk counts for as many tokens as this answer's chunks hold on average.
            per_chunk = sample.output_tokens / sample.chunks if sample and sample.chunks else 1.0
            tokens += per_chunk * sum(start < moment <= window_end for moment in arrivals.times)
        return LoadResult(
            profile=self._profile,
            samples=tuple(sample for sample, _ in self._measured),
            other_errors=tuple(sample for sample, _ in self._others if sample and sample.error),
            window_seconds=window_end - start,
            window_tokens=tokens,
        )


@contextlib.contextmanager
def _broken_stream(arrivals: _Arrivals) -> Iterator[None]:
    """Name what goes wrong while an answer arrives."""
    import aiohttp

    try:
        yield
    except ValueError as error:
        raise _RequestError("malformed_stream", str(error)) from error
    except (aiohttp.ClientError, OSError) as error:
        detail = f"{len(arrivals.times)} chunks, then: {str(error) or type(error).__name__}"
        raise _RequestError("truncated_stream", detail) from error
