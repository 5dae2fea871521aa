"""`inspect`: will native code load, and does it hold code for the GPU? Of venvs, folders, wheels and single files."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from crossgrade.commands.common import people
from crossgrade.commands.inspection_cache import Answer, InspectionCache
from crossgrade.errors import CrossgradeError, ExitCode, WrongOptionsError
from crossgrade.gates.abi import judge_abi
from crossgrade.gates.comparison import Working, compared
from crossgrade.gates.gpu_arch import judge_gpu_arch
from crossgrade.gates.reachability import broken_by, refused, sorted_by_reach, with_callers, without_code
from crossgrade.gates.verdict import Finding, Verdict, counted, joined
from crossgrade.inspect.gpu_architecture import parse_compute_capability
from crossgrade.inspect.graph_ahead import GraphAhead
from crossgrade.inspect.native import NativeReport, inspect_native
from crossgrade.inspect.reach import followed_from, reach_of
from crossgrade.jsontype import JSON
from crossgrade.report.terminal import Terminal
from crossgrade.report.text import Line

Options = Mapping[str, Any]
SCHEMA = 1
_STYLES = {"failure": "failed", "warning": "warning", "note": "faint"}


@dataclass(frozen=True)
class Subject:
    """What was asked about: a title, the folder to inspect, and the files that count (None: all of them).

    `wheels` are those that were laid out there.
    """

    title: str
    root: Path
    files: frozenset[str] | None = None
    outside: tuple[Path, ...] = ()
    wheels: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Inspected:
    """A subject, what its files are, and what follows: for loading, the GPU when one was named, and of a venv for its
    dists and for what it has of CUDA."""

    subject: Subject
    report: NativeReport
    loading: Verdict
    gpu: Verdict | None
    dists: Verdict | None
    cuda: Verdict | None
    environment: Verdict | None = None

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        return tuple(verdict for verdict in self._all if verdict)

    @property
    def _all(self) -> tuple[Verdict | None, ...]:
        return self.loading, self.gpu, self.cuda, self.dists, self.environment

    @property
    def failed(self) -> bool:
        return any(verdict.outcome == "failed" for verdict in self.verdicts)

    def to_json(self) -> dict[str, JSON]:
        verdicts: list[JSON] = [verdict.to_json() for verdict in self.verdicts]
        return {"subject": self.subject.title, "root": self.report.root, "verdicts": verdicts, **self.report.to_json()}


def inspect_anew(options: Options, cache: InspectionCache | None) -> int:
    """Exit code 0 when everything loads and runs, 2 when something does not. What is said goes into the cache."""
    if not options["path"]:
        raise WrongOptionsError("inspect needs a venv, a folder, wheels or files", remedy="crossgrade inspect VENV")
    if options["for_"]:
        parse_compute_capability(options["for_"])  # a wrong one is said before anything is read
    driver = _driver(options)
    against = _environment(options["against"], "--against") if options["against"] else None
    # Without "..", as the paths of the report: nothing could be said about a file that is not found in it.
    paths = [Path(os.path.abspath(Path(path).expanduser())) for path in options["path"]]  # noqa: PTH100
    for path in paths:
        if not path.exists():
            raise CrossgradeError(f"there is no {path}")
    if cache is not None:
        cache.look()
    working = _working(options)
    found: list[Inspected] = []
    terminal = Terminal(people(options))
    with _subjects(paths, against) as subjects:
        for subject in subjects:
            found.append(_look(subject, working, driver, options))
            if not options["json"]:
                terminal.write(_printable(found[-1], verbose=options["verbose"] > 0))
    document = ""
    if options["json"] or cache is not None:
        document = json.dumps({"schema": SCHEMA, "inspected": [each.to_json() for each in found]}) + "\n"
    if options["json"]:
        sys.stdout.write(document)
    code = ExitCode.FAILED if any(each.failed for each in found) else ExitCode.DONE
    if cache is not None:
        few, every = (
            [(line.text, line.style) for each in found for line in _printable(each, verbose=verbose)]
            for verbose in (False, True)
        )
        cache.write(Answer(int(code), document, few, every))
    return code


# ---- what is asked about


def _environment(text: str, option: str) -> Path:
    path = Path(text).expanduser().absolute()
    if not (path / "pyvenv.cfg").is_file():
        raise CrossgradeError(f"{path} is not a venv: it has no pyvenv.cfg", remedy=f"{option} names a venv.")
    return path


@contextmanager
def _subjects(paths: Sequence[Path], against: Path | None) -> Iterator[Iterator[Subject]]:
    """Folders by themselves; wheels all together; files in the venv that they belong to, or in `against`."""
    wheels = [path for path in paths if path.suffix == ".whl" and path.is_file()]
    others = [path for path in paths if path not in wheels]
    if not wheels:
        yield (_subject(path, against) for path in others)
        return
    from crossgrade.inspect.wheels import laid_out

    with laid_out(wheels, against) as layout:
        names = joined((wheel.name for wheel in wheels), 3)
        title = f"{names} over {against}" if against else names

        def both() -> Iterator[Subject]:
            yield Subject(title, layout.root, layout.files, wheels=tuple(wheels))
            yield from (_subject(path, against) for path in others)

        yield both()


def _subject(path: Path, against: Path | None) -> Subject:
    if path.is_dir():
        return Subject(str(path), path)
    home = next((folder for folder in path.parents if (folder / "pyvenv.cfg").is_file()), None)
    if home is not None and against in (None, home):
        return Subject(str(path), home, frozenset({str(path)}), (path,))
    if against is not None:
        return Subject(f"{path} in {against}", against, frozenset({str(path)}), (path,))
    return Subject(str(path), path.parent, frozenset({str(path)}), (path,))


# ---- looking and judging


def _report(root: Path, options: Options, also: Sequence[Path] = ()) -> NativeReport:
    library_path = [part for part in os.environ.get("LD_LIBRARY_PATH", "").split(":") if part]
    return inspect_native(root, library_path=library_path, preload=options["preload"], also=also)


def _working(options: Options) -> Working | None:
    """What --compare names."""
    if not options["compare"]:
        return None
    path = _environment(options["compare"], "--compare")
    report = _report(path, options)
    return Working(str(path), report, judge_abi(report, ignore=options["ignore"]))


def _look(subject: Subject, working: Working | None, driver: str | None, options: Options) -> Inspected:
    with followed_from(subject.root, options["entry"] or None) as ahead:
        report = _report(subject.root, options, subject.outside)
        loading = _loading(report, working, ahead, options)
        gpu = _gpu(subject, report, driver, ahead, options) if options["for_"] else None
    if subject.files is not None:
        report = _chosen(subject, report)
        loading = about(loading, report)
    if subject.files is not None or not (subject.root / "pyvenv.cfg").is_file():
        return Inspected(subject, report, loading, gpu, _names(subject.wheels), None)
    return Inspected(subject, report, loading, gpu, *_of_venv(subject.root, report, driver, options))


def _names(wheels: Sequence[Path]) -> Verdict | None:
    """What is wrong with the names of wheels; None where nothing is."""
    from crossgrade.inspect.wheel_name import misnamed

    found = [(wheel.name, problem) for wheel in wheels if (problem := misnamed(wheel))]
    findings = tuple(Finding("failure", name, f"{problem}. Name it as its metadata does") for name, problem in found)
    return Verdict("consistency", "failed", found[0][1], findings) if found else None


def _chosen(subject: Subject, report: NativeReport) -> NativeReport:
    """What a report says of the files that were asked about."""
    if subject.files is None:
        return report
    chosen = frozenset(path.removeprefix(f"{report.root}/") for path in subject.files)
    return replace(report, files=tuple(file for file in report.files if file.path in chosen))


def _gpu(subject: Subject, report: NativeReport, driver: str | None, ahead: GraphAhead, options: Options) -> Verdict:
    """The device code of the chosen files; of a whole venv or folder also what no process loads by itself."""
    from crossgrade.gates.jit_settings import with_jit_settings
    from crossgrade.inspect.device_packages import device_packages
    from crossgrade.inspect.jit_settings import read_jit_settings

    site = report.interpreter.site_packages if report.interpreter else None
    packages = device_packages(report.root, site) if subject.files is None else None
    asked = _chosen(subject, report)
    verdict = judge_gpu_arch(asked, options["for_"], allow_ptx=True, driver=driver, packages=packages)
    verdict = with_callers(verdict, reach_of(report, without_code(verdict), ahead))
    if subject.files is not None or not (subject.root / "pyvenv.cfg").is_file():
        return verdict
    home = _toolkit(options)
    settings = read_jit_settings(subject.root, parse_compute_capability(options["for_"]), os.environ, home)
    return with_jit_settings(verdict, settings, options["for_"])


def _toolkit(options: Options) -> Path | None:
    """What --cuda-home names, else CUDA_HOME or CUDA_PATH."""
    from crossgrade.inspect.jit_settings import named_toolkit

    home = options["cuda_home"] or named_toolkit(os.environ)
    return Path(home).expanduser().absolute() if home else None


def _loading(report: NativeReport, working: Working | None, ahead: GraphAhead, options: Options) -> Verdict:
    """Whether it loads: beside an environment that works, and as far as the server comes to load it."""
    verdict = judge_abi(report, ignore=options["ignore"])
    reaches = reach_of(report, refused(verdict), ahead)
    if working is not None:
        return compared(verdict, report, working, reaches)
    return sorted_by_reach(verdict, report, reaches)


def _of_venv(
    root: Path, report: NativeReport, driver: str | None, options: Options
) -> tuple[Verdict, Verdict, Verdict]:
    """Whether the dists of a venv fit together, and all that it has of CUDA, and what else is wrong with it."""
    from crossgrade.facts.environment import read_environment
    from crossgrade.gates.consistency import judge_consistency
    from crossgrade.gates.cuda import judge_cuda
    from crossgrade.gates.environment import judge_leftovers
    from crossgrade.inspect.consistency import read_consistency
    from crossgrade.inspect.cuda_consistency import read_cuda

    ignore, found = options["ignore_dist"], read_consistency(root)
    dists = judge_consistency(found, ignore=ignore)
    facts = read_cuda(report, found.conflicts, _toolkit(options))
    # Files that were edited are for `patches`: comparing them takes as long as all of this
    more = read_environment(root, os.environ, consistency=found, compare_files=False, processes=None)
    return dists, judge_cuda(facts, driver=driver, ignore=ignore, environment=os.environ), judge_leftovers(more)


def _driver(options: Options) -> str | None:
    """The driver that --driver names, or that of this machine; None where there is none."""
    from crossgrade.inspect.machine import driver_version
    from crossgrade.inspect.toolkit import is_driver_version

    named = str(options["driver"] or "")
    if named and not is_driver_version(named):
        raise WrongOptionsError(f"{named!r} is not a driver's version", remedy="Write it as 580 or 580.95.05.")
    return named or driver_version()


def about(verdict: Verdict, report: NativeReport) -> Verdict:
    """The part of a verdict that is about the files of a report, and about what they fail with. Pure."""
    paths = {file.path for file in report.files}
    findings = tuple(
        finding for finding in verdict.findings if finding.subject in paths or not paths.isdisjoint(broken_by(finding))
    )
    failures = [finding for finding in findings if finding.level == "failure"]
    if failures:
        reason = f"{failures[0].subject} {failures[0].message}"
        return Verdict(verdict.gate, "failed", reason, findings, {"files": len(paths), "failures": len(failures)})
    if not paths:
        return Verdict(verdict.gate, "passed", "there is no native file in it", (), {"files": 0, "failures": 0})
    reason = f"{counted(len(paths), 'native file')}: libraries, versions and symbols are all there"
    return Verdict(verdict.gate, "passed", reason, findings, {"files": len(paths), "failures": 0})


# ---- for people


def _printable(inspected: Inspected, *, verbose: bool) -> list[Line]:
    return [replace(line, text=line.text.replace("\n", "\\n")) for line in _lines(inspected, verbose=verbose)]


def _lines(inspected: Inspected, *, verbose: bool) -> Iterator[Line]:
    report = inspected.report
    python = f"{report.interpreter.name}, " if report.interpreter else ""
    yield Line(
        f"{inspected.subject.title}: {python}{counted(len(report.files), 'native file')}, {report.seconds:.2f} s",
        "heading",
    )
    yield from _verdict_lines("loading", inspected.loading, report, verbose=verbose)
    if inspected.gpu is not None:
        yield from _verdict_lines("GPU", inspected.gpu, report, verbose=verbose)
    else:
        yield from _architectures(report)
    if inspected.cuda is not None:
        yield from _verdict_lines("CUDA", inspected.cuda, report, verbose=verbose)
    if inspected.dists is not None:
        yield from _verdict_lines("dists", inspected.dists, report, verbose=verbose)
    if inspected.environment is not None and inspected.environment.findings:
        yield from _verdict_lines("other faults", inspected.environment, report, verbose=verbose)


def _verdict_lines(title: str, verdict: Verdict, report: NativeReport, *, verbose: bool) -> Iterator[Line]:
    style = {"passed": "ok", "failed": "failed", "not run": "warning"}[verdict.outcome]
    failures = verdict.of_level("failure")
    said = counted(len(failures), "failure") if failures else verdict.reason
    yield Line(f"  {title}: {verdict.outcome}: {said}", style)
    dists = {file.path: file.dist for file in report.files}
    site = report.interpreter.site_packages.removeprefix(f"{report.root}/") + "/" if report.interpreter else ""
    for finding in verdict.findings:
        if finding.level != "note" or verbose:
            owner = f" ({dists[finding.subject]})" if dists.get(finding.subject) else ""
            subject = finding.subject.removeprefix(site)
            fault = f"{finding.fault}: " if finding.fault else ""
            yield Line(f"    {finding.level}: {fault}{subject}{owner}: {finding.message}", _STYLES[finding.level])
    notes = len(verdict.of_level("note"))
    if notes and not verbose:
        yield Line(f"    and {counted(notes, 'note')}: -v shows them", "faint")


def _architectures(report: NativeReport) -> Iterator[Line]:
    """What each dist holds for GPUs, when none was named."""
    held: dict[str, set[str]] = {}
    for file in report.files:
        if file.device_code is not None:
            held.setdefault(file.dist or file.path, set()).update(file.device_code.names)
    for owner, names in sorted(held.items()):
        yield Line(f"  GPU code in {owner}: {joined(sorted(names), 20)}")
    if held:
        yield Line("  --for sm_120 says whether it runs on that GPU", "faint")
