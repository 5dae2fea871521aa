"""A small OpenAI-compatible streaming server for tests: it makes no text, it keeps a pace, and it fails on order.

    python tests/support/openai_server.py --port 30000 --pace 0.001 --fault hang

Written on asyncio's streams, so that a test decides every byte that goes over the wire.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

FAULTS = (
    "none",
    "http_500",  # every answer is a 500
    "http_500_sometimes",  # every twentieth
    "garbage",  # bytes that are no event stream
    "not_json",  # an event that is not JSON
    "not_utf8",
    "no_done",  # ends in good order, without [DONE]
    "cut",  # closes the connection in the middle of the answer
    "hang",  # stops sending in the middle, without closing
    "silent",  # never answers
    "freeze",  # from the first request on the whole process does nothing any more
    "error_event",  # tells an error inside the stream
    "abort",  # finish_reason abort
    "empty",  # no token
    "die",  # the process ends in the middle of an answer
    "odd_wire",  # one byte at a time, CR LF, comments, other fields: in good order
    "pairs_of_tokens",  # two tokens in each chunk, told by usage
    "no_usage",
    "stall",  # the whole process stands still for a second at the twentieth request
    "nonsense",  # text as it comes from logits that are not a number
    "not_a_number",  # the text is NaN, in good order
    "never_healthy",  # 503
    "sick",  # healthy until the first request, then 503
    "replace_worker",  # a child process ends during the first request, and another takes its place
)
WORDS = ["the", "first", "river", "runs", "past", "nine", "old", "mills", "and", "one", "new", "bridge"]


@dataclass
class Server:
    """What all connections share."""

    pace: float
    fault: str
    first: float = 0.0  # seconds before the first token
    accept_length: float = 0.0  # of speculative decoding; 0: there is none
    requests: int = 0
    active: int = 0
    concurrencies: list[int] = field(default_factory=list)  # how many ran when a request began, itself included
    bodies: list[dict[str, Any]] = field(default_factory=list)
    loads: bool = False  # whether it tells its load, as SGLang does
    ending: bool = False
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    worker: subprocess.Popen[bytes] | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._answer(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client left
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        _, path, _ = head[0].split(" ")
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        if path in ("/v1/completions", "/v1/chat/completions", "/generate"):
            self.requests += 1
            self.active += 1
            self.concurrencies.append(self.active)
            try:
                request = json.loads(body)
                self.bodies.append(request)
                return await self._complete(request, path.rpartition("/")[2], writer)
            finally:
                self.active -= 1
                if self.ending and not self.active:
                    self.idle.set()
        if path.startswith("/v1/loads") and self.loads:
            rank = {"dp_rank": 0, "num_running_reqs": self.active, "num_waiting_reqs": 0}
            return await whole(writer, 200, {"version": "0", "loads": [rank]})
        if path == "/server_info" and self.loads:
            return await whole(writer, 200, {"version": "0", "api_key": "correct horse", "tp_size": 8})
        sick = self.ending or self.fault == "never_healthy" or (self.fault == "sick" and self.requests)
        if path == "/health" and sick:
            return await whole(writer, 503, {"status": "ending"})
        if path == "/v1/models":
            return await whole(writer, 200, {"object": "list", "data": [{"id": "echo"}]})
        if path == "/server_info" and self.accept_length:
            return await whole(writer, 200, {"internal_states": [{"avg_spec_accept_length": self.accept_length}]})
        if path == "/seen":
            return await whole(writer, 200, {"concurrencies": self.concurrencies, "bodies": self.bodies})
        return await whole(writer, 200 if path == "/health" else 404, {"status": "ok"})

    async def _complete(self, request: dict[str, Any], api: str, writer: asyncio.StreamWriter) -> bool:
        fault = self.fault
        if fault == "stall" and self.requests == 20:
            time.sleep(1.0)  # noqa: ASYNC251 - nobody is served meanwhile: that is what is tested
        if fault == "silent":
            await asyncio.sleep(3600)
        if fault == "freeze":
            time.sleep(3600)  # noqa: ASYNC251 - that is the fault
        if fault == "replace_worker" and self.requests == 1:
            self.replace_worker()
        if fault == "http_500" or (fault == "http_500_sometimes" and self.requests % 20 == 0):
            return await whole(writer, 500, {"error": {"message": "out of memory"}})
        if not request.get("stream") and api != "generate" and fault not in ("garbage", "hang", "die", "cut"):
            text = " ".join(self.word(number) for number in range(request["max_tokens"]))
            choice = {"text": text} if api == "completions" else {"message": {"content": text}}
            return await whole(writer, 200, {"choices": [{"index": 0, **choice, "finish_reason": "length"}]})
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        if fault == "garbage":
            await send(writer, bytes(range(256)) * 8)
        else:
            parameters = request.get("sampling_params", {})
            tokens = parameters["max_new_tokens"] if parameters else request["max_tokens"]
            async for event in (
                self._generate(tokens) if api == "generate" else self._events(tokens, api != "completions")
            ):
                if fault == "odd_wire":
                    for byte in b": comment\r\nid: 7\r\n" + event.replace(b"\n", b"\r\n"):
                        await send(writer, bytes([byte]))
                else:
                    await send(writer, event)
                if event == b"":
                    return False
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    async def _generate(self, tokens: int) -> AsyncIterator[bytes]:
        """As SGLang's own API: the whole text so far in each event; speculative decoding brings two tokens a step."""
        due = time.monotonic() + self.first
        for number in range(1, tokens + 1):
            if (delay := due - time.monotonic()) > 0:
                await asyncio.sleep(delay)
            due += self.pace
            reason = {"type": "length", "length": tokens} if number == tokens else None
            meta = {"completion_tokens": number, "prompt_tokens": 8, "cached_tokens": 3, "finish_reason": reason}
            if self.accept_length:
                meta["spec_verify_ct"] = (number + 1) // 2
            yield b"data: " + json.dumps({"text": " tok" * number, "meta_info": meta}).encode() + b"\n\n"
        yield b"data: [DONE]\n\n"

    def word(self, number: int) -> str:
        return {"not_a_number": "NaN", "nonsense": "!"}.get(self.fault, WORDS[number % len(WORDS)])

    def replace_worker(self) -> None:
        """Let the child process end, and start another by the same command line."""
        if self.worker is not None:
            self.worker.kill()
            self.worker.wait()
        self.worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)

    async def _events(self, tokens: int, chat: bool) -> AsyncIterator[bytes]:
        """The events of one answer; an empty one means: close the connection."""
        fault = self.fault
        step = 2 if fault == "pairs_of_tokens" else 1
        due = time.monotonic() + self.first
        for number in range(0, 0 if fault == "empty" else tokens, step):
            # Due times are kept on a fixed grid, so that a late wake-up does not add up.
            if (delay := due - time.monotonic()) > 0:
                await asyncio.sleep(delay)
            due += self.pace
            if number >= tokens // 2:
                if fault == "hang":
                    await asyncio.sleep(3600)
                elif fault == "die":
                    os._exit(3)
                elif fault == "cut":
                    yield b""
                    return
                elif fault == "error_event":
                    yield encode({"error": {"message": "CUDA error: an illegal memory access", "code": 500}})
                elif fault == "not_json":
                    yield b"data: {broken\n\n"
                elif fault == "not_utf8":
                    yield b"data: \xff\xfe\n\n"
            text = "!" if fault == "nonsense" else "".join(f" {self.word(number + more)}" for more in range(step))
            yield encode({"choices": [{"index": 0, **content(chat, text), "finish_reason": None}]})
        reason = "abort" if fault == "abort" else "length"
        yield encode({"choices": [{"index": 0, **content(chat, ""), "finish_reason": reason}]})
        if fault != "no_usage":
            count = 0 if fault == "empty" else tokens
            yield encode({"choices": [], "usage": {"prompt_tokens": 8, "completion_tokens": count}})
        if fault != "no_done":
            yield b"data: [DONE]\n\n"


def content(chat: bool, text: str) -> dict[str, Any]:
    return {"delta": {"content": text}} if chat else {"text": text}


def encode(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps({"id": "cmpl-1", "object": "text_completion", **value}).encode() + b"\n\n"


async def send(writer: asyncio.StreamWriter, data: bytes) -> None:
    if data:
        writer.write(b"%x\r\n%b\r\n" % (len(data), data))
        await writer.drain()


async def whole(writer: asyncio.StreamWriter, status: int, value: object) -> bool:
    data = json.dumps(value).encode()
    writer.write(b"HTTP/1.1 %d OK\r\nContent-Type: application/json\r\n" % status)
    writer.write(b"Content-Length: %d\r\n\r\n%b" % (len(data), data))
    await writer.drain()
    return True


async def run(options: argparse.Namespace) -> None:
    server = Server(options.pace, options.fault, options.first, options.accept_length, loads=options.drain)
    if options.worker:
        server.replace_worker()
    await asyncio.sleep(options.start_delay)
    listener = await asyncio.start_server(server.serve, options.host, options.port, backlog=256)
    print("listening on port", listener.sockets[0].getsockname()[1], flush=True)  # noqa: T201 - for the test
    stopped = server.idle

    def sigterm() -> None:
        server.ending = options.drain
        if not options.ignore_sigterm and not (options.drain and server.active):
            stopped.set()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, sigterm)
    await stopped.wait()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--pace", type=float, default=0.0, help="seconds between tokens")
    parser.add_argument("--first", type=float, default=0.0, help="seconds before the first token")
    parser.add_argument(
        "--accept-length", type=float, default=0.0, help="speculative decoding, as /server_info tells it"
    )
    parser.add_argument("--fault", choices=FAULTS, default="none")
    parser.add_argument("--start-delay", type=float, default=0.0, help="seconds before it listens")
    parser.add_argument("--ignore-sigterm", action="store_true")
    parser.add_argument("--worker", action="store_true", help="have a child process with a session of its own")
    parser.add_argument("--drain", action="store_true", help="tell the load; SIGTERM lets requests finish first")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
