"""The verdict of a gate, the same for all: outcome, one line of reason, findings with evidence, figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, cast, get_args

from crossgrade.jsontype import JSON

Level = Literal["failure", "warning", "note"]
Outcome = Literal["passed", "failed", "not run"]


@dataclass(frozen=True)
class Finding:
    """One observation about ``subject`` (a file relative to the environment, a module, a request).

    A ``failure`` makes its gate fail, a ``warning`` is for people to read, a ``note`` explains. ``fault`` is what it is
    called in `knowledge/environment_faults.yml`, a name that stays; empty for what has none.
    """

    level: Level
    subject: str
    message: str
    evidence: Mapping[str, JSON] = field(default_factory=dict)
    fault: str = ""

    def to_json(self) -> dict[str, JSON]:
        """As plain data."""
        return {
            "level": self.level,
            "subject": self.subject,
            "message": self.message,
            "evidence": dict(self.evidence),
            **({"fault": self.fault} if self.fault else {}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, JSON]) -> Finding:
        """The reverse of `to_json`. Raises ValueError for data of another shape."""
        level = _one_of(data.get("level"), get_args(Level))
        subject, message = _text(data, "subject"), _text(data, "message")
        fault = _text(data, "fault") if "fault" in data else ""
        return cls(cast("Level", level), subject, message, _mapping(data, "evidence"), fault)


@dataclass(frozen=True)
class Verdict:
    """What a gate decided. ``figures`` are the numbers behind it, for reports."""

    gate: str
    outcome: Outcome
    reason: str
    findings: tuple[Finding, ...] = ()
    figures: Mapping[str, JSON] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """A gate that did not run did not pass."""
        return self.outcome == "passed"

    def of_level(self, level: Level) -> tuple[Finding, ...]:
        """The findings of one level, in order."""
        return tuple(finding for finding in self.findings if finding.level == level)

    def to_json(self) -> dict[str, JSON]:
        """As plain data."""
        return {
            "gate": self.gate,
            "outcome": self.outcome,
            "reason": self.reason,
            "findings": [finding.to_json() for finding in self.findings],
            "figures": dict(self.figures),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, JSON]) -> Verdict:
        """The reverse of `to_json`. Raises ValueError for data of another shape."""
        outcome = _one_of(data.get("outcome"), get_args(Outcome))
        listed = data.get("findings", [])
        if not isinstance(listed, list) or not all(isinstance(item, dict) for item in listed):
            raise ValueError("findings must be a list of objects")
        findings = tuple(Finding.from_json(cast("dict[str, JSON]", item)) for item in listed)
        gate, reason = _text(data, "gate"), _text(data, "reason")
        return cls(gate, cast("Outcome", outcome), reason, findings, _mapping(data, "figures"))


def counted(number: int, one: str, many: str = "") -> str:
    """``1 file``, ``2 files``: numbers in messages for people."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def joined(words: Iterable[str], limit: int = 8) -> str:
    """``a, b, c and 4 more``."""
    listed = list(words)
    rest = len(listed) - limit
    return ", ".join(listed[:limit]) + (f" and {rest} more" if rest > 0 else "")


def _one_of(value: JSON, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise ValueError(f"{value!r} is none of {', '.join(allowed)}")
    return str(value)


def _text(data: Mapping[str, JSON], name: str) -> str:
    value = data.get(name)
    if not isinstance(value, str):
        raise ValueError(f"{name} must be a text")
    return value


def _mapping(data: Mapping[str, JSON], name: str) -> dict[str, JSON]:
    value = data.get(name, {})
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be an object")
    return value
