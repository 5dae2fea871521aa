"""One file over HTTP, HTTPS or from the disk (file://), read as a stream; for get_url."""

from __future__ import annotations

import base64
import email.message
import gzip
import hashlib
import http.client
import os
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote, urlsplit, urlunsplit

from crossgrade.errors import TaskError
from crossgrade.modules.uri import mask, proxy_for
from crossgrade.modules.web import netrc_login, tls_context

BLOCK = 1 << 20
SUMS_BYTES = 16 << 20  # of a file of checksums
NOT_MODIFIED = 304  # RFC 9110, 15.4.5
LOGINS = frozenset(("authorization", "cookie", "proxy-authorization"))  # headers for the first server alone
# a line of sha256sum(1), and of it with --tag
_GNU_SUM = re.compile(r"(?P<sum>\w+)\s+\*?(?P<path>.+)")
_BSD_SUM = re.compile(r"\w+ ?\((?P<path>.+)\) ?= ?(?P<sum>\w+)")


class FetchError(TaskError):
    """Nothing came. `status` is that of the answer, -1 when there was none."""

    def __init__(self, message: str, status: int = -1) -> None:
        super().__init__(message, remedy="Check the address, the network and the proxy of the task's environment.")
        self.status = status


@dataclass(frozen=True)
class Request:
    """What to ask for, and how. `timeout` is seconds for the connection and for each part of the answer.

    `personal` are names of headers that nobody is told after a redirect.
    """

    url: str
    headers: Mapping[str, str] = field(repr=False)
    personal: frozenset[str]
    timeout: float
    proxy: str | None
    decompress: bool
    trust: Mapping[str, Any] = field(default_factory=dict)  # the arguments of `tls_context`


@dataclass(frozen=True)
class Answer:
    """`name` is the file name that server or address give, `status` None for file://, `length` of bytes or None."""

    stream: IO[bytes]
    status: int | None
    name: str
    length: int | None


@dataclass(frozen=True)
class Fetched:
    """A content: its digests in hex and its size in bytes. `status` 304 says that it was not sent, as not newer."""

    name: str
    status: int | None
    size: int
    sha1: str
    md5: str
    asked: str = ""  # in the algorithm that the task's checksum has


def make_request(
    url: str,
    headers: Mapping[str, str],
    environment: Mapping[str, str],
    *,
    user: str | None = None,
    password: str | None = None,
    agent: str = "crossgrade",
    personal: tuple[str, ...] = (),
    timeout: float = 10.0,
    use_proxy: bool = True,
    use_netrc: bool = True,
    decompress: bool = True,
    trust: Mapping[str, Any] | None = None,
) -> Request:
    """Raises TaskError for an address that is none. A user and a password in it become a header."""
    parts = urlsplit(url)
    scheme = parts.scheme.lower()
    if scheme not in ("http", "https", "file") or (scheme != "file" and not parts.hostname):
        raise TaskError(f"{mask(url)!r} is no address of the form http://…, https://… or file://…")
    if user is None and parts.username is not None:
        user, password = unquote(parts.username), unquote(parts.password or "")
    elif user is None and use_netrc and (login := netrc_login(parts.hostname, environment)):
        user, password = login
    sent = {"User-Agent": agent, "Accept-Encoding": "identity"}
    if user is not None:
        sent["Authorization"] = "Basic " + base64.b64encode(f"{user}:{password or ''}".encode()).decode()
    plain = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    return Request(
        plain,
        {**sent, **headers},
        frozenset(name.lower() for name in personal),
        timeout,
        proxy_for(plain, environment) if use_proxy else None,
        decompress,
        dict(trust or {}),
    )


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Goes on to http and https only; logins and cookies are told to the same server only, personal headers nobody."""

    def __init__(self, personal: frozenset[str]) -> None:
        self.personal = personal

    def redirect_request(self, req: urllib.request.Request, fp: Any, *args: Any) -> urllib.request.Request | None:
        new = super().redirect_request(req, fp, *args)
        if new is None:
            return None
        if urlsplit(new.full_url).scheme not in ("http", "https"):
            fp.close()
            raise FetchError(f"{req.full_url} leads on to {mask(new.full_url)}, which is not gone to")
        secret = self.personal if _origin(new.full_url) == _origin(req.full_url) else self.personal | LOGINS
        for name in [name for name in new.headers if name.lower() in secret]:
            del new.headers[name]
        return new


def _opener(request: Request) -> urllib.request.OpenerDirector:
    proxies = {} if request.proxy is None else {urlsplit(request.url).scheme.lower(): request.proxy}
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(proxies),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(context=tls_context(**request.trust)),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        _Redirects(request.personal),
    ):
        opener.add_handler(handler)
    return opener


@contextmanager
def answer_to(request: Request, newer_than: int | None = None) -> Iterator[Answer | None]:
    """The answer, to be read; None when the server says that the file is not newer than `newer_than` (nanoseconds).

    Raises FetchError.
    """
    parts = urlsplit(request.url)
    if parts.scheme.lower() == "file":
        path = Path(unquote(parts.path))
        try:
            with path.open("rb") as stream:
                yield Answer(stream, None, path.name, os.fstat(stream.fileno()).st_size)
        except OSError as error:
            raise FetchError(f"{request.url} cannot be read: {error.strerror}") from error
        return
    headers = dict(request.headers)
    if newer_than is not None:
        headers["If-Modified-Since"] = formatdate(newer_than // 10**9, usegmt=True)
    asked = urllib.request.Request(request.url, headers=headers)  # noqa: S310 - the scheme was checked
    try:
        with _opener(request).open(asked, timeout=request.timeout) as response:
            length = response.headers.get("Content-Length")
            body: Any = response
            if request.decompress and response.headers.get("Content-Encoding", "").lower() == "gzip":
                body, length = gzip.GzipFile(fileobj=response), None
            known = int(length) if length and length.isdecimal() else None
            yield Answer(body, response.status, _name(response.geturl(), response.headers), known)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == NOT_MODIFIED and newer_than is not None:
            yield None
            return
        raise FetchError(
            f"{request.url} cannot be fetched: HTTP Error {error.code}: {error.reason}", error.code
        ) from None
    except (OSError, EOFError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise FetchError(f"{request.url} cannot be fetched: {reason}") from error


def _name(url: str, headers: email.message.Message) -> str:
    """The name that Content-Disposition gives (RFC 6266), else the last part of the address."""
    given = headers.get_filename() or unquote(urlsplit(url).path)
    return given.replace("\\", "/").rpartition("/")[2].lstrip(".") or "index.html"


def fetch_name(request: Request) -> str:
    """The file name that the server, or else the address, gives; the content is not read. Raises FetchError."""
    with answer_to(request) as answer:
        return "" if answer is None else answer.name


def fetch(
    request: Request,
    algorithm: str,
    *,
    target: Path | None = None,
    newer_than: int | None = None,
    progress: Callable[[int], None] = lambda done: None,  # noqa: ARG005 - for those who look only
) -> Fetched:
    """Read all of it, into `target` where one is given, with digests. Raises FetchError, and OSError of the target."""
    with answer_to(request, newer_than) as answer:
        if answer is None:
            return Fetched("", NOT_MODIFIED, 0, "", "")
        digests = [hashlib.new(name, usedforsecurity=False) for name in ("sha1", "md5", algorithm)]
        size = 0
        with target.open("wb") if target is not None else _Nowhere() as file:
            while block := answer.stream.read(BLOCK):
                for digest in digests:
                    digest.update(block)
                file.write(block)
                size += len(block)
                progress(size)
        if answer.length is not None and size != answer.length:
            raise FetchError(f"{request.url} ended after {size} of {answer.length} bytes")
        return Fetched(answer.name, answer.status, size, *(digest.hexdigest() for digest in digests))


class _Nowhere:
    """A file that keeps nothing."""

    def __enter__(self) -> _Nowhere:
        return self

    def __exit__(self, *_: object) -> None: ...

    def write(self, block: bytes) -> int:
        return len(block)


def fetch_sum(request: Request, name: str) -> str:
    """The checksum that a file of checksums has for `name`; its only one when it names no file. Raises TaskError."""
    with answer_to(request) as answer:
        content = b"" if answer is None else answer.stream.read(SUMS_BYTES + 1)
    if len(content) > SUMS_BYTES:
        raise TaskError(f"{request.url} has more than {SUMS_BYTES >> 20} MiB: it is no file of checksums")
    lines = [line.strip() for line in content.decode(errors="replace").splitlines() if line.strip()]
    if len(lines) == 1 and len(lines[0].split()) == 1:
        return lines[0].lower()
    for line in lines:
        found = _BSD_SUM.fullmatch(line) or _GNU_SUM.fullmatch(line)
        if found is not None and found["path"].lstrip("./") == name:
            return found["sum"].lower()
    raise TaskError(f"{request.url} has no checksum for {name!r}")
