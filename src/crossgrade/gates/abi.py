"""The ABI gate: will each native file of an environment load, against exactly these libraries?"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch

from crossgrade.gates.verdict import Finding, Level, Verdict, counted, joined
from crossgrade.inspect.loading import MissingLibrary
from crossgrade.inspect.mangled import demangled
from crossgrade.inspect.native import Alike, NativeFile, NativeReport
from crossgrade.inspect.symbols import MissingSymbol, MissingVersion
from crossgrade.jsontype import JSON
from crossgrade.knowledge import Row, table

GATE = "abi"
_SHOWN_SYMBOLS = 5


def judge_abi(report: NativeReport, *, ignore: Sequence[str] = ()) -> Verdict:
    """Judge whether every native file of the environment finds the libraries and symbols that it needs.

    A file fails where the loader or Python would refuse it, unless a glob of ``ignore`` matches its path
    (relative to the environment; ``*`` also matches ``/``): then the refusal is a note. A library that lacks
    something alone but is complete in the company of a file that needs it is a note as well. What only the
    absent NVIDIA driver brings is a note. A file that fails only because of a library that has failed itself
    is named in the evidence of that library and does not repeat its finding.
    """
    sonames = _sonames(report)
    findings = [Finding("failure", problem, "this preload cannot be loaded") for problem in report.preload_problems]
    causes = _causes(report, ignore)
    for file in report.files:
        findings += _judge_file(file, report, sonames, causes)
    findings = [_ignored(finding, ignore) for finding in findings]
    if not report.files:
        message = "there is no native file in this environment"
        findings.append(Finding("note", report.root, message))
    figures = _figures(report, findings)
    failures = [finding for finding in findings if finding.level == "failure"]
    if failures:
        # A library of another CUDA major is what an upgrade is about: it goes into the one line of reason.
        first = next((finding for finding in failures if "built_against_cuda" in finding.evidence), failures[0])
        subjects = {finding.subject for finding in failures} - {first.subject}
        more = f" (and {counted(len(subjects), 'more file')} with failures)" if subjects else ""
        return Verdict(GATE, "failed", f"{first.subject} {first.message}{more}", tuple(findings), figures)
    if not report.files:
        return Verdict(GATE, "passed", "there is no native file in this environment", tuple(findings), figures)
    loadable = counted(len(report.files), "native file")
    reason = f"{loadable}: libraries, versions and symbols are all there"
    if figures["needs_driver"]:
        reason += f"; {figures['needs_driver']} need the NVIDIA driver, which is not installed here"
    return Verdict(GATE, "passed", reason, tuple(findings), figures)


def _causes(report: NativeReport, ignore: Sequence[str]) -> dict[str, list[str]]:
    """For each file that itself lacks something and is judged for it: the files that fail with it."""
    failing = {file.path for file in report.files if not file.resolves and not file.loads_with}
    causes: dict[str, list[str]] = {path: [] for path in failing if not _matches(path, ignore)}
    for file in report.files:
        lacks = [missing.needed_by for missing in file.missing_libraries]
        lacks += [missing.needed_by for missing in file.missing_versions]
        lacks += [missing.needed_by for missing in file.missing_symbols]
        for cause in set(lacks) - {file.path}:
            if cause in causes:
                causes[cause].append(file.path)
    return causes


def _judge_file(
    file: NativeFile, report: NativeReport, sonames: Mapping[str, str], causes: Mapping[str, list[str]]
) -> list[Finding]:
    if file.unreadable:
        return [_failure(file, f"cannot be read: {file.unreadable}")]
    if file.foreign:
        level: Level = "failure" if file.kind == "extension" else "warning"
        message = f"is built for {file.machine}, not for this machine ({report.machine})"
        return [Finding(level, file.path, message)]
    findings = []
    if file.python_problem:
        level = "note" if file.loads_with else "failure"
        beside = f" (its sibling is {file.loads_with})" if file.loads_with else ""
        findings.append(Finding(level, file.path, file.python_problem + beside, _owner(file)))
        if file.loads_with:
            return findings  # a variant for another Python: this one never loads it
    if file.missing_interpreter:
        message = f"needs the program interpreter {file.missing_interpreter}, which this system does not have"
        findings.append(_failure(file, message))
    own = _without_inherited(file, causes)
    findings += _libraries(own, sonames)
    findings += [_version(file, missing) for missing in own.missing_versions]
    findings += _symbols(own)
    if also := causes.get(file.path):
        also_breaks: dict[str, JSON] = {"also_breaks": list(also)}
        findings = [dataclasses.replace(finding, evidence={**finding.evidence, **also_breaks}) for finding in findings]
    if file.loads_with:
        reason = f"; it loads only after {file.loads_with} has loaded what it lacks"
        findings = [
            dataclasses.replace(finding, level="note", message=finding.message + reason) for finding in findings
        ]
    if file.loads_after and file.resolves:
        message = f"loads because its package imports {joined(file.loads_after)} first; alone it lacks libraries"
        findings.append(Finding("note", file.path, message, _owner(file)))
    if file.from_driver.libraries:
        libraries = joined(file.from_driver.libraries)
        message = f"needs {libraries}, which only the NVIDIA driver brings; this machine has none"
        evidence: dict[str, JSON] = {
            "libraries": list(file.from_driver.libraries),
            "symbols": list(file.from_driver.symbols),
        }
        findings.append(Finding("note", file.path, message, evidence))
    return findings


def _without_inherited(file: NativeFile, causes: Mapping[str, list[str]]) -> NativeFile:
    """The file without what it lacks only through another file that has its own finding for it."""
    inherited = causes.keys() - {file.path}
    return dataclasses.replace(
        file,
        missing_libraries=tuple(m for m in file.missing_libraries if m.needed_by not in inherited),
        missing_versions=tuple(m for m in file.missing_versions if m.needed_by not in inherited),
        missing_symbols=tuple(m for m in file.missing_symbols if m.needed_by not in inherited),
    )


def _libraries(file: NativeFile, sonames: Mapping[str, str]) -> list[Finding]:
    """One finding for each file that needs libraries in vain: on the most telling one, the rest by name."""
    by_place: dict[str, list[MissingLibrary]] = {}
    for missing in file.missing_libraries:
        by_place.setdefault(missing.needed_by, []).append(missing)
    majors = {str(row["soname"]): row.get("cuda") for row in table("sonames")}
    findings = []
    for listed in by_place.values():
        first = min(listed, key=lambda missing: (missing.soname in sonames, not majors.get(missing.soname)))
        finding = _library(file, first, sonames)
        others = [missing.soname for missing in listed if missing is not first]
        if others:
            finding = dataclasses.replace(
                finding,
                message=f"{finding.message}; also not found: {joined(others)}",
                evidence={**finding.evidence, "also_missing": list(others)},
            )
        findings.append(finding)
    return findings


def _library(file: NativeFile, missing: MissingLibrary, sonames: Mapping[str, str]) -> Finding:
    through = "" if missing.needed_by == file.path else f" (needed by {missing.needed_by})"
    if file.loads_after:
        through += f" (also after {joined(file.loads_after)}, which its package imports first)"
    stated = [rule for rule in missing.searched if rule.startswith(("RPATH", "RUNPATH", "LD_LIBRARY_PATH"))]
    where = f" ({'; '.join(stated)})" if stated else " (it states none: RPATH and RUNPATH are empty)"
    message = f"needs {missing.soname}{through}, which is nowhere on its search path{where}"
    if missing.unfit:
        message = f"needs {missing.soname}{through}, and what is found does not fit: {'; '.join(missing.unfit)}"
    explanation, major = _explain(missing.soname, sonames)
    message += explanation
    evidence: dict[str, JSON] = {
        "soname": missing.soname,
        "needed_by": missing.needed_by,
        "searched": list(missing.searched),
        "unfit": list(missing.unfit),
    }
    if major is not None:
        evidence["built_against_cuda"] = major
    return Finding("failure", file.path, message, {**_owner(file), **evidence})


def _explain(soname: str, sonames: Mapping[str, str]) -> tuple[str, JSON]:
    """What a soname stands for, what is installed instead, and what follows from that.

    The second value is the CUDA major that the file was built against, where another one is installed.
    """
    known = {str(row["soname"]): row for row in table("sonames")}
    row = known.get(soname)
    text = ""
    if row:
        text += f"; {soname} is {_described(row)}"
    if soname in sonames:
        place = f"; it is installed as {sonames[soname]}, where this file does not look"
        return text + place + " (if Python code loads it first, name it under preload)", None
    stem = _stem(soname)
    others = sorted(name for name in sonames if _stem(name) == stem)
    if others:
        text += f"; {joined(others)} is installed"
    major = row.get("cuda") if row else None
    newer = {known[name].get("cuda") for name in others if name in known} - {None, major}
    if major and newer:
        there = max(map(str, newer))
        text += f" → built against CUDA {major}; rebuild it, or install its build for CUDA {there}"
        return text, major
    if row and not others:
        text += f"; the dist {row['dist']} brings it"
    return text, None


def _described(row: Row) -> str:
    library, major = row["library"], row.get("cuda")
    if not major:
        return f"{library} (the same soname for CUDA 12 and 13)" if "cu12" in str(row["dist"]) else str(library)
    name = str(library).removeprefix("CUDA ")
    return f"the CUDA {major} {name}" if name != library else f"{library} of CUDA {major}"


def _version(file: NativeFile, missing: MissingVersion) -> Finding:
    through = "" if missing.needed_by == file.path else f" (through {missing.needed_by})"
    newest = f"the one found has up to {missing.newest}" if missing.newest else "the one found has none of its kind"
    if missing.newest and missing.version.startswith(("GLIBC_", "GLIBCXX_", "CXXABI_")):
        newest = f"this system has up to {missing.newest}"
    message = f"needs {missing.version} of {missing.library}{through}; {newest}"
    evidence: dict[str, JSON] = {
        "library": missing.library,
        "version": missing.version,
        "needed_by": missing.needed_by,
        "newest": missing.newest,
    }
    return Finding("failure", file.path, message, {**_owner(file), **evidence})


def _symbols(file: NativeFile) -> list[Finding]:
    if not file.missing_symbols:
        return []
    elsewhere, alike = dict(file.defined_elsewhere), dict(file.alike)
    shown = []
    for symbol in file.missing_symbols[:_SHOWN_SYMBOLS]:
        name = symbol.name + (f"@{symbol.version}" if symbol.version else "")
        said = demangled(symbol.name)
        source = [said] if said != symbol.name else []
        places, others = elsewhere.get(symbol.name, ()), alike.get(symbol.name, ())
        if places:
            source.append(f"defined by {places[0]}, which is not among the libraries it loads")
        elif others:
            source.append(_in_its_place(others[0]))
        elif symbol.library:
            source.append(f"of {symbol.library}")
        shown.append(f"{name} ({'; '.join(source)})" if source else name)
    rest = len(file.missing_symbols) - len(shown)
    more = f" and {rest} more" if rest else ""
    number = len(file.missing_symbols)
    through = sorted({symbol.needed_by for symbol in file.missing_symbols} - {file.path})
    via = f" (through {joined(through, 3)})" if through else ""
    has = "symbol has" if number == 1 else "symbols have"
    message = f"cannot be loaded: {number} {has} no definition{via}: {', '.join(shown)}{more}"
    evidence: dict[str, JSON] = {
        "symbols": [_symbol_evidence(symbol, alike.get(symbol.name, ())) for symbol in file.missing_symbols[:200]]
    }
    return [Finding("failure", file.path, message, {**_owner(file), **evidence})]


def _in_its_place(other: Alike) -> str:
    owner = f"{other.dist} has" if other.dist else "there is"
    return f"{owner} {demangled(other.name)} in {other.path}: this file was built against another version of it"


def _symbol_evidence(symbol: MissingSymbol, alike: Sequence[Alike]) -> dict[str, JSON]:
    return {
        "name": symbol.name,
        "demangled": demangled(symbol.name),
        "alike": [{"name": other.name, "path": other.path, "dist": other.dist} for other in alike],
        "version": symbol.version,
        "library": symbol.library,
        "needed_by": symbol.needed_by,
    }


def _failure(file: NativeFile, message: str) -> Finding:
    return Finding("failure", file.path, message, _owner(file))


def _owner(file: NativeFile) -> dict[str, JSON]:
    return {"dist": file.dist} if file.dist else {}


def _matches(path: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch(path, pattern) for pattern in patterns)


def _ignored(finding: Finding, ignore: Sequence[str]) -> Finding:
    if finding.level != "failure":
        return finding
    for pattern in ignore:
        if fnmatch(finding.subject, pattern):
            return dataclasses.replace(finding, level="note", message=f"{finding.message} (ignored by {pattern!r})")
    return finding


def _sonames(report: NativeReport) -> dict[str, str]:
    """The sonames that files of the environment have, each with the first such file."""
    found: dict[str, str] = {}
    for file in report.files:
        if file.soname and file.kind == "library" and not file.foreign:
            found.setdefault(file.soname, file.path)
    return found


def _stem(soname: str) -> str:
    """``libcudart.so`` for ``libcudart.so.12``."""
    return re.sub(r"\.so\..*$", ".so", soname)


def _figures(report: NativeReport, findings: Sequence[Finding]) -> dict[str, JSON]:
    kinds: dict[str, JSON] = {}
    for file in report.files:
        kinds[file.kind] = int(str(kinds.get(file.kind, 0))) + 1
    return {
        "files": len(report.files),
        "kinds": kinds,
        "failures": sum(finding.level == "failure" for finding in findings),
        "needs_driver": sum(bool(file.from_driver.libraries) for file in report.files),
        "glibc": report.glibc,
        "seconds": report.seconds,
    }
