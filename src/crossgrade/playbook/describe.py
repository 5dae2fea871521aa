"""A module's arguments as data: for `docs/`, and as JSON Schema for editors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from crossgrade.playbook.argument_types import TEMPLATE_SCHEMA
from crossgrade.playbook.arguments import Argument, declared_arguments


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
    """JSON Schema (draft-07) of what may stand below the module's name; templates are allowed anywhere."""
    body = arguments_schema(arguments_type)
    wanted = required_schema(arguments_type)
    if wanted:
        body["allOf"] = wanted
    if any(one.options.free_form for one in declared_arguments(arguments_type)):
        return {"anyOf": [body, {"type": ["string", "array"]}]}
    return body


def arguments_schema(arguments_type: type[Any]) -> dict[str, Any]:
    """The arguments that there are, without which of them must be given."""
    arguments = declared_arguments(arguments_type)
    properties: dict[str, Any] = {}
    for one in arguments:
        if one.options.rest:
            continue
        schema = _argument_schema(one)
        for spelling in (one.name, *one.options.aliases):
            properties[spelling] = schema
    rest = any(one.options.rest for one in arguments)
    return {"type": "object", "properties": properties, "additionalProperties": rest}


def required_schema(arguments_type: type[Any]) -> list[dict[str, Any]]:
    """What must be given, and what cannot be given together: schemas that must all hold."""
    arguments = [one for one in declared_arguments(arguments_type) if not one.options.rest]
    spellings = {one.name: (one.name, *one.options.aliases) for one in arguments}

    def given(name: str) -> dict[str, Any]:
        return _one_of(spellings.get(name, (name,)))

    return [
        *(given(one.name) for one in arguments if one.required),
        *({"anyOf": [given(name) for name in group]} for group in _groups(arguments_type, "required_one_of")),
    ]


def _groups(arguments_type: type[Any], name: str) -> Sequence[Sequence[str]]:
    found: Sequence[Sequence[str]] = getattr(arguments_type, name, ())
    return found


def _one_of(spellings: Sequence[str]) -> dict[str, Any]:
    if len(spellings) == 1:
        return {"required": [spellings[0]]}
    return {"anyOf": [{"required": [spelling]} for spelling in spellings]}


def _argument_schema(one: Argument) -> dict[str, Any]:
    schema = (
        json_schema(one.expected.nested) if one.expected.nested and not one.expected.element else one.expected.schema
    )
    options: list[Any] = [dict(schema), TEMPLATE_SCHEMA] if schema else []
    if options and (one.expected.nullable or not one.required):
        options.append({"type": "null"})  # an empty value is one that is not given
    described: dict[str, Any] = {"description": one.options.doc}
    default = _plain(one.default)
    if default not in (None, "", [], {}):
        described["default"] = default
    if options:
        described["anyOf"] = options
    return described
