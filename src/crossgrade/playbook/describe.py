"""A module's arguments as data: for `docs/`, and as JSON Schema for editors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from crossgrade.playbook.arguments import Argument, declared_arguments

_TEMPLATE = {"type": "string", "pattern": r"\{[\{%]"}


@dataclass(frozen=True)
class ArgumentDescription:
    """One argument for people. `type` as Ansible names it; `elements` is the type of a list's items."""

    name: str
    aliases: tuple[str, ...]
    type: str
    elements: str | None
    required: bool
    default: Any
    choices: tuple[Any, ...]
    doc: str
    free_form: bool
    rest: bool


def _plain(value: Any) -> Any:
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, tuple | frozenset | set):
        return [_plain(item) for item in value]
    return dict(value) if isinstance(value, Mapping) else value


def describe_arguments(arguments_type: type[Any]) -> tuple[ArgumentDescription, ...]:
    """The arguments in the order of their declaration."""
    return tuple(_describe(one) for one in declared_arguments(arguments_type))


def _describe(one: Argument) -> ArgumentDescription:
    return ArgumentDescription(
        name=one.name,
        aliases=one.options.aliases,
        type=one.expected.kind,
        elements=one.expected.element,
        required=one.required and not one.options.rest,
        default=_plain(one.default),
        choices=tuple(one.expected.choices),
        doc=one.options.doc,
        free_form=one.options.free_form,
        rest=one.options.rest,
    )


def json_schema(arguments_type: type[Any]) -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of what may stand below the module's name; templates are allowed anywhere."""
    arguments = declared_arguments(arguments_type)
    properties: dict[str, Any] = {}
    for one in arguments:
        if one.options.rest:
            continue
        schema = _argument_schema(one)
        for spelling in (one.name, *one.options.aliases):
            properties[spelling] = schema
    body: dict[str, Any] = {"type": "object", "properties": properties}
    body["additionalProperties"] = any(one.options.rest for one in arguments)
    wanted = [_one_of((one.name, *one.options.aliases)) for one in arguments if one.required and not one.options.rest]
    groups = [{"anyOf": [_one_of([name]) for name in group]} for group in _groups(arguments_type, "required_one_of")]
    if wanted or groups:
        body["allOf"] = [*wanted, *groups]
    if any(one.options.free_form for one in arguments):
        return {"anyOf": [body, {"type": ["string", "array"]}]}
    return body


def _groups(arguments_type: type[Any], name: str) -> Sequence[Sequence[str]]:
    found: Sequence[Sequence[str]] = getattr(arguments_type, name, ())
    return found


def _one_of(spellings: Sequence[str]) -> dict[str, Any]:
    if len(spellings) == 1:
        return {"required": [spellings[0]]}
    return {"anyOf": [{"required": [spelling]} for spelling in spellings]}


def _argument_schema(one: Argument) -> dict[str, Any]:
    schema = dict(one.expected.schema)
    options: list[Any] = [schema, _TEMPLATE] if schema else []
    if one.expected.nullable and options:
        options.append({"type": "null"})
    described: dict[str, Any] = {"description": one.options.doc}
    if options:
        described["anyOf"] = options
    return described
