"""Whether the package indexes answer: one HEAD request each, through the proxy that the environment names."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from crossgrade.facts.system import proxies_of

PYPI = "https://pypi.org/simple/"
REQUEST_SECONDS = 5.0
_ATONCE = 8
# uv's own names, then pip's, which crossgrade hands over to uv: https://docs.astral.sh/uv/reference/environment/
_DEFAULTS = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL")
_MORE = ("UV_INDEX", "UV_EXTRA_INDEX_URL", "PIP_EXTRA_INDEX_URL")


@dataclass(frozen=True)
class IndexAnswer:
    """What an index said: the HTTP status, or in words why there is none. `url` has no password in it."""

    url: str
    status: int | None
    problem: str = ""
    seconds: float = 0.0


def index_urls(environment: Mapping[str, str], index_url: str = "", extra: Sequence[str] = ()) -> tuple[str, ...]:
    """The indexes that a resolution would ask: those given, else those of the environment, else PyPI. Pure."""
    default = index_url or next((environment[name] for name in _DEFAULTS if environment.get(name)), PYPI)
    named = [word for name in _MORE for word in environment.get(name, "").split()]
    # uv allows NAME=URL
    urls = [
        url.partition("=")[2] if "://" in url.partition("=")[2] and "=" in url.split("://")[0] else url
        for url in (default, *extra, *named)
    ]
    return tuple(dict.fromkeys(urls))


def ask_indexes(urls: Sequence[str], environment: Mapping[str, str]) -> tuple[IndexAnswer, ...]:
    """Ask all at once. A folder (`file://` or a path) is looked for on disk."""
    if not urls:
        return ()
    with ThreadPoolExecutor(max_workers=min(_ATONCE, len(urls))) as pool:
        return tuple(pool.map(lambda url: _ask(url, environment), urls))


def shown_url(url: str) -> str:
    """A URL without user and password."""
    from urllib.parse import urlsplit, urlunsplit

    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _ask(url: str, environment: Mapping[str, str]) -> IndexAnswer:
    from urllib.parse import unquote, urlsplit

    scheme = urlsplit(url).scheme
    if scheme in ("", "file"):
        place = Path(unquote(urlsplit(url).path))
        return IndexAnswer(url, 200 if place.is_dir() else None, "" if place.is_dir() else "there is no such folder")
    if scheme not in ("http", "https"):
        return IndexAnswer(shown_url(url), None, f"{scheme} is no scheme of an index")
    began = time.monotonic()
    status, problem = _head(url, environment)
    return IndexAnswer(shown_url(url), status, problem, time.monotonic() - began)


def _head(url: str, environment: Mapping[str, str]) -> tuple[int | None, str]:
    import base64
    import http.client
    import ssl
    import urllib.error
    import urllib.request
    from urllib.parse import unquote, urlsplit

    parts = urlsplit(url)
    proxies = _proxies(parts.hostname or "", environment)
    context = ssl.create_default_context(cafile=environment.get("SSL_CERT_FILE") or environment.get("PIP_CERT") or None)
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler(proxies), urllib.request.HTTPSHandler(context=context)
    )
    request = urllib.request.Request(shown_url(url), method="HEAD")  # noqa: S310 - http and https only, see above
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    if not user:
        user, password = _netrc(parts.hostname or "", environment)
    if user:  # not for where a redirect leads
        pair = base64.b64encode(f"{user}:{password}".encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {pair}")
    through = f" (through the proxy {proxies_of(environment).get(f'{parts.scheme}_proxy', '')})" if proxies else ""
    try:
        with opener.open(request, timeout=REQUEST_SECONDS) as answer:
            return int(answer.status), ""
    except urllib.error.HTTPError as error:
        return error.code, ""
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        return None, f"{reason}{through}"


def _netrc(host: str, environment: Mapping[str, str]) -> tuple[str, str]:
    """User and password of the netrc file that uv would read, empty where there are none for this host."""
    import netrc

    path = environment.get("NETRC") or str(Path(environment.get("HOME") or "/") / ".netrc")
    try:
        found = netrc.netrc(path).authenticators(host)
    except (OSError, netrc.NetrcParseError):
        return "", ""
    return (found[0], found[2] or "") if found else ("", "")


def _proxies(host: str, environment: Mapping[str, str]) -> dict[str, str]:
    """The proxies for a host by scheme, by the rules of http_proxy, https_proxy, all_proxy and no_proxy."""
    import urllib.request

    lower = {name.lower(): value for name, value in environment.items() if name.lower().endswith("_proxy") and value}
    excluded = {"no": lower.get("no_proxy", "")}
    if urllib.request.proxy_bypass_environment(host, excluded):  # type: ignore[attr-defined]  # there since 2.7
        return {}
    both = {scheme: lower.get(f"{scheme}_proxy") or lower.get("all_proxy", "") for scheme in ("http", "https")}
    return {scheme: proxy for scheme, proxy in both.items() if proxy}
