"""uri: one HTTP request, and whether its answer has the status that is expected."""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal
from urllib.parse import urlencode, urljoin, urlsplit, urlunsplit

from crossgrade.errors import TaskError
from crossgrade.modules.contract import ApplyContext, Change, HostView, Module, Outcome, Plan, Unchanged
from crossgrade.modules.files import absolute, exists
from crossgrade.modules.placing import find_source
from crossgrade.modules.refusing import FILE, KERBEROS
from crossgrade.modules.web import netrc_login, tls_context
from crossgrade.playbook.arguments import argument

if TYPE_CHECKING:
    import aiohttp

MOST_BYTES = 64 << 20  # of a body that is kept; more is no answer for a playbook
_JSON_TYPE = re.compile(r"application/(?:[\w.+-]+\+)?(?:json|javascript)|text/(?:json|javascript)", re.IGNORECASE)


@dataclass(frozen=True)
class Arguments:
    """Sends a request over HTTP or HTTPS. The task fails when the status is not one of those expected."""

    url: str = argument(doc="The address, with http:// or https://.")
    method: str = argument(doc="GET, POST, PUT, DELETE, ….", default="GET")
    body: Any = argument(doc="What to send: text, or what `body_format` turns into text.", default=None)
    body_format: Literal["raw", "json", "form-urlencoded"] = argument(
        doc="How the body is written.", default="raw", choices=("raw", "json", "form-urlencoded")
    )
    src: str | None = argument(doc="A file of the playbook to send as the body.", default=None)
    headers: Mapping[str, Any] = argument(doc="Headers of the request.", default_factory=dict)
    status_code: tuple[int, ...] = argument(doc="The statuses that are right.", default=(200,))
    return_content: bool = argument(doc="Return the body as `content`.", default=False)
    timeout: float = argument(doc="Seconds to wait for the connection and for each part of the answer.", default=30)
    validate_certs: bool = argument(doc="Refuse certificates that cannot be verified.", default=True)
    ca_path: str | None = argument(doc="A file with the certificates to trust, besides the system's.", default=None)
    follow_redirects: Literal["safe", "all", "none", "yes", "no", "urllib2"] = argument(
        doc="`safe`: for GET and HEAD only.",
        default="safe",
        choices=("safe", "all", "none", "yes", "no", "urllib2"),
    )
    url_username: str | None = argument(doc="User for basic authentication.", default=None, aliases=("user",))
    url_password: str | None = argument(doc="Its password.", default=None, aliases=("password",), secret=True)
    force_basic_auth: bool = argument(
        doc="Accepted for Ansible's sake: user and password go with the first request anyway.", default=False
    )
    http_agent: str = argument(doc="The User-Agent.", default="ansible-httpget")
    client_cert: str | None = argument(doc="A certificate (PEM) to show to the server, with its key.", default=None)
    client_key: str | None = argument(doc="The key of that certificate, in a file of its own.", default=None)
    ciphers: tuple[str, ...] = argument(doc="The ciphers to use, as OpenSSL names them.", default=())
    use_netrc: bool = argument(doc="Without a user, take the login from ~/.netrc.", default=True)
    force: bool = argument(doc="Ask caches on the way for a new answer (`Cache-Control: no-cache`).", default=False)
    decompress: bool = argument(doc="Unpack an answer that the server sends compressed.", default=True)
    remote_src: bool = argument(doc="`src` is no file of the playbook.", default=False)
    use_proxy: bool = argument(doc="Mind http_proxy and its like in the environment.", default=True)
    unix_socket: str | None = argument(doc="Connect to this socket instead of the host in the address.", default=None)
    creates: str | None = argument(doc="Where this exists, nothing is sent.", default=None)
    removes: str | None = argument(doc="Where this does not exist, nothing is sent.", default=None)
    mutually_exclusive: ClassVar[tuple[tuple[str, ...], ...]] = (("body", "src"),)
    refused: ClassVar[Mapping[str, str]] = {
        **FILE,
        **KERBEROS,
        **dict.fromkeys(
            ("dest", "mode", "owner", "group"), "an answer is not written to a file here; `get_url` does it"
        ),
        "unredirected_headers": "headers that you give go to where a redirect leads; say `follow_redirects: none`",
    }


@dataclass(frozen=True)
class Answer:
    """What came back. `status` is -1 and `problem` says why when nothing did. `elapsed` is seconds."""

    status: int
    url: str
    headers: Mapping[str, str]
    body: bytes
    charset: str
    redirected: bool
    elapsed: float
    reason: str = ""
    problem: str = ""
    cookies: Mapping[str, str] | None = None


@dataclass(frozen=True)
class State:
    """The request, ready to send. `satisfied` says why none is needed, `login` is that of ~/.netrc."""

    method: str
    headers: Mapping[str, str]
    data: bytes | Path | None
    proxy: str | None
    satisfied: str
    login: tuple[str, str] | None = field(default=None, repr=False)


def inspect(arguments: Arguments, host: HostView) -> State:
    parts = urlsplit(arguments.url)
    if parts.scheme.lower() not in ("http", "https") or not parts.hostname:
        raise TaskError(f"{mask(arguments.url)!r} is no address of the form http://… or https://…")
    method = arguments.method.upper()
    if not re.fullmatch("[A-Z]+", method):
        raise TaskError(f"`method` must be one word such as GET or POST, not {arguments.method!r}")
    headers = {str(name): str(value) for name, value in arguments.headers.items()}
    data: bytes | Path | None = None
    if arguments.src is not None:
        data = find_source(arguments.src, "" if arguments.remote_src else "files", host)
    elif arguments.body is not None or arguments.body_format == "json":
        data = encode_body(arguments.body, arguments.body_format) if arguments.body is not None else None
    kinds = {"json": "application/json", "form-urlencoded": "application/x-www-form-urlencoded"}
    if "content-type" not in {name.lower() for name in headers}:
        # what Ansible sends, whose library takes any body for a form
        usual = "" if data is None else kinds["form-urlencoded"]
        if kind := kinds.get(arguments.body_format, usual):
            headers["Content-Type"] = kind
    if arguments.force:
        headers = {"Cache-Control": "no-cache", **headers}
    satisfied = ""
    if arguments.creates and exists(absolute(arguments.creates, host), host):
        satisfied = f"'{arguments.creates}' exists"
    elif arguments.removes and not exists(absolute(arguments.removes, host), host):
        satisfied = f"'{arguments.removes}' does not exist"
    proxy = proxy_for(arguments.url, host.environment) if arguments.use_proxy else None
    login = None
    if arguments.use_netrc and arguments.url_username is None and parts.username is None:
        login = netrc_login(parts.hostname, host.environment)
    return State(method, headers, data, proxy, satisfied, login)


def encode_body(body: Any, body_format: str) -> bytes:
    """The body as it is sent; text is taken to be encoded already."""
    if isinstance(body, str):
        return body.encode()
    if body_format == "form-urlencoded":
        pairs = body.items() if isinstance(body, Mapping) else body
        try:
            flat = [
                (str(name), str(value))
                for name, values in pairs
                for value in (values if isinstance(values, list | tuple) else [values])
                if value is not None
            ]
        except (TypeError, ValueError) as error:
            raise TaskError("a form needs a mapping, or a list of pairs, as its body") from error
        return urlencode(flat).encode()
    if body_format == "json" or isinstance(body, Mapping | list | tuple):
        return json.dumps(body).encode()
    return str(body).encode()


def proxy_for(url: str, environment: Mapping[str, str]) -> str | None:
    """The proxy that http_proxy, https_proxy and no_proxy of the task's environment ask for."""
    parts = urlsplit(url)
    lower = {name.lower(): value for name, value in environment.items() if name.lower().endswith("_proxy") and value}
    if not lower:
        return None
    import urllib.request  # 30 ms, for the rules of no_proxy

    bypass = urllib.request.proxy_bypass_environment  # type: ignore[attr-defined]  # documented nowhere, there since 2.7
    if bypass(parts.hostname or "", {"no": lower.get("no_proxy", "")}):
        return None
    return lower.get(f"{parts.scheme.lower()}_proxy") or lower.get("all_proxy")


def mask(url: str) -> str:
    """The address without a password that stands in it."""
    parts = urlsplit(url)
    if parts.password is None:
        return url
    user, _, place = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{user.partition(':')[0]}:********@{place}"))


def plan(arguments: Arguments, state: State) -> Plan:
    if state.satisfied:
        return Unchanged(
            f"not sent, since {state.satisfied}",
            {"stdout": f"skipped, since {state.satisfied}"},
        )
    return Change(
        f"{state.method} {mask(arguments.url)}, which must answer {', '.join(map(str, arguments.status_code))}",
        values_known=False,
        payload={"state": state},
    )


def apply(arguments: Arguments, change: Change, context: ApplyContext) -> Outcome:  # noqa: ARG001 (the contract's shape)
    import asyncio

    state: State = change.payload["state"]
    data = state.data.read_bytes() if isinstance(state.data, Path) else state.data
    answer = asyncio.run(_request(arguments, state, data))
    return outcome_of(answer, arguments)


def outcome_of(answer: Answer, arguments: Arguments) -> Outcome:
    """What the answer means for the task."""
    values: dict[str, Any] = {name.lower().replace("-", "_"): text for name, text in answer.headers.items()}
    if "location" in values:
        values["location"] = urljoin(mask(arguments.url), values["location"])
    values.update(
        status=answer.status,
        url=mask(answer.url),
        redirected=answer.redirected,
        elapsed=int(answer.elapsed),
    )
    if answer.cookies is not None:
        values["cookies"] = dict(answer.cookies)
        values["cookies_string"] = "; ".join(f"{name}={value}" for name, value in answer.cookies.items())
    text = answer.body.decode(answer.charset, errors="replace")
    if _JSON_TYPE.match(answer.headers.get("Content-Type", "")):
        with suppress(ValueError, RecursionError):  # it said that it was JSON; `content` has what it is
            values["json"] = json.loads(text)
    if arguments.return_content:
        values["content"] = text
    length = answer.headers.get("Content-Length", "unknown")
    said = f"Request failed: {answer.problem}" if answer.problem else f"{answer.reason} ({length} bytes)"
    if answer.status >= 400:
        said = f"HTTP Error {answer.status}: {answer.reason}"
    if answer.status in arguments.status_code:
        return Outcome({**values, "msg": said})
    message = f"Status code was {answer.status} and not {list(arguments.status_code)}: {said}"
    return Outcome({**values, "msg": message}, failed=True, message=message)


async def _request(arguments: Arguments, state: State, data: bytes | None) -> Answer:
    """Send it. What goes wrong on the way is an answer too, with the status -1, so that `until` can wait for it."""
    import asyncio

    import aiohttp

    started = time.monotonic()
    try:
        return await _exchange(arguments, state, data, started)
    except asyncio.TimeoutError:
        problem = f"no answer within {arguments.timeout:g} s"
    except (aiohttp.ClientError, OSError, ValueError) as error:
        problem = str(error) or type(error).__name__
    return Answer(-1, arguments.url, {}, b"", "utf-8", False, time.monotonic() - started, problem=problem)


async def _exchange(arguments: Arguments, state: State, data: bytes | None, started: float) -> Answer:
    import aiohttp
    from yarl import URL

    redirects = arguments.follow_redirects in ("all", "yes") or (
        arguments.follow_redirects in ("safe", "urllib2") and state.method in ("GET", "HEAD")
    )
    context = tls_context(
        validate_certs=arguments.validate_certs,
        ca_path=arguments.ca_path,
        client_cert=arguments.client_cert,
        client_key=arguments.client_key,
        ciphers=arguments.ciphers,
    )
    connector = (
        aiohttp.UnixConnector(arguments.unix_socket) if arguments.unix_socket else aiohttp.TCPConnector(ssl=context)
    )
    timeout = aiohttp.ClientTimeout(
        total=None, connect=arguments.timeout, sock_connect=arguments.timeout, sock_read=arguments.timeout
    )
    # an address that is encoded already is sent as it stands
    address = URL(arguments.url, encoded=arguments.url.isascii() and " " not in arguments.url)
    user = (address.user, address.password) if state.login is None else state.login
    headers = {"User-Agent": arguments.http_agent, **_login(arguments, *user), **state.headers}
    async with (
        aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=arguments.decompress) as session,
        session.request(
            state.method,
            address.with_user(None),
            data=data,
            headers=headers,
            allow_redirects=redirects,
            proxy=state.proxy,
            skip_auto_headers=("Content-Type",),
        ) as response,
    ):
        body = await _body(arguments, response)
        cookies = {name: morsel.value for name, morsel in response.cookies.items()}
        return Answer(
            status=response.status,
            url=str(response.url),
            headers=_joined(response),
            body=body,
            charset=_charset(response),
            redirected=bool(response.history),
            elapsed=time.monotonic() - started,
            reason=response.reason or "",
            cookies=cookies,
        )


def _login(arguments: Arguments, user: str | None, password: str | None) -> dict[str, str]:
    """The header of basic authentication (RFC 7617), from the arguments or else from the address."""
    if arguments.url_username is not None:
        user, password = arguments.url_username, arguments.url_password
    if user is None:
        return {}
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password or ''}".encode()).decode()}


async def _body(arguments: Arguments, response: aiohttp.ClientResponse) -> bytes:
    wanted = arguments.return_content or response.status not in arguments.status_code
    if not wanted and not _JSON_TYPE.match(response.headers.get("Content-Type", "")):
        return b""
    body = b""
    async for block in response.content.iter_chunked(1 << 16):
        body += block
        if len(body) > MOST_BYTES:
            raise TaskError(
                f"{mask(arguments.url)} sends more than {MOST_BYTES >> 20} MiB",
                remedy="Fetch large files with a program such as curl.",
            )
    return body


def _joined(response: aiohttp.ClientResponse) -> dict[str, str]:
    """A header that comes several times has its values joined, as RFC 9110 (5.3) allows."""
    return {name: ", ".join(response.headers.getall(name)) for name in dict.fromkeys(response.headers)}


def _charset(response: aiohttp.ClientResponse) -> str:
    import codecs

    name = response.charset or "utf-8"
    try:
        codecs.lookup(name)
    except LookupError:
        return "utf-8"
    return name


MODULE = Module(
    name="uri",
    arguments=Arguments,
    effect="checks",
    inspect=inspect,
    plan=plan,
    apply=apply,
    proves_itself=False,
    summary="One HTTP request.",
)
