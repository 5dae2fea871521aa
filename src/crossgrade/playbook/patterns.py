"""Host patterns: the `hosts` of a play and `--limit`."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Mapping, Sequence

from crossgrade.errors import WrongOptionsError
from crossgrade.playbook.positions import printable
from crossgrade.playbook.suggest import did_you_mean

_SUBSCRIPT = re.compile(r"^(.+)\[(-?\d+)(?:[:-](-?\d*))?\]$")


def split_pattern(pattern: str) -> list[str]:
    """`a:b,c` as its parts; a `:` inside brackets (`gpu[1:3]`, IPv6) separates nothing."""
    separator = "," if "," in pattern else ":"
    if separator == ":" and pattern.count(":") > 1 and re.fullmatch(r"[0-9A-Fa-f:.]+", pattern):
        return [pattern]  # an IPv6 address
    parts: list[str] = []
    depth = 0
    current = ""
    for letter in pattern:
        depth += (letter == "[") - (letter == "]")
        if letter == separator and depth <= 0:
            parts.append(current)
            current = ""
        else:
            current += letter
    return [part.strip() for part in [*parts, current] if part.strip()]


def expand_range(pattern: str) -> list[str]:
    """`gpu[01:08]`, `gpu[a:d]` and `gpu[1:9:2]` as names, leading zeros kept. Raises ValueError."""
    found = re.search(r"\[([^\[\]:]+):([^\[\]:]+)(?::(\d+))?\]", pattern)
    if found is None:
        return [pattern]
    start, end, step = found[1], found[2], int(found[3] or 1)
    if step < 1:
        raise ValueError("the step of a range is at least 1")
    if start.isdigit() and end.isdigit():
        width = len(start) if start.startswith("0") else 0
        if width and len(end) != len(start):
            raise ValueError("both ends of a range with leading zeros have the same length")
        numbers = range(int(start), int(end) + 1, step)
        if len(numbers) > 10_000:
            raise ValueError("a range of more than 10000 hosts")
        middles = [str(number).zfill(width) for number in numbers]
    elif len(start) == len(end) == 1 and start.isalpha() and end.isalpha():
        middles = [chr(code) for code in range(ord(start), ord(end) + 1, step)]
    else:
        raise ValueError("a range goes from a number to a number, or from a letter to a letter")
    if not middles:
        raise ValueError("a range that starts after its end")
    head, tail = pattern[: found.start()], pattern[found.end() :]
    return [name for middle in middles for name in expand_range(head + middle + tail)]


def select_names(
    pattern: str | Sequence[str], hosts: Sequence[str], groups: Mapping[str, Sequence[str]], option: str = "hosts"
) -> list[str]:
    """The names of the hosts that the pattern means, in the order of the inventory.

    Parts are united; those with `&` keep only what is in them, those with `!` take away. Raises
    WrongOptionsError for a part that means nothing.
    """
    parts = [part for one in ([pattern] if isinstance(pattern, str) else pattern) for part in split_pattern(one)]
    plain = [part for part in parts if part[0] not in "&!"]
    chosen = set(hosts) if not plain and parts else set()
    for part in plain:
        chosen |= _match(part, hosts, groups, option)
    for part in parts:
        if part[0] == "&":
            chosen &= _match(part[1:], hosts, groups, option)
    for part in parts:
        if part[0] == "!":
            chosen -= _match(part[1:], hosts, groups, option, may_be_nothing=True)
    return [name for name in hosts if name in chosen]


def _match(
    part: str,
    hosts: Sequence[str],
    groups: Mapping[str, Sequence[str]],
    option: str,
    *,
    may_be_nothing: bool = False,
) -> set[str]:
    if part in ("all", "*"):
        return set(hosts)
    named = part in hosts or part in groups or part.startswith("~")
    subscript = None if named else _SUBSCRIPT.match(part)
    if subscript is not None:
        found = [name for name in hosts if name in _match(subscript[1], hosts, groups, option)]
        return set(_subscripted(found, subscript))
    if part in groups:
        return set(groups[part])
    if part in hosts:
        return {part}
    matches = _matcher(part, option)
    chosen = {name for name in hosts if matches(name)}
    for group, members in groups.items():
        if matches(group):
            chosen |= set(members)
    if not chosen and not may_be_nothing:
        hint = did_you_mean(part, [*hosts, *groups])
        raise WrongOptionsError(printable(f'{option}: no host or group matches "{part}"'), remedy=hint)
    return chosen


def _subscripted(found: list[str], subscript: re.Match[str]) -> list[str]:
    start, end = int(subscript[2]), subscript[3]
    if end is None:
        return found[start : start + 1 or None]
    return found[start : int(end) + 1 or None] if end else found[start:]


def _matcher(part: str, option: str) -> Callable[[str], bool]:
    if part.startswith("~"):
        try:
            pattern = re.compile(part[1:])
        except re.error as error:
            message = printable(f'{option}: "{part}" is not a valid regular expression: {error}')
            raise WrongOptionsError(message) from error
        return lambda name: pattern.match(name) is not None
    return lambda name: fnmatch.fnmatchcase(name, part)
