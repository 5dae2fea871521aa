"""Host patterns: the `hosts` of a play and `--limit`."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Mapping, Sequence

from crossgrade.errors import WrongOptionsError
from crossgrade.playbook.positions import printable
from crossgrade.playbook.suggest import did_you_mean

# `gpu[0]`, `gpu[-1]`, `gpu[0:2]`, `gpu[1:]`; a `-` between the numbers is an older spelling of `:`
_SUBSCRIPT = re.compile(r"^(.+)\[(?:(-?\d+)|(\d+)[:-](\d*))\]$")
_MOST_NAMES = 10_000


def split_pattern(pattern: str) -> list[str]:
    """`a:b`, `a,b` and `a b` as their parts; a `:` inside brackets (`gpu[1:3]`, IPv6) separates nothing."""
    separators = "," if "," in pattern else ": \t\n"
    if separators != "," and pattern.count(":") > 1 and re.fullmatch(r"[0-9A-Fa-f:.]+", pattern):
        return [pattern]  # an IPv6 address
    parts: list[str] = []
    depth = 0
    current = ""
    for letter in pattern:
        depth += (letter == "[") - (letter == "]")
        if letter in separators and depth <= 0:
            parts.append(current)
            current = ""
        else:
            current += letter
    return [part.strip() for part in [*parts, current] if part.strip()]


def parts_of(pattern: str | Sequence[str]) -> list[str]:
    """All parts of a pattern, or of a list of patterns."""
    return [part for one in ([pattern] if isinstance(pattern, str) else pattern) for part in split_pattern(one)]


def expand_range(pattern: str) -> list[str]:
    """`gpu[01:08]`, `gpu[a:d]` and `gpu[1:9:2]` as names, leading zeros kept. Raises ValueError."""
    found = re.search(r"\[([^\[\]:]*):([^\[\]:]*)(?::([^\[\]:]*))?\]", pattern)
    if found is None:
        return [pattern]
    middles = _between(found[1] or "0", found[2], found[3])
    head, tail = pattern[: found.start()], pattern[found.end() :]
    tails = expand_range(tail)
    if len(middles) * len(tails) > _MOST_NAMES:
        raise ValueError(f"a range of more than {_MOST_NAMES} hosts")
    return [head + middle + rest for middle in middles for rest in tails]


def _between(start: str, end: str, step_text: str | None) -> list[str]:
    if not (step_text or "1").isdecimal() or int(step_text or "1") < 1:
        raise ValueError("the step of a range is a number, at least 1")
    step = int(step_text or "1")
    if not end:
        raise ValueError("a range needs an end")
    if start.isdecimal() and end.isdecimal():
        width = len(start) if start.startswith("0") and len(start) > 1 else 0
        if width and len(end) != len(start):
            raise ValueError("both ends of a range with leading zeros have the same length")
        numbers = range(int(start), int(end) + 1, step)
        if len(numbers) > _MOST_NAMES:
            raise ValueError(f"a range of more than {_MOST_NAMES} hosts")
        middles = [str(number).zfill(width) for number in numbers]
    elif len(start) == len(end) == 1 and (start + end).isascii() and (start + end).isalpha():
        letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
        middles = list(letters[letters.index(start) : letters.index(end) + 1 : step])
    else:
        raise ValueError("a range goes from a number to a number, or from a letter to a letter")
    if not middles:
        raise ValueError("a range that starts after its end")
    return middles


def select_names(
    pattern: str | Sequence[str],
    hosts: Sequence[str],
    groups: Mapping[str, Sequence[str]],
    option: str = "hosts",
    *,
    missing: list[str] | None = None,
) -> list[str]:
    """The names of the hosts that the pattern means, in the order of its parts.

    `hosts` are all that may be named, as they were first written down; `groups["all"]` are those that `all` means.
    Parts are united; those with `&` keep only what is in them, those with `!` take away. Raises
    WrongOptionsError for a part that means nothing; with `missing` that is put in there instead,
    as a sentence.
    """
    parts = parts_of(pattern)
    plain = [part for part in parts if part[0] not in "&!"]
    chosen: dict[str, None] = {}
    if parts and not plain:
        chosen.update(dict.fromkeys(groups["all"]))
    for part in plain:
        chosen.update(dict.fromkeys(_match(part, hosts, groups, option, missing=missing)))
    for part in parts:
        if part[0] == "&":
            kept = set(_match(part[1:], hosts, groups, option, missing=missing))
            chosen = {name: None for name in chosen if name in kept}
    for part in parts:
        if part[0] == "!":
            for name in _match(part[1:], hosts, groups, option, may_be_nothing=True):
                chosen.pop(name, None)
    return list(chosen)


def _match(
    part: str,
    hosts: Sequence[str],
    groups: Mapping[str, Sequence[str]],
    option: str,
    *,
    may_be_nothing: bool = False,
    missing: list[str] | None = None,
) -> list[str]:
    if part in ("all", "*"):
        return list(groups["all"])
    if part in hosts:
        return [part]
    if part in groups:
        return list(groups[part])
    subscript = None if part.startswith("~") else _SUBSCRIPT.match(part)
    if subscript is not None:
        quiet = may_be_nothing or missing is not None
        chosen = _subscripted(_match(subscript[1], hosts, groups, option, may_be_nothing=quiet), subscript)
    else:
        matches = _matcher(part, option)
        found: dict[str, None] = {}
        for group, members in groups.items():
            if matches(group):
                found.update(dict.fromkeys(members))
        found.update(dict.fromkeys(name for name in hosts if matches(name)))
        chosen = list(found)
    if not chosen and not may_be_nothing and missing is not None:
        missing.append(f'{option}: no host or group matches "{part}"')
    elif not chosen and not may_be_nothing:
        hint = did_you_mean(part, [*hosts, *groups])
        raise WrongOptionsError(printable(f'{option}: no host or group matches "{part}"'), remedy=hint)
    return chosen


def _subscripted(found: list[str], subscript: re.Match[str]) -> list[str]:
    if subscript[2] is not None:
        at = int(subscript[2])
        return found[at : at + 1 or None]
    start, end = int(subscript[3]), subscript[4]
    return found[start : int(end) + 1] if end else found[start:]


def _matcher(part: str, option: str) -> Callable[[str], bool]:
    if part.startswith("~"):
        try:
            pattern = re.compile(part[1:])
        except re.error as error:
            message = printable(f'{option}: "{part}" is not a valid regular expression: {error}')
            raise WrongOptionsError(message) from error
        return lambda name: pattern.match(name) is not None
    return lambda name: fnmatch.fnmatchcase(name, part)
