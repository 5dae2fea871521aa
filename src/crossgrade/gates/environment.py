"""The faults of an environment that people work with, each by its name, and what an upgrade makes of them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache

from crossgrade.facts.environment import EnvironmentFacts, Leak
from crossgrade.facts.venv import Checkout
from crossgrade.gates.consistency import judge_consistency
from crossgrade.gates.consistency_installation import printable
from crossgrade.gates.cuda import judge_cuda
from crossgrade.gates.verdict import Finding, Verdict, counted, joined
from crossgrade.inspect.consistency import Consistency
from crossgrade.inspect.dists import normalize_name
from crossgrade.inspect.leftovers import PathFile
from crossgrade.inspect.local_changes import LocalChange
from crossgrade.jsontype import JSON
from crossgrade.knowledge import Row, table

GATE = "environment"
_SHOWN = 4


@cache
def fault_names() -> tuple[str, ...]:
    """All names of faults, in the order of the table."""
    return tuple(str(row["name"]) for row in table("environment_faults"))


def judge_environment(facts: EnvironmentFacts, *, ignore: Sequence[str] = (), fail_on: Sequence[str] = ()) -> Verdict:
    """Name every fault, with what becomes of it in an upgrade and what to do about it where it is.

    A fault is a warning: the environment works, and is left. It is a failure where a glob of ``fail_on`` matches its
    name, and a note where one of ``ignore`` matches its name or that of its dist. What could not be looked at makes the
    verdict ``not run``. ``figures`` have the number of each fault.
    """
    findings = [_weighed(finding, ignore, fail_on) for finding in _in_order(_faults(facts))]
    findings += [Finding("warning", what, f"not run: {why}") for what, why in sorted(facts.unknown.items())]
    if facts.hidden_processes:
        text = f"{counted(facts.hidden_processes, 'process', 'processes')} of other users could not be looked into"
        findings.append(Finding("note", "processes", f"not run: {text}; root can"))
    told = [finding for finding in findings if finding.fault and finding.level != "note"]
    faults: dict[str, JSON] = dict(Counter(finding.fault for finding in told))
    figures: dict[str, JSON] = {
        "dists": len(facts.consistency.dists),
        "faults": faults,
        "ignored": sum(finding.level == "note" and bool(finding.fault) for finding in findings),
    }
    reason = _reason(told, len(facts.consistency.dists))
    if any(finding.level == "failure" for finding in findings):
        return Verdict(GATE, "failed", reason, tuple(findings), figures)
    unseen = [finding.subject for finding in findings if finding.level == "warning" and not finding.fault]
    if unseen:
        reason = f"{joined(unseen, _SHOWN)} could not be looked at; {reason}"
        return Verdict(GATE, "not run", reason, tuple(findings), figures)
    return Verdict(GATE, "passed", reason, tuple(findings), figures)


def judge_leftovers(facts: EnvironmentFacts) -> Verdict:
    """The faults that neither `judge_consistency` nor `judge_cuda` names: for reports that have those beside it."""
    dists = facts.consistency.dists
    return judge_environment(
        replace(facts, consistency=Consistency(dists=dists), majors=replace(facts.majors, dists={}, torch=None))
    )


# ---- the faults, one by one


def _faults(facts: EnvironmentFacts) -> Iterator[Finding]:
    yield from _of_dists(facts)
    yield from _majors(facts)
    yield from _built_for(facts)
    yield from _halves(facts)
    yield from (_checkout(checkout, git_asked=facts.git_asked) for checkout in facts.checkouts)
    for name, folder in facts.leftovers.linked:
        yield _told("editable", name, f"is used in place from {folder or 'a folder that is not named'} (.egg-link)")
    yield from _edited(facts.changes.changes if facts.changes else ())
    for path_file in facts.leftovers.path_files:
        yield from _path_file(path_file, facts)
    yield from map(_leak, facts.leaks)


def _of_dists(facts: EnvironmentFacts) -> Iterator[Finding]:
    """What the consistency gate says of the dists: a dist that lacks much is told once.

    Files of two dists that nobody runs, a LICENSE say, are no fault: they are in environments that work as they should.
    """
    alike: dict[tuple[str, str], list[Finding]] = {}
    for finding in judge_consistency(facts.consistency).findings:
        if not finding.fault:
            if finding.level == "warning":
                yield finding
        elif finding.fault == "two-dists-one-path" and finding.level != "failure":
            yield replace(finding, level="note", fault="")
        elif finding.level != "note" or finding.fault == "no-record":
            alike.setdefault((finding.fault, finding.subject), []).append(finding)
    for (fault, subject), findings in alike.items():
        first = findings[0]
        # Those on requirements say what is lacking, the others what to do, too
        bare = all("lack" in finding.evidence or finding.level == "note" for finding in findings)
        if len(findings) == 1:
            yield _told(fault, subject, first.message, first.evidence, remedy=None if bare else "")
            continue
        evidence: dict[str, JSON] = {"of": [dict(finding.evidence) for finding in findings]}
        if bare:
            messages = [finding.message for finding in findings]
            more = f"; and {len(messages) - _SHOWN} more" if len(messages) > _SHOWN else ""
            yield _told(fault, subject, "; ".join(messages[:_SHOWN]) + more, evidence)
        else:
            yield _told(fault, subject, ". ".join(finding.message for finding in findings), evidence, remedy="")


def _majors(facts: EnvironmentFacts) -> Iterator[Finding]:
    torch, majors = facts.majors.torch, facts.majors
    if torch is not None and torch.problem:
        yield Finding("warning", torch.dist, f"not run: which CUDA it is built for is not known: {torch.problem}")
    for major, dists in majors.strangers.items():
        names = [str(dist) for dist in dists]
        if majors.torch_major is not None and torch is not None:
            beside = f"{torch.dist} is built for CUDA {torch.cuda}"
        else:
            beside = f"others are for CUDA {joined(str(other) for other in majors.dists if other != major)}"
        message = f"{'is' if len(names) == 1 else 'are'} for CUDA {major}, and {beside}"
        evidence: dict[str, JSON] = {"cuda": major, "dists": list[JSON](names)}
        evidence["torch_cuda"] = torch.cuda if torch is not None else None
        yield _told("cuda-majors-mixed", joined(names), message, evidence)


def _built_for(facts: EnvironmentFacts) -> Iterator[Finding]:
    """Dists whose native files were built for another CUDA than torch; NVIDIA's own are told by their names already."""
    if facts.cuda is None:
        return
    dists = {str(dist) for dist in facts.consistency.dists}
    known = {str(dist) for dists in facts.majors.strangers.values() for dist in dists}
    for finding in judge_cuda(facts.cuda).findings:
        if finding.fault and finding.subject in dists - known:
            yield _told(finding.fault, finding.subject, finding.message, finding.evidence, remedy="")


def _halves(facts: EnvironmentFacts) -> Iterator[Finding]:
    found = facts.leftovers
    if found.half_uninstalled:
        names = list(found.half_uninstalled)
        message = f"{joined(names)} in site-packages: pip was stopped while it uninstalled or replaced a dist"
        yield _told("interrupted-install", joined(names, 1), message, {"names": list[JSON](names)})
    for name in found.without_metadata:
        message = "has no METADATA, so that it is no dist: its installation was cut short, or it was emptied"
        yield _told("interrupted-install", name, message, {"names": [name]})
    for dists in found.twice:
        names = [dist.folder.name for dist in dists]
        message = f"is recorded {len(dists)} times ({joined(names)}): its files may be of any of them"
        yield _told("two-versions", dists[0].name, message, {"names": list[JSON](names)})


def _checkout(checkout: Checkout, *, git_asked: bool) -> Finding:
    state = checkout.told() if git_asked else "`crossgrade patches` says what is its own there"
    message = f"is used in place from {checkout.path}: {state}"
    evidence: dict[str, JSON] = {"path": checkout.path}
    if git_asked and not checkout.problem:
        evidence |= {
            "commit": checkout.commit,
            "ahead": checkout.ahead,
            "changed": list[JSON](checkout.changed or ()),
            "untracked": checkout.untracked,
        }
    return _told("editable", checkout.dist, message, evidence)


def _edited(changes: Sequence[LocalChange]) -> Iterator[Finding]:
    """One finding for each dist. Files that are gone are told as missing, and code that was taken away by hand, too."""
    by_dist: dict[str, list[LocalChange]] = {}
    for change in changes:
        if change.kind != "deleted":
            by_dist.setdefault(f"{change.dist} {change.version}", []).append(change)
    for dist, theirs in by_dist.items():
        named = joined((f"{printable(change.path)} ({change.kind})" for change in theirs), _SHOWN)
        files: list[JSON] = [{"path": printable(change.path), "kind": change.kind} for change in theirs]
        message = f"{counted(len(theirs), 'file')} not as RECORD has them: {named}"
        yield _told("edited-by-hand", dist, message, {"dist": dist, "files": files})


def _path_file(found: PathFile, facts: EnvironmentFacts) -> Iterator[Finding]:
    if found.problem:
        yield Finding("warning", found.name, f"not run: {found.problem}")
        return
    evidence: dict[str, JSON] = {
        "folders": list[JSON](found.folders),
        "gone": list[JSON](found.gone),
        "code": list[JSON](found.code),
    }
    in_place = {checkout.dist for checkout in facts.checkouts}
    outside = tuple(
        folder
        for folder in found.folders
        if folder not in found.gone and not f"{folder}/".startswith((f"{facts.root}/", f"{facts.site}/"))
    )
    if outside and (found.owner is None or found.owner.name not in in_place):
        yield _leak(Leak(found.name, outside, inside=True))
    elif found.owner is None:
        parts = [f"names {joined(found.gone)}, which is gone"] if found.gone else []
        parts += [f"runs code at each start of Python ({joined(found.code, 1)[:120]})"] if found.code else []
        what = " and ".join(parts) or "adds nothing that is outside of the environment"
        yield _told("leftover-pth", found.name, f"is in no dist's RECORD; it {what}", evidence)


def _leak(leak: Leak) -> Finding:
    message = f"lets Python import from {joined(leak.folders, _SHOWN) or 'outside of the environment'}"
    evidence: dict[str, JSON] = {"folders": list[JSON](leak.folders)}
    if leak.inside:
        remedy = "Remove the file" if leak.origin.endswith(".pth") else "Make the environment without it"
        return _told("import-leak", leak.origin, message, evidence, remedy=remedy, carried="no")
    return _told("import-leak", leak.origin, message, evidence)


# ---- names and words


@cache
def _rows() -> Mapping[str, Row]:
    return {str(row["name"]): row for row in table("environment_faults")}


def _told(
    fault: str,
    subject: str,
    message: str,
    evidence: Mapping[str, JSON] | None = None,
    *,
    remedy: str | None = None,
    carried: str = "",
) -> Finding:
    """A finding with its remedy: that of the table, unless another is given; empty where the message has its own."""
    row = _rows()[fault]
    if remedy is None:
        text = str(row["remedy"])
        remedy = text[0].upper() + text[1:]
    told: dict[str, JSON] = {**(evidence or {}), "carried": carried or row["carried"]}
    return Finding("warning", subject, f"{message}. {remedy}" if remedy else message, told, fault)


def _in_order(findings: Iterator[Finding]) -> list[Finding]:
    names = ("", *fault_names())
    return sorted(findings, key=lambda finding: names.index(finding.fault) or len(names))


def _weighed(finding: Finding, ignore: Sequence[str], fail_on: Sequence[str]) -> Finding:
    if not finding.fault:
        return finding
    listed = finding.evidence.get("dists")
    dists = [str(dist) for dist in listed] if isinstance(listed, list) else [finding.subject]
    names = [finding.fault, *(normalize_name(dist.partition(" ")[0]) for dist in dists)]
    pattern = next((glob for glob in ignore if any(fnmatchcase(name, normalize_name(glob)) for name in names)), "")
    if pattern:
        return replace(finding, level="note", message=f"{finding.message} (ignored by {pattern!r})")
    if any(fnmatchcase(finding.fault, glob) for glob in fail_on):
        return replace(finding, level="failure")
    return finding


def _reason(told: Sequence[Finding], dists: int) -> str:
    """How many faults of which names, and which of them an upgrade does not leave behind by itself."""
    where = f"in {counted(dists, 'dist')}"
    if not told:
        return f"0 faults {where}"
    count = Counter(finding.fault for finding in told)
    named = joined((f"{name} ({number})" if number > 1 else name for name, number in count.items()), len(count))
    kinds = {
        kind: list(dict.fromkeys(finding.fault for finding in told if finding.evidence.get("carried") == kind))
        for kind in ("no", "patches", "outside")
    }
    then = []
    if kinds["no"]:
        rest = "none of the others is" if kinds["patches"] or kinds["outside"] else "none of them is"
        then.append(f"{rest} in a candidate that is built from a lock (`base: clone` copies them)")
    if kinds["patches"]:
        then.insert(0, f"`local_patches` decides on {joined(kinds['patches'])}")
    if kinds["outside"]:
        then.insert(0, f"{joined(kinds['outside'])} would reach into the candidate, too")
    return f"{counted(len(told), 'fault')} {where}: {named}. In an upgrade: {'; '.join(then)}"
