"""From what a template gave to plain data: dicts, lists, text, numbers, true, false and None."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any

from crossgrade.playbook import limits
from crossgrade.playbook.markers import OMIT, DependsOnUnknown, Unknown

MAX_DEPTH = 200
_SCALARS = (str, int, float, bool, type(None))


class NotDataError(TypeError):
    """A template gave something that is no data."""


def finalize(value: Any, depth: int = 0) -> Any:
    """A copy in plain data. Entries that are `omit` are left out.

    Raises DependsOnUnknown, jinja2's UndefinedError where a part is not defined, NotDataError, LimitExceeded.
    """
    kind = type(value)
    if kind in _SCALARS or value is OMIT:
        return value
    if isinstance(value, Unknown):
        raise DependsOnUnknown(value.origin)
    if depth > MAX_DEPTH:
        raise limits.LimitExceeded("the result holds itself, or is nested too deeply")
    if isinstance(value, Mapping):
        limits.check_size(value)
        if OMIT in value:
            raise NotDataError("`omit` stands for a whole value, and cannot be a key")
        return {finalize(key, depth + 1): finalize(item, depth + 1) for key, item in value.items() if item is not OMIT}
    if isinstance(value, str):
        return str(value) if kind is not _unsafe_text() else value
    if isinstance(value, bool | int | float):
        return int(value) if isinstance(value, int) else float(value)
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, datetime.date):
        return value
    trip_undefined(value)
    if isinstance(value, range):
        raise NotDataError("a range is not a list: write `range(…) | list`")
    if callable(value) and not isinstance(value, Iterable):
        raise NotDataError(f"the result is the function {getattr(value, '__name__', '')}, and not its value")
    if isinstance(value, bytes):
        raise NotDataError("the result is bytes, and not text")
    if isinstance(value, Iterable):
        return [finalize(item, depth + 1) for item in limits.bounded_list(value) if item is not OMIT]
    raise NotDataError(f"the result is a value of type {kind.__name__}, and no data")


def trip_undefined(value: Any) -> None:
    """Raise jinja2's UndefinedError when the value is an undefined one."""
    fail = getattr(type(value), "_fail_with_undefined_error", None)
    if fail is not None:
        fail(value)


def _unsafe_text() -> type[str]:
    from crossgrade.playbook.yamltext import UnsafeText

    return UnsafeText


def text_of(value: Any) -> str:
    """A value as text inside a longer text."""
    if isinstance(value, str):
        return value
    if value is OMIT:
        raise NotDataError("`omit` stands for a whole argument, and cannot be a part of a text")
    return str(value)
