"""What a refusal of the loader means to a server: whether anything that it imports leads to the file.

In a stack that serves, dozens of files never load and never need to. A file that the server is certain to load and that
does not load is a failure; what it loads on a condition is a warning; the rest is listed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from crossgrade.gates.verdict import Finding, Level, Verdict, counted
from crossgrade.inspect.native import NativeReport
from crossgrade.inspect.reach import ORDER, Reach
from crossgrade.jsontype import JSON

_LEVELS: Mapping[str, Level] = {
    "always": "failure",
    "perhaps": "warning",
    "later": "warning",
    "tolerated": "note",
    "variant": "note",
    "plugin": "note",
    "never": "note",
}
_SHOWN = 4  # modules of a chain


def refused(verdict: Verdict) -> tuple[str, ...]:
    """The files that the failures of a verdict are about, and those that break with them. Pure."""
    found: dict[str, None] = {}
    for finding in verdict.of_level("failure"):
        found.update(dict.fromkeys([finding.subject, *broken_by(finding)]))
    return tuple(found)


def sorted_by_reach(verdict: Verdict, report: NativeReport, reaches: Mapping[str, Reach]) -> Verdict:
    """The verdict, with each failure as serious as the way in which the server reaches the file. Pure."""
    if not reaches:
        return verdict
    findings = tuple(by_reach(finding, reaches) for finding in verdict.findings)
    aside = set_aside(verdict, findings)
    passed = (
        f"{counted(len(report.files), 'native file')}: everything loads that the server is certain to load; "
        f"{counted(aside, 'finding')} about files that it does not need"
    )
    return judged_again(verdict, findings, {"not_reached": aside}, passed)


def set_aside(verdict: Verdict, findings: Sequence[Finding]) -> int:
    """How many of the failures of a verdict are none among these findings. Pure."""
    return len(verdict.of_level("failure")) - sum(finding.level == "failure" for finding in findings)


def judged_again(verdict: Verdict, findings: tuple[Finding, ...], figures: Mapping[str, JSON], passed: str) -> Verdict:
    """A verdict on files whose findings have been weighed: `passed` is the reason where no failure is left. Pure."""
    failures = [finding for finding in findings if finding.level == "failure"]
    weighed = replace(verdict, findings=findings, figures={**verdict.figures, **figures, "failures": len(failures)})
    if failures:
        more = {finding.subject for finding in failures} - {failures[0].subject}
        reason = f"{failures[0].subject} {failures[0].message}"
        reason += f" (and {counted(len(more), 'more file')} with failures)" if more else ""
        return replace(weighed, outcome="failed", reason=reason)
    return replace(weighed, outcome="passed", reason=passed) if verdict.outcome == "failed" else weighed


def by_reach(finding: Finding, reaches: Mapping[str, Reach]) -> Finding:
    """One failure as it is to the server; the finding itself where nothing is known of its file. Pure."""
    if finding.level != "failure":
        return finding
    known = [(path, reaches[path]) for path in (finding.subject, *broken_by(finding)) if path in reaches]
    if not known:
        return finding
    path, reach = min(known, key=lambda each: ORDER.index(each[1].when))
    through = "" if path == finding.subject else f" (through {path})"
    evidence: dict[str, JSON] = {**finding.evidence, "reached": reach.when, "chain": list(reach.chain)}
    message = f"{finding.message}; {_said(reach)}{through}"
    return Finding(_LEVELS[reach.when], finding.subject, message, evidence)


def without_code(verdict: Verdict) -> tuple[str, ...]:
    """The files that the warnings and failures of the architecture verdict are about. Pure."""
    found: dict[str, None] = {}
    for finding in (*verdict.of_level("failure"), *verdict.of_level("warning")):
        found.update(dict.fromkeys(_lacking(finding) or [finding.subject]))
    return tuple(found)


def with_callers(verdict: Verdict, reaches: Mapping[str, Reach]) -> Verdict:
    """The architecture verdict, saying of each file without code for the GPU how the server comes to use it. Pure."""

    def told(finding: Finding) -> Finding:
        known = {path: reaches[path] for path in _lacking(finding) or [finding.subject] if path in reaches}
        if finding.level == "note" or not known:
            return finding
        callers: dict[str, JSON] = {path: list(reach.chain) for path, reach in known.items()}
        several = len(known) > 1
        words = [
            f"{path.rpartition('/')[2]}: {_said(reach)}" if several else _said(reach) for path, reach in known.items()
        ]
        message = f"{finding.message}; {'; '.join(words)}"
        return Finding(finding.level, finding.subject, message, {**finding.evidence, "callers": callers})

    return replace(verdict, findings=tuple(map(told, verdict.findings)))


def _lacking(finding: Finding) -> list[str]:
    lacking = finding.evidence.get("lacking")
    return list(lacking) if isinstance(lacking, dict) else []


def _said(reach: Reach) -> str:
    last = reach.chain[-1] if reach.chain else ""
    if reach.when == "always":
        return f"the server loads it when it starts: {_shown(reach.chain)}"
    if reach.when == "perhaps":
        return f"the server loads it on a condition: {_shown(reach.chain)}"
    if reach.when == "later":
        return f"it is loaded only when a function asks for it: {_shown(reach.chain)}"
    if reach.when == "tolerated":
        return f"the server goes on without it: {_shown(reach.chain)} catches the failure"
    if reach.when == "variant":
        return f"it is one of several variants, of which {last} loads"
    if reach.when == "plugin":
        return f"an optional plugin: {last} opens it by name, if at all"
    return "nothing that the server imports leads to it"


def _shown(chain: Sequence[str]) -> str:
    if len(chain) <= _SHOWN:
        return " > ".join(chain)
    return " > ".join([chain[0], "...", *chain[-_SHOWN + 1 :]])


def broken_by(finding: Finding) -> list[str]:
    """The files that fail only because of the one that a finding is about. Pure."""
    also = finding.evidence.get("also_breaks")
    return [str(path) for path in also] if isinstance(also, list) else []
