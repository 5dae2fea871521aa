"""A failed task with what is known about its failure: its own words, what its programs printed, and their logs.

This is the one place where a run asks `crossgrade.failures`, so that every module gets it. What `no_log` hides never
leaves the result: `TaskResult.hidden` takes output and explanations out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from crossgrade.engine.results import TaskResult

MOST = 3  # explanations of one task
_OUTPUTS = ("stdout", "stderr", "module_stderr")  # values of a result that hold what a program printed


def explained(result: TaskResult) -> TaskResult:
    """The result with `explanations`, when it failed and a known failure is in it; no line numbers, as the words come
    from several places."""
    if not result.failed:
        return result
    from crossgrade.failures.explaining import explain
    from crossgrade.failures.reading import read_output
    from crossgrade.inspect.machine import driver_version

    driver = driver_version()
    context = {"driver": driver} if driver else {}
    said = [each.to_json() for each in explain("\n".join(_said(result)), context)]
    printed = [each.to_json() for each in explain(result.output, context)] if result.output else []
    for log in _logs(result.verdict or {}):
        with suppress(OSError, ValueError):  # its last words are in the verdict
            printed += [each.to_json() for each in explain(read_output(Path(log)), context)]
    kinds = {each["kind"] for each in printed}
    # The whole output knows the order of things; but words that it does not account for come from elsewhere, first.
    ordered = said + printed if said and said[0]["kind"] not in kinds else printed + said
    chosen: dict[Any, Mapping[str, Any]] = {}
    for each in ordered:
        chosen.setdefault(each["kind"], {**each, "evidence": _without_lines(each["evidence"])})
    return replace(result, explanations=tuple(chosen.values())[:MOST])


def sentence(explanation: Mapping[str, Any]) -> str:
    """One explanation in one line, for endings and plans."""
    see = f"; see {explanation['links'][0]}" if explanation["links"] else ""
    return f"known failure: {explanation['kind']}: {explanation['cause']} remedy: {explanation['remedy']}{see}"


def _without_lines(evidence: Any) -> list[dict[str, Any]]:
    return [{"line": None, "text": each["text"]} for each in evidence]


def _said(result: TaskResult) -> Iterator[str]:
    yield result.message
    for name in _OUTPUTS:
        value = result.values.get(name)
        if isinstance(value, str):
            yield value
    if result.verdict:
        yield str(result.verdict.get("reason", ""))
        for finding in result.verdict.get("findings", ()):
            if finding["level"] == "failure":
                yield str(finding["message"])
                yield from _texts(finding["evidence"])


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _texts(each)


def _logs(verdict: Mapping[str, Any]) -> Iterator[str]:
    for finding in verdict.get("findings", ()):
        log = finding["evidence"].get("log") if finding["level"] == "failure" else None
        if isinstance(log, str) and log.startswith("/"):
            yield log
