"""Load on an inference server: streamed requests in a closed or an open loop, timed as their tokens arrive."""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from crossgrade.bench.acceptance import Acceptance, acceptance_of_requests, acceptance_of_server
from crossgrade.bench.answers import Answer, RequestError
from crossgrade.bench.connections import StreamClient
from crossgrade.bench.load_profile import PATHS, LoadProfile
from crossgrade.bench.planned import WORDS, PlannedRequest, planned_requests, prompts
from crossgrade.bench.samples import ErrorKind, LoadResult, RequestSample
from crossgrade.bench.stalls import Pulse
from crossgrade.errors import TaskError

if TYPE_CHECKING:
    import aiohttp

__all__ = ["WORDS", "LoadError", "LoadProfile", "LoadResult", "RequestSample", "load", "prompts", "run_load"]

MODEL_LIST_SECONDS = 30.0
DETAIL_CHARACTERS = 500


class LoadError(TaskError):
    """The load could not begin: the server does not say which model it serves."""


def run_load(base_url: str, profile: LoadProfile, stall_timeout: float | None = None) -> LoadResult:
    """Put the profile's load on the server at `base_url` (`http://127.0.0.1:30000`) and measure it.

    Failed requests are part of the result. With a server that hangs, a closed loop takes about
    `error_limit / concurrency * timeout` seconds, an open one about `timeout`; or `stall_timeout` where that is given:
    so long may all streams be silent together. With another `tool` than our own it is that tool that runs
    (`bench.other_tools`), and stalls are not watched for. The first call measures the client's own ceiling, some 0.1 s.
    Raises LoadError, and StallError for such a silence.
    """
    if profile.tool != "builtin":
        from crossgrade.bench.other_tools import run_other_tool

        return run_other_tool(base_url, profile)
    ceiling = _ceiling()  # before the load, which it must not disturb
    return replace(asyncio.run(load(base_url, profile, stall_timeout)), client_ceiling=ceiling)


@functools.cache
def _ceiling() -> float:
    """Once for a process: what the client itself can take in, tokens/s."""
    from crossgrade.bench.ceiling import measure_client_ceiling

    return measure_client_ceiling().tokens_per_second


async def load(
    base_url: str, profile: LoadProfile, stall_timeout: float | None = None, *, by_kernel: bool = True
) -> LoadResult:
    """The same, inside an event loop, with our own client; `by_kernel` as in StreamClient."""
    import aiohttp

    client = StreamClient(base_url, by_kernel=by_kernel)
    try:
        async with aiohttp.ClientSession(base_url) as session:  # for the few questions beside the load
            model = profile.model or ("" if profile.endpoint == "generate" else await first_model(session))
            loop = (_ClosedLoop if profile.rate is None else _OpenLoop)(client, profile, model)
            loop.pulse = Pulse(stall_timeout)
            await loop.pulse.guard(loop.run())
            acceptance = acceptance_of_requests(loop.answers())
            if acceptance is None and not loop.errors:  # a server that fails is not asked more
                acceptance = await acceptance_of_server(session)
    finally:
        client.close()
    return loop.result(acceptance)


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


class _Loop(ABC):
    """What both loops share: one request, and the book of those that have ended.

    Warm-up comes first, then what is measured, and then, so that the last measured requests meet the same load as the
    first, more of the same until those have ended.
    """

    def __init__(self, client: StreamClient, profile: LoadProfile, model: str) -> None:
        self._client = client
        self.profile = profile
        self._model = model
        self.planned = planned_requests(profile)
        self.began = time.monotonic()
        self.window_start = 0.0
        self._window_end = 0.0
        self._measured: list[tuple[RequestSample, Answer]] = []
        self._others: list[tuple[RequestSample | None, Answer]] = []  # None: still running at the end
        self.errors = 0
        self.finished = asyncio.Event()
        self.pulse = Pulse(None)

    @abstractmethod
    async def run(self) -> None:
        """Until every measured request has ended or too many have failed."""

    async def perform(self, planned: PlannedRequest, due: float | None = None) -> None:
        """Send one request and enter what became of it. Its latencies count from `due`, or else from now on."""
        sent = time.monotonic()
        due = sent if due is None else due
        if planned.index == 0:
            self.window_start = due
        answer = Answer(self.profile.endpoint)
        error: ErrorKind | None = None
        detail = ""
        self.pulse.began()
        try:
            await asyncio.wait_for(self._stream(planned, answer), self.profile.timeout)
        except asyncio.TimeoutError:
            error = "timeout"
            detail = f"{len(answer.times)} chunks within {self.profile.timeout:g} s"
        except RequestError as failure:
            error, detail = failure.kind, failure.detail[:DETAIL_CHARACTERS]
        except asyncio.CancelledError:
            self._others.append((None, answer))
            raise
        finally:
            self.pulse.ended()
        self.enter(planned, answer, sent, due, error, detail)

    def enter(
        self,
        planned: PlannedRequest,
        answer: Answer,
        sent: float,
        due: float,
        error: ErrorKind | None = None,
        detail: str = "",
    ) -> None:
        """Make a sample of a request that has ended, or was never sent; end the load when that was the last one."""
        # A good answer has ended when its end arrived, not when we got round to it.
        ended = answer.ended if error is None else time.monotonic()
        times = answer.times
        sample = RequestSample(
            index=planned.index,
            started=due - self.began,
            end_to_end=ended - due if error != "not_sent" else 0.0,
            time_to_first_token=times[0] - due if times else None,
            inter_token_latencies=tuple(later - earlier for earlier, later in itertools.pairwise(times)),
            output_tokens=len(times) if answer.usage is None else answer.usage,
            chunks=len(times),
            counted_by="chunks" if answer.usage is None else "usage",
            error=error,
            detail=detail,
            sent_late=sent - due,
            input_tokens=answer.input_tokens,
            cached_tokens=answer.cached_tokens,
        )
        measured = 0 <= planned.index < self.profile.requests
        if measured:
            self._measured.append((sample, answer))
            self._window_end = max(self._window_end, ended)
        else:
            self._others.append((sample, answer))
        self.errors += error is not None
        enough = len(self._measured) == self.profile.requests or self.errors >= self.profile.error_limit
        if enough and not self.finished.is_set():
            self.finished.set()

    async def _stream(self, planned: PlannedRequest, answer: Answer) -> None:
        body = json.dumps(request_body(self.profile, self._model, planned)).encode()

        def take(data: str, now: float) -> None:
            self.pulse.beat()
            answer.take(data, now)

        try:
            content_type = await self._client.post(PATHS[self.profile.endpoint], body, take)
        except RequestError as error:
            if error.kind == "truncated_stream":
                raise RequestError(error.kind, f"{len(answer.times)} chunks, then: {error.detail}") from error
            raise
        answer.check_end(content_type)

    def answers(self) -> list[Answer]:
        """Those of the measured requests that are whole."""
        return [answer for sample, answer in self._measured if not sample.error]

    def result(self, acceptance: Acceptance | None) -> LoadResult:
        self._measured.sort(key=lambda pair: pair[0].index)
        window_end = self._window_end
        start = self.window_start if self._measured else window_end
        tokens = 0.0
        for sample, answer in (*self._measured, *self._others):
            # A chunk counts for as many tokens as this answer's chunks hold on average.
            per_chunk = sample.output_tokens / sample.chunks if sample and sample.chunks else 1.0
            tokens += per_chunk * sum(start < moment <= window_end for moment in answer.times)
        return LoadResult(
            profile=self.profile,
            samples=tuple(sample for sample, _ in self._measured),
            other_errors=tuple(sample for sample, _ in self._others if sample and sample.error),
            window_seconds=window_end - start,
            window_tokens=tokens,
            acceptance=acceptance,
        )


class _ClosedLoop(_Loop):
    """Workers that each send one request after the other."""

    async def run(self) -> None:
        workers = [asyncio.ensure_future(self._work()) for _ in range(self.profile.concurrency)]
        await _until(self.finished, workers)

    async def _work(self) -> None:
        while not self.finished.is_set():
            await self.perform(next(self.planned))


class _OpenLoop(_Loop):
    """Requests at moments that were fixed beforehand: a server that stalls does not make the client wait with it."""

    def __init__(self, client: StreamClient, profile: LoadProfile, model: str) -> None:
        super().__init__(client, profile, model)
        self._running: set[asyncio.Future[None]] = set()
        self._waiting: deque[PlannedRequest] = deque()
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        try:
            await _until(self.finished, [asyncio.ensure_future(self._dispatch()), self._failure])
        finally:
            for task in self._running:
                task.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)

    async def _dispatch(self) -> None:
        for planned in self.planned:
            delay = self.began + planned.due - time.monotonic()
            await asyncio.sleep(max(0.0, delay))  # also when it is late: the answers need their turn
            if len(self._running) < self.profile.most_in_flight:
                self._start(planned)
            elif len(self._waiting) < self.profile.queue_limit:
                self._waiting.append(planned)
            else:
                due = self.began + planned.due
                detail = f"{len(self._running)} requests were in flight and {len(self._waiting)} waited when it was due"
                if planned.index == 0:
                    self.window_start = due
                self.enter(planned, Answer(), time.monotonic(), due, "not_sent", detail)

    def _start(self, planned: PlannedRequest) -> None:
        task = asyncio.ensure_future(self.perform(planned, self.began + planned.due))
        self._running.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Future[None]) -> None:
        self._running.discard(task)
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            if not self._failure.done():
                self._failure.set_exception(error)  # a defect: it comes out of `run`
        elif self._waiting and not self.finished.is_set():
            self._start(self._waiting.popleft())


async def _until(finished: asyncio.Event, tasks: Sequence[asyncio.Future[None]]) -> None:
    """Wait for the event, and cancel the tasks; a task that ends in an exception raises it here."""
    waiting: asyncio.Future[Any] = asyncio.ensure_future(finished.wait())
    try:
        done, _ = await asyncio.wait([waiting, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in (waiting, *tasks):
            task.cancel()
        await asyncio.gather(waiting, *tasks, return_exceptions=True)


def request_body(profile: LoadProfile, model: str, planned: PlannedRequest) -> dict[str, Any]:
    """The JSON of one request: greedy, streamed, with the counts at the end."""
    if profile.endpoint == "generate":
        parameters = {"max_new_tokens": planned.max_tokens, "temperature": 0, **profile.extra_body}
        return {"text": planned.prompt, "sampling_params": parameters, "stream": True}
    chat = profile.endpoint == "chat"
    return {
        "model": model,
        **({"messages": [{"role": "user", "content": planned.prompt}]} if chat else {"prompt": planned.prompt}),
        "max_tokens": planned.max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **profile.extra_body,
    }
