"""Findings on how each dist was installed: its RECORD, files that are gone, its wheel's tags, versions of pairs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

from crossgrade.gates.verdict import Finding, Level, counted, joined
from crossgrade.inspect.consistency import Consistency
from crossgrade.inspect.dists import InstalledDist
from crossgrade.inspect.installed_files import Recorded
from crossgrade.inspect.version_pairs import Mismatch
from crossgrade.inspect.wheel_fit import Unfit
from crossgrade.jsontype import JSON
from crossgrade.knowledge import table

_SHOWN_FILES = 3
# What careless wheels install beside their package, each its own
_BESIDE_PACKAGES = ("tests", "test", "docs", "examples", "benchmarks", "scripts")


def judge_installation(facts: Consistency) -> Iterator[tuple[str, Finding]]:
    """The name of a dist and a finding on it; several for one dist are possible."""
    for recorded in facts.unreadable_records:
        yield recorded.dist.name, _record(recorded)
    said = {conflict.path for conflict in facts.conflicts if conflict.problem == "missing"}
    for dist, paths in facts.missing.items():
        yield from ((dist.name, finding) for finding in _missing(dist, [path for path in paths if path not in said]))
    for unfit in facts.unfit:
        yield unfit.dist.name, _unfit(unfit)
    for mismatch in facts.mismatches:
        yield mismatch.dist.name, _mismatch(mismatch)
    if facts.no_interpreter:
        message = "the Python of this environment was not found: wheels and native modules were not judged against it"
        yield "", Finding("warning", "bin/python", message)


def is_code(path: str) -> bool:
    """Whether a file, by its path in site-packages, is Python or native code that its package works with."""
    name = path.rpartition("/")[2]
    beside = path.partition("/")[0] in _BESIDE_PACKAGES or path in _build_files()
    return not beside and (name.endswith((".py", ".so")) or ".so." in name)


@cache
def _build_files() -> frozenset[str]:
    """Files at the top of site-packages that only builds read."""
    return frozenset(str(row["name"]) for row in table("build_files"))


def printable(path: str) -> str:
    """A path that is not UTF-8 must not break the report that names it."""
    return path.encode("utf-8", "backslashreplace").decode()


def _record(recorded: Recorded) -> Finding:
    level: Level = "failure" if recorded.damaged else "note"
    message = f"its RECORD {printable(recorded.problem)}, so that nobody knows which files are its own"
    if recorded.damaged:
        message += ". Install it again (uninstalling cannot remove them)"
    return Finding(level, str(recorded.dist), message, {"dist": str(recorded.dist)}, "no-record")


def _missing(dist: InstalledDist, paths: Sequence[str]) -> Iterator[Finding]:
    """Code that is gone is a failure, but for tests, which people take out of images on purpose."""
    code = [path for path in paths if is_code(path) and not {"tests", "test"} & set(path.split("/"))]
    others = [path for path in paths if path not in set(code)]
    for level, files in (("failure", code), ("warning", others)):
        if files:
            are = "is" if len(files) == 1 else "are"
            named = joined([printable(path) for path in files], _SHOWN_FILES)
            message = f"{counted(len(files), 'file')} of its RECORD {are} missing ({named}). Install it again"
            evidence: dict[str, JSON] = {"dist": str(dist), "files": [printable(path) for path in files[:200]]}
            how: Level = "failure" if level == "failure" else "warning"
            yield Finding(how, str(dist), message, evidence, "files-missing")


def _unfit(unfit: Unfit) -> Finding:
    evidence: dict[str, JSON] = {"dist": str(unfit.dist), "tags": list(unfit.tags)}
    message = f"{unfit.words}. Install its wheel for this one"
    return Finding("failure", str(unfit.dist), message, evidence, "wrong-python")


def _mismatch(found: Mismatch) -> Finding:
    message = (
        f"is installed beside {found.partner}, and {found.words}. "
        f"Install {found.dist.name} {found.partner.version}, or uninstall it"
    )
    evidence: dict[str, JSON] = {"dist": str(found.dist), "partner": str(found.partner), "source": found.source}
    level: Level = "failure" if found.refuses else "warning"
    return Finding(level, str(found.dist), message, evidence, found.fault)
