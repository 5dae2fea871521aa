"""Generations as data: what is on record about each, and the verdicts of its gates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, get_args

# building: a run is writing it, nobody may use it; ready: complete, with a manifest;
# rejected: complete, but the run that built or tried it failed and was rolled back
Origin = Literal["adopted", "built", "restored"]
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
    origin: Origin
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
        found = cls(**{name: value[name] for name in cls.__dataclass_fields__})
        texts = (found.identity, found.created, found.run_id, found.manifest)
        if type(found.number) is not int or found.number < 0 or not all(isinstance(text, str) for text in texts):
            raise TypeError("a generation has a number and texts")
        if found.origin not in get_args(Origin) or found.state not in get_args(GenerationState):
            raise TypeError(f"a generation of origin {found.origin!r} and state {found.state!r}")
        if not _is_texts(found.environment) or not isinstance(found.contents, Mapping):
            raise TypeError("a generation has an environment of texts, and contents")
        for name, content in found.contents.items():
            if not _fits(name, content):
                raise TypeError(f"{name} of its contents is {type(content).__name__}")
        return found

    def with_state(self, state: GenerationState, *, manifest: str | None = None) -> Generation:
        return replace(self, state=state, manifest=self.manifest if manifest is None else manifest)


def _is_texts(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(each, str) for pair in value.items() for each in pair)


def _fits(name: str, content: Any) -> bool:
    """Whether a part of the contents has the shape that it is read in; others are for people only."""
    if name == "dists":
        return _is_texts(content)
    if name in ("toolkits", "wheels"):
        return isinstance(content, list | tuple) and all(isinstance(each, str) for each in content)
    return name not in ("adopted_from", "archived", "lock", "python") or content is None or isinstance(content, str)
