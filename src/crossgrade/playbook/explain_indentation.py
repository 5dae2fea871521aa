"""Mistakes of indentation, and the columns in which what is open above a line begins."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from crossgrade.playbook.explained import Explanation, Lines
from crossgrade.playbook.quoting import without_comment


def indent_of(line: str) -> int:
    """How many spaces a line begins with."""
    return len(line) - len(line.lstrip(" "))


@dataclass(frozen=True)
class Level:
    """A column in which something begins: a list's `-`, or a key."""

    column: int
    line: int
    word: str
    dash: bool


def open_levels(lines: Lines, number: int) -> Iterator[Level]:
    """The levels that are open above a line, the innermost first."""
    least, below_dash = 1_000, False
    at = lines.above(number)
    while at >= 0 and least > 0:
        here = lines.at(at)
        column, rest = indent_of(here), here.lstrip(" ")
        begins: list[Level] = []
        while rest.startswith("- "):
            begins.append(Level(column, at, "-", dash=True))
            inner = rest[1:].lstrip(" ")
            column += len(rest) - len(inner)
            rest = inner
        key = re.match(r"([^\s:#][^:#]*):(\s|$)", rest)
        if key:
            begins.append(Level(column, at, key[1], dash=False))
        for level in reversed(begins):
            owns_list = level.column == least and below_dash and not level.dash  # `tasks:`, its `-` in the same column
            if level.column < least or owns_list:
                yield level
                least, below_dash = level.column, level.dash
        at = lines.above(at)


def wrong_indentation(found: str, lines: Lines) -> Explanation | None:
    """A line that begins in a column in which nothing can begin."""
    if not any(
        words in found for words in ("expected key", "expected '-'", "mapping values", "could not find expected")
    ):
        return None
    here = lines.at(lines.line)
    column, text = indent_of(here), here.strip()
    if not text or not re.match(r"(- |[^\s:]+:(\s|$))", text):
        return None
    levels = list(open_levels(lines, lines.line))
    if not levels:
        return None
    innermost = levels[0]
    at = (lines.line, column)
    if column > innermost.column and has_value(lines.at(innermost.line)):
        return Explanation(
            f"this line is indented deeper than `{innermost.word}`, which has its value already",
            f"Begin it in column {innermost.column + 1}, as `{innermost.word}` in line {innermost.line + 1}.",
            at,
        )
    same = next((level for level in levels if level.column == column), None)
    if same is None:
        alike = [level for level in levels if level.dash == text.startswith("- ")] or levels
        nearest = min(alike, key=lambda level: abs(level.column - column))
        return Explanation(
            f"this line begins in column {column + 1}, where nothing above it begins",
            f"`{nearest.word}` in line {nearest.line + 1} begins in column {nearest.column + 1}: what belongs together "
            "begins in the same column.",
            at,
        )
    if same.dash and not text.startswith("- ") and not any(one.column == column and not one.dash for one in levels):
        inner = levels[levels.index(same) - 1] if levels.index(same) else same
        owner = next((level for level in levels if not level.dash and level.column < column), None)
        outer = f", or in column {owner.column + 1}, as `{owner.word}`" if owner else ""
        return Explanation(
            "a key in the column of the list's `-`",
            f"Begin it in column {inner.column + 1}, as `{inner.word}`{outer}; a new item begins with `- `.",
            at,
        )
    dash = next((level for level in levels if level.dash), None)
    if not same.dash and text.startswith("- ") and dash is not None:
        return Explanation(
            "a list item among keys",
            f"The `-` in line {dash.line + 1} stands in column {dash.column + 1}: items of a list begin in one column.",
            at,
        )
    return None


def has_value(line: str) -> bool:
    """Whether something stands behind the key of a line, other than what begins a text of several lines."""
    behind = without_comment(line.partition(": ")[2]).strip()
    return bool(behind) and not re.match(r"[|>][-+\d]*$|&\S+$", behind)
