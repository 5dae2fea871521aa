"""From a field's type to what converts a playbook's value, and to words that say what was expected."""

from __future__ import annotations

import collections.abc
import dataclasses
import json
import os
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Union

Converter = Callable[[Any], Any]
NestedParser = Callable[[type[Any], Mapping[str, Any]], Any]

TRUE_WORDS = frozenset(("y", "yes", "on", "1", "true", "t", "1.0"))
FALSE_WORDS = frozenset(("n", "no", "off", "0", "false", "f", "0.0"))
# JSON Schema of what is converted. As an editor reads YAML 1.2, `yes` is text; as we and Ansible read it, it is true.
BOOLEAN_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"type": "boolean"},
        {"enum": [0, 1]},
        {
            "type": "string",
            "pattern": r"^\s*([Yy](es)?|YES|[Nn]o?|NO|[Oo]n|ON|[Oo]ff|OFF|[Tt](rue)?|[Ff](alse)?|[01])\s*$",
        },
    ]
}
TEMPLATE_SCHEMA: dict[str, Any] = {"type": "string", "pattern": r"\{[\{%#]"}
_INTEGER = {"anyOf": [{"type": "integer"}, {"type": "string", "pattern": r"^\s*[+-]?\d+\s*$"}]}
_FLOAT = {"anyOf": [{"type": "number"}, {"type": "string", "pattern": r"^\s*[+-]?(\d|\.\d|inf|nan)"}]}
_MAPPING = {"anyOf": [{"type": "object"}, {"type": "string", "pattern": r"^\s*\{|="}]}
_LISTS = (list, tuple, collections.abc.Sequence, collections.abc.Collection, collections.abc.Iterable)
_MAPPINGS = (dict, collections.abc.Mapping)


class ConversionError(ValueError):
    """A value that does not fit; the message says what was expected and what came."""


@dataclasses.dataclass(frozen=True)
class Expected:
    """What a field accepts. `kind` as Ansible names it: str, int, bool, float, path, list, dict, raw."""

    kind: str
    text: str
    nullable: bool = False
    element: str | None = None
    choices: tuple[Any, ...] = ()
    schema: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    nested: type[Any] | None = None


def dataclass_hints(arguments_type: type[Any]) -> dict[str, Any]:
    """The types of a dataclass's fields, with names resolved where the class was written."""
    if not dataclasses.is_dataclass(arguments_type):
        raise TypeError(f"{arguments_type!r} is not a dataclass")
    return typing.get_type_hints(arguments_type)


def _without_none(hint: Any) -> tuple[tuple[Any, ...], bool]:
    """The members of a union, None apart."""
    if typing.get_origin(hint) in (Union, types.UnionType):
        members = typing.get_args(hint)
        return tuple(one for one in members if one is not type(None)), type(None) in members
    return (hint,), False


def describe_expected(hint: Any, choices: Sequence[Any] = ()) -> Expected:
    """What a field of this type accepts."""
    members, nullable = _without_none(hint)
    if len(members) > 1:
        parts = [describe_expected(one, choices) for one in members]
        return Expected(
            kind="raw" if len({one.kind for one in parts}) > 1 else parts[0].kind,
            text=" or ".join(one.text for one in parts),
            nullable=nullable,
            choices=tuple(choice for one in parts for choice in one.choices),
            schema={"anyOf": [dict(one.schema) for one in parts]},
        )
    one = _describe_one(members[0], tuple(choices))
    return dataclasses.replace(one, nullable=nullable or members[0] is Any)


_SCALARS: dict[Any, tuple[str, str, dict[str, Any]]] = {
    bool: ("bool", "true or false", BOOLEAN_SCHEMA),
    int: ("int", "a whole number", _INTEGER),
    float: ("float", "a number", _FLOAT),
    str: ("str", "text", {"type": ["string", "number", "boolean"]}),
    Path: ("path", "a path", {"type": ["string", "number"], "minLength": 1}),
    Any: ("raw", "any value", {}),
    object: ("raw", "any value", {}),
}


def _describe_one(hint: Any, choices: tuple[Any, ...]) -> Expected:
    origin = typing.get_origin(hint)
    if origin is Literal:
        choices = typing.get_args(hint)
        return Expected("str", _one_of(choices), choices=choices, schema=_choice_schema(choices))
    base = origin or hint
    if base in _LISTS:
        return _describe_list(hint, choices)
    if base in _MAPPINGS:
        return Expected("dict", "a mapping", schema=_MAPPING)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return Expected("dict", "a mapping", schema=_MAPPING, nested=hint)
    if hint in _SCALARS:
        kind, text, schema = _SCALARS[hint]
        if choices:
            return Expected(kind, _one_of(choices), choices=choices, schema=_choice_schema(choices))
        return Expected(kind, text, schema=schema)
    raise TypeError(f"{hint!r} cannot be the type of an argument")


def _describe_list(hint: Any, choices: tuple[Any, ...]) -> Expected:
    element = describe_expected(_element_type(hint), choices)
    items = {"anyOf": [dict(element.schema), TEMPLATE_SCHEMA]} if element.schema else {}
    return Expected(
        "list",
        f"a list, each item {element.text}",
        element=element.kind,
        choices=element.choices,
        schema={"anyOf": [{"type": "array", "items": items}, {"type": ["string", "number"]}]},
        nested=element.nested,
    )


def _choice_schema(choices: Sequence[Any]) -> dict[str, Any]:
    """The choices, sorted where a declaration has a set, and the text of a number among them."""
    ordered = sorted(choices, key=str) if isinstance(choices, frozenset | set) else list(choices)
    return {"enum": [*ordered, *(str(choice) for choice in ordered if not isinstance(choice, str))]}


def _one_of(choices: Sequence[Any]) -> str:
    return "one of " + ", ".join(str(choice) for choice in choices)


def _element_type(hint: Any) -> Any:
    members = [one for one in typing.get_args(hint) if one is not Ellipsis]
    return members[0] if members else Any


def converter_of(hint: Any, choices: Sequence[Any], nested: NestedParser) -> Converter:
    """What turns a playbook's value into a field's. It raises ConversionError."""
    members, nullable = _without_none(hint)
    converters = [(one, _convert_one(one, tuple(choices), nested)) for one in members]
    text = describe_expected(hint, choices).text

    def convert(value: Any) -> Any:
        if value is None and nullable:
            return None
        if len(converters) == 1:
            return converters[0][1](value)
        for member, converter in converters:  # a value that has one of the types already keeps it
            if isinstance(member, type) and type(value) is member:
                return converter(value)
        for _, converter in converters:
            try:
                return converter(value)
            except ConversionError:  # noqa: PERF203 - each type has its own try
                continue
        raise _mismatch(text, value)

    return convert


def _convert_one(hint: Any, choices: tuple[Any, ...], nested: NestedParser) -> Converter:
    origin = typing.get_origin(hint)
    if origin is Literal:
        return lambda value: to_choice(value, typing.get_args(hint))
    base = origin or hint
    if base in _LISTS:
        element = converter_of(_element_type(hint), choices, nested)
        return _list_converter(element, as_tuple=base is not list)
    if base in _MAPPINGS:
        members = typing.get_args(hint)
        return _mapping_converter(converter_of(members[1] if len(members) == 2 else Any, (), nested))
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        nested_type: type[Any] = hint
        return lambda value: nested(nested_type, to_mapping(value))
    simple: dict[Any, Converter] = {
        bool: to_bool,
        int: to_int,
        float: to_float,
        str: to_text,
        Path: to_path,
    }
    converter = simple.get(hint, lambda value: value)
    if choices:
        return lambda value: to_choice(value, choices)
    return converter


def _list_converter(element: Converter, *, as_tuple: bool) -> Converter:
    def convert(value: Any) -> Any:
        items: list[Any] = []
        for number, item in enumerate(to_list(value), start=1):
            try:
                items.append(element(item))
            except ConversionError as error:  # noqa: PERF203 - the message names the item
                raise ConversionError(f"item {number}: {error}") from error
        return tuple(items) if as_tuple else items

    return convert


def _mapping_converter(element: Converter) -> Converter:
    def convert(value: Any) -> Any:
        result: dict[str, Any] = {}
        for key, item in to_mapping(value).items():
            try:
                result[key if isinstance(key, str) else to_text(key)] = element(item)
            except ConversionError as error:  # noqa: PERF203 - the message names the key
                raise ConversionError(f'"{key}": {error}') from error
        return result

    return convert


def name_of_type(value: Any) -> str:
    """A value's type in the words of a playbook."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "text"
    if isinstance(value, collections.abc.Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    return f"a value of type {type(value).__name__}"


def shown(value: Any) -> str:
    """A value for a message: short, and without control characters."""
    if value is None:
        return "nothing"
    if isinstance(value, collections.abc.Mapping | list | tuple):
        return name_of_type(value)
    text = "".join(letter if letter.isprintable() else " " for letter in str(value)[:60])
    text = text + "…" if len(str(value)) > 60 else text
    return f'"{text}"' if isinstance(value, str) else text.lower() if isinstance(value, bool) else text


def _mismatch(expected: str, value: Any) -> ConversionError:
    return ConversionError(f"expected {expected}, got {shown(value)}")


def to_bool(value: Any) -> bool:
    """Ansible's booleans: yes/no, on/off, true/false, y/n, t/f, 1/0, in any case."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int | float) and value in (0, 1):
        return bool(value)
    if isinstance(value, str):
        word = value.strip().lower()
        if word in TRUE_WORDS:
            return True
        if word in FALSE_WORDS:
            return False
    raise _mismatch("true or false", value)


def to_int(value: Any) -> int:
    if isinstance(value, bool):
        raise _mismatch("a whole number", value)
    if isinstance(value, int):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and len(value) < 100:
        try:
            return int(value.strip())
        except ValueError:
            pass
    raise _mismatch("a whole number", value)


def to_float(value: Any) -> float:
    if isinstance(value, bool):
        raise _mismatch("a number", value)
    if isinstance(value, int | float | str):
        try:
            return float(value)
        except (ValueError, OverflowError):
            pass
    raise _mismatch("a number", value)


def to_text(value: Any) -> str:
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bool | int | float):
        return str(value)
    if isinstance(value, Path):
        return str(value)
    raise _mismatch("text", value)


def to_path(value: Any) -> Path:
    """`~` and `$NAME` are expanded, as in Ansible's type `path`."""
    if not isinstance(value, str | int | float | Path) or isinstance(value, bool):
        raise _mismatch("a path", value)
    text = str(value)
    if not text:
        raise ConversionError("expected a path, got empty text")
    if "\0" in text:
        raise ConversionError("a path cannot hold a NUL character")
    return Path(os.path.expanduser(os.path.expandvars(text)))  # noqa: PTH111 - expanduser of pathlib raises for an unknown user


def to_list(value: Any) -> list[Any]:
    """A list as it is; text is split at commas; a single number is a list of one, as text."""
    if isinstance(value, list | tuple):
        return list(value)
    if isinstance(value, str):
        return str(value).split(",")
    if isinstance(value, int | float) and not isinstance(value, bool):
        return [str(value)]
    raise _mismatch("a list", value)


def to_mapping(value: Any) -> Mapping[str, Any]:
    """A mapping as it is; text is read as JSON, or as `a=1 b=2`, `a=1,b=2`."""
    if isinstance(value, collections.abc.Mapping):
        return value
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            parsed = json.loads(value)
        except (ValueError, RecursionError):
            parsed = None
        if isinstance(parsed, dict):
            return parsed
    elif isinstance(value, str) and "=" in value:
        pairs = _pairs(value)
        if pairs is not None:
            return pairs
    raise _mismatch("a mapping", value)


def _pairs(text: str) -> dict[str, str] | None:
    from crossgrade.playbook.freeform import UnbalancedError, split_pairs

    try:
        pairs, rest = split_pairs(re.sub(r"""("[^"]*"|'[^']*')|,""", lambda found: found[1] or " ", text))
    except UnbalancedError:
        return None
    return None if rest else pairs


def to_choice(value: Any, choices: Sequence[Any]) -> Any:
    """The choice that the value means. `yes` read by YAML as true still means the choice `yes`."""
    for choice in choices:
        if type(choice) is type(value) and choice == value:
            return choice
    if isinstance(value, bool):
        words = TRUE_WORDS if value else FALSE_WORDS
        meant = [choice for choice in choices if isinstance(choice, str) and choice.lower() in words]
        if len(meant) == 1:
            return meant[0]
    if isinstance(value, str | int | float | bool):
        for choice in choices:
            if str(choice) == str(value):
                return choice
        from crossgrade.playbook.suggest import did_you_mean

        hint = did_you_mean(str(value), [str(choice) for choice in choices])
        message = f"expected {_one_of(choices)}, got {shown(value)}"
        raise ConversionError(f"{message}. {hint}" if hint else message)
    raise _mismatch(_one_of(choices), value)
