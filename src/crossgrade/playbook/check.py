"""The part of `--syntax-check` that needs Jinja: templates and conditions that cannot be parsed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from crossgrade.playbook.model import Play, Playbook, Task, walk
from crossgrade.playbook.positions import PlaybookProblem, Spot
from crossgrade.playbook.templating import check_syntax
from crossgrade.playbook.values import is_template_text

CONDITIONS = ("when", "changed_when", "failed_when", "until")


def check_templates(playbook: Playbook) -> list[PlaybookProblem]:
    """Every template and condition of the playbook whose syntax is wrong."""
    problems: dict[tuple[int, int, str], PlaybookProblem] = {}
    for spot, text, condition in _all_texts(playbook):
        error = check_syntax(text, spot, condition=condition)
        if error is not None:
            place = spot.place
            problems[place.line, place.column, text] = spot.problem(error.message, error.remedy)
    return [problems[key] for key in sorted(problems)]


def _all_texts(playbook: Playbook) -> Iterator[tuple[Spot, str, bool]]:
    for play in playbook.plays:
        yield from _templates(play.vars, play.spot_of("vars"))
        for task in _tasks(play):
            yield from _task_texts(task)


def _tasks(play: Play) -> Iterable[Task]:
    for _, steps in play.sections():
        yield from walk(steps)
    yield from play.handlers


def _task_texts(task: Task) -> Iterator[tuple[Spot, str, bool]]:
    for name, value in task.arguments.items():
        yield from _templates(value, task.spot_of("arguments", name))
    if task.vars_spots is not None:
        for name, value in task.vars.items():
            yield from _templates(value, task.vars_spots.at(name))
    for keyword in ("name", "loop", "environment", "notify", "loop_control", "retries", "delay"):
        spot = task.spot_of(keyword)
        if len(spot.path) and task.spot.node.entries and keyword in task.spot.node.entries:
            yield from _templates(spot.node.value, spot)
    for keyword in CONDITIONS:
        entries = task.spot.node.entries
        if entries is None or keyword not in entries:
            continue
        spot = task.spot_of(keyword)
        value = spot.node.value
        for at, item in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(item, str):
                yield (spot if at is None else spot.at(at)), item, True


def _templates(value: Any, spot: Spot) -> Iterator[tuple[Spot, str, bool]]:
    if is_template_text(value):
        yield spot, value, False
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _templates(item, spot.at(key))
    elif isinstance(value, list):
        for at, item in enumerate(value):
            yield from _templates(item, spot.at(at))
