"""The preflight gate: can this server take the target at all? Everything that stands in the way, at once. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal

from crossgrade.facts.compilers import CompilerFacts
from crossgrade.facts.gpus import GpuFacts
from crossgrade.facts.holders import HolderFacts
from crossgrade.facts.indexes import IndexAnswer
from crossgrade.facts.system import SystemFacts
from crossgrade.facts.toolkits import ToolkitsFacts
from crossgrade.gates.verdict import Finding, Level, Verdict, counted, joined
from crossgrade.jsontype import JSON

GATE = "preflight"
Result = Literal["passed", "failure", "warning", "not run"]


@dataclass(frozen=True)
class Target:
    """What is to be: a CUDA release (``13.0``), and what the build and the new generation need.

    `gpu` is the architecture that is built for, as builds name it (``12.0f``), empty where nothing is built. `jobs` is
    how many a build runs at once, 0 without a build; `job_bytes` the memory of one. `disk_bytes` is what one more
    generation takes at `place`, None where nobody could say.
    """

    cuda: str
    gpu: str = ""
    jobs: int = 0
    job_bytes: int = 0
    disk_bytes: int | None = None
    place: str = ""


@dataclass(frozen=True)
class Observed:
    """The facts that are judged. `indexes` is None where no index was asked, and `no_indexes` says why."""

    system: SystemFacts
    gpus: GpuFacts
    toolkits: ToolkitsFacts
    compilers: CompilerFacts
    holders: HolderFacts
    indexes: tuple[IndexAnswer, ...] | None = None
    no_indexes: str = "nobody asked them"


@dataclass(frozen=True)
class Answer:
    """What one check says. `remedy` is a sentence, or empty where there is nothing to do."""

    result: Result
    message: str
    remedy: str = ""
    evidence: Mapping[str, JSON] = field(default_factory=dict)


Check = Callable[[Observed, Target], Sequence[Answer]]


def judge_preflight(observed: Observed, target: Target, *, ignore: Sequence[str] = ()) -> Verdict:
    """Ask every check. A failure of any fails the gate; otherwise one that could not run makes it `not run`.

    A check whose name matches a glob of `ignore` is only noted, whatever it says. A check that has nothing to look at
    for this target (no build, no GPU architecture) says nothing.
    """
    findings: list[Finding] = []
    names: dict[Result, list[str]] = {"passed": [], "failure": [], "warning": [], "not run": []}
    ignored = []
    for name, check in _checks().items():
        answers = list(check(observed, target))
        pattern = next((glob for glob in ignore if fnmatchcase(name, glob)), "")
        if pattern and any(answer.result != "passed" for answer in answers):
            ignored.append(name)
        elif answers:
            names[_worst(answers)].append(name)
        findings += [_finding(name, answer, pattern) for answer in answers]
    figures: dict[str, JSON] = {
        "cuda": target.cuda,
        **{key.replace(" ", "_"): list(found) for key, found in names.items()},
        "ignored": list(ignored),
    }
    failures = [finding for finding in findings if finding.level == "failure"]
    if failures:
        more = f" (and {counted(len(failures) - 1, 'more failure')})" if len(failures) > 1 else ""
        return Verdict(GATE, "failed", f"{failures[0].subject}: {failures[0].message}{more}", tuple(findings), figures)
    if names["not run"]:
        what = counted(len(names["not run"]), "check")
        return Verdict(GATE, "not run", f"{what} could not run: {joined(names['not run'])}", tuple(findings), figures)
    warned = f"; look at {joined(names['warning'])}" if names["warning"] else ""
    reason = (
        f"{counted(len(names['passed']) + len(names['warning']), 'check')} for CUDA {target.cuda}, 0 failures{warned}"
    )
    return Verdict(GATE, "passed", reason, tuple(findings), figures)


def _checks() -> dict[str, Check]:
    from crossgrade.gates import preflight_gpus as gpus
    from crossgrade.gates import preflight_host as host

    return {
        "driver": gpus.driver,
        "driver_library": gpus.driver_library,
        "forward_compatibility": gpus.forward_compatibility,
        "gpu_architecture": gpus.gpu_architecture,
        "gpus_free": gpus.gpus_free,
        "gpu_clocks": gpus.gpu_clocks,
        "gpu_links": gpus.gpu_links,
        "peer_access": gpus.peer_access,
        "bridge_redirection": gpus.bridge_redirection,
        "toolkit": host.toolkit,
        "host_compiler": host.host_compiler,
        "disk": host.disk,
        "memory": host.memory,
        "reboot": host.reboot,
        "proxies": host.proxies,
        "indexes": host.indexes,
    }


def _worst(answers: Sequence[Answer]) -> Result:
    order: tuple[Result, ...] = ("passed", "warning", "not run", "failure")
    return max((answer.result for answer in answers), key=order.index)


def _finding(name: str, answer: Answer, ignored: str) -> Finding:
    levels: dict[Result, Level] = {"passed": "note", "warning": "warning", "not run": "warning", "failure": "failure"}
    message = f"not run: {answer.message}" if answer.result == "not run" else answer.message
    if ignored and answer.result != "passed":
        return Finding("note", name, f"{message} (ignored by {ignored!r})", _evidence(answer))
    text = f"{message}. {answer.remedy}" if answer.remedy else message
    return Finding(levels[answer.result], name, text, _evidence(answer))


def _evidence(answer: Answer) -> dict[str, JSON]:
    return {"result": answer.result, **({"remedy": answer.remedy} if answer.remedy else {}), **answer.evidence}
