"""Two passes over the same prompts, compared: which answers are the same, where they part, how far numbers lie apart.

Pure.

Distances are mean absolute differences of log-probabilities in nats (natural logarithm): on the tokens that both
answers begin with, and on the reference answer that both servers weighed. Up to where two answers part, both servers
have seen the same text, so that their numbers can be compared; after it, they cannot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal

from crossgrade.bench.given_answers import Answer, Pass, Token
from crossgrade.jsontype import JSON

SHOWN_CHARACTERS = 40  # of each side at the place where they part: 80 of both


@dataclass(frozen=True)
class Divergence:
    """Where two answers to prompt `prompt` (from 0) part: at this token, or character where tokens are not known.

    `old` and `new` are what each says there. `gap` is how much likelier the old server found its own token than the
    new one's, in nats: near zero it was a tie, which the last bit decides. None where that is not known; `at_least`
    where the other token was not among the alternatives.
    """

    prompt: int
    unit: Literal["token", "character"]
    index: int
    old: str
    new: str
    gap: float | None = None
    at_least: bool = False

    def to_json(self) -> dict[str, JSON]:
        return {
            "prompt": self.prompt,
            self.unit: self.index,
            "old": self.old,
            "new": self.new,
            "gap": None if self.gap is None else round(self.gap, 4),
            **({"gap_is_at_least": True} if self.at_least else {}),
        }


@dataclass(frozen=True)
class PassComparison:
    """For each prompt: whether the answers are the same, and the distances, None where they are not known."""

    same: tuple[bool, ...]
    divergences: tuple[Divergence, ...]
    on_prefix: tuple[float | None, ...]
    on_reference: tuple[float | None, ...]

    @property
    def share(self) -> float:
        return sum(self.same) / len(self.same)


def compare_passes(old: Pass, new: Pass) -> PassComparison:
    """Compare the answers prompt by prompt. Raises ValueError for passes over another number of prompts."""
    pairs = list(zip(old.answers, new.answers, strict=True))
    parted = [first_divergence(place, one, other) for place, (one, other) in enumerate(pairs)]
    weighed = list(zip_longest(old.scored[: len(pairs)], new.scored[: len(pairs)], fillvalue=()))
    weighed += [((), ())] * (len(pairs) - len(weighed))
    return PassComparison(
        same=tuple(divergence is None for divergence in parted),
        divergences=tuple(divergence for divergence in parted if divergence),
        on_prefix=tuple(_distance(_common(one.tokens, other.tokens)) for one, other in pairs),
        on_reference=tuple(
            _distance(list(zip(one, other, strict=True))) if _names(one) == _names(other) else None
            for one, other in weighed
        ),
    )


def first_divergence(prompt: int, old: Answer, new: Answer) -> Divergence | None:
    """Where two answers part; None where they are the same text."""
    if old.text == new.text and not old.error and not new.error:
        return None
    at = next(
        (place for place, (one, other) in enumerate(zip_longest(old.text, new.text)) if one != other), len(old.text)
    )
    said = old.text[at : at + SHOWN_CHARACTERS], new.text[at : at + SHOWN_CHARACTERS]
    token = len(_common(old.tokens, new.tokens))
    if not old.tokens or not new.tokens or token == len(old.tokens) == len(new.tokens):
        return Divergence(prompt, "character", at, *said)
    gap, at_least = _gap(old.tokens, new.tokens, token)
    return Divergence(prompt, "token", token, *said, gap, at_least)


def _gap(old: Sequence[Token], new: Sequence[Token], place: int) -> tuple[float | None, bool]:
    if place >= len(old) or place >= len(new) or old[place].logprob is None:
        return None, False
    alternatives = old[place].alternatives
    own = old[place].logprob or 0.0
    other = alternatives.get(new[place].name)
    if other is not None:
        return own - other, False
    return (own - min(alternatives.values()), True) if alternatives else (None, False)


def _names(tokens: Sequence[Token]) -> list[str]:
    return [token.name for token in tokens]


def _common(old: Sequence[Token], new: Sequence[Token]) -> list[tuple[Token, Token]]:
    """The tokens that both begin with."""
    common = []
    for one, other in zip(old, new, strict=False):
        if one.name != other.name:
            break
        common.append((one, other))
    return common


def _distance(pairs: Sequence[tuple[Token, Token]]) -> float | None:
    differences = [
        abs(one.logprob - other.logprob)
        for one, other in pairs
        if one.logprob is not None and other.logprob is not None
    ]
    return sum(differences) / len(differences) if differences else None
