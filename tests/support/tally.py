"""How many interruptions the fault tests made, and how they ended: shown at the end of the tests."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Literal

Outcome = Literal["old", "new", "lost"]


class Tally:
    """Counts interruptions by kind. May be used from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, Counter[str]] = {}

    def add(self, kind: str, outcome: Outcome) -> None:
        """One interruption of this kind (`kill`, `ENOSPC`, ...), and which environment it left."""
        with self._lock:
            self._counts.setdefault(kind, Counter())[outcome] += 1

    def to_json(self) -> dict[str, dict[str, int]]:
        return {kind: dict(counts) for kind, counts in self._counts.items()}

    def take(self, counted: dict[str, dict[str, int]]) -> None:
        """Add what another process has counted."""
        with self._lock:
            for kind, counts in counted.items():
                self._counts.setdefault(kind, Counter()).update(counts)

    def lines(self) -> list[str]:
        """One line for each kind, and one for all. Empty when nothing was interrupted."""
        total: Counter[str] = Counter()
        for counts in self._counts.values():
            total.update(counts)
        if not total:
            return []
        rows = [*sorted(self._counts.items()), ("in all", total)]
        return [
            f"{kind:<28} {counts.total():>5} interruptions: {counts['old']:>5} ended old, "
            f"{counts['new']:>5} ended new, {counts['lost']} lost"
            for kind, counts in rows
        ]


TALLY = Tally()
