"""What explanations of mistakes in YAML are made of: the lines of a file, and what is said of one."""

from __future__ import annotations

from dataclasses import dataclass, field

from crossgrade.playbook.positions import lines_of


@dataclass(frozen=True)
class Explanation:
    """What is wrong and how to mend it. `at` is a better position (from 0) where there is one.

    `mended` holds lines as they were meant, where that is certain.
    """

    message: str
    remedy: str
    at: tuple[int, int] | None = None
    mended: dict[int, str] = field(default_factory=dict)


class Lines:
    """The lines of a file, where the parser stopped, and where it began what it could not finish (all from 0)."""

    def __init__(self, text: str, line: int = 0, column: int = 0, start: int = -1, start_column: int = 0) -> None:
        self.lines = lines_of(text)
        self.line = line
        self.column = column
        self.start = line if start < 0 else start
        self.start_column = start_column

    def at(self, number: int) -> str:
        return self.lines[number] if 0 <= number < len(self.lines) else ""

    def above(self, number: int) -> int:
        """The nearest line above that holds more than a comment; -1 where there is none."""
        at = min(number, len(self.lines)) - 1
        while at >= 0 and (not self.at(at).strip() or self.at(at).lstrip().startswith("#")):
            at -= 1
        return at

    def near(self) -> list[int]:
        """Where the mistake can be: the parser's line, the one above it, and where it began."""
        here = self.line if self.at(self.line).strip() else self.above(self.line)
        return list(dict.fromkeys(number for number in (here, self.above(here), self.start) if number >= 0))
