"""Risks of what is fetched: versions that are not pinned, downloads without a checksum, connections without TLS."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from crossgrade.risks.book import Book, Finding, LintTask, Rule, texts
from crossgrade.risks.programs import line_of

REQUIREMENT = Rule(
    "unpinned-version",
    "A later plan, or another server, resolves to other versions than those that the gates have judged.",
    "Write `name==version` for what decides the stack (torch, sglang, FlashInfer and their like), an upper bound for "
    "the rest, or give `exclude_newer`.",
)
GIT = Rule(
    "unpinned-git",
    "A branch moves: the next plan builds another source under the same name.",
    "Name a tag or, better, a commit.",
)
CHECKSUM = Rule(
    "no-checksum",
    "Nothing says whether what arrives is what you have tried.",
    "Give its checksum (`checksum`, `sha256`, or `#sha256=…` in an address).",
)
HTTP = Rule(
    "plain-http",
    "Whoever is on the way can give you other code, and it runs as the user of the server.",
    "Use https, or a checksum.",
)
TLS = Rule(
    "tls-off",
    "Without a check of the certificate, TLS protects against nobody.",
    "Give the authority's certificate (`ca_path`, SSL_CERT_FILE) instead.",
)

# What decides whether a server starts and how fast it is: for these a range is not enough.
EXACT = re.compile(
    r"(?:torch|torchvision|torchaudio|triton|sglang|sgl-kernel|sglang-kernel|vllm|flashinfer-(?:python|cubin|jit-cache)|"
    r"flash-attn|xformers|deep-gemm|nvidia-.+|cuda-.+|tensorrt.*|transformers)",
    re.IGNORECASE,
)
_NAME = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^\]]*\])?\s*(.*)", re.DOTALL)
_BRANCHES = ("", "HEAD", "main", "master", "develop", "dev", "trunk", "latest", "nightly")
_HTTP = re.compile(r"\bhttp://(?!localhost\b|127\.|\[::1\]|\{\{)", re.IGNORECASE)
_CODE_FROM = (
    "index_url",
    "extra_index_urls",
    "find_links",
    "requirements",
    "git",
    "sdist",
    "runfile",
    "mirrors",
    "repo",
)
_TLS_OFF = re.compile(r"--trusted-host\b|--insecure\b|--no-check-certificate\b|\bcurl\b.*\s-\w*k\w*\b")
_TLS_VARIABLES = {"GIT_SSL_NO_VERIFY": "1", "PYTHONHTTPSVERIFY": "0", "NODE_TLS_REJECT_UNAUTHORIZED": "0"}


def check(book: Book) -> Iterator[Finding]:
    for task in book.tasks:
        yield from _requirements(task)
        yield from _sources(task)
        yield from _connections(task)


def _requirements(task: LintTask) -> Iterator[Finding]:
    names = {"python_env": ("requirements",), "pip": ("name",)}.get(task.module, ())
    for argument in names:
        value = task.argument(argument)
        listed = value if isinstance(value, list) else str(value).split(",") if isinstance(value, str) else []
        for at, text in enumerate(listed):
            keys = ("arguments", argument, at) if isinstance(value, list) else ("arguments", argument)
            yield from _requirement(task, str(text), keys)


def _requirement(task: LintTask, text: str, keys: tuple[Any, ...]) -> Iterator[Finding]:
    if "{{" in text or text.lstrip().startswith(("-", "#", "/", ".")):
        return
    if "git+" in text:
        if _git_revision(text) in _BRANCHES:
            yield task.finding(GIT, f"{text}: no tag and no commit", *keys)
        return
    if "://" in text:
        if "#sha256=" not in text and "--hash" not in text:
            yield task.finding(CHECKSUM, f"{text}: no checksum", *keys)
        return
    match = _NAME.fullmatch(text.partition(";")[0])
    if match is None or task.argument("exclude_newer", "version") is not None:
        return
    name, versions = match[1].replace("_", "-"), match[2]
    exact = "==" in versions and versions.strip() != "==*"
    bounded = exact or "<" in versions or "~=" in versions
    if EXACT.fullmatch(name) and not exact:
        yield task.finding(REQUIREMENT, f"{name} without `==`", *keys)
    elif not bounded:
        yield task.finding(REQUIREMENT, f"{name} without an upper bound", *keys)


def _git_revision(text: str) -> str:
    address = text.partition("git+")[2].partition("#")[0]
    path = address.partition("://")[2].partition("/")[2]
    return path.rpartition("@")[2] if "@" in path else ""


def _sources(task: LintTask) -> Iterator[Finding]:
    repository = task.argument("git", "repo") if task.module != "apt_repository" else None
    if isinstance(repository, str) and (task.module == "git" or task.module.endswith("_build")):
        revision = task.argument("revision", "version")
        if revision is None or str(revision) in _BRANCHES:
            said = f"`{revision}` is a branch" if revision else "no revision"
            yield task.finding(GIT, f"{repository}: {said}")
    for argument, checksums in (("sdist", ("sha256",)), ("runfile", ("sha256",)), ("url", ("checksum",))):
        address = task.argument(argument)
        downloads = argument != "url" or task.module == "get_url"
        if downloads and isinstance(address, str) and "://" in address and task.argument(*checksums) is None:
            yield task.finding(CHECKSUM, f"{address}: no checksum", "arguments", argument)
    source = task.argument("src")
    if task.module == "unarchive" and isinstance(source, str) and "://" in source:
        yield task.finding(CHECKSUM, f"{source}: no checksum", "arguments", "src")


def _connections(task: LintTask) -> Iterator[Finding]:
    given = [*_CODE_FROM, *(["url"] if task.module == "get_url" else [])]
    for argument in given:
        value = task.argument(argument)
        safe = task.argument("checksum", "sha256") is not None
        if not safe and any(_HTTP.search(text) and "#sha256=" not in text for text in texts(value)):
            yield task.finding(HTTP, f"`{argument}` without TLS", "arguments", argument)
    if task.argument("validate_certs") is False or str(task.argument("validate_certs")).lower() in ("no", "false"):
        yield task.finding(TLS, "certificates are not checked", "arguments", "validate_certs")
    if task.module in ("command", "shell", "pip") and any(
        _TLS_OFF.search(text) for text in (line_of(task), str(task.argument("extra_args") or ""))
    ):
        yield task.finding(TLS, "certificates are not checked")
    for mapping in (*task.task.environment, task.argument("environment")):
        for name, value in mapping.items() if isinstance(mapping, dict) else ():
            if str(name) in _TLS_VARIABLES and str(value).lower() in (_TLS_VARIABLES[str(name)], "true", "false"):
                yield task.finding(TLS, f"{name} turns the check of certificates off")
