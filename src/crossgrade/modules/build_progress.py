"""What a build's output says of how far it is: ninja's `[12/345]`, make's `[ 12%]`, and an estimate of what is left."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePath

_NINJA = re.compile(r"\[(\d{1,7})/(\d{1,7})\](?:\s+(.*))?")
_MAKE = re.compile(r"\[\s{0,2}(\d{1,3})%\]\s+(.*)")
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_SOURCE = re.compile(r"\S+\.(?:cu|cc|cpp|cxx|c|C)(?=\s|$)")
_TARGET = re.compile(r"\s-o\s+(\S+)")
_LONGEST = 100  # characters of what is shown of one line


@dataclass(frozen=True)
class Progress:
    """`done` of `total` steps (of 100, where a tool counts in percent), and what it works on, in a few words."""

    done: int
    total: int
    what: str


def progress_of(line: str) -> Progress | None:
    """What one line of a build's output says of its progress; None when it says nothing of it. Pure."""
    text = _COLOUR.sub("", line).strip()
    if found := _NINJA.match(text):
        done, total = int(found[1]), int(found[2])
        return Progress(done, total, _what(found[3] or "")) if total > 0 and done <= total else None
    if (found := _MAKE.match(text)) and int(found[1]) <= 100:
        return Progress(int(found[1]), 100, _what(found[2]))
    return None


def _what(text: str) -> str:
    """The source file of a compiler's command line, or the file that it makes; else the text as it is."""
    named = _SOURCE.findall(text) if " -c " in f" {text} " else []
    if named:
        return PurePath(named[-1]).name
    target = _TARGET.search(text)
    return (PurePath(target[1]).name if target else text)[:_LONGEST]


@dataclass
class Estimate:
    """Follows one build. `clock` gives seconds; the estimate goes by the mean of the steps that are done."""

    clock: Callable[[], float] = time.monotonic
    _began: float | None = None
    _first: int = 0
    _last: Progress | None = None

    def shown(self, line: str) -> str:
        """What to show of a line of output: its progress with what is left, or the line below the last progress."""
        progress = progress_of(line)
        if progress is None:
            text = _COLOUR.sub("", line).strip()[:_LONGEST]
            return f"[{self._last.done}/{self._last.total}] {text}" if self._last else text
        # ninja is run more than once in some builds: each counts anew
        if self._began is None or self._last is None or progress.total != self._last.total:
            self._began, self._first = self.clock(), progress.done
        self._last = progress
        left = self._left(progress)
        return f"[{progress.done}/{progress.total}]{f' about {left} left:' if left else ''} {progress.what}"

    def _left(self, progress: Progress) -> str:
        steps = progress.done - self._first
        if steps < 1 or self._began is None:
            return ""
        return lasting((self.clock() - self._began) / steps * (progress.total - progress.done))


def lasting(seconds: float) -> str:
    """`40 s`, `14 min`, `3.5 h`: as exact as an estimate is."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
