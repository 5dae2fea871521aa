"""A package index over http, as PEP 503 has it (HTML) or PEP 691 and 700 (JSON), with real files."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote, unquote

from packaging.utils import canonicalize_name, parse_sdist_filename, parse_wheel_filename


@dataclass
class Index:
    """Serves the files of `folder`. `asked` are the paths of all requests, in order.

    `yanked` maps file names to reasons, `published` to days (`2024-01-31`). With `user` (`name:password`) a request
    without it gets 401. `failures` is how many requests for files are answered with 503 first; a request for one of
    `stalled` is answered never, until the name is taken out.
    """

    folder: Path
    yanked: dict[str, str] = field(default_factory=dict)
    published: dict[str, str] = field(default_factory=dict)
    user: str = ""
    as_json: bool = True
    failures: int = 0
    stalled: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/simple"

    def fetched(self) -> list[str]:
        """Names of the files that were asked for as a whole; uv reads the metadata of a wheel from a file beside it."""
        return [Path(path).name for path in self.asked if path.startswith("/files/") and path.endswith((".whl", ".gz"))]

    def files(self, name: str) -> list[Path]:
        found = [*self.folder.glob("*.whl"), *self.folder.glob("*.tar.gz")]
        return sorted(file for file in found if _name(file) == name)

    def page(self, name: str) -> bytes | None:
        files = self.files(name)
        if not files:
            return None
        if self.as_json:
            return json.dumps(
                {"meta": {"api-version": "1.1"}, "name": name, "files": [*map(self._row, files)]}
            ).encode()
        return "".join(self._link(file) for file in files).encode()

    def _row(self, file: Path) -> Mapping[str, object]:
        row: dict[str, object] = {
            "filename": file.name,
            "url": f"../../files/{quote(file.name)}",
            "hashes": {"sha256": _sha256(file)},
            "size": file.stat().st_size,
            "yanked": self.yanked.get(file.name, False),
        }
        if file.name in self.published:
            row["upload-time"] = f"{self.published[file.name]}T12:00:00Z"
        return row

    def _link(self, file: Path) -> str:
        yanked = f' data-yanked="{self.yanked[file.name]}"' if file.name in self.yanked else ""
        return f'<a href="../../files/{quote(file.name)}#sha256={_sha256(file)}"{yanked}>{file.name}</a>'


def _name(file: Path) -> str:
    return str((parse_wheel_filename if file.suffix == ".whl" else parse_sdist_filename)(file.name)[0])


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


@contextmanager
def serving(index: Index) -> Iterator[Index]:
    """Answers requests until the block is left."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            index.asked.append(unquote(self.path))
            wanted = base64.b64encode(index.user.encode()).decode()
            if index.user and self.headers.get("Authorization") != f"Basic {wanted}":
                self._answer(401, b"", "text/plain")
                return
            kind, _, rest = unquote(self.path).strip("/").partition("/")
            if kind == "simple":
                content = index.page(canonicalize_name(rest.strip("/")))
                media = "application/vnd.pypi.simple.v1+json" if index.as_json else "text/html"
            else:
                if index.failures:
                    index.failures -= 1
                    self._answer(503, b"", "text/plain")
                    return
                file = index.folder / Path(rest).name
                while file.name in index.stalled:
                    time.sleep(0.05)
                content = file.read_bytes() if kind == "files" and file.is_file() else None
                media = "application/octet-stream"
            self._answer(404 if content is None else 200, content or b"", media)

        def do_HEAD(self) -> None:
            self.do_GET()

        def _answer(self, status: int, content: bytes, media: str) -> None:
            self.send_response(status)
            if status == 401:
                self.send_header("WWW-Authenticate", 'Basic realm="index"')
            self.send_header("Content-Type", media)
            if media == "application/octet-stream":  # as files.pythonhosted.org says of its files
                self.send_header("Cache-Control", "max-age=365000000, immutable, public")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Nothing is printed."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    index.port = server.server_port
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield index
    finally:
        server.shutdown()
        server.server_close()
