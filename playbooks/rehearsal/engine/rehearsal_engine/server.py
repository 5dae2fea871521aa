"""A small OpenAI-compatible server: ``python -m rehearsal_engine.server --port 30000``.

It serves /health, /health_generate, /server_info, /v1/models, /v1/completions and /v1/chat/completions,
streamed or whole. Output is deterministic and sampling options are ignored.

REHEARSAL_EXTRA_WORK (default 1.0) multiplies the arithmetic of each token: 1.25 takes a fifth of the speed
and changes no token.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from rehearsal_engine import _kernels
from rehearsal_engine.model import VOCABULARY, Model, tokenize, word

DEFAULT_MAX_TOKENS = 16
LARGEST_MAX_TOKENS = 4096
LARGEST_BODY_BYTES = 4 * 1024 * 1024
# A client that sends nothing for this long loses its connection.
IDLE_SECONDS = 60.0
# When the server stops, a client that does not read what it is sent loses its connection after this long.
STOP_SECONDS = 2.0


class RequestError(Exception):
    """The client's mistake, told with this HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def read_prompt(request: dict[str, Any], chat: bool) -> list[int]:
    """The prompt's tokens: text, token numbers, or (chat) the text of all messages."""
    if chat:
        messages = request.get("messages")
        if not isinstance(messages, list) or not messages:
            raise RequestError(400, "messages must be a list that is not empty")
        contents = [message.get("content") for message in messages if isinstance(message, dict)]
        texts = [content for content in contents if isinstance(content, str)]
        if len(texts) != len(messages):
            raise RequestError(400, "each message needs a content of type string")
        return tokenize("\n".join(texts))
    prompt = request.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return tokenize(prompt)
    if isinstance(prompt, list) and all(type(token) is int and token >= 0 for token in prompt):
        return [token % VOCABULARY for token in prompt]
    raise RequestError(400, "prompt must be one text or one list of token numbers")


def read_max_tokens(request: dict[str, Any]) -> int:
    value = request.get("max_completion_tokens", request.get("max_tokens"))
    if value is None:
        return DEFAULT_MAX_TOKENS
    if type(value) is not int or not 1 <= value <= LARGEST_MAX_TOKENS:
        raise RequestError(400, f"max_tokens must be a whole number from 1 to {LARGEST_MAX_TOKENS}")
    return value


class Server(ThreadingHTTPServer):
    """The listening socket and what all requests share."""

    # Handler threads are joined when the server closes: a thread that still ran the extension while Python
    # finalises would end the process with an abort instead of a clean exit.
    daemon_threads = False
    block_on_close = True
    request_queue_size = 256

    def __init__(self, address: tuple[str, int], model_name: str, device: str, extra_work: float) -> None:
        super().__init__(address, Handler)
        self.model_name = model_name
        self.device = device
        self.extra_work = extra_work
        self.model: Model | None = None
        self.stopping = threading.Event()
        self.numbers = itertools.count(1)
        self.started = int(time.time())
        self._connections: set[socket.socket] = set()
        self._connections_changed = threading.Condition()

    def load(self) -> None:
        self.model = Model(self.device, self.extra_work)

    def opened(self, connection: socket.socket) -> None:
        with self._connections_changed:
            self._connections.add(connection)
            if self.stopping.is_set():
                _shut(connection, socket.SHUT_RD)

    def closed(self, connection: socket.socket) -> None:
        with self._connections_changed:
            self._connections.discard(connection)
            self._connections_changed.notify_all()

    def stop(self) -> None:
        """Take no more requests, end streams after their current token, and wait for all threads."""
        self.stopping.set()
        self.shutdown()
        with self._connections_changed:
            for connection in self._connections:
                _shut(connection, socket.SHUT_RD)  # wakes threads that wait for a client's next request
            self._connections_changed.wait_for(lambda: not self._connections, timeout=STOP_SECONDS)
            for connection in self._connections:
                _shut(connection, socket.SHUT_RDWR)  # wakes threads that wait for a client to read
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no error of the server: no traceback for it."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def _shut(connection: socket.socket, how: int) -> None:
    try:
        connection.shutdown(how)
    except OSError:
        return  # the client has gone already


class Handler(BaseHTTPRequestHandler):
    """One connection, HTTP/1.1 with keep-alive."""

    protocol_version = "HTTP/1.1"
    server_version = "rehearsal-engine"
    # TCP_NODELAY: a token leaves when it is made.
    disable_nagle_algorithm = True
    timeout = IDLE_SECONDS
    server: Server

    def setup(self) -> None:
        super().setup()
        self.server.opened(self.connection)

    def finish(self) -> None:
        self.server.closed(self.connection)
        super().finish()

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - the name in the base class
        """No line for each request: the log is for starts, stops and errors."""

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_POST(self) -> None:
        self._answer(self._post)

    def _answer(self, work: Any) -> None:
        try:
            work()
        except RequestError as error:
            self._send_json(error.status, {"error": {"message": error.message, "code": error.status}})
        except (ConnectionError, TimeoutError):
            self.close_connection = True  # the client left in the middle of an answer
        if self.server.stopping.is_set():
            self.close_connection = True

    def _get(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/health":
            self._model()
            self._send_json(200, {"status": "ok"})
        elif path == "/health_generate":
            self._send_json(200, {"status": "ok", "token": next(self._model().generate([1], 1))})
        elif path == "/v1/models":
            model = {
                "id": self.server.model_name,
                "object": "model",
                "created": self.server.started,
                "owned_by": "crossgrade",
            }
            self._send_json(200, {"object": "list", "data": [model]})
        elif path == "/server_info":
            self._send_json(200, {**build_info(), "device": self.server.device, "extra_work": self.server.extra_work})
        else:
            raise RequestError(404, f"there is no {path} here")

    def _model(self) -> Model:
        if self.server.model is None or self.server.stopping.is_set():
            raise RequestError(503, "the server is not ready")
        return self.server.model

    def _post(self) -> None:
        body = self._read_body()
        chat = self.path == "/v1/chat/completions"
        if not chat and self.path != "/v1/completions":
            raise RequestError(404, f"there is no {self.path} here")
        model = self._model()
        try:
            request = json.loads(body)
        except ValueError as error:
            raise RequestError(400, f"the body is not JSON: {error}") from error
        if not isinstance(request, dict):
            raise RequestError(400, "the body must be a JSON object")
        if request.get("n", 1) != 1:
            raise RequestError(400, "only n = 1 is supported")
        prompt = read_prompt(request, chat)
        maximum = read_max_tokens(request)
        tokens = self._until_stopped(model.generate(prompt, maximum))
        reply = Reply(chat, next(self.server.numbers), self.server.model_name, len(prompt), maximum)
        if request.get("stream"):
            options = request.get("stream_options")
            usage = isinstance(options, dict) and bool(options.get("include_usage"))
            self._send_stream(reply.events(tokens, usage))
        else:
            self._send_json(200, reply.whole(list(tokens)))

    def _until_stopped(self, tokens: Iterator[int]) -> Iterator[int]:
        for token in tokens:
            yield token
            if self.server.stopping.is_set():
                return

    def _read_body(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            self.close_connection = True
            raise RequestError(411, "the request needs a Content-Length")
        if int(length) > LARGEST_BODY_BYTES:
            self.close_connection = True
            raise RequestError(413, f"the body is larger than {LARGEST_BODY_BYTES} bytes")
        return self.rfile.read(int(length))

    def _send_json(self, status: int, value: object) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _send_stream(self, events: Iterator[bytes]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Cache-Control", "no-cache")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in events:
            self.wfile.write(b"%x\r\n%b\r\n" % (len(event), event))
        self.wfile.write(b"0\r\n\r\n")


class Reply:
    """The JSON of one answer, in OpenAI's form for completions or chat."""

    def __init__(self, chat: bool, number: int, model_name: str, prompt_tokens: int, maximum: int) -> None:
        self.chat = chat
        self.prompt_tokens = prompt_tokens
        self.maximum = maximum
        self.head = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{number}",
            "created": int(time.time()),
            "model": model_name,
        }

    def usage(self, completion_tokens: int) -> dict[str, int]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": self.prompt_tokens + completion_tokens,
        }

    def finish_reason(self, completion_tokens: int) -> str:
        """``length``, or ``abort`` (SGLang's word) when the server was stopped before the last token."""
        return "length" if completion_tokens == self.maximum else "abort"

    def whole(self, tokens: list[int]) -> dict[str, Any]:
        text = "".join(map(word, tokens))
        content: dict[str, Any] = {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": self.finish_reason(len(tokens))}
        kind = "chat.completion" if self.chat else "text_completion"
        return {**self.head, "object": kind, "choices": [choice], "usage": self.usage(len(tokens))}

    def events(self, tokens: Iterator[int], include_usage: bool) -> Iterator[bytes]:
        """Server-sent events: one for each token, one with the finish reason, one with the usage if asked."""
        count = 0
        for token in tokens:
            count += 1
            yield self._event(word(token), None, first=count == 1)
        yield self._event("", self.finish_reason(count), first=False)
        if include_usage:
            yield self._encode({"choices": [], "usage": self.usage(count)})
        yield b"data: [DONE]\n\n"

    def _event(self, text: str, finish_reason: str | None, first: bool) -> bytes:
        content: dict[str, Any] = {"text": text}
        if self.chat:
            role = {"role": "assistant"} if first else {}
            content = {"delta": {**role, "content": text} if text else {}}
        return self._encode({"choices": [{"index": 0, **content, "logprobs": None, "finish_reason": finish_reason}]})

    def _encode(self, value: dict[str, Any]) -> bytes:
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        return b"data: " + json.dumps({**self.head, "object": kind, **value}).encode() + b"\n\n"


def build_info() -> dict[str, Any]:
    """What the build wrote about itself, and the CUDA runtime that is really loaded."""
    text = Path(__file__).with_name("build_info.json").read_text(encoding="utf-8")
    return {**json.loads(text), "runtime_version": _kernels.runtime_version()}


def read_extra_work() -> float:
    text = os.environ.get("REHEARSAL_EXTRA_WORK") or "1.0"
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1.0 <= value <= 100.0:
        raise SystemExit(f"REHEARSAL_EXTRA_WORK is {text!r}: it must be a number from 1.0 to 100")
    return value


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m rehearsal_engine.server", description="The rehearsal's server.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=30000, help="0 takes a free one and prints it")
    parser.add_argument("--model-name", default="rehearsal")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where the arithmetic runs")
    options = parser.parse_args(arguments)

    finished = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: finished.set())
    extra_work = read_extra_work()
    try:
        server = Server((options.host, options.port), options.model_name, options.device, extra_work)
    except OSError as error:
        raise SystemExit(f"cannot listen on {options.host}:{options.port}: {error.strerror}") from error
    # It listens (and answers 503) before the weights are there, as real servers do.
    acceptor = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, name="acceptor")
    acceptor.start()
    try:
        server.load()
        information = build_info()
        host, port = server.server_address[:2]
        sys.stderr.write(
            f"rehearsal-engine {information['version']} (CUDA runtime {information['runtime_version']}, "
            f"device {options.device}) ready on http://{host!s}:{port}\n"
        )
        sys.stderr.flush()
        finished.wait()
    except RuntimeError as error:
        raise SystemExit(f"cannot start: {error}") from error
    finally:
        server.stop()
        acceptor.join()
    return 0


if __name__ == "__main__":
    sys.exit(main())
