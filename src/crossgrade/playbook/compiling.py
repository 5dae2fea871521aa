"""Templates compiled once for each text, in the environments that they need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from jinja2.environment import Template

    from crossgrade.playbook.jinja_environment import PlaybookEnvironment

Kind = Literal["value", "file", "condition"]
Marks = tuple[tuple[str, Any], ...]
"""Options of Jinja that a template file sets itself (`variable_start_string`, …), sorted."""

MAX_COMPILED = 4000
MAX_ENVIRONMENTS = 40

_environments: dict[tuple[bool, Marks], PlaybookEnvironment] = {}
_compiled: dict[tuple[Kind, str, Marks], Template] = {}


def environment(*, keep_backslashes: bool, marks: Marks = ()) -> PlaybookEnvironment:
    found = _environments.get((keep_backslashes, marks))
    if found is None:
        from crossgrade.playbook.jinja_environment import PlaybookEnvironment

        if len(_environments) >= MAX_ENVIRONMENTS:
            _environments.clear()
        found = PlaybookEnvironment(keep_backslashes=keep_backslashes, **dict(marks))
        _environments[keep_backslashes, marks] = found
    return found


def compiled(kind: Kind, text: str, marks: Marks = ()) -> Template:
    """`kind` is `value` (text of a playbook), `file` (of a template file) or `condition`."""
    found = _compiled.get((kind, text, marks))
    if found is None:
        if len(_compiled) >= MAX_COMPILED:
            _compiled.clear()
        made = environment(keep_backslashes=kind == "value", marks=marks)
        found = made.compile_condition(text) if kind == "condition" else made.compile_template(text)
        _compiled[kind, text, marks] = found
    return found


def as_marks(given: Mapping[str, Any]) -> Marks:
    return tuple(sorted(given.items()))
