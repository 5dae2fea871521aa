"""Generations as data: what is on record about each, and the verdicts of its gates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

# building: a run is writing it, nobody may use it; ready: complete, with a manifest;
# rejected: complete, but the run that built or tried it failed and was rolled back
GenerationState = Literal["building", "ready", "rejected"]


@dataclass(frozen=True)
class Generation:
    """The record of one generation.

    `identity` is the digest of everything that went into it: two generations with the same identity were
    asked for in the same words. `environment` is laid over the process environment of whatever runs from
    it. `contents` tells people what is in it (lock digest, wheels, toolkit, versions of dists).
    `manifest` is the digest of its manifest, "" while it is being built. `created` is UTC, RFC 3339.
    """

    number: int
    identity: str
    origin: Literal["adopted", "built", "restored"]
    state: GenerationState
    created: str
    run_id: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    contents: Mapping[str, Any] = field(default_factory=dict)
    manifest: str = ""

    def to_json(self) -> dict[str, Any]:
        return {"schema": 1, **asdict(self)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Generation:
        """Raises KeyError or TypeError when the record is not one of ours."""
        return cls(**{name: value[name] for name in cls.__dataclass_fields__})

    def with_state(self, state: GenerationState, *, manifest: str | None = None) -> Generation:
        return replace(self, state=state, manifest=self.manifest if manifest is None else manifest)
