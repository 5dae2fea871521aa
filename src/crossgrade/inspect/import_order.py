"""What is loaded before a native module, because the package that it lies in imports another one first.

Many extensions state no search path and rely on libraries that are in the process already: `sgl_kernel` and
`torchaudio` find libc10.so only after `import torch`. Which packages those are is read from their Python code, and so
is what an import of them loads: the extension modules of the package, and before them the libraries that its
`__init__.py` names and loads by ctypes, also those of other packages that it looks for by a pattern (PyTorch does so
with `libnvrtc.so.*[0-9]`). What it does only where something failed does not count. Nothing is imported.
"""

from __future__ import annotations

import ast
import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from crossgrade.inspect.environment import elf_files
from crossgrade.inspect.python_source import Surroundings, When, imports_of
from crossgrade.inspect.reading import read_regular

_MOST_MODULES = 200  # of one package: enough for what its `__init__.py` leads to
_MOST_BYTES = 1 << 20  # of one module; a tree takes some 300 times its code
_DEEPEST = 200  # packages of which each imports the next


@dataclass(frozen=True)
class Load:
    """A file that an import loads; `everywhere` when its symbols serve all others (RTLD_GLOBAL)."""

    path: str
    everywhere: bool


@dataclass(frozen=True)
class _Words:
    """The strings and attributes of one Python file, and its patterns of libraries, each with the words beside it."""

    words: frozenset[str] = frozenset()
    patterns: tuple[tuple[str, tuple[str, ...]], ...] = ()


class ImportOrder:
    """The packages of one site-packages, for a Python such as (3, 12). `files` are its native files, absolute."""

    def __init__(self, site: Path, files: Sequence[str], python: tuple[int, int] = (3, 12)) -> None:
        self._site = os.fspath(site)
        self._python = python
        self._files = tuple(files)
        self._before: dict[str, tuple[str, ...]] = {}
        self._loads: dict[str, tuple[Load, ...]] = {}

    def before(self, path: str) -> tuple[str, ...]:
        """The top-level packages that are imported before the native module at `path` is, in order."""
        package = self._package(path)
        return self._imported_by(package) if package else ()

    def loads(self, package: str) -> tuple[Load, ...]:
        """What an import of a top-level package loads by itself, in order."""
        found = self._loads.get(package)
        if found is None:
            found = self._loads[package] = tuple(self._find_loads(package))
        return found

    def _package(self, path: str) -> str:
        name, separator, _ = path.removeprefix(f"{self._site}/").partition("/")
        return name if separator and path.startswith(f"{self._site}/") else ""

    def _imported_by(self, package: str, depth: int = 0) -> tuple[str, ...]:
        """In the order in which they come to be imported: what a package needs before the package itself."""
        found = self._before.get(package)
        if found is None:
            self._before[package] = ()  # packages that import each other end here
            order: dict[str, None] = {}
            for name in self._direct(package) if depth < _DEEPEST else ():
                order.update(dict.fromkeys(self._imported_by(name, depth + 1)))
                order[name] = None
            order.pop(package, None)
            found = self._before[package] = tuple(order)
        return found

    def _direct(self, package: str) -> list[str]:
        """The packages that the code of one imports outside of functions, beginning at its `__init__.py`."""
        found: dict[str, None] = {}
        pending, seen = [package], {package}
        while pending and len(seen) < _MOST_MODULES:
            name = pending.pop(0)
            for target in self._targets(name):
                if target.partition(".")[0] != package:
                    found[target.partition(".")[0]] = None
                elif target not in seen:
                    seen.add(target)
                    pending.append(target)
        return [name for name in found if name != package and os.path.isdir(f"{self._site}/{name}")]  # noqa: PTH112

    def _code(self, name: str) -> tuple[bytes, bool]:
        """The source of a module by its dotted name, empty where there is none; and whether it is a package."""
        base = f"{self._site}/{name.replace('.', '/')}"
        is_package = os.path.isfile(f"{base}/__init__.py")  # noqa: PTH113 - a string, as the others
        try:
            return read_regular(f"{base}/__init__.py" if is_package else f"{base}.py", _MOST_BYTES), is_package
        except (OSError, ValueError):
            return b"", is_package

    def _targets(self, name: str) -> Iterator[str]:
        """The modules that one imports when it is imported itself."""
        code, is_package = self._code(name)
        for item in imports_of(code, name, is_package=is_package, surroundings=Surroundings(self._python)):
            if not item.in_function and item.when < When.NEVER:
                yield item.module
                yield from (f"{item.module}.{taken}" for taken in item.names)

    def _words(self, name: str) -> _Words:
        code, _ = self._code(name)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of others' code, such as "\d" in a plain string
                tree = ast.parse(code)
            # Few modules name libraries at all, and the way through a whole tree is long.
            return _Words(_words_in(tree), tuple(_patterns(tree)) if b".so" in code else ())
        except (SyntaxError, ValueError, RecursionError, MemoryError, LookupError):
            return _Words()

    def _find_loads(self, package: str) -> Iterator[Load]:
        module = self._words(package)
        words = module.words
        everywhere = "RTLD_GLOBAL" in words
        own = [path for path in self._files if path.startswith(f"{self._site}/{package}/")]
        if not own and os.path.islink(f"{self._site}/{package}"):  # noqa: PTH114 - the links of `inspect.wheels`
            own = elf_files(f"{self._site}/{package}")
        for path in own:
            name = os.path.basename(path)  # noqa: PTH119 - a string
            if name in words or name.partition(".so")[0] in words:
                yield Load(path, everywhere)
        for pattern, others in module.patterns:
            library = self._matching(pattern, others)
            if library is not None:
                yield Load(library, False)
        prefix = len(f"{self._site}/{package}/")
        yield from (Load(path, False) for path in own if "/" not in path[prefix:])

    def _matching(self, pattern: str, others: Sequence[str]) -> str | None:
        """The first library that fits, before all one in a folder that the same call names."""
        fitting = [path for path in self._files if fnmatchcase(path.rpartition("/")[2], pattern)]
        named = [path for path in fitting if any(f"/{other}/" in path for other in others if other)]
        return next(iter(named or fitting), None)


def _words_in(tree: ast.Module) -> frozenset[str]:
    words = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            words.add(node.value)
        elif isinstance(node, ast.Attribute):
            words.add(node.attr)
    return frozenset(words)


def _patterns(tree: ast.AST) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Patterns of libraries, with the words beside each in the same call, tuple or pair of a dictionary.

    Functions are included: PyTorch loads them in one. What is done when something failed is not.
    """
    for node in _nodes(tree, (ast.ExceptHandler,)):
        groups: list[list[ast.expr]] = []
        if isinstance(node, ast.Call):
            groups = [node.args]
        elif isinstance(node, ast.Tuple | ast.List):
            groups = [node.elts]
        elif isinstance(node, ast.Dict):
            groups = [[key, value] for key, value in zip(node.keys, node.values, strict=True) if key is not None]
        for group in groups:
            texts = [each.value for each in group if isinstance(each, ast.Constant) and isinstance(each.value, str)]
            for text in texts:
                if ".so" in text and set("*?[") & set(text):
                    yield text, tuple(other for other in texts if other is not text)


def _nodes(tree: ast.AST, without: tuple[type[ast.AST], ...]) -> Iterator[ast.AST]:
    """All nodes below one in the order of the code, but those of some kinds and what they hold.

    Without recursion: a long chain of `elif` or `+` makes a tree that is deeper than Python's stack.
    """
    stack = [ast.iter_child_nodes(tree)]
    while stack:
        node = next(stack[-1], None)
        if node is None:
            stack.pop()
        elif not isinstance(node, without):
            yield node
            stack.append(ast.iter_child_nodes(node))
