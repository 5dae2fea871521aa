"""The language as JSON Schema (draft-07), for editors: made from the keyword table and the modules' arguments.

It says what the loader says, as far as a schema can: what the loader takes the schema takes, and it refuses names
that do not exist, values of a wrong type and tasks without a module. A template may stand wherever the loader takes
one. What it cannot say (two spellings of one argument, templates that do not parse) the loader says.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from crossgrade.playbook import keyword_docs
from crossgrade.playbook.argument_types import BOOLEAN_SCHEMA, TEMPLATE_SCHEMA
from crossgrade.playbook.arguments import free_form_argument
from crossgrade.playbook.describe import arguments_schema, required_schema
from crossgrade.playbook.schema import KEYWORDS, LOOP_CONTROL, PREFIXES, Keyword, On

DRAFT = "http://json-schema.org/draft-07/schema#"
KINDS = ("playbook", "tasks", "vars", "inventory")

Schema = dict[str, Any]


@dataclass(frozen=True)
class SchemaModule:
    """A module as the schema needs it."""

    name: str
    summary: str
    arguments: type[Any]


_NULL: Schema = {"type": "null"}
_TEXT: Schema = {"type": ["string", "number", "boolean"]}
_VARIABLE_NAME = r"^[A-Za-z_][A-Za-z0-9_]*$"
_BOOLEAN: Schema = {"anyOf": [*BOOLEAN_SCHEMA["anyOf"], TEMPLATE_SCHEMA]}
_NUMBER: Schema = {
    "anyOf": [
        {"type": "number", "minimum": 0},
        {"type": "string", "pattern": r"^\s*\d+(\.\d*)?\s*$"},
        TEMPLATE_SCHEMA,
    ]
}
_VARIABLES: Schema = {"type": "object", "propertyNames": {"pattern": _VARIABLE_NAME}}
_ENVIRONMENT: Schema = {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean", "null"]}}
_CONDITION: Schema = {"type": ["string", "boolean"], "minLength": 1}

_SIZE: Schema = {"anyOf": [{"type": "integer"}, {"type": "string", "pattern": r"^\s*\d+\s*%?\s*$"}, TEMPLATE_SCHEMA]}

_KIND_SCHEMAS: dict[str, Schema] = {
    "text": _TEXT,
    "name": {"type": "string", "pattern": _VARIABLE_NAME},
    "bool": _BOOLEAN,
    "number": _NUMBER,
    "mapping": {"type": "object"},
    "arguments": {"type": "object"},
    "variables": _VARIABLES,
    "environment": {
        "anyOf": [_ENVIRONMENT, TEMPLATE_SCHEMA, {"type": "array", "items": {"anyOf": [_ENVIRONMENT, TEMPLATE_SCHEMA]}}]
    },
    "texts": {"anyOf": [{"type": ["string", "number"]}, {"type": "array", "items": {"type": ["string", "number"]}}]},
    "tags": {"anyOf": [{"type": ["string", "number"]}, {"type": "array", "items": {"type": ["string", "number"]}}]},
    "conditions": {"anyOf": [_CONDITION, {"type": "array", "items": _CONDITION}]},
    "steps": {"type": "array", "items": {"$ref": "#/definitions/step"}},
    "loop": {"anyOf": [{"type": "array"}, TEMPLATE_SCHEMA]},
    "loop_control": {"$ref": "#/definitions/loop_control"},
    "mappings": {"anyOf": [{"type": "object"}, {"type": "array", "items": {"type": "object"}}]},
    "sizes": {"anyOf": [_SIZE, {"type": "array", "items": _SIZE}]},
    "prompts": {"type": "array", "items": {"type": "object", "required": ["name"]}},
    "action": {"type": ["string", "object"]},
}
# An empty value means that the keyword is not there, except where something must be given.
_NEVER_EMPTY = frozenset(("conditions", "loop"))


def language_schema(kind: str, modules: Iterable[SchemaModule]) -> Schema:
    """The schema of a file: a playbook, a list of tasks, a file of variables, or an inventory in YAML.

    Raises KeyError for another kind.
    """
    head: Schema = {"$schema": DRAFT, "title": f"crossgrade {kind}"}
    if kind == "vars":
        return {**head, "description": "Variables of a file.", "anyOf": [_VARIABLES, _NULL]}
    if kind == "inventory":
        return {**head, **_inventory()}
    root = {"playbook": "entry", "tasks": "step"}[kind]
    return {
        **head,
        "type": "array",
        "items": {"$ref": f"#/definitions/{root}"},
        **({"minItems": 1} if kind == "playbook" else {}),
        "definitions": _definitions(list(modules)),
    }


def _definitions(modules: list[SchemaModule]) -> Schema:
    sections = ("block", "rescue", "always")
    found: Schema = {
        "entry": {
            "type": "object",
            "if": {"propertyNames": {"not": {"pattern": r"(^|\.)import_playbook$"}}},
            "then": {"$ref": "#/definitions/play"},
        },
        "play": {**_place("play", ()), "required": ["hosts"]},
        "step": {
            "type": "object",
            "if": {"anyOf": [{"required": [section]} for section in sections]},
            "then": {"$ref": "#/definitions/block"},
            "else": {"$ref": "#/definitions/task"},
        },
        "block": {**_place("block", ()), "required": ["block"]},
        "task": _task("task", modules),
        "handler": _task("handler", modules),
        "loop_control": _loop_control(),
    }
    found.update({f"module.{module.name}": _module(module) for module in modules})
    return found


def _module(module: SchemaModule) -> Schema:
    """A mapping of arguments, the short form (`pattern` is about texts only), or nothing at all."""
    free_form = free_form_argument(module.arguments) is not None
    short: Schema = {} if free_form else {"pattern": r"^\s*\w+="}
    types = ["object", "string", "null", *(["number", "array"] if free_form else [])]
    return {"description": module.summary, **arguments_schema(module.arguments), **short, "type": types}


def _place(place: On, extra: Iterable[tuple[str, Schema]]) -> Schema:
    properties = {name: _keyword_schema(known) for name, known in KEYWORDS[place].items() if known.supported}
    properties.update(extra)
    if place == "play" and "handlers" in properties:
        properties["handlers"]["items"] = {"$ref": "#/definitions/handler"}
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _keyword_schema(keyword: Keyword) -> Schema:
    described: Schema = {"description": keyword_docs.description(keyword.name)}
    if keyword.choices:
        return {**described, "anyOf": [{"enum": [*keyword.choices, None]}, TEMPLATE_SCHEMA]}
    schema = _KIND_SCHEMAS.get(keyword.kind)
    if schema is None:
        return described
    if keyword.kind in _NEVER_EMPTY:
        return {**described, **schema}
    if isinstance(schema.get("type"), str) and "pattern" not in schema:  # one schema gives sharper errors than two
        return {**described, **schema, "type": [schema["type"], "null"]}
    return {**described, "anyOf": [dict(schema), _NULL]}


def _task(place: On, modules: list[SchemaModule]) -> Schema:
    names = [module.name for module in modules]
    prefixes = "|".join(prefix.replace(".", r"\.") for prefix in PREFIXES)
    schema = _place(place, ((name, {"$ref": f"#/definitions/module.{name}"}) for name in names))
    schema["patternProperties"] = {f"^({prefixes}){name}$": {"$ref": f"#/definitions/module.{name}"} for name in names}
    qualified = f"^({prefixes})({'|'.join(names)})$"
    schema["oneOf"] = [
        *({"required": [name]} for name in names),
        *({"required": [name]} for name in ("action", "local_action") if KEYWORDS[place][name].supported),
        {"not": {"propertyNames": {"not": {"pattern": qualified}}}},  # some name is one with a prefix
    ]
    # What must be given may also be given by `args`.
    required = {module.name: required_schema(module.arguments) for module in modules}
    wanted = {
        name: {"if": {"type": ["object", "null"]}, "then": {"type": "object", "allOf": groups}}
        for name, groups in required.items()
        if groups
    }
    schema["if"] = {"not": {"required": ["args"]}}
    schema["then"] = {
        "properties": wanted,
        "patternProperties": {f"^({prefixes}){name}$": value for name, value in wanted.items()},
    }
    return schema


def _loop_control() -> Schema:
    properties = {name: {"anyOf": [dict(_KIND_SCHEMAS.get(kind, {})), _NULL]} for name, kind in LOOP_CONTROL.items()}
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _inventory() -> Schema:
    variables = {"anyOf": [_VARIABLES, _NULL]}
    hosts = {"anyOf": [{"type": "object", "additionalProperties": variables}, _NULL]}
    groups = {
        "anyOf": [
            {"type": "object", "additionalProperties": {"anyOf": [{"$ref": "#/definitions/group"}, _NULL]}},
            _NULL,
        ]
    }
    group: Schema = {
        "type": "object",
        "properties": {"hosts": hosts, "vars": variables, "children": groups},
        "additionalProperties": False,
    }
    return {
        "description": "Groups of hosts, as Ansible writes them.",
        "type": "object",
        "additionalProperties": {"anyOf": [{"$ref": "#/definitions/group"}, _NULL]},
        "definitions": {"group": group},
    }
