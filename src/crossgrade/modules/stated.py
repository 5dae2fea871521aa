"""From requirements as a user states them to the request that is resolved.

Requirement strings, addresses and paths of wheels, git repositories and requirements files end up in one form, in which
a plan can keep them: what lies on this machine by its hash, no password anywhere (`docs/resolving.md`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from crossgrade.errors import CrossgradeError, Place, TaskError
from crossgrade.modules.contract import HostView, LockRequest
from crossgrade.modules.dists import parse_requirement
from crossgrade.modules.files import absolute
from crossgrade.modules.requirement_files import Line, parse_requirements
from crossgrade.modules.wheels import name_and_version, sha256_of

if TYPE_CHECKING:
    from packaging.requirements import Requirement

_USER = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<user>[^/@\s]+)@", re.IGNORECASE)
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_QUERY = re.compile(r"[?&][\w-]*(?:token|key|signature|secret|password)=", re.IGNORECASE)
_WHEEL_PATH = re.compile(r"^(?P<path>[^@;]*?\.whl)(?P<extras>\[[^\]]*\])?\s*(?P<marker>;.*)?$")
_PATH_LIKE = ("./", "../", "/", "~")
_MOST_FILES = 32


@dataclass
class Stating:
    """Gathers a request; `secrets` are credentials, by the index or by the variable that stands for them."""

    host: HostView
    secrets: dict[str, str] = field(default_factory=dict)
    hashes: dict[str, tuple[str, ...]] = field(default_factory=dict)

    # ---- single requirements

    def requirement(self, text: str, directory: Path | None = None, place: Place | None = None) -> str:
        """One requirement in the form of PEP 508. A relative path counts from `directory`, else from the playbook.

        Raises TaskError for what is none, or could not be kept in a plan.
        """
        try:
            return self._requirement(text.strip(), directory)
        except CrossgradeError as error:
            raise TaskError(error.message, remedy=error.remedy, place=place or error.place) from error

    def _requirement(self, text: str, directory: Path | None) -> str:
        wheel = _WHEEL_PATH.match(text)
        if wheel and "://" not in text:
            return self._wheel(absolute((directory or Path()) / wheel["path"].strip(), self.host), wheel)
        if text.startswith(_PATH_LIKE):
            raise TaskError(
                f"{text} is no wheel",
                remedy="Let extension_build make a wheel of a source tree and name it in `wheels`.",
            )
        if text.startswith("-"):
            raise TaskError(
                f"{text.split()[0]} is not a requirement: it is an option",
                remedy="Use the argument for it (`index_url`, `constraints`, `requirements_files` …).",
            )
        hidden = self.without_credentials(text)
        parsed = parse_requirement(hidden)
        return self._direct(parsed) if parsed.url else hidden

    def _wheel(self, path: Path, found: re.Match[str]) -> str:
        name = name_and_version(path)[0]
        if not path.is_file():
            raise TaskError(f"there is no wheel at {path}", remedy="A relative path counts from the playbook's folder.")
        extras = found["extras"] or ""
        return f"{name}{extras} @ {path.as_uri()}#sha256={sha256_of(path)}" + _marker(
            (found["marker"] or "").lstrip(";")
        )

    def _direct(self, parsed: Requirement) -> str:
        url = str(parsed.url)
        scheme = url.partition(":")[0].lower()
        extras = f"[{','.join(sorted(parsed.extras))}]" if parsed.extras else ""
        if scheme == "file":
            return self._local(parsed, extras)
        if scheme.startswith("git+"):
            if "${" in url:
                raise TaskError(
                    f"the address of {parsed.name} holds credentials, which git would write into its configuration",
                    remedy="Use ssh, or a git credential helper, and leave them out.",
                )
        elif scheme not in ("http", "https"):
            raise TaskError(
                f"{parsed.name} @ {scheme}: addresses of this kind cannot be pinned",
                remedy="Take a wheel (https:, file:) or a git repository (git+https:, git+ssh:, git+file:).",
            )
        if _QUERY.search(url):
            raise TaskError(
                f"the address of {parsed.name} holds a secret in its query, which the environment would keep on record",
                remedy="Download the wheel and give its path.",
            )
        return f"{parsed.name}{extras} @ {url}" + _marker(str(parsed.marker or ""))

    def _local(self, parsed: Requirement, extras: str) -> str:
        from urllib.parse import unquote, urlsplit

        split = urlsplit(str(parsed.url))
        path = Path(unquote(split.path))
        if not path.is_file():
            what = "is a source tree" if path.is_dir() else "is not there"
            raise TaskError(
                f"{path} {what}",
                remedy="Let extension_build make a wheel of a source tree and name it in `wheels`.",
            )
        digest = f"sha256={sha256_of(path)}"
        if split.fragment.startswith("sha256=") and split.fragment != digest:
            raise TaskError(f"{path} has another sha256 than the requirement asks for: {digest}")
        return f"{parsed.name}{extras} @ {path.as_uri()}#{digest}" + _marker(str(parsed.marker or ""))

    # ---- addresses

    def index(self, url: str) -> str:
        """The address of an index without its credentials, which are kept apart."""
        found = _USER.search(url)
        if found is None:
            return self._harmless(url)
        clean = url[: found.start("user")] + url[found.end("user") + 1 :]
        self.secrets[clean] = _expanded(found["user"], self.host.environment)
        return self._harmless(clean)

    def links(self, place: str) -> str:
        if _USER.search(place):
            shown = _USER.sub(r"\g<scheme>://****@", place)
            raise TaskError(
                f"a page of find_links holds credentials: {shown}",
                remedy="Put them into ~/.netrc, which uv reads, or give an index.",
            )
        return self._harmless(place)

    def _harmless(self, url: str) -> str:
        if _QUERY.search(url):
            raise TaskError(
                f"an address holds a secret in its query: {url.partition('?')[0]}",
                remedy="Give it as user and password (https://USER:${TOKEN}@HOST/…), or in ~/.netrc.",
            )
        return url

    def without_credentials(self, text: str) -> str:
        """The same with a variable in the place of user and password; a person's own variables stay."""
        found = _USER.search(text)
        if found is None or found["scheme"].lower().endswith("ssh") or _only_variables(found["user"]):
            return text
        name = f"CROSSGRADE_CREDENTIAL_{1 + sum(key.startswith('CROSSGRADE_CREDENTIAL_') for key in self.secrets)}"
        self.secrets[name] = _expanded(found["user"], self.host.environment)
        return f"{text[: found.start('user')]}${{{name}}}{text[found.end('user') :]}"

    # ---- files

    def read(self, file: str, request: LockRequest) -> LockRequest:
        """The request with what a requirements file adds. Raises TaskError with file and line."""
        return self._read(absolute(file, self.host), request, "requirement", [])

    def _read(self, path: Path, request: LockRequest, kind: str, reading: list[Path]) -> LockRequest:
        if path in reading or len(reading) >= _MOST_FILES:
            raise TaskError(f"{path} includes itself", remedy="Take one of the -r or -c lines out.")
        if path.suffix in (".toml", ".lock"):
            raise TaskError(
                f"{path} is no requirements file",
                remedy="For a uv.lock: `uv export --format requirements-txt -o requirements.txt`. Instead of a "
                "pylock.toml, let the tool that wrote it write a requirements file with hashes.",
            )
        try:
            lines = tuple(parse_requirements(path.read_text(encoding="utf-8"), str(path)))
        except (OSError, UnicodeDecodeError) as error:
            raise TaskError(f"cannot read the requirements file {path}: {error}") from error
        for line in lines:
            request = self._take(line, path, request, kind, [*reading, path])
        return request

    def _take(self, line: Line, path: Path, request: LockRequest, kind: str, reading: list[Path]) -> LockRequest:
        if line.kind in ("file", "constraints"):
            below = "constraint" if line.kind == "constraints" else kind
            return self._read(path.parent / line.value, request, below, reading)
        if line.kind == "index":
            return replace(request, index_url=self.index(line.value))
        if line.kind == "extra index":
            return replace(request, extra_index_urls=(*request.extra_index_urls, self.index(line.value)))
        if line.kind == "find links":
            place = line.value if "://" in line.value else str(path.parent / line.value)
            return replace(request, find_links=(*request.find_links, self.links(place)))
        if line.kind == "prereleases":
            return replace(request, prerelease="allow")
        if line.kind == "hashes":
            return request
        text = self.requirement(line.value, path.parent, line.place)
        if line.hashes:
            from packaging.utils import canonicalize_name

            name = canonicalize_name(parse_requirement(text).name)
            self.hashes[name] = (*self.hashes.get(name, ()), *line.hashes)
        if kind == "constraint":
            return replace(request, constraints=(*request.constraints, text))
        return replace(request, requirements=(*request.requirements, text))


def _marker(text: str) -> str:
    return f" ; {text.strip()}" if text.strip() else ""


def _only_variables(user: str) -> bool:
    return not _VARIABLE.sub("", user).strip(":") or bool(re.fullmatch(r"[^:]*:\$\{\w+\}", user))


def _expanded(text: str, environment: Mapping[str, str]) -> str:
    """The text with its `${NAME}`s filled in. Raises TaskError for a variable that is not set."""
    missing = next((found[1] for found in _VARIABLE.finditer(text) if found[1] not in environment), None)
    if missing is not None:
        raise TaskError(
            f"the variable {missing}, which an address names, is not set",
            remedy="Set it in the task's `environment`, or where crossgrade is started.",
        )
    return _VARIABLE.sub(lambda found: environment[found[1]], text)


def state_request(
    host: HostView,
    python: str,
    requirements: Sequence[str],
    files: Sequence[str],
    constraints: Sequence[str],
    overrides: Sequence[str],
    indexes: LockRequest,
) -> LockRequest:
    """The request for all of these; `indexes` brings indexes, prereleases and the time limit. Raises TaskError."""
    stating = Stating(host)
    request = LockRequest(
        tuple(stating.requirement(text) for text in requirements),
        python,
        tuple(stating.requirement(text) for text in constraints),
        tuple(stating.requirement(text) for text in overrides),
        stating.index(indexes.index_url) if indexes.index_url else "",
        tuple(map(stating.index, indexes.extra_index_urls)),
        tuple(map(stating.links, indexes.find_links)),
        indexes.prerelease,
        indexes.exclude_newer,
    )
    for file in files:
        request = stating.read(file, request)
    return replace(request, hashes=tuple(sorted(stating.hashes.items())), credentials=tuple(stating.secrets.items()))
