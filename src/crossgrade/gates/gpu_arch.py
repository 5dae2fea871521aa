"""The architecture gate: does the device code of each dist run on this GPU, and what falls away where it does not?

A dist is one answer: many bring a module for each architecture, and are served by those that fit. Whoever needs one
module names it in ``require``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Literal

from crossgrade.gates.gpu_arch_wording import (
    built_at_first_use,
    by_ptx,
    evidence,
    falls_away,
    for_links,
    for_other_gpus,
    jit_only,
    no_code,
    partial,
    partly_jit,
    target_of,
)
from crossgrade.gates.verdict import Finding, Level, Verdict, counted, joined
from crossgrade.inspect.device_packages import DeviceFile, DevicePackages
from crossgrade.inspect.gpu_architecture import Coverage, DeviceCode, coverage, jit_ptx, parse_compute_capability
from crossgrade.inspect.native import NativeReport
from crossgrade.jsontype import JSON
from crossgrade.knowledge import table

GATE = "gpu_arch"

DistVerdict = Literal["covers", "covers in some modules", "by PTX only", "does not cover", "built at first use"]
# Chosen by the program that opens them, by name: one for each architecture is how they come.
_LOOSE = ("cubin", "fatbin", "ptx")
_FOR_LINKS = ("object", "archive")


@dataclass(frozen=True)
class Piece:
    """One file with device code that can run, and how it does on the GPU."""

    path: str
    dist: str
    kind: str
    code: DeviceCode
    runs: Coverage


@dataclass(frozen=True)
class _Asked:
    """What is judged: see `judge_gpu_arch`. ``site`` is where site-packages begins in the paths of the report."""

    capability: tuple[int, int]
    require: Sequence[str] | None
    allow_ptx: bool
    driver: str | None
    site: str

    @property
    def target(self) -> str:
        return target_of(self.capability)


def judge_gpu_arch(
    report: NativeReport,
    compute_capability: str = "12.0",
    *,
    require: Sequence[str] | None = None,
    allow_ptx: bool = False,
    driver: str | None = None,
    packages: DevicePackages | None = None,
) -> Verdict:
    """Judge the device code of every dist for one compute capability.

    A dist that covers the GPU in no file fails the gate, one that does in some is warned about; a file of no dist is
    judged by itself. ``require`` limits what can fail to files that match one of these globs (paths relative to the
    environment, ``*`` also matches ``/``), each for itself; a glob that no file with device code matches fails as well.
    With ``allow_ptx`` code that the driver must compile at the first start is only warned about; where ``driver``
    (``580.95.05``) does not know that PTX, it is a failure all the same, and None says that there is none to judge.
    ``packages`` are archives, PTX and sources that `inspect.device_packages` has found. Raises `WrongOptionsError` for
    a text that is no compute capability.
    """
    packages = packages or DevicePackages()
    site = f"{report.interpreter.site_packages}/".removeprefix(f"{report.root}/") if report.interpreter else ""
    asked = _Asked(parse_compute_capability(compute_capability), require, allow_ptx, driver, site)
    pieces, findings = _pieces(report, packages, asked)
    groups: dict[str, list[Piece]] = {}
    for piece in pieces:
        groups.setdefault(piece.dist or piece.path, []).append(piece)
    sources = {source.dist: source for source in packages.sources}
    dists: dict[str, JSON] = {}
    for name, group in groups.items():
        findings += _about_modules(name, [piece for piece in group if piece.kind not in _LOOSE], asked)
        findings += _about_loose(name, group, asked.target, built=name in sources)
        dists[name] = _summary(group, built=name in sources)
    for name, source in sources.items():
        dists.setdefault(name, {"verdict": "built at first use", "holds": []})
        findings.append(Finding("note", name, built_at_first_use(source, packages.compilers, asked.target)))
    candidates = [piece for piece in pieces if piece.kind not in _LOOSE or piece.runs != "none"]
    for pattern in require or ():
        if not any(_matches(piece.path, [pattern]) for piece in candidates):
            message = "no file with device code matches this pattern, which the playbook requires"
            findings.append(Finding("failure", pattern, message))
    return _concluded(report, pieces, findings, dists, asked)


def _pieces(report: NativeReport, packages: DevicePackages, asked: _Asked) -> tuple[list[Piece], list[Finding]]:
    """What can run, and what is to be said of the files that hold nothing that can."""
    pieces: list[Piece] = []
    findings: list[Finding] = []
    archives: dict[str, list[DeviceFile]] = {}
    loaded = [DeviceFile(f.path, f.kind, f.dist, f.device_code, f.unreadable) for f in report.files]
    for file in (*loaded, *packages.files):
        code = file.code
        if file.unreadable:
            # What cannot be read may be what is asked for; an archive harms nobody who does not link it.
            fatal = file.kind not in _FOR_LINKS and (asked.require is None or _matches(file.path, asked.require))
            findings.append(Finding("failure" if fatal else "note", file.path, f"cannot be read: {file.unreadable}"))
        elif code is None or file.kind == "object":
            continue
        elif file.kind == "archive":
            archives.setdefault(file.dist, []).append(file)
        elif code.units:
            pieces.append(Piece(file.path, file.dist, file.kind, code, coverage(code, asked.capability)))
        elif code.images:
            message = f"its device code ({joined(code.names)}) holds no function: nothing to run"
            findings.append(Finding("note", file.path, message))
    findings += [Finding("note", group[0].path, for_links(group)) for group in archives.values()]
    return pieces, findings


def _about_modules(name: str, modules: Sequence[Piece], asked: _Asked) -> list[Finding]:
    """What the modules of one dist make of it."""
    findings: list[Finding] = []
    falls: dict[str, list[Piece]] = {"none": [], "jit": []}
    for piece in modules:
        required = asked.require is not None and _matches(piece.path, asked.require)
        needed_for = "" if required else _optional(piece.path.removeprefix(asked.site))
        if piece.runs == "native":
            findings += _about_parts(piece, asked)
        elif required or needed_for or (asked.require is None and not _others_serve(piece, modules)):
            findings.append(_about_lacking(piece, needed_for, asked))
        else:
            falls[piece.runs].append(piece)
    native = sum(piece.runs == "native" for piece in modules)
    for how, group in falls.items():
        if group:
            lacking = {piece.path: list(piece.code.names) for piece in group}
            message = (falls_away if how == "none" else by_ptx)(lacking, native, len(modules), asked.target)
            refused = [p for p in group if jit_only(p.code, asked.capability, asked.driver)[1] is False]
            if how == "jit" and refused:
                message += f"; driver {asked.driver} does not compile that of {counted(len(refused), 'module')}"
            held: dict[str, JSON] = {path: list(names) for path, names in lacking.items()}
            level: Level = "warning" if asked.require is None else "note"
            findings.append(Finding(level, name, message, {"lacking": held}))
    return findings


def _about_parts(piece: Piece, asked: _Asked) -> list[Finding]:
    """The parts of a module that do not run natively, as parts of it do."""
    said: list[tuple[Level, str]] = [
        ("note", partial(piece.code, asked.capability)),
        ("warning", partly_jit(piece.code, asked.capability, asked.driver)),
    ]
    more: dict[str, JSON] = {**evidence(piece.code), "driver": asked.driver}
    return [Finding(level, piece.path, message, more) for level, message in said if message]


def _about_lacking(piece: Piece, needed_for: str, asked: _Asked) -> Finding:
    """A module that does not run natively, and has no other of its dist beside it, or is required by itself."""
    level: Level = "failure"
    more: dict[str, JSON] = dict(evidence(piece.code))
    if piece.runs == "jit":
        message, fits = jit_only(piece.code, asked.capability, asked.driver)
        versions = [version for version, _ in jit_ptx(piece.code, asked.capability)]
        more |= {"needs_ptx": list[JSON](versions), "driver": asked.driver}
        if asked.allow_ptx and fits is not False:
            level = "warning"
    else:
        message = no_code(piece.code, asked.target)
        if not needed_for:
            message += f". Rebuild it for {asked.target}, or install a build that has it"
    if needed_for:
        message += f". It is needed for {needed_for}"
        level = "warning" if asked.require is None else "note"
    return Finding(level, piece.path, message, more)


def _others_serve(piece: Piece, modules: Sequence[Piece]) -> bool:
    """Whether another module of the dist runs on the GPU, and at least as well."""
    return any(other.runs == "native" or (piece.runs == "none" and other.runs == "jit") for other in modules)


def _about_loose(name: str, group: Sequence[Piece], target: str, *, built: bool) -> list[Finding]:
    """The cubins, fatbins and PTX files of one dist, which its program chooses by name."""
    loose = [piece for piece in group if piece.kind in _LOOSE]
    lacking = [piece for piece in loose if piece.runs == "none"]
    if not lacking:
        return []
    held = dict.fromkeys(name for piece in lacking for name in piece.code.names)
    serves = built or any(piece.runs != "none" for piece in group)
    message = for_other_gpus(len(lacking), len(loose), list(held), target)
    subject = name if lacking[0].dist else lacking[0].path
    return [Finding("note" if serves else "warning", subject, message, {"holds": list(held)})]


def _summary(group: Sequence[Piece], *, built: bool) -> dict[str, JSON]:
    """A dist in the figures: its verdict, and what its files hold, cubins counted by their architecture."""
    runs = Counter(piece.runs for piece in group)
    if runs["native"]:
        verdict: DistVerdict = "covers" if runs["native"] == len(group) else "covers in some modules"
    elif built:
        verdict = "built at first use"
    else:
        verdict = "by PTX only" if runs["jit"] else "does not cover"
    loose = Counter(name for piece in group if piece.kind in _LOOSE for name in piece.code.names)
    held = dict.fromkeys(name for piece in group for name in piece.code.names)
    return {"verdict": verdict, "holds": list(held), "files": len(group), "loose": dict(loose)}


def _concluded(
    report: NativeReport,
    pieces: Sequence[Piece],
    findings: Sequence[Finding],
    dists: dict[str, JSON],
    asked: _Asked,
) -> Verdict:
    modules = [piece for piece in pieces if piece.kind not in _LOOSE]
    counts = Counter(piece.runs for piece in modules)
    verdicts = Counter(str(dist["verdict"]) for dist in dists.values() if isinstance(dist, dict))
    figures: dict[str, JSON] = {
        "compute_capability": f"{asked.capability[0]}.{asked.capability[1]}",
        "files_with_device_code": len(modules),
        "native": counts["native"],
        "jit": counts["jit"],
        "none": counts["none"],
        "driver": asked.driver,
        "loose_files": len(pieces) - len(modules),
        "dists": dists,
        "architectures": {piece.path: list(piece.code.names) for piece in modules},
    }
    failures = [finding for finding in findings if finding.level == "failure"]
    if failures:
        first = failures[0]
        more = f" (and {counted(len(failures) - 1, 'more failure')})" if len(failures) > 1 else ""
        reason = f"{first.subject}: {first.message}{more}"
        return Verdict(GATE, "failed", reason, tuple(findings), figures)
    built = verdicts["built at first use"]
    later = f", {counted(built, 'dist')} built at first use" if built else ""
    if not pieces:
        reason = f"none of {counted(len(report.files), 'native file')} holds device code{later}: nothing to judge"
        return Verdict(GATE, "not run", reason, tuple(findings), figures)
    held = counted(len(modules), "file")
    reason = f"{counts['native']} of {held} with device code run natively on {asked.target}"
    if counts["jit"]:
        reason += f", {counts['jit']} only after the driver compiled their PTX"
        reason += "" if asked.driver else " (not judged: no driver here)"
    if counts["none"]:
        reason += f", {counts['none']} not at all (nothing that is required)"
    return Verdict(GATE, "passed", reason + later, tuple(findings), figures)


def _optional(path: str) -> str:
    """What a file is needed for that a server can do without; empty for all others. ``path`` is in site-packages."""
    for row in table("optional_device_code"):
        globs = row["files"]
        if isinstance(globs, list) and _matches(path, [str(glob) for glob in globs]):
            return str(row["needed_for"])
    return ""


def _matches(path: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch(path, pattern) for pattern in patterns)
