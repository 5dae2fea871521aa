"""Where Python code names a library that it opens itself, by ctypes, `torch.ops.load_library` or a loader of its own.

Only the few packages are read that own a library in question, by their syntax trees: which strings stand where, which
functions call which. A string in a function counts from where the function is called, as far as that is within reach.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from crossgrade.inspect.python_source import CATCHING, Surroundings, When, condition

_HOLE = "{"  # in place of what an f-string fills in
_SHORTEST = 6
_MOST_CALLS = 8  # from the module's own level down to the string
# What may follow the name that code knows a library by: its own version, or that of CUDA, PyTorch or a GPU.
_BEGINS = r"[_-]?(?:cu|cuda|torch|sm)?\d"
VERSION = re.compile(_BEGINS + r".*$")
_REST = re.compile(_BEGINS + r"[\w.]*(?:-cpu|-cuda)?$")


@dataclass(frozen=True)
class Mention:
    """A string, and when the code around it runs once its function does ("" for the module's own level)."""

    text: str
    when: When
    function: str


@dataclass(frozen=True)
class Code:
    """The strings and the calls of one module."""

    mentions: tuple[Mention, ...]
    calls: tuple[Mention, ...]


def names_file(text: str, stem: str) -> bool:
    """Whether a string of Python code names the library `stem` (its file name up to `.so`). Pure.

    It may be a path, a pattern, or leave a version open: `libtorchcodec_core{` stands for `libtorchcodec_core7`.
    """
    last = text.replace("\\", "/").rpartition("/")[2]
    for mark in ("*", "?", "[", _HOLE):
        if mark in last:
            start = last.partition(mark)[0].removesuffix(".")
            return stem.startswith(start) and (start == stem or len(start) >= _SHORTEST)
    name = last.partition(".so")[0]
    if name == stem:
        return True
    rest = stem.removeprefix(name)
    return len(name) >= _SHORTEST and rest != stem and _REST.match(rest) is not None


def code_of(source: bytes, surroundings: Surroundings) -> Code:
    """The strings and calls of a module; none where it is no Python. Pure."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return Code((), ())
    visitor = _Visitor(surroundings)
    try:
        visitor.body(tree.body, When.ALWAYS, "", "")
    except RecursionError:
        return Code((), ())
    return Code(tuple(visitor.mentions), tuple(visitor.calls))


@dataclass
class _Visitor:
    surroundings: Surroundings
    mentions: list[Mention] = field(default_factory=list)
    calls: list[Mention] = field(default_factory=list)

    def body(self, nodes: Iterable[ast.AST], when: When, function: str, owner: str) -> None:
        for node in nodes:
            self.visit(node, when, function, owner)

    def visit(self, node: ast.AST, when: When, function: str, owner: str) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            self.body(node.decorator_list, when, function, owner)
            name = owner if node.name in ("__init__", "__new__") and owner else node.name
            self.body(node.body, When.ALWAYS, name, "")
        elif isinstance(node, ast.ClassDef):
            self.body(node.body, when, function, node.name)
        elif isinstance(node, ast.If):
            self._branch(node, when, function, owner)
        elif isinstance(node, ast.Try):
            caught = max(when, When.TOLERATED) if _catches(node) else when
            self.body(node.body, caught, function, owner)
            self.body(node.handlers, max(when, When.PERHAPS), function, owner)
            self.body([*node.orelse, *node.finalbody], when, function, owner)
        elif isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else _HOLE for part in node.values)
            self.mentions.append(Mention("".join(map(str, parts)), when, function))
        elif isinstance(node, ast.Constant):
            if isinstance(node.value, str):
                self.mentions.append(Mention(node.value, when, function))
        else:
            if isinstance(node, ast.Call):
                called = node.func
                name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
                self.calls.append(Mention(name, when, function))
            self.body(ast.iter_child_nodes(node), when, function, owner)

    def _branch(self, node: ast.If, when: When, function: str, owner: str) -> None:
        value = condition(ast.unparse(node.test), self.surroundings)
        sure = {True: When.ALWAYS, False: When.NEVER, None: When.PERHAPS}
        self.visit(node.test, when, function, owner)
        self.body(node.body, max(when, sure[value]), function, owner)
        self.body(node.orelse, max(when, sure[None if value is None else not value]), function, owner)


def _catches(node: ast.Try) -> bool:
    """Whether a failed import or opening is caught here, and not raised again."""
    for handler in node.handlers:
        caught = ast.unparse(handler.type) if handler.type else "Exception"
        if re.search(CATCHING, caught):
            return not any(isinstance(statement, ast.Raise) for statement in handler.body)
    return False


@dataclass(frozen=True)
class Named:
    """A module that names a library, and when it opens it, given when modules are imported."""

    module: str
    when: When


def find(stem: str, codes: dict[str, Code], imported: Callable[[str], When]) -> Named | None:
    """The surest place among `codes` (by module name) that names a library. Pure.

    `imported` says when a module is imported.
    """
    best: Named | None = None
    for module, code in codes.items():
        for mention in code.mentions:
            if not names_file(mention.text, stem):
                continue
            inner = mention.when
            if mention.function:
                inner = max(inner, _called(mention.function, codes, imported))
            when = max(inner, imported(module))
            if best is None or when < best.when:
                best = Named(module, when)
    return best if best is not None and best.when < When.NEVER else None


def _called(function: str, codes: dict[str, Code], imported: Callable[[str], When]) -> When:
    """When a function is called first, from the modules' own level on; `LATER` where that is not seen."""
    best = When.LATER
    tolerated = False
    seen = {function}
    waiting: list[tuple[str, When]] = [(function, When.ALWAYS)]
    for _ in range(_MOST_CALLS):
        following: list[tuple[str, When]] = []
        for name, so_far in waiting:
            for module, call in _calls_of(name, codes):
                when = max(so_far, call.when)
                if not call.function:
                    outer = max(when, imported(module))
                    tolerated |= outer == When.TOLERATED
                    best = min(best, outer)
                elif call.function not in seen:
                    seen.add(call.function)
                    following.append((call.function, when))
        waiting = following
    return When.TOLERATED if tolerated and best == When.LATER else best


def functions_towards(stem: str, codes: dict[str, Code]) -> set[str]:
    """The functions around strings that name a library, and those that call them, as far as `codes` go. Pure."""
    found = {m.function for code in codes.values() for m in code.mentions if m.function and names_file(m.text, stem)}
    for _ in range(_MOST_CALLS):
        callers = {
            call.function for code in codes.values() for call in code.calls if call.text in found and call.function
        }
        if callers <= found:
            break
        found |= callers
    return found


def _calls_of(name: str, codes: dict[str, Code]) -> Iterator[tuple[str, Mention]]:
    for module, code in codes.items():
        yield from ((module, call) for call in code.calls if call.text == name)
