"""A server for `bench verdicts`: it waits instead of computing, and is slower than it could be by what is asked for.

Run by its path (`python planted_server.py PORT KIND LOSS`), with nothing but the standard library. LOSS is the share
of speed that is lost: an answer that it meets (`first-token`: its first token) takes 1 / (1 - LOSS) times as long. KIND
is one of `KINDS`.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import Iterator

KINDS = ("constant", "bursty", "concurrency-8", "first-token")
FIRST_SECONDS = 0.3
TOKEN_SECONDS = 0.015
BURST_TOKENS = 8  # one token in so many takes what all of them lose together
MANY = 5  # streams at once, from which on `concurrency-8` is slower


class Planted:
    """What each token waits for; `streams` counts the answers under way."""

    def __init__(self, kind: str, loss: float) -> None:
        if kind not in KINDS:
            raise ValueError(f"{kind} is none of {', '.join(KINDS)}")
        self.kind = kind
        self.longer = 1 / (1 - loss) - 1
        self.streams = 0
        self.luck = random.Random()  # noqa: S311 - not the same for each launch, as with a real server

    def first(self) -> float:
        """Seconds until the first token."""
        return FIRST_SECONDS * (1 + self.longer * (self.kind in ("constant", "first-token")))

    def next(self, tokens: int) -> float:
        """Seconds from one token to the next, in an answer of so many. Where the first token loses nothing, the others
        lose so much more that the whole answer loses what it should."""
        share = 0.0
        if self.kind == "constant":
            share = 1.0
        elif (self.kind == "concurrency-8" and self.streams >= MANY) or (
            self.kind == "bursty" and self.luck.random() < 1 / BURST_TOKENS
        ):
            others = (tokens - 1) * TOKEN_SECONDS
            share = (FIRST_SECONDS + others) / others * (BURST_TOKENS if self.kind == "bursty" else 1)
        return TOKEN_SECONDS * (1 + self.longer * share)

    def waits(self, tokens: int) -> Iterator[float]:
        for number in range(tokens):
            yield self.next(tokens) if number else self.first()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, one request."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        method, path, _ = head.split(" ", 2)
        if method == "GET":
            models = {"object": "list", "data": [{"id": "planted", "object": "model"}]}
            data = json.dumps(models if path == "/v1/models" else {}).encode()
            status = "200 OK" if path in ("/health", "/v1/models") else "404 Not Found"
            writer.write(
                f"HTTP/1.1 {status}\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode() + data
            )
        else:
            length = next(
                line.split(":")[1] for line in head.splitlines() if line.lower().startswith("content-length:")
            )
            request = json.loads(await reader.readexactly(int(length)))
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
            await self.answer(writer, request["max_tokens"])
        await writer.drain()
        writer.close()

    async def answer(self, writer: asyncio.StreamWriter, tokens: int) -> None:
        """Each token at its moment, whatever the machine made of those before."""
        clock = asyncio.get_running_loop().time
        due = clock()
        self.streams += 1
        try:
            for wait in self.waits(tokens):
                due += wait
                await asyncio.sleep(due - clock())
                _event(writer, {"choices": [{"index": 0, "text": "word ", "finish_reason": None}]})
        finally:
            self.streams -= 1
        _event(writer, {"choices": [], "usage": {"completion_tokens": tokens}})
        writer.write(b"data: [DONE]\n\n")


def _event(writer: asyncio.StreamWriter, value: object) -> None:
    writer.write(b"data: " + json.dumps(value).encode() + b"\n\n")


async def run(port: int, kind: str, loss: float) -> None:
    server = await asyncio.start_server(Planted(kind, loss).serve, "127.0.0.1", port)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(run(int(sys.argv[1]), sys.argv[2], float(sys.argv[3])))
