"""How fast the load client itself is: its ceiling against an echo in its own process."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from crossgrade.bench.load import LoadProfile, load
from crossgrade.bench.paced_echo import EVENT, HEAD, LAST, chunk
from crossgrade.jsontype import JSON


@dataclass(frozen=True)
class ClientCeiling:
    """`tokens_per_second` that the client takes in, over `concurrency` streams, one event in each read.

    The echo shares the client's thread, so a client beside a real server does better. A server whose figure
    comes near this one is not measured by this client.
    """

    tokens_per_second: float
    concurrency: int

    def to_json(self) -> dict[str, JSON]:
        return {"tokens_per_second": round(self.tokens_per_second, 1), "concurrency": self.concurrency}


def measure_client_ceiling(concurrency: int = 16, tokens: int = 4096) -> ClientCeiling:
    """Stream about `tokens` tokens through the client, as fast as it goes (about half a second)."""
    return asyncio.run(_measure(concurrency, tokens))


async def _measure(concurrency: int, tokens: int) -> ClientCeiling:
    profile = LoadProfile(
        concurrency=concurrency,
        requests=concurrency,
        warmup_requests=concurrency,
        max_tokens=max(1, tokens // concurrency),
        model="echo",
    )
    event = chunk(EVENT)
    end = chunk(LAST) + b"0\r\n\r\n"
    connections: set[asyncio.Task[None] | None] = set()

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.add(asyncio.current_task())
        try:
            while not writer.is_closing():
                head = await reader.readuntil(b"\r\n\r\n")
                length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
                if not length:  # a question about the server, which is none
                    writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
                    continue
                await reader.readexactly(int(length))
                writer.write(HEAD)
                for _ in range(profile.max_tokens):
                    if writer.is_closing():  # the client cancels what it does not measure
                        return
                    writer.write(event)
                    await asyncio.sleep(0)  # so that the client reads each event by itself
                writer.write(end)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            return  # the load is over
        finally:
            writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    try:
        port = server.sockets[0].getsockname()[1]
        result = await load(f"http://127.0.0.1:{port}", profile)
    finally:
        server.close()
        await server.wait_closed()
        await asyncio.gather(*filter(None, connections))
    return ClientCeiling(result.output_tokens_per_second, concurrency)
