"""Filters of Ansible's for mappings and lists: turning one into the other, laying over, flattening, pairing."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from jinja2 import pass_environment

from crossgrade.playbook.argument_types import name_of_type
from crossgrade.playbook.filter_error import FilterError
from crossgrade.playbook.limits import bounded_list


def dict2items(value: Any, key_name: str = "key", value_name: str = "value") -> list[dict[str, Any]]:
    if not isinstance(value, Mapping):
        raise FilterError(f"`dict2items` expected a mapping, got {name_of_type(value)}")
    return [{key_name: key, value_name: item} for key, item in value.items()]


def items2dict(value: Any, key_name: str = "key", value_name: str = "value") -> dict[Any, Any]:
    if not isinstance(value, list | tuple):
        raise FilterError(f"`items2dict` expected a list of mappings, got {name_of_type(value)}")
    try:
        return {item[key_name]: item[value_name] for item in value}
    except (LookupError, TypeError):
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
    if low == high:  # even where lists would be put together
        return dict(high)
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


def zip_lists(*values: Any) -> list[tuple[Any, ...]]:
    return bounded_list(zip(*values, strict=False))


def zip_longest(*values: Any, fillvalue: Any = None) -> list[tuple[Any, ...]]:
    return bounded_list(itertools.zip_longest(*values, fillvalue=fillvalue))


def product(*values: Any, repeat: int = 1) -> list[tuple[Any, ...]]:
    return bounded_list(itertools.product(*values, repeat=repeat))


def permutations(value: Any, list_size: int | None = None) -> list[tuple[Any, ...]]:
    return bounded_list(itertools.permutations(value, list_size))


def combinations(value: Any, set_size: int) -> list[tuple[Any, ...]]:
    return bounded_list(itertools.combinations(value, set_size))


@pass_environment
def extract(environment: Any, item: Any, container: Any, morekeys: Any = None) -> Any:
    keys = [item] if morekeys is None else [item, *morekeys] if isinstance(morekeys, list) else [item, morekeys]
    value = container
    for key in keys:
        value = environment.getitem(value, key)
    return value


def subelements(value: Any, subelements: Any, skip_missing: bool = False) -> list[tuple[Any, Any]]:
    """Each item with each item of the list that lies below it at `a.b` (or `[a, b]`)."""
    items = list(value.values()) if isinstance(value, Mapping) else value
    if not isinstance(items, list | tuple):
        raise FilterError(f"`subelements` expected a list of mappings, got {name_of_type(value)}")
    if isinstance(subelements, str):
        keys: list[Any] = subelements.split(".")
    elif isinstance(subelements, list | tuple):
        keys = list(subelements)
    else:
        raise FilterError(f"`subelements`: the key is text or a list, got {name_of_type(subelements)}")
    pairs: list[tuple[Any, Any]] = []
    for item in items:
        inner = _below(item, keys, skip_missing)
        if not isinstance(inner, list | tuple):
            raise FilterError(f'`subelements`: "{keys[-1]}" holds {name_of_type(inner)}, and no list')
        pairs += [(item, one) for one in inner]
    return pairs


def _below(item: Any, keys: list[Any], skip_missing: bool) -> Any:
    inner = item
    for key in keys:
        if not isinstance(inner, Mapping):
            raise FilterError(f'`subelements`: "{key}" is looked for in {name_of_type(inner)}, and not in a mapping')
        if key not in inner:
            if skip_missing:
                return []
            raise FilterError(f'`subelements`: an item has no "{key}"', "Give skip_missing=true to pass over it.")
        inner = inner[key]
    return inner


def rekey_on_member(data: Any, key: Any, duplicates: str = "error") -> dict[Any, Any]:
    """The mappings in a list (or a mapping), by what each holds at `key`."""
    if duplicates not in ("error", "overwrite"):
        raise FilterError("`rekey_on_member`: duplicates is error or overwrite")
    items = list(data.values()) if isinstance(data, Mapping) else data
    if not isinstance(items, list | tuple):
        raise FilterError(f"`rekey_on_member` expected a list of mappings, got {name_of_type(data)}")
    found: dict[Any, Any] = {}
    for item in items:
        if not isinstance(item, Mapping) or key not in item:
            raise FilterError(f'`rekey_on_member`: each item is a mapping with "{key}"')
        if item[key] in found and duplicates == "error":
            raise FilterError(f'`rekey_on_member`: "{item[key]}" is there twice')
        found[item[key]] = item
    return found


FILTERS: dict[str, Any] = {
    "combinations": combinations,
    "combine": combine,
    "dict2items": dict2items,
    "extract": extract,
    "flatten": flatten,
    "items2dict": items2dict,
    "permutations": permutations,
    "product": product,
    "rekey_on_member": rekey_on_member,
    "subelements": subelements,
    "zip": zip_lists,
    "zip_longest": zip_longest,
}
