"""What gates share that compare a candidate's server with the old one."""

from __future__ import annotations

from crossgrade.gates.verdict import Verdict
from crossgrade.modules import gate

BASELINE_MANIFEST = "baseline_manifest"  # the figure that says what a recorded verdict compares with


def nothing_to_compare(candidate: gate.Candidate, baseline: int | None, named: int | None) -> str:
    """Why there is nothing to compare the candidate with; "" when there is. `named` is what the task names."""
    if baseline is None:
        return "no generation is active yet, so there is nothing to compare with"
    if baseline != candidate.number:
        return ""
    if named is not None:
        return f"{candidate.title} cannot be compared with itself"
    return f"{candidate.title} is itself the active one, so there is nothing to compare it with"


def holds(recorded: Verdict, baseline: gate.Candidate | None, obstacle: str) -> bool:
    """Whether a recorded verdict answers today's question.

    It does when it compared with the same files. Once the candidate is the active one, there is nothing left
    to compare it with, and the verdict by which it got there still says what it is worth.
    """
    compared_with = recorded.figures.get(BASELINE_MANIFEST)
    if recorded.outcome == "not run" and compared_with is None:
        return recorded.reason == obstacle
    if obstacle:
        return True
    return baseline is not None and compared_with == manifest_of(baseline)


def manifest_of(candidate: gate.Candidate) -> str:
    return candidate.generation.manifest if candidate.generation else ""
