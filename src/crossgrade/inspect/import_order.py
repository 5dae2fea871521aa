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
from crossgrade.inspect.reading import read_regular

_MOST_MODULES = 200  # of one package: enough for what its `__init__.py` leads to
_MOST_BYTES = 1 << 20  # of one module; a tree takes some 300 times its code
_DEEPEST = 200  # packages of which each imports the next
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@dataclass(frozen=True)
class Load:
    """A file that an import loads; `everywhere` when its symbols serve all others (RTLD_GLOBAL)."""

    path: str
    everywhere: bool


@dataclass(frozen=True)
class _Module:
    """One Python file: the top-level packages and the modules of its own package that it imports, and its words.

    `patterns` are those of libraries, each with the words that stand beside it.
    """

    packages: tuple[str, ...]
    own: tuple[str, ...]
    words: frozenset[str]
    patterns: tuple[tuple[str, tuple[str, ...]], ...]


class ImportOrder:
    """The packages below one site-packages. `files` are its native files, as absolute paths."""

    def __init__(self, site: Path, files: Sequence[str]) -> None:
        self._site = os.fspath(site)
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
            module = self._read(pending.pop(0))
            if module is None:
                continue
            found.update(dict.fromkeys(module.packages))
            new = [name for name in module.own if name not in seen]
            seen.update(new)
            pending += new
        return [name for name in found if name != package and os.path.isdir(f"{self._site}/{name}")]  # noqa: PTH112

    def _read(self, name: str) -> _Module | None:
        """A module by its dotted name; None when it is not there, or is no Python."""
        base = f"{self._site}/{name.replace('.', '/')}"
        is_package = os.path.isfile(f"{base}/__init__.py")  # noqa: PTH113 - a string, as the others
        try:
            code = read_regular(f"{base}/__init__.py" if is_package else f"{base}.py", _MOST_BYTES)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of others' code, such as "\d" in a plain string
                tree = ast.parse(code)
            # Few modules name libraries at all, and the way through a whole tree is long.
            patterns = tuple(_patterns(tree)) if b".so" in code else ()
            return _parsed(tree, name, patterns, is_package=is_package)
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError, LookupError):
            return None

    def _find_loads(self, package: str) -> Iterator[Load]:
        module = self._read(package)
        words = module.words if module else frozenset()
        everywhere = "RTLD_GLOBAL" in words
        own = [path for path in self._files if path.startswith(f"{self._site}/{package}/")]
        if not own and os.path.islink(f"{self._site}/{package}"):  # noqa: PTH114 - the links of `inspect.wheels`
            own = elf_files(f"{self._site}/{package}")
        for path in own:
            name = os.path.basename(path)  # noqa: PTH119 - a string
            if name in words or name.partition(".so")[0] in words:
                yield Load(path, everywhere)
        for pattern, others in module.patterns if module else ():
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


def _parsed(
    tree: ast.Module, name: str, patterns: tuple[tuple[str, tuple[str, ...]], ...], *, is_package: bool
) -> _Module:
    packages: dict[str, None] = {}
    own: dict[str, None] = {}
    top = name.partition(".")[0]
    here = name if is_package else name.rpartition(".")[0]
    for node in _executed(tree):
        targets: list[str] = []
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = here.split(".")
                base = ".".join([*parts[: len(parts) - node.level + 1], *([base] if base else [])])
            targets = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        for target in filter(None, targets):
            if target.partition(".")[0] == top:
                own[target] = None
            else:
                packages[target.partition(".")[0]] = None
    words = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            words.add(node.value)
        elif isinstance(node, ast.Attribute):
            words.add(node.attr)
    return _Module(tuple(packages), tuple(own), frozenset(words), patterns)


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


def _executed(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes that run when the module is imported: all but those inside of functions, in order."""
    return _nodes(tree, _FUNCTIONS)


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
