"""The part of `--syntax-check` that needs Jinja: templates and conditions that cannot be parsed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from crossgrade.playbook.model import Play, Playbook, Task, walk
from crossgrade.playbook.positions import PlaybookErrors, PlaybookProblem, Spot
from crossgrade.playbook.templating import check_syntax
from crossgrade.playbook.values import Reader, is_template_text

CONDITIONS = ("when", "changed_when", "failed_when", "until")


def check_templates(playbook: Playbook) -> list[PlaybookProblem]:
    """Every template and condition of the playbook whose syntax is wrong.

    Files that a dynamic include without conditions names are read too: one in a `rescue` must not fail only then.
    """
    problems: dict[tuple[str, int, int, str], PlaybookProblem] = {}
    broken: list[PlaybookProblem] = []
    for spot, text, condition in _all_texts(playbook, broken):
        error = check_syntax(text, spot, condition=condition)
        if error is not None:
            place = spot.place
            problems[place.file, place.line, place.column, text] = spot.problem(error.message, error.remedy)
    return [*broken, *(problems[key] for key in sorted(problems))]


def _all_texts(playbook: Playbook, broken: list[PlaybookProblem]) -> Iterator[tuple[Spot, str, bool]]:
    for play in playbook.plays:
        yield from _templates(play.vars, play.spot_of("vars"))
        seen: set[Path] = set()
        for task in _tasks(play):
            yield from _task_texts(task)
            for included in _included(task, play, playbook, seen, broken):
                yield from _task_texts(included)


def _tasks(play: Play) -> Iterable[Task]:
    for _, steps in play.sections():
        yield from walk(steps)
    yield from play.handlers


def _included(
    task: Task, play: Play, playbook: Playbook, seen: set[Path], broken: list[PlaybookProblem]
) -> Iterator[Task]:
    """The tasks of a file that will be included for certain, once for each file."""
    from crossgrade.playbook.build import Builder
    from crossgrade.playbook.imports import task_file_places
    from crossgrade.playbook.library import first_file

    name = task.arguments.get("file")
    if task.module != "include_tasks" or task.when or not isinstance(name, str) or is_template_text(name):
        return
    if task.inherited is None or playbook.library is None:
        return
    directory = play.directory or playbook.directory
    file = first_file(task_file_places(name, task.inherited, directory, task.inherited.place))
    if file is None or file in seen:
        return
    seen.add(file)
    try:
        builder = Builder(Reader(), playbook.library, directory)
        included = builder.imports.included_tasks(file, task, task.inherited, task.uid)
    except PlaybookErrors as errors:
        broken += errors.errors
        return
    for each in walk(included.steps):
        yield each
        yield from _included(each, play, playbook, seen, broken)


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
