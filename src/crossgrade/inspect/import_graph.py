"""Which Python modules a server comes to import, from its entry points on, and how sure that is.

The graph is followed in the order of certainty, so that each module is found by the surest chain that leads to it. What
it cannot see: names of modules that are put together while the program runs, and plugins of other dists.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from crossgrade.inspect.python_abi import module_stem
from crossgrade.inspect.python_source import Import, Surroundings, When, imports_of
from crossgrade.inspect.reading import read_regular

_MOST_BYTES = 8 << 20
_MOST_MODULES = 100_000
# A module that imports by name: the modules of its own package that its strings name count as imported later.
_ALL_OF = (b"iter_modules", b"walk_packages")
_BY_NAME = (b"import_module", b"__import__", *_ALL_OF)
_DOTTED = re.compile(rb"""["'](\.?[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+|\.[A-Za-z_]\w*)["']""")


@dataclass(frozen=True)
class Step:
    """How a module comes to be imported: how sure the whole chain is, and the module that imports it ("" at first)."""

    when: When
    by: str


class ImportGraph:
    """The modules below one site-packages, given as an absolute path."""

    def __init__(self, site: str, python: tuple[int, int]) -> None:
        self.site = site
        self._python = python
        self._listings: dict[str, frozenset[str]] = {}
        self._extensions: dict[str, dict[str, str]] = {}
        self._places: dict[str, tuple[str, bool] | None] = {}
        self.steps: dict[str, Step] = {}

    def walk(self, entries: Iterable[str]) -> None:
        """Follow all imports from `entries`, dotted names; those that are not there are left out."""
        waiting: list[list[tuple[str, str]]] = [[] for _ in range(When.NEVER)]
        waiting[When.ALWAYS] = [(entry, "") for entry in entries]
        for when in list(When)[: When.NEVER]:
            while waiting[when] and len(self.steps) < _MOST_MODULES:
                name, by = waiting[when].pop()
                if name in self.steps:
                    continue
                place = self.place(name)
                if place is None:
                    continue
                self.steps[name] = Step(when, by)
                parent = name.rpartition(".")[0]
                if parent and parent not in self.steps:
                    waiting[when].append((parent, by))
                path, is_package = place
                if not path.endswith(".py"):
                    continue
                for item in self._imports(name, is_package=is_package, is_entry=not by):
                    level = max(when, item.when)
                    if level == When.NEVER:
                        continue
                    if item.module not in self.steps:
                        waiting[level].append((item.module, name))
                    waiting[level] += [
                        (f"{item.module}.{taken}", name)
                        for taken in item.names
                        if f"{item.module}.{taken}" not in self.steps
                    ]

    def chain(self, name: str) -> tuple[str, ...]:
        """The modules from an entry point to this one."""
        found: list[str] = []
        while name and name not in found:
            found.append(name)
            step = self.steps.get(name)
            name = step.by if step else ""
        return tuple(reversed(found))

    def place(self, name: str) -> tuple[str, bool] | None:
        """The file of a module, and whether it is a package ("" for one without a file); None where it is not there."""
        if name not in self._places:
            self._places[name] = self._find(name)
        return self._places[name]

    def source(self, name: str) -> bytes:
        """The source of a module; empty where it has none, or cannot be read."""
        place = self.place(name)
        if place is None or not place[0].endswith(".py"):
            return b""
        try:
            return read_regular(place[0], _MOST_BYTES)
        except OSError:
            return b""

    def _imports(self, name: str, *, is_package: bool, is_entry: bool) -> Iterator[Import]:
        source = self.source(name)
        surroundings = Surroundings(self._python, is_main=is_entry)
        yield from imports_of(source, name, is_package=is_package, surroundings=surroundings)
        if any(word in source for word in _BY_NAME):
            yield from self._by_name(source, name if is_package else name.rpartition(".")[0])

    def _by_name(self, source: bytes, package: str) -> Iterator[Import]:
        everything = any(word in source for word in _ALL_OF)
        own = package.partition(".")[0]
        for match in dict.fromkeys(_DOTTED.findall(source)):
            name = match.decode()
            name = f"{package}{name}" if name.startswith(".") else name
            place = self.place(name) if name.partition(".")[0] == own else None
            if place is None:
                continue
            inside = self._modules_in(name) if everything and place[1] else ()
            yield Import(name, tuple(inside), When.LATER)

    def _modules_in(self, package: str) -> Sequence[str]:
        folder = f"{self.site}/{package.replace('.', '/')}"
        return [name.removesuffix(".py") for name in sorted(self._entries(folder)) if name.endswith(".py")]

    def _find(self, name: str) -> tuple[str, bool] | None:
        if not all(part.isidentifier() for part in name.split(".")):
            return None
        path = f"{self.site}/{name.replace('.', '/')}"
        folder, _, last = path.rpartition("/")
        names = self._entries(folder)
        is_folder = last in names
        if is_folder and "__init__.py" in self._entries(path):
            return f"{path}/__init__.py", True
        if extension := self._extensions.get(folder, {}).get(last):
            return f"{folder}/{extension}", False
        if f"{last}.py" in names:
            return f"{path}.py", False
        return ("", True) if is_folder and self._entries(path) else None

    def _entries(self, folder: str) -> frozenset[str]:
        names = self._listings.get(folder)
        if names is None:
            try:
                names = frozenset(os.listdir(folder))  # noqa: PTH208 - names only, and in bulk
            except OSError:
                names = frozenset()
            self._listings[folder] = names
            self._extensions[folder] = {module_stem(item): item for item in names if item.endswith(".so")}
        return names
