"""When a launch is void: what happened meanwhile makes its figures worthless. It is repeated, and told. Pure.

Whether a launch is void must not depend on how fast it was, or repeating would choose the answer: what counts is what
the GPUs did (`GpuRecord`) and whether the requests were answered in full.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from crossgrade.bench.samples import LoadResult
from crossgrade.jsontype import JSON
from crossgrade.knowledge import table

Kind = Literal["errors", "short_output", "throttled", "other_process"]

OWN: tuple[Kind, ...] = ("errors", "short_output")  # what the server itself did wrong


@dataclass(frozen=True)
class GpuRecord:
    """What the GPUs did during one launch.

    `looks` is how often they were looked at; `reasons` maps ``GPU 0: hw_slowdown`` to the number of looks at which that
    held its clocks down; `strangers` are processes on a GPU that are not the server's and were not there before the
    benchmark, `standing` those that were. `problem` says why there is nothing, or not all, to tell.
    """

    looks: int = 0
    reasons: Mapping[str, int] | None = None
    strangers: tuple[str, ...] = ()
    standing: tuple[str, ...] = ()
    problem: str = ""

    def to_json(self) -> dict[str, JSON]:
        return {
            "looks": self.looks,
            "reasons": dict(self.reasons or {}),
            "strangers": list(self.strangers),
            "standing": list(self.standing),
            "problem": self.problem,
        }


@dataclass(frozen=True)
class VoidCause:
    """One reason why a launch is void, with its words."""

    kind: Kind
    detail: str

    def to_json(self) -> dict[str, JSON]:
        return {"kind": self.kind, "detail": self.detail}


def void_causes(results: Sequence[LoadResult], gpus: GpuRecord | None) -> tuple[VoidCause, ...]:
    """Why a launch is void; empty for one that counts."""
    causes = []
    for result in results:
        of = f"{result.profile.name}: " if result.profile.name else ""
        if result.failed:
            kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(result.errors_by_kind.items()))
            causes.append(VoidCause("errors", f"{of}failed requests: {kinds}"))
        elif short := _short(result):
            causes.append(VoidCause("short_output", of + short))
    if gpus is not None:
        voiding = {row["reason"] for row in table("clock_reasons") if row["void"]}
        causes += [
            VoidCause("throttled", f"{name} held the clocks down at {count} of {gpus.looks} looks")
            for name, count in sorted((gpus.reasons or {}).items())
            if name.rpartition(": ")[2] in voiding
        ]
        causes += [VoidCause("other_process", f"another process on a GPU: {stranger}") for stranger in gpus.strangers]
    return tuple(causes)


def _short(result: LoadResult) -> str:
    """Words where answers were shorter than asked for; "" where they may be, or where each asks for its own length."""
    profile = result.profile
    own_lengths = profile.prompt_set is not None or profile.output_lengths is not None
    if not profile.extra_body.get("ignore_eos") or own_lengths or profile.tool != "builtin":
        return ""
    asked = profile.max_tokens
    short = [sample.output_tokens for sample in result.succeeded if sample.output_tokens < asked]
    if not short:
        return ""
    return (
        f"{len(short)} of {len(result.succeeded)} answers were shorter than the {asked} tokens asked for "
        f"(the shortest {min(short)})"
    )
