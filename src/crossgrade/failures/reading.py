"""Finding the few lines of a large output that are worth a pattern, in time that does not depend on what they hold.

Words are looked for in a lower-cased copy, which keeps every place where it was (only ASCII letters change). A
pattern never sees more than the few hundred characters around such a word.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from crossgrade.failures.secrets import without_secrets

LARGEST = 64 << 20  # bytes that are read of one output; of a larger one its first and last half of that
BEFORE, AFTER = 500, 1100  # bytes before a word and after it, of its line and what follows, that a pattern sees
BEFORE_LINES, BEFORE_BYTES = 60, 6000  # what stands before a line and is looked at as well
TAIL_LINES = 20
LONGEST_LINE = 1000  # bytes of a line of the tail
_ESCAPES = re.compile(r"\x1b\[[0-9;?]{0,20}[A-Za-z]")
_QUOTES = str.maketrans(dict.fromkeys("\u2018\u2019`\u00b4", "'") | dict.fromkeys("\u201c\u201d", '"'))


@dataclass(frozen=True)
class Output:
    """What a tool printed. `skipped` counts bytes that were left out at `gap`, since there were too many."""

    data: bytes
    lowered: bytes
    gap: int | None = None
    skipped: int = 0

    def line_number(self, place: int) -> int | None:
        """Counted from 1; None behind a gap, where nobody has counted."""
        if self.gap is not None and place >= self.gap:
            return None
        return self.data.count(b"\n", 0, place) + 1

    def tail(self) -> tuple[str, ...]:
        """The last lines that are not empty, without secrets."""
        end = self.data[-TAIL_LINES * LONGEST_LINE :].decode("utf-8", "replace")
        lines = [_ESCAPES.sub("", line).rstrip() for line in re.split(r"[\r\n]+", end)]
        return tuple(without_secrets(line)[-LONGEST_LINE:] for line in lines if line.strip())[-TAIL_LINES:]


@dataclass(frozen=True)
class Window:
    """One line and a little of what follows it. `start` and `end` are the line's places in the output.

    `text` has its quotes straightened and its colours taken out; `line` is its first line.
    """

    start: int
    end: int
    text: str
    line: str


def output_of(text: str | bytes) -> Output:
    """An output that is at hand; of one that is too large the middle is left out."""
    data = text.encode("utf-8", "replace") if isinstance(text, str) else text
    if len(data) <= LARGEST:
        return Output(data, data.lower())
    half = LARGEST // 2
    return _with_gap(data[:half], data[-half:], len(data) - 2 * half)


def read_output(path: Path) -> Output:
    """An output that lies in a file. Raises OSError; ValueError for what is not text."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > LARGEST:
            half = LARGEST // 2
            first = file.read(half)
            file.seek(size - half)
            found = _with_gap(first, file.read(half), size - 2 * half)
        else:
            found = output_of(file.read(LARGEST + 1))
    if b"\0" in found.data[:8192]:
        raise ValueError("it is no text: it has NUL bytes")
    return found


def _with_gap(first: bytes, last: bytes, skipped: int) -> Output:
    data = first + b"\n" + last
    return Output(data, data.lower(), len(first) + 1, skipped)


def windows(output: Output, words: Sequence[str], places: Mapping[str, Sequence[int]]) -> Iterator[Window]:
    """The lines that hold one of these words, each once, in order of the words. `places` says where they stand."""
    seen: set[tuple[int, int]] = set()
    for word in words:
        for place in places[word]:
            span = _line_around(output.data, place)
            if span not in seen:
                seen.add(span)
                yield _window(output, *span, place)


def _window(output: Output, start: int, end: int, place: int) -> Window:
    following = output.data.find(b"\n", end + 1, place + AFTER)
    last = min(len(output.data), place + AFTER) if following < 0 else following
    text = _straight(output.data[start : max(last, end)])
    return Window(start, end, text, text.partition("\n")[0])


def lines_before(output: Output, start: int) -> str:
    """What stands before a line, as far as it may say what the line is about."""
    said = output.data[max(0, start - BEFORE_BYTES) : start]
    return _straight(b"\n".join(said.split(b"\n")[-BEFORE_LINES:]))


def _line_around(data: bytes, place: int) -> tuple[int, int]:
    """Where the line begins and ends, or the part of a long one; a progress bar's \\r ends a line too."""
    lowest, highest = max(0, place - BEFORE), min(len(data), place + AFTER)
    start = max(data.rfind(b"\n", lowest, place), data.rfind(b"\r", lowest, place)) + 1 or lowest
    ends = [end for end in (data.find(b"\n", place, highest), data.find(b"\r", place, highest)) if end >= 0]
    return start, min(ends, default=highest)


def _straight(data: bytes) -> str:
    return _ESCAPES.sub("", data.decode("utf-8", "replace")).translate(_QUOTES).replace("\r", "\n")
