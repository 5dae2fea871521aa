"""A server that sends tokens at a fixed pace and remembers when: what the load client's own times are checked with.

A process of its own, `python -m crossgrade.bench.paced_echo --port N --pace SECONDS`. Each stream sends a token, one
event in one chunk, every `pace` seconds on a grid of its own; the moment of time.monotonic() just before it is handed
to the kernel is noted. On Linux that is CLOCK_MONOTONIC, the same in all processes of a machine, so
that the moment at which the client has it can be compared. GET /sent gives the moments, by prompt.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import signal
import sys
import time
from dataclasses import dataclass, field

# One event as servers send it; about as long as SGLang's.
EVENT = (
    b'data: {"id":"cmpl-1","object":"text_completion","created":1790000000,"model":"echo",'
    b'"choices":[{"index":0,"text":" token","logprobs":null,"finish_reason":null}]}\n\n'
)
LAST = b"data: [DONE]\n\n"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """One chunk of HTTP's chunked encoding (RFC 9112, 7.1)."""
    return b"%x\r\n%b\r\n" % (len(data), data)


@dataclass
class PacedEcho:
    """What all connections share. `sent`: for each prompt the moments of its tokens, seconds of time.monotonic()."""

    pace: float
    sent: dict[str, list[float]] = field(default_factory=dict)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while not writer.is_closing():
                head = await reader.readuntil(b"\r\n\r\n")
                method, path, _ = head.split(b" ", 2)
                length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
                body = await reader.readexactly(int(length or b"0"))
                if method == b"POST":
                    await self._stream(json.loads(body), writer)
                else:
                    text = json.dumps(self.sent if path == b"/sent" else {"data": [{"id": "echo"}]}).encode()
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(text), text))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the client left, or the end has come
        finally:
            writer.close()

    async def _stream(self, request: dict[str, object], writer: asyncio.StreamWriter) -> None:
        prompt, tokens = request["prompt"], request["max_tokens"]
        if not isinstance(prompt, str) or not isinstance(tokens, int):
            raise ConnectionError("not a request of the load client")
        moments = self.sent.setdefault(prompt, [])
        event = chunk(EVENT)
        writer.write(HEAD)
        due = time.monotonic()
        for _ in range(tokens):
            due += self.pace
            await asyncio.sleep(due - time.monotonic())
            if writer.is_closing():
                return
            moments.append(time.monotonic())
            writer.write(event)
        writer.write(chunk(LAST) + b"0\r\n\r\n")


async def _run(port: int, pace: float) -> None:
    listener = await asyncio.start_server(PacedEcho(pace).serve, "127.0.0.1", port, backlog=1024)
    sys.stdout.write(f"listening on port {listener.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    gc.freeze()  # what is imported is not looked through again
    await stopped.wait()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--pace", type=float, required=True, help="seconds between the tokens of a stream")
    options = parser.parse_args()
    asyncio.run(_run(options.port, options.pace))


if __name__ == "__main__":
    main()
