"""Lookups that ask what lies outside the playbook: the environment, programs, servers.

A plan starts no program and asks no server: what these would give is known only after the run. Where the playbook
says `harmless=true`, the lookup only reads, and is done in a plan, too; real Ansible ignores the word.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from crossgrade.playbook.argument_types import name_of_type, to_bool
from crossgrade.playbook.filter_error import FilterError
from crossgrade.playbook.limits import MAX_TEXT, too_large
from crossgrade.playbook.markers import DependsOnUnknown

SECONDS = 600.0  # that a program may take


def _wait_for_the_run(context: Any, options: Mapping[str, Any], what: str) -> None:
    if context.templar.foresees and not to_bool(options.get("harmless", False)):
        raise DependsOnUnknown(what)


def _env(context: Any, terms: list[Any], options: dict[str, Any]) -> list[Any]:
    for term in terms:
        if not isinstance(term, str):
            raise FilterError(f"the name of a variable is text, got {name_of_type(term)}")
    return [context.templar.environment.get(term, options.get("default", "")) for term in terms]


def _output(context: Any, command: Any, options: Mapping[str, Any], name: str) -> str:
    """What a command of the shell prints. It runs in the playbook's directory. Raises FilterError."""
    from crossgrade.process import run_process

    if not isinstance(command, str) or "\0" in command:
        raise FilterError(f"a command is text, got {name_of_type(command)}")
    _wait_for_the_run(context, options, f"what `{command}` prints (lookup `{name}`)")
    templar = context.templar
    ended = run_process(
        ["/bin/sh", "-c", command], env=templar.environment, cwd=templar.directory.absolute(), timeout=SECONDS
    )
    if not ended.succeeded:
        said = ended.stderr.strip().splitlines()
        raise FilterError(f"`{command}`: {ended.outcome()}" + (f": {said[-1]}" if said else ""))
    if len(ended.stdout) > MAX_TEXT:
        raise too_large("what the program prints")
    return ended.stdout


def _pipe(context: Any, terms: list[Any], options: dict[str, Any]) -> list[Any]:
    return [_output(context, term, options, "pipe").rstrip() for term in terms]


def lines(context: Any, terms: list[Any], options: dict[str, Any]) -> list[Any]:
    """The lines that programs print. Raises FilterError, DependsOnUnknown."""
    return [line.rstrip() for term in terms for line in _output(context, term, options, "lines").splitlines()]


def _url(context: Any, terms: list[Any], options: dict[str, Any]) -> list[Any]:
    found: list[Any] = []
    for term in terms:
        if not isinstance(term, str) or not term.lower().startswith(("http://", "https://")):
            raise FilterError(f"an address begins with http:// or https://, got {str(term)[:100]}")
        _wait_for_the_run(context, options, f"what {term} answers (lookup `url`)")
        text = _fetched(term, options)
        found += text.splitlines() if to_bool(options.get("split_lines", True)) else [text]
    return found


def _fetched(address: str, options: Mapping[str, Any]) -> str:
    import ssl
    from urllib import request

    headers = {"User-Agent": str(options.get("http_agent", "crossgrade"))}
    headers.update({str(name): str(value) for name, value in dict(options.get("headers", {})).items()})
    if to_bool(options.get("force", False)):
        headers["Cache-Control"] = "no-cache"
    if options.get("username"):
        pair = f"{options['username']}:{options.get('password', '')}"
        headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
    trust = ssl.create_default_context(cafile=options.get("ca_path"))
    if not to_bool(options.get("validate_certs", True)):
        trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
    proxies: dict[str, str] | None = None if to_bool(options.get("use_proxy", True)) else {}
    opener = request.build_opener(request.ProxyHandler(proxies), request.HTTPSHandler(context=trust))
    asked = request.Request(address, headers=headers)  # noqa: S310 - http and https only, as just checked
    with opener.open(asked, timeout=float(options.get("timeout", 10))) as answer:
        data = answer.read(MAX_TEXT + 1)
    if len(data) > MAX_TEXT:
        raise too_large("the answer")
    return str(data.decode("utf-8", "replace"))


LOOKUPS: dict[str, Any] = {"env": _env, "lines": lines, "pipe": _pipe, "url": _url}
