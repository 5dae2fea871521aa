"""What a Python module imports, and when: read from its source, some fifty times faster than by a syntax tree.

An environment such as SGLang's has 500 MB of Python code, of which `ast` reads one or two a second. Imports stand on
lines of their own, so it is enough to take out strings and comments and to look at the lines that import something or
open a block. What is lost: imports in `exec`, in `match` and behind several statements on one line.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.integer[Any]]


class When(IntEnum):
    """When an import is executed, the surest first; a chain of imports is as sure as its least sure one.

    `ALWAYS`: whenever the module is imported. `PERHAPS`: on a condition that is not known. `LATER`: when a function is
    called. `TOLERATED`: where its failure is caught. `NEVER`: on another platform, or for type checkers only.
    """

    ALWAYS = 0
    PERHAPS = 1
    LATER = 2
    TOLERATED = 3
    NEVER = 4


@dataclass(frozen=True)
class Import:
    """One statement: the absolute dotted name of a module, the names that are taken from it, and when.

    `in_function` is True where it stands in a function, whatever else surrounds it.
    """

    module: str
    names: tuple[str, ...]
    when: When
    in_function: bool = False


@dataclass(frozen=True)
class Surroundings:
    """What conditions are judged by: the version of Python, such as (3, 12), and whether the module is run itself."""

    python: tuple[int, int] = (3, 12)
    is_main: bool = False


_STRINGS_AND_COMMENTS = re.compile(
    rb'''"""(?:[^"\\]+|\\.|"(?!""))*"""|\'\'\'(?:[^'\\]+|\\.|'(?!\'\'))*\'\'\''''
    rb"""|"(?:[^"\\\n]+|\\.)*"|'(?:[^'\\\n]+|\\.)*'|\#[^\n]*""",
    re.DOTALL,
)
_IMPORT = re.compile(
    rb"([ \t]*)((?:(?:try|else|finally|except\b[^:\n]*|(?:el)?if\b[^:\n]*):[ \t]*)?)"
    rb"(?:from[ \t]+([.\w \t]+?)[ \t]*\bimport\b[ \t]*(\([^)]*\)|[^\n;]*)|import[ \t]+([^\n;]*))"
)
# What a handler names that catches a failed import, or a library that cannot be opened.
CATCHING = r"\b(?:ImportError|ModuleNotFoundError|Exception|BaseException|OSError|RuntimeError)\b"
_CATCHES = re.compile(rb"^except\s*:|" + CATCHING.encode())
_PLATFORM = re.compile(rb"\b(?:sys\.platform|os\.name|platform\.\w+)")
_PLATFORM_LINES = re.compile(rb"^[ \t]*(?:el)?if\b[^\n]*\b(?:sys\.platform|os\.name|platform\.\w+)[^\n]*", re.MULTILINE)
_LAZY = (b"__getattr__", b"_LazyModule", b"lazy_loader")
# Words of names such as `_is_cuda`, `is_hip()`, `torch.xpu.is_available()`: what an NVIDIA server is, and is not.
_ASKED = r"(?:^|_)(?:is|has|use|using)?_?(?:%s)(?:_alike|_available|_platform)?$"
_OURS = re.compile(_ASKED % "cuda", re.IGNORECASE)
_OTHERS = re.compile(
    _ASKED % "hip|rocm|amd|aiter|npu|ascend|xpu|hpu|habana|gaudi|musa|mps|tpu|windows|win32|macos|darwin", re.IGNORECASE
)
_CLAUSES = (b"elif", b"else", b"except", b"finally")


def imports_of(source: bytes, module: str, *, is_package: bool, surroundings: Surroundings) -> tuple[Import, ...]:
    """The imports of a module with this dotted name, in order. Pure; any bytes are accepted."""
    if b"import" not in source:
        return ()
    clean = _STRINGS_AND_COMMENTS.sub(b'""', source.replace(b"\r", b"") if b"\r" in source else source)
    if b"\\\n" in clean:
        clean = clean.replace(b"\\\n", b" ")
    reading = _Reading(source, clean, surroundings)
    package = module if is_package else module.rpartition(".")[0]
    found: list[Import] = []
    place = 0
    while (place := clean.find(b"import", place)) >= 0:
        match = _IMPORT.match(clean, clean.rfind(b"\n", 0, place) + 1)
        if match is None or match.end() <= place:
            place += 6
            continue
        place = match.end()
        indent, header, base, names, modules = match.groups()
        when, inside = When.ALWAYS, False
        if indent or header:
            when, inside = reading.when(match.start(), len(indent), header)
        if base is None:
            found += [Import(part.split()[0], (), when, inside) for part in _parts(modules)]
            continue
        name = _absolute(base.replace(b" ", b"").decode(errors="replace"), package)
        if name:
            found.append(Import(name, tuple([part.split()[0] for part in _parts(names)]), when, inside))
    return tuple(found)


def _absolute(name: str, package: str) -> str:
    stripped = name.lstrip(".")
    level = len(name) - len(stripped)
    if not level:
        return name
    parts = package.split(".")
    if not package or level > len(parts):
        return ""
    return ".".join([*parts[: len(parts) - level + 1], *([stripped] if stripped else [])])


class _Reading:
    """Finds the blocks around an import by going back from it, line by line; most imports stand in none."""

    def __init__(self, source: bytes, clean: bytes, surroundings: Surroundings) -> None:
        self._source = source
        self._clean = clean
        self._surroundings = surroundings
        self._bodies: dict[int, When] = {}
        self._places: tuple[Integers, Integers] | None = None
        self._platform_lines: tuple[list[int], list[bytes]] | None = None

    def when(self, start: int, depth: int, header: bytes = b"") -> tuple[When, bool]:
        """When a line is executed that begins at `start` with an indent of `depth` characters, and if in a function."""
        inside = False
        result = self._clause(start, depth, header.strip()) if header else When.ALWAYS
        while depth and result < When.NEVER:
            start, depth, line = self._before(start, depth)
            body = self._bodies.get(start)
            if body is None:
                body = self._bodies[start] = self._clause(start, depth, line)
            inside |= body == When.LATER
            result = max(result, body)
        return result, inside

    def _before(self, start: int, depth: int) -> tuple[int, int, bytes]:
        """The nearest line before one that is indented less than `depth`: place, indent, text."""
        starts, indents = self._lines()
        lower = np.flatnonzero(indents[: np.searchsorted(starts, start)] < depth)
        return self._line(int(lower[-1])) if len(lower) else (0, 0, b"")

    def _after(self, start: int, depth: int) -> tuple[int, int, bytes]:
        """The nearest line after one that is indented as much as `depth` or less."""
        starts, indents = self._lines()
        first = int(np.searchsorted(starts, start, side="right"))
        lower = np.flatnonzero(indents[first:] <= depth)
        return self._line(first + int(lower[0])) if len(lower) else (len(self._clean), -1, b"")

    def _line(self, number: int) -> tuple[int, int, bytes]:
        starts, indents = self._lines()
        start, indent = int(starts[number]), int(indents[number])
        end = self._clean.find(b"\n", start)
        return start, indent, self._clean[start + indent : end if end >= 0 else len(self._clean)]

    def _lines(self) -> tuple[Integers, Integers]:
        """Where each line begins that holds something, and its indent; not those that only close a bracket."""
        if self._places is None:
            text = np.frombuffer(self._clean, dtype="u1")
            starts = np.concatenate([np.zeros(1, dtype="i8"), np.flatnonzero(text == 10) + 1])
            filled = np.flatnonzero((text != 32) & (text != 9))
            firsts = np.searchsorted(filled, starts)
            starts, firsts = starts[firsts < len(filled)], filled[firsts[firsts < len(filled)]]
            first = text[firsts]
            told = (first != 10) & (first != 41) & (first != 93) & (first != 125)  # an end of line, ) ] }
            self._places = starts[told], (firsts - starts)[told]
        return self._places

    def _clause(self, start: int, depth: int, line: bytes) -> When:
        """When the body of the block runs that `line` opens, once the line itself is reached."""
        if b":" not in line and line.count(b"(") <= line.count(b")"):
            return When.ALWAYS  # a line of a longer expression, such as `if x else y`
        if line.startswith((b"def ", b"async def ", b"def\t")):
            return When.LATER
        if line.startswith((b"if ", b"if(", b"elif ", b"elif(", b"else")):
            return self._branch(start, depth, line)
        if line.startswith(b"try"):
            return When.TOLERATED if self._caught(start, depth) else When.ALWAYS
        if line.startswith(b"except"):
            return When.PERHAPS
        return When.ALWAYS

    def _branch(self, start: int, depth: int, line: bytes) -> When:
        values: list[bool | None] = [True if line.startswith(b"else") else self._value(start, line)]
        while line.startswith((b"elif", b"else")):
            start, indent, line = self._before(start, depth + 1)
            if indent < depth or not line.startswith((b"if", b"elif")):
                return When.ALWAYS  # the `else` of a loop or of `try`
            values.append(self._value(start, line))
        own, before = values[0], values[1:]
        if own is False or True in before:
            return When.NEVER
        return When.ALWAYS if own and None not in before else When.PERHAPS

    def _caught(self, start: int, depth: int) -> bool:
        """Whether a handler of this `try` catches a failed import, and does not raise again."""
        place, indent, line = self._after(start, depth)
        while indent == depth and line.startswith(_CLAUSES):
            following = self._after(place, depth)
            if line.startswith(b"except") and _CATCHES.search(line):
                return not self._raises(place, following[0], depth)
            place, indent, line = following
        return False

    def _raises(self, start: int, end: int, depth: int) -> bool:
        """Whether a handler ends in `raise` outside of any block of its own."""
        body = [line for line in self._clean[start:end].split(b"\n")[1:] if line.strip()]
        least = min((len(line) - len(line.lstrip()) for line in body), default=depth)
        return any(line[least : least + 5] == b"raise" for line in body)

    # ---- conditions

    def _value(self, start: int, line: bytes) -> bool | None:
        """A condition as it is on a Linux server with NVIDIA GPUs; None where that is not known."""
        if _PLATFORM.search(line):
            line = self._as_written(start)
        text = line.removeprefix(b"el").removeprefix(b"if").rpartition(b":")[0].strip()
        lazy = text.endswith(b"TYPE_CHECKING") and any(word in self._clean for word in _LAZY)
        return condition(text.decode(errors="replace"), self._surroundings, lazy=lazy)

    def _as_written(self, start: int) -> bytes:
        """A line with the strings that were taken out of it: the condition of the same rank in the source."""
        if self._platform_lines is None:
            self._platform_lines = (
                [match.start() for match in _PLATFORM_LINES.finditer(self._clean)],
                _PLATFORM_LINES.findall(self._source),
            )
        places, lines = self._platform_lines
        if len(places) != len(lines) or start not in places:
            return b""
        return lines[places.index(start)].split(b"#")[0].strip()


@lru_cache(maxsize=4096)
def condition(text: str, surroundings: Surroundings, *, lazy: bool = False) -> bool | None:
    """A condition as it is on a Linux server with NVIDIA GPUs; None where that is not known. Pure."""
    try:
        tree = ast.parse(text, mode="eval")
        return _truth(tree.body, surroundings, lazy=lazy)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _parts(text: bytes) -> list[str]:
    if b'"' in text:
        text = text.replace(b'""', b"")  # where a comment was
    return [part.strip() for part in text.strip(b" \t()\n").decode(errors="replace").split(",") if part.strip()]


_CONSTANTS: Mapping[str, str] = {"sys.platform": "linux", "os.name": "posix", "platform.system()": "Linux"}


def _truth(node: ast.expr, surroundings: Surroundings, *, lazy: bool) -> bool | None:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        value = _truth(node.operand, surroundings, lazy=lazy)
        return None if value is None else not value
    if isinstance(node, ast.BoolOp):
        values = [_truth(each, surroundings, lazy=lazy) for each in node.values]
        decisive = isinstance(node.op, ast.Or)
        return decisive if decisive in values else None if None in values else not decisive
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return _compared(node, surroundings)
    if isinstance(node, ast.Constant):
        return bool(node.value)
    name = ast.unparse(node.func if isinstance(node, ast.Call) else node)
    if name.endswith("TYPE_CHECKING"):
        return None if lazy else False  # modules that load lazily list there what they load later
    if name == "sys.platform.startswith" and isinstance(node, ast.Call) and isinstance(node.args[0], ast.Constant):
        return "linux".startswith(str(node.args[0].value))
    parts = name.split(".")
    word = parts[-2] if parts[-1] == "is_available" and len(parts) > 1 else parts[-1]
    return True if _OURS.search(word) else False if _OTHERS.search(word) else None


def _compared(node: ast.Compare, surroundings: Surroundings) -> bool | None:
    left, right, operator = ast.unparse(node.left), node.comparators[0], node.ops[0]
    if left == "__name__":
        return surroundings.is_main
    try:
        value = ast.literal_eval(right)
    except (ValueError, TypeError, SyntaxError):
        return None
    if left == "sys.version_info" and isinstance(value, tuple) and all(isinstance(part, int) for part in value[:2]):
        ours, theirs = surroundings.python, tuple(value[:2])
        if isinstance(operator, ast.GtE | ast.Gt):
            return ours >= theirs
        if isinstance(operator, ast.Lt | ast.LtE):
            return ours < theirs if isinstance(operator, ast.Lt) else ours <= theirs
        return None
    known = _CONSTANTS.get(left)
    if known is None:
        return None
    if isinstance(operator, ast.Eq | ast.NotEq):
        return bool(known == value) == isinstance(operator, ast.Eq)
    if isinstance(operator, ast.In | ast.NotIn) and isinstance(value, tuple | list | set):
        return bool(known in value) == isinstance(operator, ast.In)
    return None
