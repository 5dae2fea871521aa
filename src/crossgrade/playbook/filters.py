"""Ansible's filters, beside those that Jinja brings (`map`, `selectattr`, `join`, …): defaults, and all names.

A filter can be written with or without its collection: `to_json`, `ansible.builtin.to_json`.
"""

from __future__ import annotations

from typing import Any

from jinja2.runtime import Undefined

from crossgrade.playbook import (
    filters_data,
    filters_formats,
    filters_numbers,
    filters_paths,
    filters_sets,
    filters_text,
)
from crossgrade.playbook.filter_error import FilterError
from crossgrade.playbook.versions import compare_versions

_TRUE = frozenset(("yes", "on", "true", "1"))
_FALSE = frozenset(("no", "off", "false", "0", ""))


def default(value: Any, default_value: Any = "", boolean: bool = False) -> Any:
    if isinstance(value, Undefined) or (boolean and not value):
        return default_value
    return value


def mandatory(value: Any, msg: str | None = None) -> Any:
    if isinstance(value, Undefined):
        if msg is not None:
            raise FilterError(str(msg))
        value._fail_with_undefined_error()
    return value


def ternary(value: Any, true_val: Any, false_val: Any, none_val: Any = None) -> Any:
    if value is None and none_val is not None:
        return none_val
    return true_val if bool(value) else false_val


def to_bool(value: Any) -> bool:
    """Unlike Ansible, a word that is neither yes nor no is an error, and not false."""
    if isinstance(value, bool):
        return value
    if value is None:
        return False
    if isinstance(value, str):
        word = value.lower()
        if word in _TRUE or word in _FALSE:
            return word in _TRUE
    elif isinstance(value, int | float) and value in (0, 1):
        return bool(value)
    raise FilterError(f'`bool` expected true or false (yes, no, on, off, 1, 0), got "{str(value)[:60]}"')


def type_debug(value: Any) -> str:
    """The name of a value's type, as Ansible says it."""
    if isinstance(value, Undefined):
        return "UndefinedMarker"
    for kind in (bool, int, float, str, list, dict):
        if isinstance(value, kind):
            return kind.__name__
    return type(value).__name__


FILTERS: dict[str, Any] = {
    "bool": to_bool,
    "d": default,
    "default": default,
    "mandatory": mandatory,
    "ternary": ternary,
    "type_debug": type_debug,
    "version": compare_versions,
    "version_compare": compare_versions,
    **filters_data.FILTERS,
    **filters_formats.FILTERS,
    **filters_numbers.FILTERS,
    **filters_paths.FILTERS,
    **filters_sets.FILTERS,
    **filters_text.FILTERS,
}

FILTERS_THAT_TAKE_UNDEFINED = frozenset(("default", "d", "mandatory", "ternary", "type_debug"))
