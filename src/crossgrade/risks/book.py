"""A playbook as the rules look at it, and what they find."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from crossgrade.errors import Place
from crossgrade.failures.secrets import without_secrets
from crossgrade.modules import NAMES, load_module
from crossgrade.modules.guide import is_gate
from crossgrade.playbook.arguments import declared_arguments
from crossgrade.playbook.model import Block, Play, Playbook, Step, Task
from crossgrade.playbook.positions import Spot, excerpt_of, printable


@dataclass(frozen=True)
class Rule:
    """A risk. `why` says what goes wrong, `remedy` what to write instead. `conceals`: the line itself is not shown."""

    name: str
    why: str
    remedy: str
    conceals: bool = False


@dataclass(frozen=True)
class Finding:
    """A risk at a place. `message` says what it is here; `task` is the name of the task, "" where it is none.

    `begins` is where its task begins: a `# noqa` there counts too.
    """

    rule: Rule
    message: str
    place: Place
    excerpt: str
    task: str = ""
    begins: Place | None = None


def finding_at(
    rule: Rule, message: str, spot: Spot, *, key: bool = False, task: str = "", begins: Spot | None = None
) -> Finding:
    """A finding at a value of the file, or at the key that holds it. The excerpt repeats no secret."""
    place = spot.key_place if key else spot.place
    excerpt = "" if rule.conceals else without_secrets(excerpt_of(spot.source.text, place.line, place.column))
    return Finding(rule, printable(message), place, excerpt, task, None if begins is None else begins.place)


@dataclass(frozen=True)
class LintTask:
    """A task with what is around it: its blocks, innermost first, and in which section of each it stands."""

    task: Task
    play: Play
    blocks: tuple[Block, ...] = ()
    sections: tuple[str, ...] = ()
    handler: bool = False

    @property
    def module(self) -> str:
        return self.task.module

    def argument(self, *names: str) -> Any:
        """The first of these arguments that is given, as written; None when none is."""
        return next((self.task.arguments[name] for name in names if name in self.task.arguments), None)

    def finding(self, rule: Rule, message: str, *keys: Any, key: bool = False) -> Finding:
        """At the task, or at its keyword or argument (`"arguments", "src"`)."""
        spot = self.task.spot_of(*keys) if keys else self.task.spot
        return finding_at(rule, message, spot, key=key, task=self.task.display_name, begins=self.task.spot)


@dataclass(frozen=True)
class Book:
    """A playbook with its tasks in the order in which they run."""

    playbook: Playbook

    @cached_property
    def plays(self) -> tuple[tuple[Play, tuple[LintTask, ...]], ...]:
        """Each play with its tasks, handlers not among them."""
        return tuple(
            (play, tuple(found for _, steps in play.sections() for found in _flat(steps, play)))
            for play in self.playbook.plays
        )

    @cached_property
    def tasks(self) -> tuple[LintTask, ...]:
        """All tasks of all plays, and then the handlers."""
        handlers = [
            LintTask(task, play, handler=True)
            for play in self.playbook.plays
            for task in play.handlers
            if isinstance(task, Task)
        ]
        return (*(task for _, tasks in self.plays for task in tasks), *handlers)


Check = Callable[[Book], Iterable[Finding]]


def _flat(steps: Iterable[Step], play: Play, blocks: tuple[Block, ...] = (), sections: tuple[str, ...] = ()) -> Any:
    for step in steps:
        if isinstance(step, Block):
            for section in ("block", "rescue", "always"):
                inner: Iterable[Step] = getattr(step, section)
                yield from _flat(inner, play, (step, *blocks), (section, *sections))
        elif isinstance(step, Task):
            yield LintTask(step, play, blocks, sections)


def judges_candidate(name: str) -> bool:
    """Whether a module is a gate that judges a candidate: it has `on_not_run` and `generation`."""
    if name not in NAMES:
        return False
    module = load_module(name)
    return is_gate(module) and any(one.name == "generation" for one in declared_arguments(module.arguments))


def is_any_gate(name: str) -> bool:
    return name in NAMES and is_gate(load_module(name))


def texts(value: Any) -> Iterator[str]:
    """All texts in a value, keys of mappings among them."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from texts(name)
            yield from texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from texts(item)
