"""The consistency gate: do the dists of an environment fit together, by their own files and requirements?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from crossgrade.gates.consistency_builds import judge_builds
from crossgrade.gates.consistency_installation import is_code, judge_installation, printable
from crossgrade.gates.verdict import Finding, Level, Verdict, counted, joined
from crossgrade.inspect.consistency import Consistency
from crossgrade.inspect.dists import InstalledDist, normalize_name
from crossgrade.inspect.ownership import Conflict, by_dists
from crossgrade.inspect.requirements import Unmet
from crossgrade.jsontype import JSON
from crossgrade.knowledge import table

GATE = "consistency"
_SHOWN_FILES = 3
_RENAMED = (("old", "new"), ("new", "old"))


def judge_consistency(facts: Consistency, *, ignore: Sequence[str] = ()) -> Verdict:
    """Judge whether the dists of an environment fit together: their files, requirements, wheels and builds.

    A file of two dists fails the gate where its bytes are not those that each of them brought; where they are the same
    bytes it is a note, and where a RECORD states no hash a warning, as where it is neither Python nor native code (a
    LICENSE, or a folder ``tests`` that careless wheels put beside their package). A requirement that is not met is a
    failure, as is a dist without readable METADATA; one that is not in the standards' form is a warning, for
    installers pass over it.
    A RECORD that is damaged and code that is not there, a wheel for another Python or machine, a version that another
    dist's own code refuses, and modules that were compiled against another numpy or torch are failures;
    `judge_installation` and `judge_builds` say more.
    Each is a note where a glob of ``ignore`` matches the name of the dist that it is about, or of one that writes the
    file.
    """
    findings: list[Finding] = []
    for owners, files in by_dists(facts.conflicts).items():
        found = _judge_files(owners, files)
        pattern = _ignoring([dist.name for dist in owners], ignore)
        findings += [_ignored(finding, pattern) for finding in found] if pattern else found
    findings += [_judge_requirement(item, facts.dists, ignore) for item in facts.unmet]
    for name, finding in (*judge_installation(facts), *judge_builds(facts.dists, facts.builds)):
        pattern = _ignoring([name], ignore)
        findings.append(_ignored(finding, pattern) if pattern else finding)
    figures = _figures(facts, findings)
    failures = [finding for finding in findings if finding.level == "failure"]
    if failures:
        more = f" (and {counted(len(failures) - 1, 'more failure')})" if len(failures) > 1 else ""
        reason = f"{failures[0].subject} {failures[0].message}{more}"
        return Verdict(GATE, "failed", reason, tuple(findings), figures)
    return Verdict(GATE, "passed", _passed(figures, findings), tuple(findings), figures)


def _passed(figures: Mapping[str, JSON], findings: Sequence[Finding]) -> str:
    """The counts, and what people may want to look at all the same."""
    dists, alike, ignored = (int(str(figures[name] or 0)) for name in ("dists", "files_alike", "ignored"))
    reason = f"{counted(dists, 'dist')}: " if dists else ""
    reason += "0 Python or native files of two dists with different bytes, 0 unmet requirements"
    reason += f" but for {ignored} that {'is' if ignored == 1 else 'are'} ignored" if ignored else ""
    reason += f"; {counted(alike, 'file')} of two dists with the same bytes" if alike else ""
    warnings = sum(finding.level == "warning" for finding in findings)
    reason += f"; {counted(warnings, 'warning')}" if warnings else ""
    return reason


def _judge_files(owners: tuple[InstalledDist, ...], files: Sequence[Conflict]) -> list[Finding]:
    """At most one finding of each level for the files that the same dists list."""
    found = []
    differing = [file for file in files if file.agree is False]
    if differing:
        all_but_one = "one of them" if len(owners) == 2 else "all of them but one"
        message = (
            f"{_both(owners)} write {_named(differing)} with different bytes; {_now(differing)}. "
            f"Uninstall {all_but_one}, then install the one that stays again (uninstalling takes its files too)"
        )
        level: Level = "failure" if any(is_code(file.path) for file in differing) else "warning"
        found.append(_finding(level, owners, message, differing))
    if untold := [file for file in files if file.agree is None]:
        message = f"{_both(owners)} list {_named(untold)}, and not each of them by a hash that can be compared"
        found.append(_finding("warning", owners, message, untold))
    if alike := [file for file in files if file.agree]:
        message = (
            f"{_both(owners)} write {_named(alike)} with the same bytes; uninstalling one takes them from the other"
        )
        found.append(_finding("note", owners, message, alike))
    return found


def _ignoring(names: Sequence[str], ignore: Sequence[str]) -> str:
    """The first glob that matches one of the names; empty where none does."""
    return next((glob for glob in ignore if any(fnmatchcase(name, normalize_name(glob)) for name in names)), "")


def _ignored(finding: Finding, pattern: str) -> Finding:
    return replace(finding, level="note", message=f"{finding.message} (ignored by {pattern!r})")


def _finding(level: Level, owners: tuple[InstalledDist, ...], message: str, files: Sequence[Conflict]) -> Finding:
    details: list[JSON] = []
    for file in files:
        detail: dict[str, JSON] = {"path": printable(file.path)}
        if file.agree is False:
            detail["bytes_of"] = [str(dist) for dist in file.current]
        if file.problem:
            detail["problem"] = file.problem
        details.append(detail)
    evidence: dict[str, JSON] = {"dists": [str(dist) for dist in owners], "files": details}
    return Finding(level, _names(owners), message, evidence, "two-dists-one-path")


def _now(files: Sequence[Conflict]) -> str:
    """Whose bytes are there: ``the bytes there are those of b 2``; counted where that is not the same for all."""
    holders = Counter(_names(file.current) or "nobody" for file in files if not file.problem)
    problems = Counter(file.problem for file in files if file.problem)
    alone = len(holders) + len(problems) == 1
    parts = [holder if alone else f"{holder} ({counted(number, 'file')})" for holder, number in holders.items()]
    words = [f"the bytes there are those of {joined(parts)}"] if parts else []
    words += [f"now {problem}" if alone else f"{problem}: {number}" for problem, number in problems.items()]
    return ", ".join(words)


def _named(files: Sequence[Conflict]) -> str:
    """``2 files (a, b)``."""
    return f"{counted(len(files), 'file')} ({joined([printable(file.path) for file in files], _SHOWN_FILES)})"


def _names(dists: Sequence[InstalledDist]) -> str:
    if len(dists) == 2:
        return f"{dists[0]} and {dists[1]}"
    return joined([str(dist) for dist in dists])


def _both(dists: Sequence[InstalledDist]) -> str:
    return "both" if len(dists) == 2 else "all"


def _fault(item: Unmet, renamed: bool) -> str:
    """What a requirement that is not met is called: an exact version asks for a dist that belongs to it."""
    if item.lack in ("metadata", "requirement"):
        return "damaged-metadata"
    if item.lack == "python":
        return "wrong-python"
    if item.name == "numpy":
        return "numpy-mismatch"
    exact = "==" in item.asked and not item.asked.endswith(".*")
    return "version-pair" if renamed or (exact and item.lack == "version") else "requirement-unmet"


def _successor(item: Unmet, dists: Sequence[InstalledDist]) -> InstalledDist | None:
    """The dist that is there in the place of a missing one, under the name that it has now or had before."""
    if item.lack != "missing":
        return None
    names = {str(row[a]) for row in table("renamed_dists") for a, b in _RENAMED if row[b] == item.name}
    return next((dist for dist in dists if dist.name in names), None)


def _judge_requirement(item: Unmet, dists: Sequence[InstalledDist], ignore: Sequence[str]) -> Finding:
    level: Level = "warning" if item.lack == "requirement" else "failure"
    evidence: dict[str, JSON] = {
        "dist": str(item.dist),
        "lack": item.lack,
        "requirement": item.requirement,
        "installed": list(item.installed),
    }
    successor = _successor(item, dists)
    words = f"{item.words}; {successor} is there, its name before or after" if successor else item.words
    finding = Finding(level, str(item.dist), words, evidence, _fault(item, successor is not None))
    pattern = _ignoring([item.dist.name], ignore)
    return _ignored(finding, pattern) if pattern else finding


def _figures(facts: Consistency, findings: Sequence[Finding]) -> dict[str, JSON]:
    ignored = sum(finding.level == "note" and "lack" in finding.evidence for finding in findings)
    return {
        "dists": len(facts.dists),
        "files_in_conflict": sum(file.agree is False for file in facts.conflicts),
        "files_alike": sum(file.agree is True for file in facts.conflicts),
        "files_without_hash": sum(file.agree is None for file in facts.conflicts),
        "files_missing": sum(map(len, facts.missing.values())),
        "unreadable_records": sum(recorded.damaged for recorded in facts.unreadable_records),
        "unmet_requirements": sum(item.lack in ("missing", "version", "python") for item in facts.unmet),
        "unreadable_requirements": sum(item.lack == "requirement" for item in facts.unmet),
        "unreadable_metadata": sum(item.lack == "metadata" for item in facts.unmet),
        "unfit_wheels": len(facts.unfit),
        "versions_that_differ": len(facts.mismatches),
        "ignored": ignored,
        "failures": sum(finding.level == "failure" for finding in findings),
    }
