"""The load client on streams that SGLang sent (`tests/data/README.md`), replayed by a server of this test."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from crossgrade.bench.load import LoadProfile, LoadResult, run_load

RECORDED = Path(__file__).parent.parent / "data" / "sglang"


@contextmanager
def replaying(models: Path, answer: bytes) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.reply(models.read_bytes(), "application/json")

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.reply(answer, "text/event-stream")

        def reply(self, body: bytes, kind: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Nobody reads it."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def load(version: str, answer: bytes, **others: Any) -> LoadResult:
    with replaying(RECORDED / version / "models.json", answer) as url:
        return run_load(url, LoadProfile(concurrency=1, requests=2, warmup_requests=0, max_tokens=6, **others))


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
@pytest.mark.parametrize("version", ["0.5.9", "0.5.23"])
def test_tokens_are_those_of_the_usage(version: str, endpoint: Any) -> None:
    result = load(version, (RECORDED / version / f"{endpoint}.sse").read_bytes(), endpoint=endpoint)
    assert not result.failed
    for sample in result.samples:
        assert (sample.output_tokens, sample.counted_by) == (6, "usage")
        assert sample.chunks in (5, 6), "two words may come in one event"


def test_an_error_after_status_200_is_an_error() -> None:
    recorded = (RECORDED / "0.5.9" / "too_long_stream.txt").read_bytes()
    assert recorded.endswith(b"\n200\n"), "the status that curl saw"
    result = load("0.5.9", recorded.removesuffix(b"200\n"))
    assert [sample.error for sample in result.failed] == ["server_error", "server_error"]
    assert "longer than the model's context length" in result.failed[0].detail
