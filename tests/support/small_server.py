"""A small OpenAI-compatible streaming server for tests; it waits instead of computing, so its speed is exact.

Environment: SMALL_TOKEN_SECONDS (per token), SMALL_START (`fail` ends with an exception, `hang` never becomes
healthy), SMALL_CHILD (a file: a child process writes its pid there and sleeps), SMALL_FAIL_REQUESTS (answers
500), SMALL_SLOW_FROM (with so many streams at once a token takes eight times as long), SMALL_SAYS (a line that it
writes to its log).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PAUSE = float(os.environ.get("SMALL_TOKEN_SECONDS", "0.002"))
SLOW_FROM = int(os.environ.get("SMALL_SLOW_FROM", "1000"))
STREAMS: list[int] = []  # one item for each answer under way


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 (the name in the base class)
        pass

    def answer(self, status: int, value: object) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self.answer(200, {"object": "list", "data": [{"id": "small", "object": "model"}]})
        elif self.path == "/environment":
            self.answer(200, {"environment": dict(os.environ), "cwd": os.getcwd(), "prefix": sys.prefix})  # noqa: PTH109 (as the server sees it)
        elif self.path == "/health":
            healthy = os.environ.get("SMALL_START") != "hang"
            self.answer(200 if healthy else 503, {"healthy": healthy})
        elif self.path == "/server_info" and os.environ.get("SMALL_INFO"):
            self.answer(200, json.loads(os.environ["SMALL_INFO"]))
        else:
            self.answer(404, {"error": f"no {self.path} here"})

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if os.environ.get("SMALL_FAIL_REQUESTS"):
            self.answer(500, {"error": "out of memory"})
            return
        if not request.get("stream"):
            self.answer(200, {"choices": [{"text": "word"}]})
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        due = time.monotonic()
        STREAMS.append(1)
        for _ in range(request["max_tokens"]):
            due += PAUSE * (8 if len(STREAMS) >= SLOW_FROM else 1)
            time.sleep(max(0.0, due - time.monotonic()))
            self.event({"choices": [{"index": 0, "text": "word ", "finish_reason": None}]})
        STREAMS.pop()
        self.event({"choices": [], "usage": {"completion_tokens": request["max_tokens"]}})
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def event(self, value: object) -> None:
        self.wfile.write(b"data: " + json.dumps(value).encode() + b"\n\n")
        self.wfile.flush()


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64


if __name__ == "__main__":
    sys.stderr.write("loading the weights\n")
    sys.stderr.write(os.environ.get("SMALL_SAYS", "") + "\n")
    sys.stderr.flush()
    if os.environ.get("SMALL_START") == "fail":
        raise RuntimeError("libcudart.so.13: cannot open shared object file")
    if os.environ.get("SMALL_CHILD"):
        code = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"
        subprocess.Popen([sys.executable, "-c", code, os.environ["SMALL_CHILD"]], start_new_session=True)
    Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
