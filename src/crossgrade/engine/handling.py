"""Handlers: which ones a notification means, and when they run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter

from crossgrade.engine.turns import Turns
from crossgrade.errors import CrossgradeError, Place
from crossgrade.playbook.model import Task


@dataclass
class Handlers:
    """The handlers of a play in the order in which they run, and those that wait for their turn.

    `name_of` expands a handler's name. A dynamic include adds its role's handlers at the end.
    """

    all: list[Task]
    name_of: Callable[[Task], str]
    _notified: list[str] = field(default_factory=list)
    _due: list[Task] = field(default_factory=list)
    _running: bool = False

    @property
    def running(self) -> bool:
        return self._running

    def add(self, handlers: Sequence[Task]) -> None:
        self.all += handlers

    def notify(self, topic: str, place: Place | None) -> None:
        """Let the handlers with this name or topic run. Raises CrossgradeError when there is none."""
        found = self._meant(topic)
        if not found:
            names = ", ".join(dict.fromkeys(handler.name for handler in self.all if handler.name)) or "none"
            remedy = f"Handlers of this play: {names}"
            raise CrossgradeError(f"no handler has the name or listens to {topic!r}", remedy=remedy, place=place)
        if self._running:
            self._let_run(found)
        elif topic not in self._notified:
            self._notified.append(topic)

    def flush(self, run: Callable[[Task, int], Turns]) -> Turns:
        """Run each notified handler once, in the order of definition.

        A handler may notify others: a later one still runs now, an earlier one at the next flush.
        """
        for topic in self._notified:
            self._let_run(self._meant(topic))
        self._notified.clear()
        self._running = True
        try:
            at = 0
            while at < len(self.all):  # it may grow
                handler = self.all[at]
                at += 1
                if any(handler is due for due in self._due):
                    self._due = [due for due in self._due if due is not handler]
                    yield from run(handler, at)
        finally:
            self._running = False

    def _let_run(self, found: Sequence[Task]) -> None:
        self._due += [handler for handler in found if not any(handler is due for due in self._due)]

    def _meant(self, topic: str) -> list[Task]:
        """Of several with one name the first of the list that was loaded last; and all that listen."""
        named = next((handler for handler in self._last_first() if topic in self._names(handler)), None)
        found = [] if named is None else [named]
        seen = {handler.name for handler in found}
        for handler in self._last_first():
            if topic in handler.listen and not (handler.name and handler.name in seen):
                seen.add(handler.name)
                found.append(handler)
        return found

    def _last_first(self) -> Iterator[Task]:
        # a block among the handlers is a list of its own, as a role is
        by = ((id(handler.role), handler.uid.rpartition("/block/")[0]) for handler in self.all)
        lists = [
            [handler for _, handler in those] for _, those in groupby(zip(by, self.all, strict=True), itemgetter(0))
        ]
        for those in reversed(lists):
            yield from those

    def _names(self, handler: Task) -> set[str]:
        if not handler.name:
            return set()
        name = self.name_of(handler)
        return {name, f"{handler.role.name} : {name}"} if handler.role else {name}
