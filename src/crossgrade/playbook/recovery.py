"""Leaving out the lines around a mistake that cannot be mended, so that the rest of a file can be read.

What is left out is the line and all that stands below it; where that is not enough, the whole list item around it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from crossgrade.playbook.explain_indentation import open_levels
from crossgrade.playbook.explained import Lines
from crossgrade.playbook.positions import PlaybookErrors, PlaybookProblem, Source

_DASH = re.compile(r"\s*- ")


@dataclass(frozen=True)
class Reading:
    """What could be read of a text, and what is wrong with it.

    `source` is None where nothing could be read. `silent` holds the lines (from 1) of which nothing more is to be
    told: they are wrong already, or something is missing in them because it could not be read.
    """

    source: Source | None
    problems: tuple[PlaybookProblem, ...]
    silent: frozenset[int]


class Recovery:
    """The lines of a file, of which some are left out.

    `silent` are the lines (from 0) of which nothing more is told: what would be said of them follows from the
    mistake, or from what was left out.
    """

    def __init__(self, lines: Iterable[str]) -> None:
        self.lines = list(lines)
        self.silent: set[int] = set()
        self.mended: set[int] = set()
        self._as_written = list(self.lines)

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def mend(self, mended: dict[int, str]) -> bool:
        """Replace lines by what was meant, each at most once. False where that changes nothing."""
        changes = {at: line for at, line in mended.items() if at < len(self.lines) and self.lines[at] != line}
        if not changes or self.mended & set(changes):
            return False
        for at, line in changes.items():
            self.lines[at] = line
        self.mended.update(changes)
        return True

    def leave_out(self, line: int) -> bool:
        """Leave out the mistake in a line. False where nothing is left that could be."""
        line = min(line, len(self.lines) - 1)
        wanted = self._item(line) if line in self.silent else self._below(line)
        self.silent |= {line, *wanted, *self._above(wanted.start if wanted else line)}
        left = [one for one in wanted if self.lines[one].strip()]
        for one in left:
            self.lines[one] = ""
        return bool(left)

    def reading(
        self, source: Source | None, problems: Sequence[PlaybookProblem], others: Sequence[PlaybookProblem]
    ) -> Reading:
        """What was read, with the `others` of its problems that are not silent."""
        silent = frozenset(at + 1 for at in self.silent)
        told = [one for one in others if one.place is None or one.place.line not in silent]
        return Reading(source, (*problems, *told), silent)

    def _below(self, line: int) -> range:
        """The line, and those below it that are indented deeper."""
        here = self._as_written[line]
        own = len(here) - len(here.lstrip())
        columns: set[int] = set()
        if "\t" in here[:own]:  # how wide its tabs were meant, nobody knows: it ends where what is above it goes on
            columns = {level.column for level in open_levels(Lines("\n".join(self._as_written)), line)}
        end = line + 1
        while end < len(self._as_written) and self._deeper(end, own, columns):
            end += 1
        return range(line, end)

    def _item(self, line: int) -> range:
        """The list item in which a line stands; nothing where it stands in none."""
        start = line
        own = _indent(self._as_written[line])
        while start > 0 and not (_DASH.match(self._as_written[start]) and _indent(self._as_written[start]) <= own):
            start -= 1
        if not _DASH.match(self._as_written[start]):
            return range(0)
        dash = _indent(self._as_written[start])
        end = start + 1
        while end < len(self._as_written) and (end <= line or self._deeper(end, dash)):
            end += 1
        return range(start, end)

    def _above(self, line: int) -> Iterator[int]:
        """The lines that a line is indented below: what is missing in it is told of them."""
        own = self._as_written[line]
        item_with_tab = _DASH.match(own) and own.startswith("\t")
        least = len(own) - len(own.lstrip()) if item_with_tab else _indent(own)
        for at in range(line - 1, -1, -1):
            here = self._as_written[at]
            if here.strip() and _indent(here) < least:
                yield at
                least = _indent(here)

    def _deeper(self, line: int, than: int, columns: Collection[int] = ()) -> bool:
        here = self._as_written[line]
        if not here.strip() or here.lstrip().startswith("#"):
            return True
        return _indent(here) > than and _indent(here) not in columns


def _indent(line: str) -> int:
    """The column in which a line begins; a tab counts as eight."""
    spread = line.expandtabs(8)
    return len(spread) - len(spread.lstrip())


def raise_all(reading: Reading, build: Callable[[Source], Any]) -> NoReturn:
    """Raise PlaybookErrors: beside what is wrong with a text, what `build` finds wrong with what was read of it."""
    problems = [*reading.problems]
    if reading.source is not None:
        file = reading.source.file
        named = {(file, line) for line in reading.silent} | lines_named(problems)
        try:
            build(reading.source)
        except PlaybookErrors as errors:
            problems += [one for one in errors.errors if one.place and (one.place.file, one.place.line) not in named]
    raise PlaybookErrors(problems)


def lines_named(problems: Iterable[PlaybookProblem]) -> set[tuple[str, int]]:
    """The lines, by file, of which something is told already."""
    return {(problem.place.file, problem.place.line) for problem in problems if problem.place}
