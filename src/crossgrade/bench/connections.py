"""HTTP connections that stream, on sockets of our own: each piece is timed by the kernel, at the moment of arrival.

A client that takes the time when it gets round to reading measures itself and whatever else runs on the machine: on two
busy cores it is put aside for milliseconds. Linux notes for each packet when it came (SO_TIMESTAMPNS, socket(7) and
timestamping.rst; also for TCP, where `recvmsg` gives the moment of the last packet that it returns). docs/validation.md
has the measurements. The protocol itself is parsed by httptools, which is Node's parser.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import httptools

from crossgrade.bench.answers import RequestError
from crossgrade.bench.event_stream import EventStreamParser
from crossgrade.bench.samples import ErrorKind

DETAIL_CHARACTERS = 500
LARGEST_HEAD_BYTES = 64 << 10
PIECE_BYTES = 64 << 10  # for more the allocator asks the kernel each time
SO_TIMESTAMPNS = 35  # asm-generic/socket.h; Python 3.10 has no name for it
TIMESPEC = struct.Struct("@qq")
LONGEST_AGE_SECONDS = 60.0
ANCILLARY_BYTES = socket.CMSG_SPACE(TIMESPEC.size)


class StreamClient:
    """Connections to one server, kept open for the next request. `by_kernel`: whether the kernel tells the times."""

    def __init__(self, base_url: str, *, by_kernel: bool = True) -> None:
        self._by_kernel = by_kernel
        address = urlsplit(base_url)
        self._host = address.hostname or ""
        self._port = address.port or 80
        self._scheme = address.scheme
        host = f"[{self._host}]" if ":" in self._host else self._host
        self._head = (
            f" HTTP/1.1\r\nHost: {host}:{self._port}\r\nAccept: text/event-stream\r\n"
            "Content-Type: application/json\r\nContent-Length: "
        ).encode()
        self._prefix = address.path.rstrip("/").encode()
        self._addresses: list[tuple[Any, ...]] = []
        self._idle: list[_Connection] = []
        self._all: set[_Connection] = set()

    async def post(self, path: str, body: bytes, take: Callable[[str, float], None]) -> str:
        """Send one request, and hand each event's data to `take` with the moment of time.monotonic() at which it came.

        Returns the answer's Content-Type once it has ended. Raises RequestError, also when `take` raises it; the
        connection is then closed, and so it is when the task is cancelled.
        """
        connection = await self._connection()
        exchange = _Exchange(take)
        head = b"POST %b%b%b%d\r\n\r\n" % (self._prefix, path.encode(), self._head, len(body))
        try:
            await connection.begin(exchange, head + body)
            await exchange.ended
        except BaseException:
            connection.close()
            raise
        if connection.reusable:
            self._idle.append(connection)
        else:
            connection.close()
        return exchange.content_type

    async def _connection(self) -> _Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable:
                return connection
        loop = asyncio.get_running_loop()
        if self._scheme != "http":
            raise RequestError("connect", f"only http is spoken here, not {self._scheme!r}")
        problem: OSError | None = None
        try:
            if not self._addresses:
                found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
                self._addresses = [(family, address) for family, _, _, _, address in found]
            for family, address in self._addresses:
                opened = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
                try:
                    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    opened.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, int(self._by_kernel))
                    await loop.sock_connect(opened, address)
                except OSError as error:
                    opened.close()
                    problem = error
                except BaseException:
                    opened.close()
                    raise
                else:
                    return _Connection(opened, loop, self._all)
        except OSError as error:
            problem = error
        raise RequestError("connect", f"{self._host}:{self._port}: {problem}")

    def close(self) -> None:
        """Close all connections, also those in use."""
        for connection in tuple(self._all):
            connection.close()


class _Exchange:
    """One answer: the callbacks that httptools has, and a future that ends with it."""

    def __init__(self, take: Callable[[str, float], None]) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.content_type = ""
        self.now = 0.0
        self.begun = False  # the head is complete
        self.until_closed = True  # the end of the connection is the end of the body
        self.complete = False
        self.keep_alive = False
        self.pieces = 0
        self._take = take
        self._parser = httptools.HttpResponseParser(self)
        self._events = EventStreamParser()
        self._head_bytes = 0
        self._status = 0
        self._reason = ""
        self._error_text = b""
        self._failure: RequestError | None = None

    def feed(self, data: bytes, now: float) -> None:
        self.now = now
        if not self.begun:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if self._failure is None and not self.complete:
                self._fail("malformed_stream", f"{self.pieces} pieces, then what is no HTTP: {error}")
        if not self.begun and self._head_bytes > LARGEST_HEAD_BYTES:
            self._fail("malformed_stream", f"a head of more than {LARGEST_HEAD_BYTES} bytes")
        if self._failure is not None and not self.ended.done():
            self.ended.set_exception(self._failure)

    def lost(self, error: Exception | None) -> None:
        """The connection has ended."""
        if self.ended.done():
            return
        reason = f"{error or 'the server closed the connection'}"
        if not self.begun:
            self._fail("disconnected", reason)
        elif self.until_closed:
            self.on_message_complete()
        else:
            self._fail("truncated_stream", reason)
        if not self.ended.done():
            if self._failure is not None:
                self.ended.set_exception(self._failure)
            else:
                self.ended.set_result(None)

    def on_status(self, status: bytes) -> None:
        self._reason += status.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        lower = name.lower()
        if lower in (b"content-length", b"transfer-encoding"):
            self.until_closed = False
        elif lower == b"content-type":
            self.content_type = value.decode("latin-1").partition(";")[0].strip()

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()
        self.begun = self._status >= 200

    def on_body(self, body: bytes) -> None:
        self.pieces += 1
        if self._failure is not None:
            return
        if self._status != 200:
            self._error_text = (self._error_text + body)[:DETAIL_CHARACTERS]
            return
        try:
            for data in self._events.feed(body):
                self._take(data, self.now)
        except RequestError as failure:
            self._failure = failure
        except ValueError as error:
            self._fail("malformed_stream", str(error))

    def on_message_complete(self) -> None:
        if not self.begun:  # 100 Continue: the answer is still to come
            return
        self.complete = True
        self.keep_alive = self._parser.should_keep_alive() and not self.until_closed
        if self._status != 200:
            text = self._error_text.decode("utf-8", "replace")
            self._fail("http_status", f"{self._status} {self._reason}: {text}")
        if self._failure is None and not self.ended.done():
            self.ended.set_result(None)

    def _fail(self, kind: ErrorKind, detail: str) -> None:
        if self._failure is None:
            self._failure = RequestError(kind, detail)


class _Connection:
    """An open socket, read as soon as there is something."""

    def __init__(self, opened: socket.socket, loop: asyncio.AbstractEventLoop, every: set[_Connection]) -> None:
        self._socket = opened
        self._loop = loop
        self._every = every
        self._open = True
        self._exchange: _Exchange | None = None
        every.add(self)
        loop.add_reader(opened.fileno(), self._read)

    @property
    def reusable(self) -> bool:
        """Whether another request can be sent: it is open, and the answer before ended in good order."""
        return self._open and (self._exchange is None or self._exchange.keep_alive)

    async def begin(self, exchange: _Exchange, request: bytes) -> None:
        self._exchange = exchange
        with contextlib.suppress(OSError):  # reading says why: a server may refuse a request before it has all of it
            await self._loop.sock_sendall(self._socket, request)

    def close(self) -> None:
        if self._open:
            self._open = False
            self._every.discard(self)
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()

    def _read(self) -> None:
        try:
            data, ancillary, _, _ = self._socket.recvmsg(PIECE_BYTES, ANCILLARY_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._ended(error)
            return
        if not data:
            self._ended(None)
        elif self._exchange is not None and not self._exchange.ended.done():
            self._exchange.feed(data, arrival(ancillary))
        else:
            self.close()  # it says something that nobody has asked for

    def _ended(self, error: OSError | None) -> None:
        self.close()
        if self._exchange is not None:
            self._exchange.lost(error)


def arrival(ancillary: list[tuple[int, int, bytes]]) -> float:
    """The moment of time.monotonic() at which the kernel says that data came; without its word, now.

    The kernel's clock is CLOCK_REALTIME. What it says is taken over as an age, so that a step of that clock could only
    concern what is read at that very moment; an age below 0 or above a minute is such a step.
    """
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS and len(data) >= TIMESPEC.size:
            seconds, nanoseconds = TIMESPEC.unpack_from(data)
            now = time.monotonic()
            age = (time.time_ns() - seconds * 1_000_000_000 - nanoseconds) * 1e-9
            return now - age if 0.0 <= age < LONGEST_AGE_SECONDS else now
    return time.monotonic()
