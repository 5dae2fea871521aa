"""The connections of the load client against servers that say what they are told to, and what their times are worth."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from crossgrade.bench.answers import RequestError
from crossgrade.bench.connections import SO_TIMESTAMPNS, TIMESPEC, StreamClient, arrival
from crossgrade.bench.load import load
from crossgrade.bench.load_profile import LoadProfile
from crossgrade.bench.precision import errors_of, measure_precision
from crossgrade.bench.server_process import ServerSpec, launch
from crossgrade.bench.statistics import median

EVENTS = b"data: one\n\ndata: two\n\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
WHOLE = CHUNKED + b"%x\r\n%b\r\n0\r\n\r\n" % (len(EVENTS), EVENTS)


def converse(
    replies: Sequence[bytes], use: Callable[[StreamClient], Awaitable[None]], *, close: bool = False
) -> list[int]:
    """Run `use` against a server that answers each request with the next of `replies`, and closes after it with `close`
    or when there is no other. Returns on which connection each request came, numbered from 0."""
    came: list[int] = []
    left = list(replies)
    count = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        number, count = count, count + 1
        try:
            while left:
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]))
                came.append(number)
                writer.write(left.pop(0))
                await writer.drain()
                if close:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def run() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        client = StreamClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        try:
            await asyncio.wait_for(use(client), 10)
        finally:
            client.close()
            server.close()
            await server.wait_closed()
            await asyncio.sleep(0.05)

    asyncio.run(run())
    return came


def test_a_connection_is_used_again() -> None:
    taken: list[str] = []

    async def use(client: StreamClient) -> None:
        for _ in range(3):
            content_type = await client.post("/v1/completions", b"{}", lambda data, _: taken.append(data))
            assert content_type == "text/event-stream"

    assert converse([WHOLE, b"HTTP/1.1 100 Continue\r\n\r\n" + WHOLE, WHOLE, b""], use) == [0, 0, 0]
    assert taken == ["one", "two"] * 3


def test_a_connection_that_the_server_has_closed_is_not() -> None:
    async def use(client: StreamClient) -> None:
        for _ in range(2):
            await client.post("/", b"{}", lambda _data, _now: None)
            await asyncio.sleep(0.1)

    assert converse([WHOLE, WHOLE], use, close=True) == [0, 1]


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 200 OK\r\n\r\n" + EVENTS,  # until the connection is closed
        b"HTTP/1.0 200 OK\r\nConnection: close\r\n\r\n" + EVENTS,
        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(EVENTS), EVENTS),
        b"HTTP/1.1 200\r\ntransfer-encoding: chunked\r\n\r\n"
        b"B;x=1\r\ndata: one\n\n\r\nB\r\ndata: two\n\n\r\n0\r\nX: y\r\n\r\n",
    ],
)
def test_the_ways_in_which_a_body_ends(reply: bytes) -> None:
    taken: list[str] = []

    async def use(client: StreamClient) -> None:
        await client.post("/", b"{}", lambda data, _: taken.append(data))

    converse([reply], use)
    assert taken == ["one", "two"]


@pytest.mark.parametrize(
    ("reply", "kind", "words"),
    [
        (b"", "disconnected", "the server closed the connection"),
        (b"HTTP/1.1 200 O", "disconnected", "the server closed the connection"),
        (b"\x00\x01garbage\r\n\r\n", "malformed_stream", "what is no HTTP"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000, "malformed_stream", "a head of more than"),
        (CHUNKED + b"zz\r\nwhat?\r\n", "malformed_stream", "what is no HTTP"),
        (CHUNKED + b"5\r\ndata:", "truncated_stream", "the server closed the connection"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n" + EVENTS, "truncated_stream", "the server closed"),
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nwait", "http_status", "503 Busy: wait"),
        (b"HTTP/1.1 307 Go\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n", "http_status", "307 Go: "),
        (CHUNKED + b"9\r\ndata: \xff\n\n\r\n", "malformed_stream", "utf-8"),
    ],
)
def test_what_goes_wrong_is_named(reply: bytes, kind: str, words: str) -> None:
    async def use(client: StreamClient) -> None:
        with pytest.raises(RequestError, match=words) as caught:
            await client.post("/", b"{}", lambda _data, _now: None)
        assert caught.value.kind == kind

    converse([reply], use)


def test_an_error_of_the_one_who_takes_ends_the_exchange() -> None:
    def take(data: str, _now: float) -> None:
        raise RequestError("server_error", data)

    async def use(client: StreamClient) -> None:
        for _ in range(2):
            with pytest.raises(RequestError, match="one"):
                await client.post("/", b"{}", take)

    assert converse([WHOLE, WHOLE], use) == [0, 1]


def test_nobody_listens_and_https_is_not_spoken() -> None:
    async def run() -> None:
        with pytest.raises(RequestError, match="only http is spoken here, not 'https'"):
            await StreamClient("https://127.0.0.1:1").post("/", b"{}", lambda _data, _now: None)
        with pytest.raises(RequestError, match=r"127.0.0.1:1: .*Connect call failed") as caught:
            await StreamClient("http://127.0.0.1:1").post("/", b"{}", lambda _data, _now: None)
        assert caught.value.kind == "connect"

    asyncio.run(run())


def test_the_kernels_word_is_taken_as_an_age() -> None:
    def told(age: float) -> float:
        stamp = time.time_ns() - int(age * 1e9)
        data = TIMESPEC.pack(*divmod(stamp, 1_000_000_000))
        now = time.monotonic()
        return now - arrival([(socket.SOL_SOCKET, SO_TIMESTAMPNS, data)])

    assert told(2.0) == pytest.approx(2.0, abs=0.5)
    assert told(-5.0) == pytest.approx(0.0, abs=0.5)  # the clock was set back
    assert told(500.0) == pytest.approx(0.0, abs=0.5)  # or forward
    assert time.monotonic() - arrival([]) == pytest.approx(0.0, abs=0.5)


def test_times_are_true_although_the_client_is_kept_from_reading(tmp_path: Path) -> None:
    """30 ms of every 31 it cannot read. By its own clock half of the times between tokens are milliseconds off."""
    errors = {by_kernel: median(_errors_of_a_busy_client(tmp_path, by_kernel=by_kernel)) for by_kernel in (True, False)}
    assert errors[True] * 5 < errors[False]


def _errors_of_a_busy_client(tmp_path: Path, *, by_kernel: bool) -> list[float]:
    import json

    async def keep_busy() -> None:
        while True:
            time.sleep(0.03)  # noqa: ASYNC251 - that is the point
            await asyncio.sleep(0.001)

    async def run(base_url: str, profile: LoadProfile) -> list[float]:
        busy = asyncio.ensure_future(keep_busy())
        try:
            result = await load(base_url, profile, by_kernel=by_kernel)
        finally:
            busy.cancel()
        assert result.failed == ()
        with urllib.request.urlopen(f"{base_url}/sent") as answer:  # noqa: ASYNC210 - the load is over
            return errors_of(result, json.load(answer))

    command = (sys.executable, "-m", "crossgrade.bench.paced_echo", "--port", "{port}", "--pace", "0.047")
    spec = ServerSpec(command, environment=dict(os.environ), health_paths=("/v1/models",), start_timeout=20.0)
    profile = LoadProfile(requests=1, warmup_requests=0, max_tokens=40, prompts=("stream",), model="echo")
    with launch(spec, tmp_path / "log") as server:
        return asyncio.run(run(server.base_url, profile))


def test_the_precision_is_measured_on_all_streams(tmp_path: Path) -> None:
    found = measure_precision(tmp_path, tokens_per_second=400.0, connections=8, seconds=1.5)
    assert found.times == 16 * (25 - 1)
    assert found.median <= found.percentile_99 <= found.largest
    assert found.median < 0.02  # the pace: a client that timed nothing at all would be further off
    assert found.to_json()["by_kernel"] is True
