"""From an output to what went wrong: the known failures in it, the root cause first. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from crossgrade.failures.fields import context_of, derive
from crossgrade.failures.occurrences import occurrences
from crossgrade.failures.reading import Output, Window, lines_before, output_of, windows
from crossgrade.failures.secrets import without_secrets
from crossgrade.failures.signatures import RANKS, Rank, Signature, filled, signatures
from crossgrade.jsontype import JSON

MOST_EXPLANATIONS = 8
MOST_EVIDENCE = 3
MOST_WINDOWS = 400  # lines that one row may look at
LONGEST_EVIDENCE = 400  # characters of a line that is shown
LONGEST_FIELD = 240  # characters of a word from the output in what is said about it
_NEIGHBOURHOOD = 300  # characters of a line that one match accounts for, on both sides
# What a healthy run says as well: the level of a log line before the words themselves.
_NO_FAILURE = re.compile(r"(?:^|[\s\[(:])(?:INFO|DEBUG|TRACE)\b")
# Said and survived, more often than not: behind what is said without it.
_WARNING = re.compile(r"(?<!NCCL )\bWARN(?:ING)?\b|\b(?:[Ww]arning:|Ignore import error|[Rr]etrying\b)")
# What tells two failures of one kind from each other.
_IDENTITY = (
    *("library", "symbol", "package", "header", "architecture", "path", "module", "model", "option", "part"),
    *("name", "version", "requirement", "compiler", "tool", "port", "who", "limit"),
)


@dataclass(frozen=True)
class Evidence:
    """A line of the output. `line` counts from 1; None where the middle of the output was left out before it."""

    line: int | None
    text: str


@dataclass(frozen=True)
class Explanation:
    """One known failure. `count` is how many lines say so; `evidence` are the first of them."""

    kind: str
    cause: str
    remedy: str
    links: tuple[str, ...]
    source: str
    rank: Rank
    evidence: tuple[Evidence, ...]
    count: int = 1

    def to_json(self) -> dict[str, JSON]:
        evidence: list[JSON] = [{"line": each.line, "text": each.text} for each in self.evidence]
        return {
            "kind": self.kind,
            "cause": self.cause,
            "evidence": evidence,
            "count": self.count,
            "remedy": self.remedy,
            "links": list(self.links),
            "source": self.source,
            "rank": self.rank,
        }


@dataclass(frozen=True)
class _Match:
    """A line that a signature explains, and the words of it that its pattern fits.

    `order` sorts: the rank, then whether it is a mere warning, then the place.
    """

    signature: Signature
    place: int
    fields: Mapping[str, str]
    line: str
    words: str
    order: tuple[int, bool, int]

    @property
    def identity(self) -> dict[str, str]:
        return {name: self.fields[name] for name in _IDENTITY if name in self.fields}


def explain(output: str | bytes | Output, context: Mapping[str, str] | None = None) -> tuple[Explanation, ...]:
    """The known failures in an output, the likeliest root first; empty when nothing is known.

    Causes come before symptoms and consequences, what is said as an error before what is only warned of, and among
    equals the earliest: of a chain of tracebacks the first one is the cause. `context` is what is known beside the
    output: `gpu`, `torch`, `torch_cuda`, `driver`, `traceback_mentions` and whatever a template names.
    """
    read = output if isinstance(output, Output) else output_of(output)
    known = context_of(context or {})
    matches = sorted(_matches(read, known, context or {}), key=lambda match: match.order)
    groups: list[list[_Match]] = []
    for match in matches:
        home = next((group for group in groups if _same(group, match)), None)
        if home is None:
            groups.append([match])
        else:
            home.append(match)
    return tuple(_explanation(read, group) for group in groups[:MOST_EXPLANATIONS])


def _same(group: list[_Match], match: _Match) -> bool:
    """Whether a match is one more line about the same failure: the same kind, and nothing that tells them apart."""
    if group[0].signature.kind != match.signature.kind:
        return False
    known = {name: value for each in reversed(group) for name, value in each.identity.items()}
    return all(known.get(name, value) == value for name, value in match.identity.items())


def _explanation(output: Output, group: list[_Match]) -> Explanation:
    """Said by the line that knows most, among the first of the group's lines. Here secrets are taken out."""
    best = max(group[:MOST_EVIDENCE], key=lambda match: len(match.fields))
    signature = best.signature
    fields = {name: _cut(without_secrets(value), LONGEST_FIELD) for name, value in best.fields.items()}
    shown = sorted(group[:MOST_EVIDENCE], key=lambda match: match.place)
    return Explanation(
        signature.kind,
        filled(signature.cause, fields),
        filled(signature.remedy, fields),
        signature.links,
        signature.source,
        signature.rank,
        tuple(Evidence(output.line_number(match.place), _shown(match)) for match in shown),
        len(group),
    )


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def _shown(match: _Match) -> str:
    """The line without secrets; of a long one the part that matters."""
    line = without_secrets(match.line).strip()
    if len(line) <= LONGEST_EVIDENCE:
        return line
    begin = max(0, line.find(match.words[:20]) - LONGEST_EVIDENCE // 4)
    return f"{'…' if begin else ''}{_cut(line[begin:], LONGEST_EVIDENCE)}"


def _matches(output: Output, known: Mapping[str, str], context: Mapping[str, str]) -> Iterator[_Match]:
    claimed: dict[int, list[tuple[int, int]]] = {}
    said = "\n".join(f"{name}={value}" for name, value in context.items())
    places = occurrences(output.lowered, {word for signature in signatures() for word in signature.find})
    for signature in signatures():
        for window in islice(windows(output, signature.find, places), MOST_WINDOWS):
            found = _look(signature, window, known, output, said)
            if found is None:
                continue
            match, fields = found
            begin, end = match.start() - _NEIGHBOURHOOD, match.end() + _NEIGHBOURHOOD
            taken = claimed.setdefault(window.start, [])
            if any(begin < other_end and other_begin < end for other_begin, other_end in taken):
                continue
            taken.append((match.start(), match.end()))
            warning = bool(_WARNING.search(window.line))
            order = (RANKS.index(signature.rank), warning, window.start)
            yield _Match(signature, window.start, fields, window.line, match[0], order)


def _look(
    signature: Signature, window: Window, known: Mapping[str, str], output: Output, said: str
) -> tuple[re.Match[str], dict[str, str]] | None:
    """The first pattern that fits a line, with its fields; None when the row does not apply.

    `said` is the context as text, in which a row's `near` is looked for as well.
    """
    for pattern in signature.compiled:
        match = pattern.search(window.text)
        if match is None or match.start() >= max(1, len(window.line)):
            continue
        if _NO_FAILURE.search(window.line, 0, match.start()):
            continue
        if signature.unless and re.search(signature.unless, window.line):
            continue
        fields = derive(match.groupdict(), known)
        if not signature.applies(fields):
            continue
        if signature.near:
            around = f"{said}\n{lines_before(output, window.start)}\n{window.line}"
            if not re.search(signature.near, around):
                continue
        return match, fields
    return None
