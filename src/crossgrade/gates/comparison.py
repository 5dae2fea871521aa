"""The ABI verdict beside that of the working environment: what loaded there and does not here is what counts.

In a stack that serves, the loader refuses dozens of files for good reasons: plugins for MPI or InfiniBand, variants
for another Python or torch. What the working environment has of those is no news. Files are matched by the name that
others know them by, not by path: a Python module by its dotted name, a library by its soname without numbers, so that
renamed dists and folders such as `cu12` and `cu13` do not matter.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from crossgrade.gates.reachability import broken_by, by_reach, judged_again, refused, set_aside
from crossgrade.gates.verdict import Finding, Level, Verdict, counted
from crossgrade.inspect.native import NativeFile, NativeReport
from crossgrade.inspect.python_abi import module_stem
from crossgrade.inspect.reach import Reach

# Version numbers, and the digest that auditwheel puts into the names of libraries that it takes into a wheel.
_NUMBERS = re.compile(r"(-[0-9a-f]{8})*(-[\d.]+)?\.so(\.[\w.]+)?$")

# What is lost is no failure when a server starts and serves without it. A warning where it may serve worse.
_LOST: Mapping[str, Level] = {"tolerated": "warning", "never": "warning", "plugin": "warning", "variant": "note"}


@dataclass(frozen=True)
class Working:
    """The environment that works: how to call it, its native files, and what the same gate says of them."""

    title: str
    report: NativeReport
    verdict: Verdict


def compared(
    verdict: Verdict, report: NativeReport, working: Working, reaches: Mapping[str, Reach] | None = None
) -> Verdict:
    """The verdict on `report`, with the failures that the working environment has as well as notes. Pure.

    A failure stays one when the same file loads there, when it breaks one that loads there, or when a Python module
    that is not there at all cannot be loaded. A library that is new and that no Python module needs becomes a warning.
    Where `reaches` (by path) says how the server comes to load a file, that decides what is left; what was lost is
    a failure unless the server goes on without it.
    """
    before = _states(working.report, frozenset(refused(working.verdict)))
    here = {file.path: file for file in report.files}
    needed = _needed_by_modules(report.files)
    findings = tuple(
        finding if finding.level != "failure" else _judge(finding, here, before, needed, working.title, reaches or {})
        for finding in verdict.findings
    )
    known = set_aside(verdict, findings)
    needed_too = " and that the server may need" if reaches else ""
    passed = (
        f"{counted(len(report.files), 'native file')}: "
        f"everything that loads in {working.title}{needed_too} loads here; "
        f"{counted(known, 'finding')} set aside that it has as well, or that no Python module needs"
    )
    return judged_again(verdict, findings, {"compared_with": working.title, "set_aside": known}, passed)


def _judge(
    finding: Finding,
    here: dict[str, NativeFile],
    before: dict[str, bool],
    needed: frozenset[str],
    title: str,
    reaches: Mapping[str, Reach],
) -> Finding:
    file = here.get(finding.subject)
    if file is None:
        return finding  # a preload, say: it is about no file
    broken = [here[path] for path in broken_by(finding) if path in here]
    lost = next((each for each in (file, *broken) if before.get(_name(each))), None)
    reached = by_reach(finding, reaches)
    if lost is not None:
        what = "it loads" if lost is file else f"{lost.path}, which it breaks, loads"
        level = _LOST.get(str(reached.evidence.get("reached")))
        told = replace(reached, level=level) if level else finding
        return replace(told, message=f"{told.message}; {what} in {title}")
    if reached is not finding:
        return (
            replace(reached, message=f"{reached.message}; it does not load in {title} either")
            if (_name(file) in before)
            else reached
        )
    if _name(file) in before:
        return replace(finding, level="note", message=f"{finding.message}; it does not load in {title} either")
    if file.kind != "extension" and not broken and (file.soname or "") not in needed:
        message = f"{finding.message}; {title} has no such library, and no Python module needs it by name"
        return replace(finding, level="warning", message=message)
    return replace(finding, message=f"{finding.message}; {title} has no such file")


def _states(report: NativeReport, failing: frozenset[str]) -> dict[str, bool]:
    """By name: whether any file of that name loads. Files for other machines and Pythons say nothing."""
    states: dict[str, bool] = {}
    for file in report.files:
        if not file.foreign and file.kind in ("extension", "library", "executable"):
            name = _name(file)
            loads = file.path not in failing and not file.python_problem
            states[name] = states.get(name, False) or loads
    return states


def _name(file: NativeFile) -> str:
    folder, name = os.path.split(file.path)
    if file.kind != "extension":
        return _NUMBERS.sub(".so", name)
    package = re.sub(r"^.*?site-packages/?", "", f"{folder}/").strip("/")
    return f"{package}/{module_stem(name)}"


def _needed_by_modules(files: Iterable[NativeFile]) -> frozenset[str]:
    return frozenset(name for file in files if file.kind == "extension" for name in file.needed)
