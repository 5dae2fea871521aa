"""Repositories that a build fetches by itself, and whether their hosts answer: told before an hour of compiling.

CMake's FetchContent clones while it configures; a checkout has submodules. Both are read from the source's own files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from crossgrade.errors import TaskError
from crossgrade.facts.indexes import shown_url
from crossgrade.modules.contract import HostView

_DECLARED = re.compile(
    r"^[ \t]*(?:FetchContent_Declare|ExternalProject_Add)\s*\(\s*(?P<name>[\w.+-]+)(?P<body>[^)]*)\)",
    re.MULTILINE | re.IGNORECASE,
)
_REPOSITORY = re.compile(r"GIT_REPOSITORY\s+\"?([^\s\")]+)\"?")
_TAG = re.compile(r"GIT_TAG\s+\"?([^\s\")]+)\"?")
_COMMENT = re.compile(r"#[^\n]*")
_SUBMODULE = re.compile(r"^\s*url\s*=\s*(\S+)\s*$", re.MULTILINE)
_COMMIT = re.compile(r"[0-9a-f]{40}")
ASK_SECONDS = 20.0


@dataclass(frozen=True)
class Fetched:
    """A repository that a build clones. `name` is CMake's, "" of a submodule; `tag` what is checked out there."""

    name: str
    url: str
    tag: str = ""

    @property
    def option(self) -> str:
        """The CMake variable that names a checkout to use instead."""
        return f"FETCHCONTENT_SOURCE_DIR_{self.name.upper()}"

    @property
    def is_exact(self) -> bool:
        return bool(_COMMIT.fullmatch(self.tag))


def declared_in(cmake: str) -> tuple[Fetched, ...]:
    """The repositories that the text of a CMakeLists.txt declares. Pure. What a variable names is not followed."""
    found = []
    for each in _DECLARED.finditer(_COMMENT.sub("", cmake)):
        url, tag = _REPOSITORY.search(each["body"]), _TAG.search(each["body"])
        if url and "$" not in url[1]:
            found.append(Fetched(each["name"], url[1], tag[1] if tag else ""))
    return tuple(found)


def submodules_in(gitmodules: str) -> tuple[Fetched, ...]:
    """The repositories in the text of a .gitmodules; those that are relative to the origin left out. Pure."""
    return tuple(Fetched("", url) for url in _SUBMODULE.findall(gitmodules) if not url.startswith("."))


def mirrored(url: str, mirrors: Mapping[str, str]) -> str:
    """The place that a URL is really read from, by git's rule: the longest beginning that fits."""
    start = max((start for start in mirrors if url.startswith(start)), key=len, default="")
    return mirrors[start] + url[len(start) :] if start else url


def host_of(url: str) -> str:
    """The host that a URL is read from; "" for a path of this machine."""
    from urllib.parse import urlsplit

    if "://" in url:
        parts = urlsplit(url)
        return "" if parts.scheme == "file" else parts.netloc.rpartition("@")[2]
    found = re.match(r"(?:[\w.-]+@)?([\w.-]+):", url)
    return found[1] if found else ""


def silent_hosts(repositories: Iterable[Fetched], mirrors: Mapping[str, str], host: HostView) -> dict[str, str]:
    """Host → what git said, of each that does not answer. One repository of each host is asked for, once per plan."""
    from crossgrade.modules.git_source import git_environment, last_words

    first: dict[str, str] = {}
    for each in repositories:
        place = mirrored(each.url, mirrors)
        if host_of(place):
            first.setdefault(host_of(place), place)
    found = {}
    for name, url in first.items():
        answer = host.run(
            ["git", "ls-remote", "--quiet", "--", url, "HEAD"],
            environment=git_environment(host.environment, {}),
            timeout=ASK_SECONDS,
        )
        if not answer.succeeded:
            found[name] = last_words(answer)
    return found


def require_answers(
    repositories: Sequence[Fetched], checkouts: Mapping[str, str], mirrors: Mapping[str, str], host: HostView
) -> None:
    """Raises TaskError when a repository is wanted that is not on this machine and whose host does not answer."""
    wanted = [each for each in repositories if each.name not in checkouts]
    silent = silent_hosts(wanted, mirrors, host)
    if not silent:
        return
    lost = [each for each in wanted if host_of(mirrored(each.url, mirrors)) in silent]
    said = "; ".join(f"{name}: {words}" for name, words in silent.items())
    named = [each.name for each in lost if each.name]
    remedy = "Let it through (HTTPS_PROXY), or name another place for the beginning of the URLs in `mirrors`"
    if named:
        remedy += (
            f"; or give checkouts on this machine: cmake_sources: {{{', '.join(f'{name}: PATH' for name in named)}}}"
        )
    shown = ", ".join(f"{shown_url(each.url)}{f' at {each.tag[:12]}' if each.tag else ''}" for each in lost)
    raise TaskError(f"the build needs repositories of hosts that do not answer ({said}): {shown}", remedy=f"{remedy}.")
