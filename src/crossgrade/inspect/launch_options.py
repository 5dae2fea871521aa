"""The options of a server's argument parser, read from its source files: nothing is imported or executed.

Two ways of declaring them are known: calls of ``add_argument`` in a function ``add_cli_args`` (all of SGLang 0.5.9),
and annotated fields, ``name: A[type, Arg(…)] = default``, from which later ones make most of the parser
(arg_utils.py). What is put together while the program runs cannot be read: choices of plugins, say. It is counted, not
guessed.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_TYPES: Mapping[str, Any] = {"int": int, "float": float}
_SWITCHES = ("_StoreTrueAction", "store_true", "store_false", "store_const", "count")


@dataclass(frozen=True)
class LaunchOption:
    """One option. `nargs` as argparse has it, "" for one value; `choices` is None where any value goes.

    `kind` is its action, `type` the name of what reads a value, `deprecated` what its help says of that.
    """

    names: tuple[str, ...]
    nargs: str = ""
    kind: str = "store"
    type: str = ""
    choices: tuple[str, ...] | None = None
    required: bool = False
    deprecated: str = ""

    @property
    def switch(self) -> bool:
        return self.nargs == "0" or self.kind in _SWITCHES


@dataclass(frozen=True)
class ReadOptions:
    """The options that source files declare, in words what could not be read, and how many have no readable name."""

    options: tuple[LaunchOption, ...]
    unread: tuple[str, ...] = ()
    nameless: int = 0


@dataclass
class _Reading:
    constants: dict[str, tuple[str, ...]]
    unread: list[str] = field(default_factory=list)
    nameless: int = 0


def read_options(site: Path, sources: Sequence[str], constants: Sequence[str] = ()) -> ReadOptions:
    """The options that files below `site` declare; the names of files are globs.

    Raises FileNotFoundError when no such file is there, and SyntaxError or OSError for one that cannot be read.
    """
    files = [path for pattern in sources for path in sorted(site.glob(pattern))]
    if not files:
        raise FileNotFoundError(f"none of {', '.join(sources)} is in {site}")
    trees = [ast.parse(path.read_bytes(), str(path)) for path in files]
    more = [path for pattern in constants for path in sorted(site.glob(pattern)) if path not in files]
    known: dict[str, tuple[str, ...]] = {}
    for tree in (*(ast.parse(path.read_bytes(), str(path)) for path in more), *trees):
        _learn_constants(tree, known)
    reading = _Reading(known)
    options = [option for tree in trees for option in _declared(tree, reading)]
    return ReadOptions(tuple(options), tuple(reading.unread), reading.nameless)


def parser_of(options: Sequence[LaunchOption]) -> argparse.ArgumentParser:
    """A parser of our own that takes what these options take; values of types that are not known are not looked at."""
    parser = argparse.ArgumentParser(prog="server")
    seen: set[str] = {"-h", "--help"}
    for option in options:
        names = [name for name in option.names if name not in seen]
        seen.update(names)
        if not names:
            continue
        if option.switch or option.kind == "BooleanOptionalAction":
            parser.add_argument(*names, action="store_true", required=option.required, help=argparse.SUPPRESS)
            continue
        nargs: str | int | None = int(option.nargs) if option.nargs.isdigit() else option.nargs or None
        parser.add_argument(
            *names, nargs=nargs, type=_TYPES.get(option.type, str), required=option.required,
            choices=None if option.choices is None else [_TYPES.get(option.type, str)(each) for each in option.choices],
            help=argparse.SUPPRESS,
        )  # fmt: skip
    return parser


# ---- the two ways of declaring


def _declared(tree: ast.Module, reading: _Reading) -> Iterator[LaunchOption]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == "add_cli_args":
            for call in ast.walk(node):
                if isinstance(call, ast.Call) and _name(call.func) == "add_argument":
                    yield from _from_call(call, reading)
        elif isinstance(node, ast.ClassDef):
            for statement in node.body:
                if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                    yield from _from_field(statement.target.id, statement, reading)


def _from_call(call: ast.Call, reading: _Reading) -> Iterator[LaunchOption]:
    names = [_text(word) for word in call.args]
    if not names or any(name is None for name in names):
        reading.nameless += 1
        return
    if str(names[0]).startswith("-"):
        given = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
        yield from _option([str(name) for name in names], given, reading)


def _from_field(name: str, statement: ast.AnnAssign, reading: _Reading) -> Iterator[LaunchOption]:
    """`name: A[type, "help"]` or `name: A[type, Arg(…)]`, with the rules of SGLang's add_cli_args_from_dataclass."""
    annotation = statement.annotation
    if not isinstance(annotation, ast.Subscript) or _name(annotation.value) not in ("A", "Annotated"):
        return
    if not isinstance(annotation.slice, ast.Tuple):
        return
    kind, *metadata = annotation.slice.elts
    call = next((each for each in metadata if isinstance(each, ast.Call) and _name(each.func) == "Arg"), None)
    said = next((each for each in metadata if _text(each) is not None), None)
    if call is not None:
        given = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
    elif said is not None:
        given = {"help": said}
    else:
        return
    if (hidden := given.get("no_cli")) is not None and isinstance(hidden, ast.Constant) and hidden.value:
        return
    first = _text(given["cli_name"]) if "cli_name" in given else "--" + name.replace("_", "-")
    names = [first or f"--{name}", *(_strings(given["aliases"], reading) or () if "aliases" in given else ())]
    more = given.get("action_kwargs")
    if isinstance(more, ast.Dict):
        given |= {key: value for raw, value in zip(more.keys, more.values, strict=True) if (key := _text(raw))}
    elif isinstance(more, ast.Call):  # dict(nargs="*")
        given |= {keyword.arg: keyword.value for keyword in more.keywords if keyword.arg}
    yield from _option(names, {**given, **_of_type(kind, given, statement)}, reading)


def _of_type(kind: ast.expr, given: Mapping[str, ast.expr], statement: ast.AnnAssign) -> dict[str, ast.expr]:
    """What a field's type adds to its keywords."""
    if "action" in given:
        return {}
    found: dict[str, ast.expr] = {"type": given["type_parser"]} if "type_parser" in given else {}
    kind = _without_optional(kind)
    named = _name(kind.value) if isinstance(kind, ast.Subscript) else _name(kind)
    if named == "bool":
        return {"action": ast.Constant("store_true")}
    if named == "Literal" and isinstance(kind, ast.Subscript):
        listed = kind.slice.elts if isinstance(kind.slice, ast.Tuple) else [kind.slice]
        found["choices"] = given.get("choices") or ast.Tuple(listed, ast.Load())
        whole = isinstance(listed[0], ast.Constant) and isinstance(listed[0].value, int)
        found.setdefault("type", ast.Name("int" if whole else "str", ast.Load()))
    elif named in ("list", "List") and "type_parser" not in given and isinstance(kind, ast.Subscript):
        found["type"] = kind.slice
        found.setdefault("nargs", given.get("nargs") or ast.Constant("+"))
    elif named in ("int", "float", "str") and "type" not in found:
        found["type"] = kind
    if statement.value is None and "required" not in given:
        found["required"] = ast.Constant(value=True)
    return found


def _without_optional(kind: ast.expr) -> ast.expr:
    if isinstance(kind, ast.Subscript) and _name(kind.value) == "Optional":
        return kind.slice
    if isinstance(kind, ast.BinOp) and isinstance(kind.op, ast.BitOr):
        sides = [
            side for side in (kind.left, kind.right) if not (isinstance(side, ast.Constant) and side.value is None)
        ]
        return sides[0] if len(sides) == 1 else kind
    return kind


def _option(names: list[str], given: Mapping[str, ast.expr], reading: _Reading) -> Iterator[LaunchOption]:
    kind = _text(given.get("action")) or _name(given.get("action")) or "store"
    nargs = given.get("nargs")
    count = "" if nargs is None or not isinstance(nargs, ast.Constant) or nargs.value is None else str(nargs.value)
    if kind in _SWITCHES or (nargs is None and kind.startswith("Deprecated") and "Alias" not in kind):
        count = "0"
    choices = None
    if (listed := given.get("choices")) is not None and not (isinstance(listed, ast.Constant) and listed.value is None):
        choices = _strings(listed, reading)
        if choices is None:
            reading.unread.append(f"the choices of {names[0]}")
    said = " ".join((_text(given.get("help")) or "").split())
    new = _text(given.get("new_flag"))
    words = said.lower().lstrip("( ")
    retired = kind.startswith("Deprecated") or words.startswith("deprecated") or "is deprecated" in words.split(".")[0]
    required = given.get("required")
    if kind == "BooleanOptionalAction":
        names = [*names, *(f"--no-{name[2:]}" for name in names if name.startswith("--"))]
    yield LaunchOption(
        tuple(names), count, kind, _name(given.get("type")), choices,
        required=isinstance(required, ast.Constant) and required.value is True,
        deprecated=(said or f"use {new}") if retired else "",
    )  # fmt: skip


# ---- expressions


def _learn_constants(tree: ast.Module, known: dict[str, tuple[str, ...]]) -> None:
    reading = _Reading(known)
    for statement in tree.body:
        target = statement.targets[0] if isinstance(statement, ast.Assign) and len(statement.targets) == 1 else None
        if isinstance(statement, ast.AnnAssign):
            target = statement.target
        value = getattr(statement, "value", None)
        if isinstance(target, ast.Name) and isinstance(value, ast.expr):
            found = _strings(value, reading)
            if found is not None:
                known.setdefault(target.id, found)


def _strings(value: ast.expr, reading: _Reading) -> tuple[str, ...] | None:
    """A list of constants, also by name, added, starred or within ``list(…)``; None for what only running it shows."""
    if isinstance(value, ast.Name):
        return reading.constants.get(value.id)
    if isinstance(value, (ast.List, ast.Tuple, ast.Set)):
        found: list[str] = []
        for each in value.elts:
            if isinstance(each, ast.Constant):
                found.append(str(each.value))
                continue
            part = _strings(each.value, reading) if isinstance(each, ast.Starred) else None
            if part is None:
                return None
            found += part
        return tuple(found)
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
        left, right = _strings(value.left, reading), _strings(value.right, reading)
        return None if left is None or right is None else (*left, *right)
    if isinstance(value, ast.Call) and _name(value.func) in ("list", "tuple", "sorted", "set") and len(value.args) == 1:
        return _strings(value.args[0], reading)
    return None


def _name(value: ast.expr | None) -> str:
    """The last part of a dotted name, "" for anything else."""
    if isinstance(value, ast.Attribute):
        return value.attr
    return value.id if isinstance(value, ast.Name) else ""


def _text(value: ast.expr | None) -> str | None:
    """A constant text, or the constant parts of a formatted one."""
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        return value.value
    if isinstance(value, ast.JoinedStr):
        return "".join(str(part.value) for part in value.values if isinstance(part, ast.Constant))
    return None
