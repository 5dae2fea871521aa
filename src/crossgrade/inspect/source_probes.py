"""Questions about Python source that say beforehand what a program will refuse: tables by architecture, lists of
architectures, the checks that a function makes. Only `ast` is used: nothing is imported or executed. Pure.

Each probe takes a syntax tree and gives what it found with its line, or None where the tree has no such thing, which is
never the same as a permission.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

# How SGLang and FlashInfer name checks of the architecture: `is_sm90_supported`, `get_platform().is_sm100`, `sm120a`.
_SM_NAME = re.compile(r"(?:^|_)sm_?(\d{2,3})[a-z]?(?:_|$)")
_CUDA_MESSAGE = re.compile(r"\bSM\s?(\d+)(?:\.(\d+|x))?(\+)?\D{0,20}requires CUDA >= (\d+\.\d+)", re.IGNORECASE)


@dataclass(frozen=True)
class Table:
    """A dict of the module by whole numbers; `inner` are the keys of the dicts in it."""

    keys: tuple[int, ...]
    inner: Mapping[int, tuple[int, ...]]
    line: int


@dataclass(frozen=True)
class Named:
    """The majors of the architectures that a function asks for by name, and the lines where it does."""

    majors: tuple[int, ...]
    lines: tuple[int, ...]


@dataclass(frozen=True)
class NeededCuda:
    """The CUDA release that a module asks for on an architecture, by its own error message."""

    release: str
    message: str
    line: int


def table_of(tree: ast.Module, name: str) -> Table | None:
    """The dict literal that is assigned to `name`, as far as its keys are whole numbers."""
    for value, line in _assigned(tree, name):
        if isinstance(value, ast.Dict):
            inner = {key: _int_keys(each) for key, each in _int_items(value) if isinstance(each, ast.Dict)}
            return Table(_int_keys(value), inner, line)
    return None


def subscript_line(tree: ast.Module, name: str) -> int | None:
    """Where `name[…]` is read, which raises KeyError for what is not in it; None where it is only asked with `get`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == name:
            return node.lineno
    return None


def use_line(tree: ast.Module, name: str) -> int | None:
    """Where `name` is first used, imports left out."""
    lines = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == name]
    return min(lines, default=None)


def numbers_given(tree: ast.Module, function: str, keyword: str) -> tuple[tuple[int, ...] | None, int] | None:
    """The whole numbers that a function gives to a call as `keyword`, and the line.

    The first part is None for a function that gives no such list: then nothing is left out. None where there is no
    such function.
    """
    for node in _functions(tree, function):
        for call in ast.walk(node):
            if not isinstance(call, ast.Call):
                continue
            for given in call.keywords:
                if given.arg == keyword and isinstance(given.value, ast.List | ast.Tuple | ast.Set):
                    return _ints(given.value.elts), given.value.lineno
        return None, node.lineno
    return None


def architectures_asked(tree: ast.Module, function: str, names: Mapping[str, tuple[int, ...]]) -> Named | None:
    """The architectures that a function asks for by name; `names` are more words, such as ``blackwell``, with majors.

    None where there is no such function. A function that asks for none gives an empty `majors`.
    """
    for node in _functions(tree, function):
        found: dict[int, int] = {}
        for part in ast.walk(node):
            word = part.id if isinstance(part, ast.Name) else part.attr if isinstance(part, ast.Attribute) else ""
            for major in _majors(word, names):
                found.setdefault(major, getattr(part, "lineno", node.lineno))
        return Named(tuple(sorted(found)), tuple(sorted(set(found.values()))) or (node.lineno,))
    return None


def condition_line(tree: ast.Module, condition: str) -> int | None:
    """Where an `if` has exactly this condition, however it is laid out. Raises SyntaxError where it is no Python."""
    wanted = ast.unparse(ast.parse(condition, mode="eval").body)
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == wanted:
            return node.lineno
    return None


def statement_lines(tree: ast.Module, condition: str, statement: str) -> tuple[int, int] | None:
    """Where an `if` with this condition stands that has this statement below it, and where that is."""
    test = ast.unparse(ast.parse(condition, mode="eval").body)
    wanted = ast.unparse(ast.parse(statement).body[0])
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == test:
            for each in node.body:
                if ast.unparse(each) == wanted:
                    return node.lineno, each.lineno
    return None


def member_line(tree: ast.Module, name: str, member: str) -> int | None:
    """Where a text stands in the collection that the module assigns to `name`."""
    for value, _ in _assigned(tree, name):
        for node in ast.walk(value):
            if isinstance(node, ast.Constant) and node.value == member:
                return node.lineno
    return None


def text_line(tree: ast.Module, text: str) -> int | None:
    """Where a text constant of the module holds `text`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and text in node.value:
            return node.lineno
    return None


def definition_line(tree: ast.Module, name: str) -> int | None:
    """Where a function, class or variable of this name is defined, in the module or in a class of it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name == name:
            return node.lineno
    assigned = next(_assigned(tree, name), None)
    return None if assigned is None else assigned[1]


def cuda_needed(tree: ast.Module, major: int, minor: int) -> NeededCuda | None:
    """The newest CUDA release that the module's errors ask for on this architecture; None where they ask none."""
    found: list[NeededCuda] = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Raise):
            continue
        for part in ast.walk(node):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                match = _CUDA_MESSAGE.search(part.value)
                if match and _is_about(match, major, minor):
                    found.append(NeededCuda(match[4], part.value, part.lineno))
    return max(found, key=lambda each: tuple(map(int, each.release.split("."))), default=None)


def _is_about(match: re.Match[str], major: int, minor: int) -> bool:
    """``SM 120``, ``SM 12.x``, ``SM 12.0`` and ``SM 12.1+``."""
    whole, part, more = match[1], match[2], match[3]
    if part is None:
        return whole in (f"{major}{minor}", str(major))
    if whole != str(major):
        return False
    return part == "x" or int(part) == minor or (bool(more) and int(part) < minor)


def _majors(word: str, names: Mapping[str, tuple[int, ...]]) -> Iterator[int]:
    for match in _SM_NAME.finditer(word.lower()):
        yield int(match[1]) // 10
    for name, majors in names.items():
        if name in word.lower():
            yield from majors


def _functions(tree: ast.Module, name: str) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            yield node


def _assigned(tree: ast.Module, name: str) -> Iterator[tuple[ast.expr, int]]:
    """What is assigned to a name, in the module or in a class of it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            targets: list[ast.expr] = node.targets
            value: ast.expr | None = node.value
        elif isinstance(node, ast.AnnAssign):
            targets, value = [node.target], node.value
        else:
            continue
        if value is not None and any(isinstance(each, ast.Name) and each.id == name for each in targets):
            yield value, node.lineno


def _int_items(value: ast.Dict) -> Iterator[tuple[int, ast.expr]]:
    for key, each in zip(value.keys, value.values, strict=True):
        if isinstance(key, ast.Constant) and type(key.value) is int:
            yield key.value, each


def _int_keys(value: ast.expr) -> tuple[int, ...]:
    return tuple(key for key, _ in _int_items(value)) if isinstance(value, ast.Dict) else ()


def _ints(values: list[ast.expr]) -> tuple[int, ...]:
    return tuple(each.value for each in values if isinstance(each, ast.Constant) and type(each.value) is int)
