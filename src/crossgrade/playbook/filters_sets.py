"""Filters of Ansible's that treat lists as sets.

Ansible gives some of the results in the order of a Python set, which is another one in each run for text; here the
order is always that of the first list, then of the second.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from jinja2 import pass_environment
from jinja2.filters import do_unique

from crossgrade.playbook.argument_types import name_of_type
from crossgrade.playbook.filter_error import FilterError
from crossgrade.playbook.limits import bounded_list


@pass_environment
def unique(environment: Any, value: Any, case_sensitive: bool = False, attribute: Any = None) -> list[Any]:
    try:
        return list(do_unique(environment, value, bool(case_sensitive), attribute))
    except TypeError:
        return distinct(value)


def distinct(items: Iterable[Any]) -> list[Any]:
    """Each item once, in the order of their first appearance; works for mappings and lists, too."""
    found: list[Any] = []
    seen: set[Any] = set()
    for item in items:
        try:
            if item in seen:
                continue
            seen.add(item)
        except TypeError:
            if item in found:
                continue
        found.append(item)
    return found


def listed(value: Any, name: str) -> list[Any]:
    """The items of a list, a tuple and the like. Raises FilterError for text and mappings."""
    if isinstance(value, str | Mapping) or not isinstance(value, Iterable):
        raise FilterError(f"`{name}` expected a list, got {name_of_type(value)}")
    return bounded_list(value)


def union(value: Any, other: Any) -> list[Any]:
    return distinct([*listed(value, "union"), *listed(other, "union")])


def intersect(value: Any, other: Any) -> list[Any]:
    others = listed(other, "intersect")
    return [item for item in distinct(listed(value, "intersect")) if item in others]


def difference(value: Any, other: Any) -> list[Any]:
    others = listed(other, "difference")
    return [item for item in distinct(listed(value, "difference")) if item not in others]


def symmetric_difference(value: Any, other: Any) -> list[Any]:
    return difference(union(value, other), intersect(value, other))


FILTERS: dict[str, Any] = {
    "difference": difference,
    "intersect": intersect,
    "symmetric_difference": symmetric_difference,
    "union": union,
    "unique": unique,
}
