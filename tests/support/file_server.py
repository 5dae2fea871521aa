"""A server of files over HTTP, with what servers do to those who fetch: names, redirects, logins, cuts, compression."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from email.utils import formatdate, parsedate_to_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

CONTENT = b"the file\n"
MODIFIED = 1_600_000_000  # seconds: when it was changed
SHA256 = hashlib.sha256(CONTENT).hexdigest()
SHA1 = hashlib.sha1(CONTENT, usedforsecurity=False).hexdigest()
SUMS = {
    "/sums": f"{'0' * 64}  other\n{SHA256}  file\n",
    "/binary-sums": f"{SHA256} *file\n",
    "/dotted-sums": f"{SHA256}  ./file\n",
    "/deep-sums": f"{SHA256}  deep/file\n",
    "/bsd-sums": f"SHA256 (other) = {'0' * 64}\nSHA256 (file) = {SHA256}\n",
    "/one-sum": f"{SHA256}\n",
    "/other-sums": f"{SHA256}  other\n{SHA256}  another\n",
    "/wrong-sums": f"{'0' * 64}  file\n",
    "/no-sums": "nothing here\n",
}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Quiet."""

    def answer(self, body: bytes, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        known = {
            "/named": {"Content_Disposition": 'attachment; filename="given name.txt"'},
            "/climbing": {"Content_Disposition": 'attachment; filename="../../climbed"'},
            "/gzip": {"Content_Encoding": "gzip"},
        }
        if path == "/file":
            self.file()
        elif path in SUMS:
            self.answer(SUMS[path].encode())
        elif path in known:
            self.answer(gzip.compress(CONTENT, mtime=0) if path == "/gzip" else CONTENT, 200, **known[path])
        elif path == "/login":
            wanted = "Basic " + base64.b64encode(b"user:secret").decode()
            right = self.headers.get("Authorization") == wanted
            self.answer(CONTENT) if right else self.answer(b"", 401, WWW_Authenticate='Basic realm="x"')
        elif path == "/echo":
            told = {name: self.headers[name] for name in ("X-One", "User-Agent", "Authorization") if self.headers[name]}
            self.answer(json.dumps(told, sort_keys=True).encode(), Content_Type="application/json")
        elif path == "/broken-json":
            self.answer(b"{", Content_Type="application/json")
        elif path == "/cookie":
            self.answer(CONTENT, Set_Cookie="a=1")
        elif path in ("/away", "/away-to-echo"):
            self.answer(b"", 302, Location="/file" if path == "/away" else "/echo")
        elif path == "/to-the-disk":
            self.answer(b"", 302, Location="file:///etc/hostname")
        elif path == "/slow":
            time.sleep(3)
            with suppress(OSError):  # the client did not wait
                self.answer(CONTENT)
        elif path == "/cut":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc")
            self.close_connection = True
        elif path == "/empty":
            self.answer(b"")
        else:
            self.answer(b"no", 404)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0"))).decode()
        if self.path == "/away":
            self.answer(b"", 302, Location="/file")
            return
        told = {"body": body, "type": self.headers.get("Content-Type"), "method": self.command}
        self.answer(json.dumps(told).encode(), 201, Content_Type="application/json; charset=utf-8", X_Mine="x")

    do_PUT = do_POST  # noqa: N815 - the base class's name
    do_HEAD = do_GET  # noqa: N815 - the base class's name

    def file(self) -> None:
        since = self.headers.get("If-Modified-Since")
        if since and parsedate_to_datetime(since).timestamp() >= MODIFIED:
            self.send_response(304)
            self.end_headers()
        else:
            self.answer(CONTENT, Last_Modified=formatdate(MODIFIED, usegmt=True))


@contextmanager
def file_server() -> Iterator[str]:
    """The address of one that runs."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"http://127.0.0.1:{running.server_address[1]}"
        running.shutdown()
        thread.join()
