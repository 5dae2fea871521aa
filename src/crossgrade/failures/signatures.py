"""The rows of `knowledge/failures.yml` as objects: what to look for, and what to say. Pure but for the table."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Literal, cast

from crossgrade.failures.fields import TESTS, Fields
from crossgrade.jsontype import JSON
from crossgrade.knowledge import Row, table

Rank = Literal["root", "symptom", "consequence"]
RANKS: tuple[Rank, ...] = ("root", "symptom", "consequence")
_CHOICE = re.compile(r"\[([^\[\]]*)\]")
_FIELD = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Signature:
    """One row. `find` are words in lower case, of which a line must hold one before a pattern is tried."""

    kind: str
    find: tuple[str, ...]
    patterns: tuple[str, ...]
    cause: str
    remedy: str
    links: tuple[str, ...]
    source: str
    rank: Rank = "root"
    unless: str = ""
    near: str = ""
    when: str = ""
    example: str = ""
    example_context: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def compiled(self) -> tuple[re.Pattern[str], ...]:
        """Compiled at the first line that is worth it: most runs need none, the rest a few."""
        return tuple(re.compile(pattern) for pattern in self.patterns)

    def applies(self, fields: Fields) -> bool:
        return not self.when or TESTS[self.when](fields)


@cache
def signatures() -> tuple[Signature, ...]:
    """All rows in the order of the file."""
    return tuple(_signature(row) for row in table("failures"))


def _signature(row: Row) -> Signature:
    return Signature(
        kind=str(row["kind"]),
        find=_texts(row["find"]),
        patterns=_texts(row["patterns"]),
        cause=str(row["cause"]),
        remedy=str(row["remedy"]),
        links=_texts(row["links"]),
        source=str(row["source"]),
        rank=cast("Rank", str(row.get("rank", "root"))),
        unless=str(row.get("unless", "")),
        near=str(row.get("near", "")),
        when=str(row.get("when", "")),
        example=str(row["example"]),
        example_context=cast("Mapping[str, str]", row.get("example_context", {})),
    )


def _texts(value: JSON) -> tuple[str, ...]:
    return tuple(str(each) for each in cast("Sequence[JSON]", value))


def filled(template: str, fields: Fields) -> str:
    """A template with its fields.

    ``{name}`` is a field; ``[a {x}|b {y}|c]`` is the first part whose fields are all known, nothing when none is. A
    field outside of brackets that is not known is written as its own name, in words.
    """

    def chosen(choice: re.Match[str]) -> str:
        for part in choice[1].split("|"):
            if all(name in fields for name in _FIELD.findall(part)):
                return _with_fields(part, fields)
        return ""

    # First the choices, on the template alone: a value may hold brackets itself.
    parts = _CHOICE.split(template)
    said = [
        chosen(cast("re.Match[str]", _CHOICE.match(f"[{part}]"))) if number % 2 else _with_fields(part, fields)
        for number, part in enumerate(parts)
    ]
    return "".join(said)


def _with_fields(part: str, fields: Fields) -> str:
    return _FIELD.sub(lambda name: fields.get(name[1], name[1].replace("_", " ")), part)
