"""uv: finding the program, resolving requirements to a lock with hashes, installing locks.

pip's own index settings (PIP_INDEX_URL and its kin) mean nothing to uv; a server that reaches PyPI through a
mirror would lose it. They are handed to uv under uv's names wherever uv was not told otherwise.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from crossgrade.errors import TaskError
from crossgrade.modules.contract import Lock, LockRequest
from crossgrade.modules.locks import lock_of, with_hashes

if TYPE_CHECKING:
    from crossgrade.process import Completed

RESOLVE_SECONDS = 600.0
ATTEMPTS = 3
# Seconds that a server may keep silent. uv's default of 30 is short for wheels of a gigabyte behind a busy mirror.
PATIENCE = "120"
# What uv says when the network or the index failed, not the request: worth another try.
_TRANSIENT = re.compile(
    r"Request failed after|Failed to fetch|error sending request|operation timed out|timed out|dns error"
    r"|Connection (?:refused|reset)|connection closed|HTTP status server error|error decoding response body"
    r"|50[0234] |429 Too Many",
    re.IGNORECASE,
)
# A mistake in the request looks like a failed fetch too, but no waiting helps.
_PERMANENT = re.compile(r"No solution found|HTTP status client error \((?:401|403|404)|certificate", re.IGNORECASE)
# `error:` and `cause:`, and the crosses and arrows that older versions draw (U+00D7, U+2500 to U+25FF)
_MARKS = re.compile(r"^\s*(?:error:|cause:|[\u00d7\u2500-\u25ff>]+)\s*")


class UnreachableError(TaskError):
    """The network or the index failed, not the request: the same may go well a moment later."""


class Run(Protocol):
    """Runs a program that only reads, as `HostView.run` does."""

    def __call__(
        self, argv: Sequence[str], *, environment: Mapping[str, str] | None = None, timeout: float = 60.0
    ) -> Completed: ...


def uv_program() -> str:
    """The path of the uv that came with crossgrade. Raises TaskError when it is missing."""
    from uv import find_uv_bin

    try:
        return os.fspath(find_uv_bin())
    except FileNotFoundError as error:
        raise TaskError(
            f"uv is not where its package should have put it: {error}", remedy="Install it: pip install uv"
        ) from error


# ---- the index settings of pip


# Debian and Ubuntu, then Fedora and its relatives
SYSTEM_CERTIFICATES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt")
_CERTIFICATE_VARIABLES = ("SSL_CERT_DIR", "UV_NATIVE_TLS", "UV_SYSTEM_CERTS")


def index_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """What to add to the environment so that uv uses the indexes that pip is told to use.

    uv's own variables win. Folders of PIP_FIND_LINKS that do not exist are left out, as pip ignores them.
    """
    added: dict[str, str] = {}

    def hand_over(name: str, value: str, *uv_names: str) -> None:
        if value and not any(environment.get(uv_name) for uv_name in (name, *uv_names)):
            added[name] = value

    hand_over("UV_DEFAULT_INDEX", environment.get("PIP_INDEX_URL", ""), "UV_INDEX_URL")
    hand_over("UV_INDEX", environment.get("PIP_EXTRA_INDEX_URL", ""), "UV_EXTRA_INDEX_URL")
    places = [place for place in environment.get("PIP_FIND_LINKS", "").split() if _is_place(place)]
    hand_over("UV_FIND_LINKS", ",".join(places))
    hand_over("UV_INSECURE_HOST", environment.get("PIP_TRUSTED_HOST", ""))
    hand_over("SSL_CERT_FILE", environment.get("PIP_CERT", "") or _system_certificates(), *_CERTIFICATE_VARIABLES)
    return added


def _system_certificates() -> str:
    """The machine's own list of certificate authorities, "" when it has none.

    pip trusts it (from 24.2 on by default), uv its built-in list: behind a proxy with an authority of the
    house, pip would work and uv would not.
    """
    return next((place for place in SYSTEM_CERTIFICATES if Path(place).is_file()), "")


def _is_place(place: str) -> bool:
    return "://" in place or Path(place).expanduser().exists()


def index_options(request: LockRequest) -> list[str]:
    """The options that say where dists come from; the same for resolving and installing.

    An index that wants credentials gets a name, under which `uv_environment` hands them over.
    """
    secret = dict(request.credentials)
    options: list[str] = []
    if request.index_url:
        options += ["--default-index", _named(request.index_url, 0, secret)]
    for number, url in enumerate(request.extra_index_urls, 1):
        options += ["--index", _named(url, number, secret)]
    for place in request.find_links:
        options += ["--find-links", place]
    return options


def _named(url: str, number: int, secret: Mapping[str, str]) -> str:
    return f"crossgrade{number}={url}" if url in secret else url


def uv_environment(environment: Mapping[str, str], request: LockRequest) -> dict[str, str]:
    """What to add to the environment for uv: pip's index settings, and the credentials of a request.

    Credentials never go to the argument list, which every user of the machine can read.
    """
    added = index_environment(environment)
    if not any(environment.get(name) for name in ("UV_HTTP_TIMEOUT", "UV_REQUEST_TIMEOUT", "HTTP_TIMEOUT")):
        added["UV_HTTP_TIMEOUT"] = environment.get("PIP_DEFAULT_TIMEOUT") or PATIENCE
    secret = dict(request.credentials)
    for number, url in enumerate((request.index_url, *request.extra_index_urls)):
        if url in secret:
            user, _, password = secret.pop(url).partition(":")
            added[f"UV_INDEX_CROSSGRADE{number}_USERNAME"] = user
            added[f"UV_INDEX_CROSSGRADE{number}_PASSWORD"] = password
    return {**added, **secret}  # what is left stands for itself in requirements, as `${NAME}`


# ---- resolving


def resolve_argv(request: LockRequest, folder: Path) -> list[str]:
    """The command that resolves a request; `folder` holds the files that `write_request` wrote."""
    argv = [uv_program(), "pip", "compile", str(folder / "requirements.in"), "--python", request.python]
    argv += ["--generate-hashes", "--no-header", "--emit-index-annotation"]
    argv += ["--annotation-style", "split", "--prerelease", request.prerelease]
    if request.constraints:
        argv += ["--constraints", str(folder / "constraints.txt")]
    if request.overrides:
        argv += ["--overrides", str(folder / "overrides.txt")]
    if request.exclude_newer:
        argv += ["--exclude-newer", request.exclude_newer]
    return argv + index_options(request)


def _write_request(request: LockRequest, folder: Path) -> None:
    for name, lines in (
        ("requirements.in", request.requirements),
        ("constraints.txt", request.constraints),
        ("overrides.txt", request.overrides),
    ):
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def resolve_lock(request: LockRequest, run: Run, environment: Mapping[str, str] = os.environ) -> Lock:
    """Resolve a request to exact versions with hashes. Reads only; uses the network.

    `environment` is the one that `run` gives to uv: it is looked at for pip's index settings. Failures of the
    network are tried again, with growing pauses. Raises TaskError with uv's explanation.
    """
    if not request.requirements:
        return lock_of("")
    with tempfile.TemporaryDirectory(prefix="crossgrade-resolve-") as name:
        folder = Path(name)
        _write_request(request, folder)
        added = uv_environment(environment, request)
        argv = resolve_argv(request, folder)
        completed = persistently(lambda: run(argv, environment=added, timeout=RESOLVE_SECONDS))
    if not completed.succeeded:
        raise resolution_error(request, completed)
    text = with_hashes(completed.stdout.replace(f"{folder}/", ""), dict(request.hashes))
    return lock_of(text, remarks_of(completed.stderr))


def remarks_of(stderr: str) -> list[str]:
    """What uv warned about, each in one line."""
    return [line.removeprefix("warning:").strip() for line in stderr.splitlines() if line.startswith("warning:")]


def persistently(attempt: Callable[[], Completed], announce: Callable[[str], None] | None = None) -> Completed:
    """Run uv again while it fails by the network, with growing pauses; its cache keeps what was downloaded whole.

    `announce` is told before each further attempt. Returns what the last one said.
    """
    from tenacity import RetryCallState, Retrying, retry_if_result, stop_after_attempt, wait_exponential_jitter

    def tell(state: RetryCallState) -> None:
        if announce is not None:
            pause = state.next_action.sleep if state.next_action else 0.0
            announce(f"the network failed, attempt {state.attempt_number + 1} of {ATTEMPTS} in {pause:.0f} s")

    retrying = Retrying(
        stop=stop_after_attempt(ATTEMPTS),
        wait=wait_exponential_jitter(initial=1, max=15),
        retry=retry_if_result(is_transient),
        before_sleep=tell,
        retry_error_callback=lambda state: state.outcome.result() if state.outcome else None,
    )
    completed: Completed = retrying(attempt)
    return completed


def is_transient(completed: Completed) -> bool:
    """Whether uv failed by the network or the index in a way that may have passed a moment later."""
    said = completed.stderr
    return not completed.succeeded and not _PERMANENT.search(said) and bool(_TRANSIENT.search(said))


def resolution_error(request: LockRequest, completed: Completed) -> TaskError:
    explanation = explain(completed.stderr) or completed.outcome()
    if "No solution found" in completed.stderr:
        return TaskError(
            f"the requirements have no solution: {explanation}",
            remedy="Loosen one of the requirements or constraints that it names.",
        )
    if is_transient(completed):
        return UnreachableError(
            f"the package index could not be reached ({ATTEMPTS} attempts): {explanation}",
            remedy="Check the network, the proxy (HTTPS_PROXY) and the index (UV_DEFAULT_INDEX or PIP_INDEX_URL).",
        )
    return TaskError(f"uv could not resolve {', '.join(request.requirements)}: {explanation}")


def explain(stderr: str) -> str:
    """uv's error report as running text: its marks taken off, its causes in order."""
    lines = [_MARKS.sub("", line).strip() for line in stderr.splitlines()]
    kept = [line for line in lines if line and not line.startswith("warning:")]
    return ". ".join(line.rstrip(".:") for line in kept)


# ---- installing

# `copy` on purpose. uv's default, `clone`, falls back to hard links where the filesystem cannot share blocks
# (measured with uv 0.13 on ext4), and then the venv and uv's cache are the same files: an edit in one, or a
# `uv cache clean` and refill, would reach into a generation that is meant never to change. Where the
# filesystem can share blocks (XFS, Btrfs), the kernel's copy does that by itself.
LinkMode = Literal["copy", "symlink"]


def install_lock(
    python: str,
    lock_file: Path,
    request: LockRequest,
    *,
    target: Path | None = None,
    compile_bytecode: bool = True,
    link_mode: LinkMode = "copy",
) -> list[str]:
    """The command that installs a lock file into the environment of `python`, or into the folder `target`.

    Every file is checked against its hash and nothing is added to what the lock names. The bytecode is
    compiled at once, so that no import writes into the environment later.
    """
    argv = [uv_program(), "pip", "install", "--python", python, "--require-hashes", "--no-deps"]
    argv += ["--link-mode", link_mode]
    if compile_bytecode:
        argv.append("--compile-bytecode")
    if target is not None:
        argv += ["--target", str(target)]
    return [*argv, *index_options(request), "--requirements", str(lock_file)]


def install_wheels(
    python: str,
    wheels: Sequence[Path],
    *,
    reinstall: bool = False,
    compile_bytecode: bool = True,
    link_mode: LinkMode = "copy",
) -> list[str]:
    """The command that installs wheel files and nothing else; check their digests before.

    `reinstall` is for an environment that may hold other files under the same version.
    """
    options = ["--no-deps", "--no-index", "--offline", "--link-mode", link_mode]
    options += ["--compile-bytecode"] if compile_bytecode else []
    options += ["--reinstall"] if reinstall else []
    return [uv_program(), "pip", "install", "--python", python, *options, *map(str, wheels)]


def make_venv(python: str, path: Path, prompt: str, *, existing: bool = False) -> list[str]:
    """The command that makes a venv; with `existing` in a folder that is there already."""
    argv = [uv_program(), "venv", "--python", python, "--prompt", prompt, "--no-project"]
    return [*argv, *(["--allow-existing"] if existing else []), str(path)]
