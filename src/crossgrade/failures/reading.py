"""Finding the few lines of a large output that are worth a pattern, in time that does not depend on what they hold.

All searching for words is `bytes.find` on a lower-cased copy, which keeps every place where it was (only ASCII
letters change). A pattern never sees more than `WINDOW` characters.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from crossgrade.failures.secrets import without_secrets

LARGEST = 64 << 20  # bytes that are read of one output; of a larger one its first and last half of that
WINDOW = 2000  # bytes of a line, and of what follows it, that a pattern sees
FIRST_PLACES, LAST_PLACES = 400, 200  # how often one word is looked at, from both ends of the text
BEFORE_LINES, BEFORE_BYTES = 60, 6000  # what stands before a line and is looked at as well
TAIL_LINES = 20
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
        end = self.data[-TAIL_LINES * WINDOW :].decode("utf-8", "replace")
        lines = [_ESCAPES.sub("", line).rstrip() for line in re.split(r"[\r\n]+", end)]
        return tuple(without_secrets(line[-WINDOW:]) for line in lines if line.strip())[-TAIL_LINES:]


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


def windows(output: Output, words: Sequence[str]) -> Iterator[Window]:
    """The lines that hold one of these words (in lower case), each once, in order of the words."""
    seen: set[int] = set()
    for word in words:
        wanted = word.encode()
        for place in _places(output.lowered, wanted):
            start, end = _line_around(output.data, place)
            if start not in seen:
                seen.add(start)
                yield window_at(output, start, end)


def window_at(output: Output, start: int, end: int) -> Window:
    following = output.data.find(b"\n", end + 1)
    last = min(len(output.data) if following < 0 else following, start + WINDOW)
    text = _straight(output.data[start : max(last, end)])
    line = text.partition("\n")[0]
    return Window(start, end, text, line)


def lines_before(output: Output, start: int) -> str:
    """What stands before a line, as far as it may say what the line is about."""
    said = output.data[max(0, start - BEFORE_BYTES) : start]
    return _straight(b"\n".join(said.split(b"\n")[-BEFORE_LINES:]))


def _places(lowered: bytes, word: bytes) -> Iterator[int]:
    place, last = -1, -1
    for _ in range(FIRST_PLACES):
        place = lowered.find(word, place + 1)
        if place < 0:
            return
        last = place
        yield place
    place = len(lowered)
    for _ in range(LAST_PLACES):
        place = lowered.rfind(word, last + 1, place)
        if place < 0:
            return
        yield place


def _line_around(data: bytes, place: int) -> tuple[int, int]:
    """Where the line begins and ends, or the part of a very long line; a progress bar's \\r ends a line too."""
    lowest = max(0, place - WINDOW // 2)
    start = max(data.rfind(b"\n", lowest, place), data.rfind(b"\r", lowest, place)) + 1 or lowest
    highest = min(len(data), start + WINDOW)
    ends = [end for end in (data.find(b"\n", place, highest), data.find(b"\r", place, highest)) if end >= 0]
    return start, min(ends, default=highest)


def _straight(data: bytes) -> str:
    return _ESCAPES.sub("", data.decode("utf-8", "replace")).translate(_QUOTES).replace("\r", "\n")
