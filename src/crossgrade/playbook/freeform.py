"""`module: text`: Ansible's short form, where `key=value` words are arguments and the rest is a command."""

from __future__ import annotations

import re
from collections.abc import Collection

_OPENERS = {"{{": "}}", "{%": "%}", "{#": "#}"}
_PAIR = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)


class UnbalancedError(ValueError):
    """A quote or a template that is opened in the text is not closed."""


def split_words(text: str) -> list[tuple[int, int]]:
    """The words of a text as (start, end); quotes and templates hold a word together.

    Raises UnbalancedError.
    """
    words: list[tuple[int, int]] = []
    start: int | None = None
    quote = ""
    closers: list[str] = []
    at = 0
    while at < len(text):
        pair = text[at : at + 2]
        letter = text[at]
        step = 1
        if closers and pair == closers[-1]:
            closers.pop()
            step = 2
        elif not quote and not closers and pair in _OPENERS:
            closers.append(_OPENERS[pair])
            start = at if start is None else start
            step = 2
        elif closers:
            pass
        elif quote:
            if letter == "\\":
                step = 2
            elif letter == quote:
                quote = ""
            elif pair in _OPENERS:
                closers.append(_OPENERS[pair])
                step = 2
        elif letter.isspace():
            if start is not None:
                words.append((start, at))
                start = None
        else:
            start = at if start is None else start
            if letter in "'\"":
                quote = letter
            elif letter == "\\":
                step = 2
        at += step
    if quote or closers:
        raise UnbalancedError(f"{quote or 'a template'} is opened and not closed")
    if start is not None:
        words.append((start, len(text)))
    return words


def unquote(text: str) -> str:
    """Without the quotes around it."""
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"" and text[-2] != "\\":
        return text[1:-1]
    return text


def split_pairs(text: str, names: Collection[str] | None = None) -> tuple[dict[str, str], str]:
    """`key=value` words as a dict, and the rest of the text as it was written.

    With `names`, only these keys count; any other word stays in the rest. Raises UnbalancedError.
    """
    pairs: dict[str, str] = {}
    kept: list[str] = []
    end_before = 0
    for start, end in split_words(text):
        found = _PAIR.fullmatch(text[start:end])
        if found and (names is None or found[1] in names):
            pairs[found[1]] = unquote(found[2])
        else:
            kept.append((text[end_before:start] if kept else "") + text[start:end])
        end_before = end
    return pairs, "".join(kept)
