"""Where each value of a YAML file stands, and errors that show the place.

The loader gives plain Python data and, beside it, a tree of `Node`s. A `Spot` is a path into that tree: it
costs nothing until an error needs its line, its column and the excerpt.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from crossgrade.errors import Place, PlaybookError

EXCERPT_WIDTH = 100  # columns of an excerpt; a longer line is cut around the caret
_LINE_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")  # those of YAML 1.1, which its parser counts


class Node:
    """One value of a YAML file. Line and column count from 0, as the YAML parser has them.

    `entries` maps the keys of a mapping to (line of the key, column of the key, node of the value). `size`
    counts the values inside, each alias as often as it is used.
    """

    __slots__ = ("column", "entries", "items", "line", "size", "value")

    def __init__(self, line: int, column: int, value: Any = None) -> None:
        self.line = line
        self.column = column
        self.value = value
        self.entries: dict[Hashable, tuple[int, int, Node]] | None = None
        self.items: list[Node] | None = None
        self.size = 1


class SealedText(str):
    """The text of a file that was encrypted as a whole: no line of it is shown in messages."""

    __slots__ = ()


class Source:
    """A text with the positions of its values."""

    __slots__ = ("file", "root", "text")

    def __init__(self, file: str, text: str, root: Node) -> None:
        self.file = file
        self.text = text
        self.root = root


def printable(text: str) -> str:
    """Without what could move a terminal's cursor."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


@lru_cache(maxsize=2)  # each of a file's many mistakes shows one of its lines
def lines_of(text: str) -> tuple[str, ...]:
    """The lines of a text as YAML's parser counts them."""
    return tuple(_LINE_BREAK.split(text))


def excerpt_of(text: str, line: int, column: int) -> str:
    """The line (from 1) with a caret below its column (from 1). "" when there is no such line, or it is sealed.

    What could move the cursor of a terminal is replaced.
    """
    if isinstance(text, SealedText):
        return ""
    lines = lines_of(text)
    if not 1 <= line <= len(lines):
        return ""
    shown = printable(lines[line - 1])
    start = 0
    if len(shown) > EXCERPT_WIDTH:
        start = max(0, min(column - EXCERPT_WIDTH // 2, len(shown) - EXCERPT_WIDTH))
        shown = shown[start : start + EXCERPT_WIDTH]
    label = str(line)
    return f"{label} | {shown.rstrip()}\n{' ' * len(label)} | {' ' * (column - 1 - start)}^"


@dataclass(frozen=True)
class Spot:
    """A value in a YAML file, by the path that leads to it.

    A path that leads nowhere means the last value that was on it.
    """

    source: Source = field(repr=False, compare=False)
    path: tuple[Hashable, ...] = ()

    def at(self, *keys: Hashable) -> Spot:
        """The spot of a mapping's value or a list's item inside."""
        return Spot(self.source, self.path + keys)

    def _walk(self) -> tuple[Node, tuple[int, int]]:
        """The node, and the position of the key that holds it (the node's own where no key does)."""
        node = self.source.root
        key_position = (node.line, node.column)
        for step in self.path:
            if node.entries is not None and step in node.entries:
                line, column, node = node.entries[step]
                key_position = (line, column)
            elif node.items is not None and isinstance(step, int) and 0 <= step < len(node.items):
                node = node.items[step]
                key_position = (node.line, node.column)
            else:
                break
        return node, key_position

    @property
    def node(self) -> Node:
        return self._walk()[0]

    @property
    def place(self) -> Place:
        """Of the value."""
        node = self.node
        return Place(self.source.file, node.line + 1, node.column + 1)

    @property
    def key_place(self) -> Place:
        """Of the key that holds the value."""
        line, column = self._walk()[1]
        return Place(self.source.file, line + 1, column + 1)

    def excerpt(self) -> str:
        place = self.place
        return excerpt_of(self.source.text, place.line, place.column)

    def problem(self, message: str, remedy: str = "", *, key: bool = False) -> PlaybookProblem:
        """An error at this spot, or at the key that holds it."""
        place = self.key_place if key else self.place
        shown = excerpt_of(self.source.text, place.line, place.column)
        return PlaybookProblem(message, remedy=remedy, place=place, excerpt=shown)


class PlaybookProblem(PlaybookError):  # noqa: N818 - one of several that are raised together
    """One thing that is wrong in a file, with the line that it stands in."""

    def __init__(self, message: str, *, remedy: str = "", place: Place | None = None, excerpt: str = "") -> None:
        super().__init__(printable(message), remedy=printable(remedy), place=place)
        self.excerpt = excerpt

    def __str__(self) -> str:
        first = f"{self.place}: {self.message}" if self.place else self.message
        indented = ["  " + line for line in self.excerpt.splitlines()]
        return "\n".join([first, *indented, *([f"  {self.remedy}"] if self.remedy else [])])


class PlaybookErrors(PlaybookError):  # noqa: N818 - the plural says that it holds several
    """All that is wrong in a file and in those that it imports, each in the order of its lines."""

    def __init__(self, errors: Sequence[PlaybookProblem]) -> None:
        once = {str(error): error for error in errors}.values()  # a file may be imported twice
        files = list(dict.fromkeys(error.place.file if error.place else "" for error in once))
        ordered = sorted(
            once, key=lambda error: (files.index(error.place.file if error.place else ""), *_line_of(error))
        )
        first = ordered[0]
        count = f"{len(ordered)} errors, the first: " if len(ordered) > 1 else ""
        super().__init__(count + first.message, remedy=first.remedy, place=first.place)
        self.errors = tuple(ordered)

    def __str__(self) -> str:
        return "\n".join(str(error) for error in self.errors)


def _line_of(problem: PlaybookProblem) -> tuple[int, int]:
    return (problem.place.line, problem.place.column) if problem.place else (0, 0)
