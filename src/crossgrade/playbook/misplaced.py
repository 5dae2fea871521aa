"""Arguments and keywords that stand in each other's place: what to say of them."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from crossgrade.playbook.positions import PlaybookProblem, Spot
from crossgrade.playbook.schema import KEYWORDS

UNBALANCED = "Close it, or put the whole value in quotes of the other kind."
_NO_SPACE = re.compile(r"([A-Za-z_]\w*):(\S+)")


def of_arguments(
    problems: list[PlaybookProblem], task: Spot, module_key: str, given: Any, names: Collection[str]
) -> list[PlaybookProblem]:
    """The problems of a module's arguments, of which some are those of a wrong indentation.

    `given` is what stands below the module's name, `names` are the spellings of its arguments.
    """
    whole = task.node.value
    beside = isinstance(whole, Mapping) and any(key in names for key in whole if key != module_key)
    if given is None and beside:
        return []  # they stand in the column of the keywords, which is said of each of them
    if not isinstance(given, Mapping):
        return problems
    column = task.at(module_key).key_place.column
    keywords = {f'there is no argument "{name}"': name for name in given if name in KEYWORDS["task"]}
    return [_keyword(problem, keywords.get(problem.message), module_key, column) for problem in problems]


def _keyword(problem: PlaybookProblem, name: object, module_key: str, column: int) -> PlaybookProblem:
    if name is None:
        return problem
    return PlaybookProblem(
        f"`{name}` is a keyword of the task, and stands among the arguments of `{module_key}`",
        remedy=f"Begin it in column {column}, as `{module_key}:`.",
        place=problem.place,
        excerpt=problem.excerpt,
    )


def of_text(text: str, pairs: Collection[str], expected: str) -> str:
    """The remedy where a module has a text that it does not take: often a space or a quote is missing.

    `pairs` are the names that were given as `name=value`.
    """
    match = _NO_SPACE.match(text)
    if match and not match[2].startswith(("/", "\\")):
        return f"Write a space behind each `:`, such as `{match[1]}: {match[2]}`. The arguments are: {expected}."
    if pairs:
        return f'A value with spaces needs quotes: `{[*pairs][-1]}="…"`. The arguments are: {expected}.'
    return f"They are: {expected}."


def odd_space(key: str) -> str:
    """The remedy for a key that begins with a character that only looks like a space; "" for any other."""
    if not key[:1].isspace() and key[:1] not in ("\u200b", "\ufeff"):
        return ""
    return f"In front of it stands U+{ord(key[0]):04X}, which only looks like a space: replace it by one."
