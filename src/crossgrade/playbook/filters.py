"""Ansible's filters of daily use, beside those that Jinja brings (`map`, `selectattr`, `join`, `groupby`, …)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Any

from jinja2 import pass_environment
from jinja2.filters import do_unique
from jinja2.runtime import Undefined

from crossgrade.playbook import filters_text
from crossgrade.playbook.argument_types import FALSE_WORDS, TRUE_WORDS, name_of_type
from crossgrade.playbook.limits import bounded_list
from crossgrade.playbook.tests import compare_versions


class FilterError(ValueError):
    """A filter that got what it cannot work with."""


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


def ternary(value: Any, true_value: Any, false_value: Any, none_value: Any = None) -> Any:
    if value is None and none_value is not None:
        return none_value
    return true_value if bool(value) else false_value


def to_bool(value: Any) -> bool:
    """Unlike Ansible, a word that is neither yes nor no is an error, and not false."""
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if isinstance(value, str | int | float):
        if word in TRUE_WORDS:
            return True
        if word in FALSE_WORDS:
            return False
    raise FilterError(f'`bool` expected true or false (yes, no, on, off, 1, 0), got "{word[:60]}"')


def dict2items(value: Any, key_name: str = "key", value_name: str = "value") -> list[dict[str, Any]]:
    if not isinstance(value, Mapping):
        raise FilterError(f"`dict2items` expected a mapping, got {name_of_type(value)}")
    return [{key_name: key, value_name: item} for key, item in value.items()]


def items2dict(value: Any, key_name: str = "key", value_name: str = "value") -> dict[Any, Any]:
    if not isinstance(value, list | tuple):
        raise FilterError(f"`items2dict` expected a list of mappings, got {name_of_type(value)}")
    try:
        return {item[key_name]: item[value_name] for item in value}
    except (KeyError, TypeError):
        raise FilterError(f'`items2dict`: each item needs "{key_name}" and "{value_name}"') from None


def combine(*values: Any, recursive: bool = False, list_merge: str = "replace") -> Any:
    """Mappings laid one over the other; the last wins."""
    merges = ("replace", "keep", "append", "prepend", "append_rp", "prepend_rp")
    if list_merge not in merges:
        raise FilterError(f"`combine`: list_merge is one of {', '.join(merges)}")
    mappings = flatten(values, levels=1)
    result: Any = {}
    for at, mapping in enumerate(mappings):
        if not isinstance(mapping, Mapping):
            raise FilterError(f"`combine` expected mappings, got {name_of_type(mapping)}")
        result = dict(mapping) if at == 0 else _merge(result, mapping, recursive, list_merge)
    return result


def _merge(low: Mapping[Any, Any], high: Mapping[Any, Any], recursive: bool, list_merge: str) -> dict[Any, Any]:
    merged = dict(low)
    for key, value in high.items():
        before = merged.get(key)
        if recursive and isinstance(before, Mapping) and isinstance(value, Mapping):
            merged[key] = _merge(before, value, recursive, list_merge)
        elif isinstance(before, list) and isinstance(value, list):
            merged[key] = _merge_lists(list(before), list(value), list_merge)
        else:
            merged[key] = value
    return merged


def _merge_lists(low: list[Any], high: list[Any], list_merge: str) -> list[Any]:
    if list_merge == "keep":
        return low
    if list_merge == "append":
        return low + high
    if list_merge == "prepend":
        return high + low
    if list_merge == "append_rp":
        return [item for item in low if item not in high] + high
    if list_merge == "prepend_rp":
        return high + [item for item in low if item not in high]
    return high


def flatten(value: Iterable[Any], levels: int | None = None, skip_nulls: bool = True) -> list[Any]:
    flat: list[Any] = []
    for item in value:
        if skip_nulls and (item is None or item in ("None", "null")):
            continue
        if isinstance(item, list | tuple) and (levels is None or levels >= 1):
            flat += flatten(item, None if levels is None else levels - 1, skip_nulls)
        else:
            flat.append(item)
    return flat


@pass_environment
def unique(environment: Any, value: Any, case_sensitive: bool = False, attribute: Any = None) -> list[Any]:
    try:
        return list(do_unique(environment, value, bool(case_sensitive), attribute))
    except TypeError:
        return _distinct(value)


def _distinct(items: Iterable[Any]) -> list[Any]:
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


def _listed(value: Any, name: str) -> list[Any]:
    if isinstance(value, str | Mapping) or not isinstance(value, Iterable):
        raise FilterError(f"`{name}` expected a list, got {name_of_type(value)}")
    return bounded_list(value)


def union(value: Any, other: Any) -> list[Any]:
    return _distinct([*_listed(value, "union"), *_listed(other, "union")])


def intersect(value: Any, other: Any) -> list[Any]:
    others = _listed(other, "intersect")
    return [item for item in _distinct(_listed(value, "intersect")) if item in others]


def difference(value: Any, other: Any) -> list[Any]:
    others = _listed(other, "difference")
    return [item for item in _distinct(_listed(value, "difference")) if item not in others]


def symmetric_difference(value: Any, other: Any) -> list[Any]:
    return difference(union(value, other), intersect(value, other))


def zip_lists(*values: Any) -> list[tuple[Any, ...]]:
    return list(zip(*values, strict=False))


def zip_longest(*values: Any, fillvalue: Any = None) -> list[tuple[Any, ...]]:
    return list(itertools.zip_longest(*values, fillvalue=fillvalue))


def product(*values: Any, repeat: int = 1) -> list[tuple[Any, ...]]:
    return bounded_list(itertools.product(*values, repeat=repeat))


def random_choice(end: Any, start: int | None = None, step: int | None = None, seed: Any = None) -> Any:
    """One item of a list, or a number below `end`; the same for the same `seed`."""
    from random import Random, SystemRandom

    source = SystemRandom() if seed is None else Random(seed)  # noqa: S311 - repeatable on purpose
    if isinstance(end, int):
        return source.randrange(start or 0, end, step or 1)
    if start or step:
        raise FilterError("`random`: start and step are for numbers only")
    items = _listed(end, "random") if not isinstance(end, str) else list(end)
    if not items:
        raise FilterError("`random` got an empty list")
    return source.choice(items)


@pass_environment
def extract(environment: Any, item: Any, container: Any, morekeys: Any = None) -> Any:
    keys = [item] if morekeys is None else [item, *morekeys] if isinstance(morekeys, list) else [item, morekeys]
    value = container
    for key in keys:
        value = environment.getitem(value, key)
    return value


def type_debug(value: Any) -> str:
    """The name of a value's type, as Ansible says it."""
    names = {dict: "dict", list: "list", str: "str", bool: "bool", int: "int", float: "float"}
    for kind in (bool, int, float, str, list, dict):
        if isinstance(value, kind):
            return names[kind]
    return type(value).__name__


def log(value: float, base: float = math.e) -> float:
    return math.log10(value) if base == 10 else math.log(value, base)


FILTERS: dict[str, Any] = {
    "bool": to_bool,
    "combine": combine,
    "d": default,
    "default": default,
    "dict2items": dict2items,
    "difference": difference,
    "extract": extract,
    "flatten": flatten,
    "intersect": intersect,
    "items2dict": items2dict,
    "log": log,
    "mandatory": mandatory,
    "pow": math.pow,
    "product": product,
    "random": random_choice,
    "symmetric_difference": symmetric_difference,
    "ternary": ternary,
    "type_debug": type_debug,
    "union": union,
    "unique": unique,
    "version": compare_versions,
    "version_compare": compare_versions,
    "zip": zip_lists,
    "zip_longest": zip_longest,
    **filters_text.FILTERS,
}

FILTERS_THAT_TAKE_UNDEFINED = frozenset(("default", "d", "mandatory", "ternary", "type_debug"))
