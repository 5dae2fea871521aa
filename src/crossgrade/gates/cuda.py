"""The CUDA gate: do torch, the native files, the libraries, the toolkit and the driver belong to one CUDA release?"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from crossgrade.gates.cuda_toolkit import judge_toolkits, parts_evidence
from crossgrade.gates.cuda_variants import judge_variants
from crossgrade.gates.verdict import Finding, Level, Verdict, counted, joined
from crossgrade.inspect.cuda_consistency import CudaFacts, CudaFile, TorchBuild
from crossgrade.inspect.cuda_libraries import CudaLibrary
from crossgrade.inspect.dists import normalize_name
from crossgrade.inspect.toolkit import judge_driver
from crossgrade.jsontype import JSON

GATE = "cuda"
NO_DRIVER = "driver not judged: no driver here"
# How packages name their variants for CUDA releases: core/cu12/…, hook_cu13.abi3.so, libbitsandbytes_cuda128.so
_VARIANT = re.compile(r"[-_.]?cu(?:da)?[-_]?1[1-9]\d?(?=[^0-9A-Za-z]|$)", re.IGNORECASE)


def judge_cuda(
    facts: CudaFacts,
    *,
    driver: str | None = None,
    ignore: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Verdict:
    """Judge what `read_cuda` found.

    A native file that needs libraries of another CUDA major release than torch's is a failure where it shares a process
    with torch, and a warning elsewhere. Variants for several releases that lie side by side (the same name but for
    ``cu12`` and ``cu13``), one of them for torch's, are chosen at run time by their package: a note. Libraries of two
    releases at one path are a failure where those of the wrong one are there. A toolkit that cannot compile is a
    warning where a dist compiles while it runs. ``driver`` (``580.95.05``) is judged for torch's release; that there is
    none (None) is said. ``ignore`` are globs of names of dists, whose findings become notes. ``environment`` are the
    server's variables, some of which choose a library.
    """
    torch = facts.torch
    if torch is None and not facts.files and not any(dist.major for dist in facts.dists):
        return Verdict(GATE, "not run", "nothing here is built for CUDA", (), _figures(facts, driver))
    findings = [*_torch(torch), *map(_named, _built_for(facts))]
    judged = frozenset(finding.subject for finding in findings if finding.level != "note")
    findings += map(_named, (*_two_in_one(facts, judged), *_overwritten(facts), *_other_dists(facts)))
    findings += judge_variants(facts, environment or {})
    findings = [_ignored(finding, ignore) for finding in findings]
    findings += [*_driver(torch, driver), *judge_toolkits(facts), *_unknown(facts)]
    findings.sort(key=lambda finding: ("failure", "warning", "note").index(finding.level))
    failures = [finding for finding in findings if finding.level == "failure"]
    figures = _figures(facts, driver)
    if failures:
        more = f" (and {counted(len(failures) - 1, 'more failure')})" if len(failures) > 1 else ""
        return Verdict(GATE, "failed", f"{failures[0].subject} {failures[0].message}{more}", tuple(findings), figures)
    return Verdict(GATE, "passed", _passed(facts, driver, findings), tuple(findings), figures)


def _passed(facts: CudaFacts, driver: str | None, findings: Sequence[Finding]) -> str:
    torch = facts.torch
    major = _major(torch)
    files = [file for file in facts.files if file.majors and (major is None or file.majors == {major})]
    needing = counted(len(files), "native file")
    owners = {file.dist or file.path for file in files}
    if torch is None:
        reason = f"no torch; {needing} of {counted(len(owners), 'dist')} need libraries of CUDA"
    elif torch.cuda is None:
        reason = f"{torch.dist} is built without CUDA"
    else:
        reason = f"{torch.dist} is built for CUDA {torch.cuda}, "
        reason += f"{needing} of {counted(len(owners), 'dist')} need its libraries"
        reason += f"; driver {driver} runs it" if driver else f"; {NO_DRIVER}"
    warnings = sum(finding.level == "warning" for finding in findings)
    return reason + (f"; {counted(warnings, 'warning')}" if warnings else "")


def _named(finding: Finding) -> Finding:
    return finding if finding.level == "note" else replace(finding, fault="cuda-majors-mixed")


def _torch(torch: TorchBuild | None) -> Iterator[Finding]:
    if torch is not None and torch.problem:
        yield Finding("failure", torch.dist, f"does not say which CUDA it is built for: {torch.problem}")


def _major(torch: TorchBuild | None) -> int | None:
    """The major release that torch is built for."""
    if torch is None or torch.cuda is None or not torch.cuda.partition(".")[0].isdecimal():
        return None
    return int(torch.cuda.partition(".")[0])


# ---- native files against torch


def _built_for(facts: CudaFacts) -> Iterator[Finding]:
    """One finding for each dist whose files were built for another major release than torch."""
    torch = facts.torch
    if torch is None or torch.problem:
        yield from _without_torch(facts)
        return
    major = _major(torch)
    variants = {_plain(file.path) for file in facts.files if major is not None and file.majors == {major}}
    wrong: dict[str, list[CudaFile]] = {}
    chosen: dict[str, list[CudaFile]] = {}
    for file in facts.files:
        if file.majors - {major}:
            group = chosen if _plain(file.path) in variants else wrong
            group.setdefault(file.dist or file.path, []).append(file)
    for owner, files in wrong.items():
        yield _mismatch(owner, files, [file for file in facts.files if file.dist == owner and file.needs], torch)
    for owner, files in chosen.items():
        message = (
            f"brings files for CUDA {_releases(files)} beside those for CUDA {major}, and chooses at run time: "
            f"{joined([_name(file.path) for file in files], 3)}"
        )
        yield Finding("note", owner, message, _evidence(files))


def _mismatch(owner: str, files: Sequence[CudaFile], all_of_it: Sequence[CudaFile], torch: TorchBuild) -> Finding:
    needs = joined(sorted({library.soname for file in files for library in file.needs}), 4)
    its = f"{torch.dist} is built for CUDA {torch.cuda}" if torch.cuda else f"{torch.dist} is built without CUDA"
    if owner == torch.dist:
        its = f"its torch/version.py says CUDA {torch.cuda}"
    mixed = len(all_of_it) > len(files)
    part = f": {len(files)} of its {counted(len(all_of_it), 'native file')}" if mixed else ""
    message = f"was built for CUDA {_releases(files)} (needs {needs}{part}); {its}. "
    message += f"Install its build for CUDA {torch.cuda}, or rebuild it" if torch.cuda else "Install a torch with CUDA"
    if both := _both(files):
        message += f". One process would hold {both}"
    level: Level = "failure" if any(file.with_torch for file in files) or owner == torch.dist else "warning"
    return Finding(level, owner, message, _evidence(files))


def _without_torch(facts: CudaFacts) -> Iterator[Finding]:
    """No torch to go by: the dists against each other, in the files that are no variants of others."""
    majors: dict[str, set[int]] = {}
    names = {
        major: {_plain(f.path) for f in facts.files if f.majors == {major}} for f in facts.files for major in f.majors
    }
    for file in facts.files:
        others = (names[major] for major in names if major not in file.majors)
        if file.majors and not any(_plain(file.path) in known for known in others):
            majors.setdefault(file.dist or file.path, set()).update(file.majors)
    if len({frozenset(found) for found in majors.values()}) > 1:
        words = "; ".join(f"{owner} for CUDA {_numbers(found)}" for owner, found in sorted(majors.items()))
        yield Finding("warning", "dists", f"were built for CUDA releases that differ, and there is no torch: {words}")


def _two_in_one(facts: CudaFacts, judged: frozenset[str]) -> Iterator[Finding]:
    """Files whose loading brings one library in two major releases, of dists about which nothing is said yet."""
    found: dict[str, list[CudaFile]] = {}
    for file in facts.files:
        if (file.dist or file.path) not in judged and _twice(file.brings):
            found.setdefault(file.dist or file.path, []).append(file)
    for owner, files in found.items():
        paths = joined([_name(file.path) for file in files], 3)
        message = f"brings {_both(files)} into one process, by loading {paths}. Rebuild it against one release"
        yield Finding("failure", owner, message, _evidence(files))


def _both(files: Iterable[CudaFile]) -> str:
    """``libcudart.so.12 and libcudart.so.13``, for the libraries that loading a file brings twice."""
    pairs = dict.fromkeys(" and ".join(sonames) for file in files for sonames in _twice(file.brings))
    return joined(pairs, 3)


def _twice(libraries: Iterable[CudaLibrary]) -> list[tuple[str, ...]]:
    by_name: dict[str, list[CudaLibrary]] = {}
    for library in libraries:
        by_name.setdefault(library.name, []).append(library)
    several = (same for same in by_name.values() if len({library.cuda for library in same}) > 1)
    return [tuple(library.soname for library in same) for same in several]


# ---- dists that bring libraries


def _overwritten(facts: CudaFacts) -> Iterator[Finding]:
    torch, major = facts.torch, _major(facts.torch)
    for case in facts.overwritten:
        there = {case.dists[dist] for dist in case.current if dist in case.dists}
        written = f"{counted(len(case.paths), 'library', 'libraries')} ({joined([_name(p) for p in case.paths], 3)})"
        for_each = " and ".join(f"{dist} (CUDA {number})" for dist, number in case.dists.items())
        evidence: dict[str, JSON] = {
            "paths": list[JSON](case.paths),
            "dists": list[JSON](case.dists),
            "bytes_of": list[JSON](case.current),
        }
        if torch is None or major is None:
            message = f"write the same {written} for different CUDA releases"
            yield Finding("warning", for_each, message, evidence)
        elif there == {major}:
            message = f"write the same {written}; those there are for CUDA {major}, as {torch.dist} is. "
            yield Finding("warning", for_each, f"{message}Uninstalling either takes them from both", evidence)
        else:
            whose = f"those there are of {joined(case.current)}" if case.current else "those there are of neither"
            message = f"write the same {written}; {whose}, and {torch.dist} is built for CUDA {torch.cuda}. "
            remedy = f"Uninstall all of them, then install the one for CUDA {major}"
            yield Finding("failure", for_each, message + remedy, evidence)


def _other_dists(facts: CudaFacts) -> Iterator[Finding]:
    """Dists with libraries of another release: a fault where torch loads them, else only there."""
    torch, major = facts.torch, _major(facts.torch)
    if torch is None or major is None:
        return
    judged = {dist for case in facts.overwritten for dist in case.dists}
    idle = []
    for dist in facts.dists:
        if dist.major in (None, major) or dist.dist in judged:
            continue
        used = facts.torch_needs.intersection(dist.sonames)
        if used:
            message = (
                f"brings {joined(sorted(used), 3)} for CUDA {dist.major}, which {torch.dist} loads; "
                f"{torch.dist} is built for CUDA {torch.cuda}. Install its build for CUDA {major} in its place"
            )
            yield Finding("failure", dist.dist, message, {"sonames": list[JSON](sorted(used))})
        else:
            idle.append(dist)
    for dist in idle:
        message = f"is for CUDA {dist.major}; {torch.dist} does not load it"
        yield Finding("note", dist.dist, message, {"sonames": list[JSON](dist.sonames)})


# ---- the driver, and what is not known


def _driver(torch: TorchBuild | None, driver: str | None) -> Iterator[Finding]:
    if torch is None or torch.cuda is None:
        return
    if driver is None:
        yield Finding("note", "driver", f"not judged for CUDA {torch.cuda}: no driver here, and none is named")
        return
    judgement = judge_driver(driver, torch.cuda)
    evidence: dict[str, JSON] = {"driver": driver, "cuda": torch.cuda}
    if judgement.fits is False:
        yield Finding("failure", torch.dist, f"cannot run: {judgement.message}. {judgement.remedy}", evidence)
    else:
        level: Level = "note" if judgement.fits else "warning"
        yield Finding(level, "driver", judgement.message, evidence)


def _unknown(facts: CudaFacts) -> Iterator[Finding]:
    for path in facts.unreadable:
        yield Finding("warning", path, "cannot be read: which CUDA release it needs is not known")
    for soname, owners in facts.unknown:
        message = f"is not in the table of sonames: its CUDA release is not known (needed by {joined(owners)})"
        yield Finding("note", soname, message)


# ---- words


def _plain(path: str) -> str:
    """A path without what names a CUDA release, the same for all variants of a file."""
    return _VARIANT.sub("", path)


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _releases(files: Iterable[CudaFile]) -> str:
    return _numbers({major for file in files for major in file.majors})


def _numbers(majors: Iterable[int]) -> str:
    return " and ".join(map(str, sorted(majors)))


def _evidence(files: Iterable[CudaFile]) -> dict[str, JSON]:
    listed: list[JSON] = []
    for file in files:
        needs: list[JSON] = [library.soname for library in file.needs]
        brings: list[JSON] = [library.soname for library in file.brings]
        listed.append({"path": file.path, "needs": needs, "brings": brings, "with_torch": file.with_torch})
    return {"files": listed}


def _ignored(finding: Finding, ignore: Sequence[str]) -> Finding:
    dists = finding.evidence.get("dists")
    subjects = [str(dist) for dist in dists] if isinstance(dists, list) else [finding.subject]
    names = [normalize_name(subject.partition(" ")[0]) for subject in subjects]
    pattern = next((glob for glob in ignore if any(fnmatchcase(name, normalize_name(glob)) for name in names)), "")
    if not pattern or finding.level == "note":
        return finding
    return replace(finding, level="note", message=f"{finding.message} (ignored by {pattern!r})")


def _figures(facts: CudaFacts, driver: str | None) -> dict[str, JSON]:
    built: dict[str, set[int]] = {}
    for file in facts.files:
        if file.majors:
            built.setdefault(file.dist or file.path, set()).update(file.majors)
    dists: dict[str, JSON] = {owner: list[JSON](sorted(majors)) for owner, majors in sorted(built.items())}
    libraries: dict[str, JSON] = {dist.dist: dist.major for dist in facts.dists}
    parts = (*facts.toolkits, *([facts.named] if facts.named else ()))
    toolkits: list[JSON] = [{"home": each.home, **parts_evidence(each)} for each in parts]
    return {
        "torch": facts.torch.dist if facts.torch else None,
        "torch_cuda": facts.torch.cuda if facts.torch else None,
        "driver": driver,
        "built_for": dists,
        "libraries": libraries,
        "toolkits": toolkits,
        "unknown_sonames": [soname for soname, _ in facts.unknown],
    }
