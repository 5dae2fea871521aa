"""Ansible's lookups, by name: what `lookup('NAME', …)` and `query('NAME', …)` give.

Each takes the context of the template, the terms and the options, and gives a list. Those of `with_NAME` are of
`loop_items`; those that look outside the playbook are of `lookups_outside`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from crossgrade.errors import CrossgradeError
from crossgrade.playbook import lookups_files, lookups_outside
from crossgrade.playbook.argument_types import name_of_type
from crossgrade.playbook.filter_error import FilterError
from crossgrade.playbook.jinja_environment import short_name
from crossgrade.playbook.loop_items import LoopPlaces, loop_items
from crossgrade.playbook.markers import DependsOnUnknown

Lookup = Callable[[Any, list[Any], dict[str, Any]], list[Any]]

_REFUSED = {
    "config": (
        "crossgrade reads no ansible.cfg, so it has none of Ansible's settings",
        "Write the value, or read it with `lookup('ini', …)`.",
    ),
}


def _places(context: Any) -> LoopPlaces:
    templar = context.templar

    def lines_of(command: str) -> Sequence[str]:
        return lookups_outside.lines(context, [command], {})

    return LoopPlaces(templar.directories, templar.environment, lines_of, templar.foreseen)


def _of_loops(name: str) -> Lookup:
    """The lookup that `with_NAME` uses, too. Options are one more term for those that know any."""

    def look_up(context: Any, terms: list[Any], options: dict[str, Any]) -> list[Any]:
        return loop_items(name, [*terms, options] if options else terms, _places(context))

    return look_up


def _vars(context: Any, terms: list[Any], options: dict[str, Any]) -> list[Any]:
    from jinja2.utils import missing

    values: list[Any] = []
    for term in terms:
        if not isinstance(term, str):
            raise FilterError(f"the name of a variable is text, got {name_of_type(term)}")
        value = context.templar.resolve(term)
        if value is missing:
            value = options["default"] if "default" in options else context.environment.undefined(name=term)
        values.append(value)
    return values


def _varnames(context: Any, terms: list[Any], _: dict[str, Any]) -> list[Any]:
    """The names of variables that match, those of each pattern in the order of the alphabet."""
    names = sorted(context.templar.scope.names())
    found: list[Any] = []
    for term in terms:
        if not isinstance(term, str):
            raise FilterError(f"a pattern is text, got {name_of_type(term)}")
        try:
            pattern = re.compile(term)
        except re.error as error:
            raise FilterError(f'"{term}" is not a valid regular expression: {error}') from error
        found += [name for name in names if pattern.search(name)]
    return found


def _random_choice(context: Any, terms: list[Any], _: dict[str, Any]) -> list[Any]:
    from random import SystemRandom

    if len(terms) > 1 and context.templar.foresees:
        raise DependsOnUnknown("what `random_choice` draws")
    return [SystemRandom().choice(terms)] if terms else []


def _inventory_hostnames(context: Any, terms: list[Any], _: dict[str, Any]) -> list[Any]:
    from crossgrade.playbook.patterns import select_names

    groups = context.resolve("groups")
    try:
        return list(select_names([str(term) for term in terms], list(groups["all"]), groups))
    except CrossgradeError:
        return []  # as Ansible does for a pattern that means no host


LOOKUPS: dict[str, Lookup] = {
    **{
        name: _of_loops(name)
        for name in ("dict", "indexed_items", "items", "list", "nested", "sequence", "subelements", "together")
    },
    "inventory_hostnames": _inventory_hostnames,
    "random_choice": _random_choice,
    "varnames": _varnames,
    "vars": _vars,
    **lookups_files.LOOKUPS,
    **lookups_outside.LOOKUPS,
}


def look_up(context: Any, name: Any, terms: list[Any], options: dict[str, Any]) -> list[Any] | None:
    """What the lookup gives; None where it failed, and `errors` is `ignore` or `warn`. Raises FilterError."""
    short = short_name(str(name))
    if short in _REFUSED:
        reason, remedy = _REFUSED[short]
        raise FilterError(f"Ansible's lookup `{short}` is not supported: {reason}", remedy)
    found = LOOKUPS.get(short)
    if found is None:
        raise FilterError(f"there is no lookup `{short}`; there are {', '.join(sorted(LOOKUPS))}")
    errors = options.pop("errors", "strict")
    try:
        return found(context, terms, options)
    except DependsOnUnknown:
        raise
    except (OSError, ValueError, CrossgradeError) as error:
        if errors in ("ignore", "warn"):
            return None
        reason = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else _message(error)
        raise FilterError(f"lookup `{short}`: {reason}", getattr(error, "remedy", "")) from error


def _message(error: Exception) -> str:
    return error.message if isinstance(error, CrossgradeError) else str(error)
