"""Which files the dynamic loader would load for a file, as glibc does it.

The order of the search is that of glibc 2.36 `elf/dl-load.c` (`_dl_map_object`), the order of loading that of
`elf/dl-deps.c` (breadth first). `man 8 ld.so` states the same for people.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from crossgrade.inspect.elf import MAX_NAME, ElfFile, UnreadableElfError
from crossgrade.inspect.elf_index import ElfIndex
from crossgrade.inspect.loader_settings import LoaderSettings

# What loading one file may cost: an extension of PyTorch takes some 40,000 lookups of a name in a directory.
_MOST_STEPS = 1 << 21
_MOST_RULES, _LONGEST_RULE = 100, 2000


@dataclass(frozen=True, eq=False)
class LoadedObject:
    """One file in a process; ``loader`` is the object that caused it to be loaded (its RPATH counts as
    well)."""

    path: str
    elf: ElfFile
    loader: LoadedObject | None = None


@dataclass(frozen=True)
class SearchStep:
    """One rule of the search, for people: ``"RUNPATH $ORIGIN/../lib"`` and the directories that it means."""

    rule: str
    directories: tuple[str, ...]


@dataclass(frozen=True)
class MissingLibrary:
    """A library that the loader does not find.

    ``needed_by`` is the path of the file that names it, ``searched`` the rules that were tried, ``unfit`` the
    candidates that were skipped or that stop the loader, each with the reason.
    """

    soname: str
    needed_by: str
    searched: tuple[str, ...]
    unfit: tuple[str, ...] = ()


@dataclass
class Process:
    """What is loaded already: the main program with its libraries, and what was preloaded.

    ``scope`` is the global scope, in which every symbol is looked up first.
    """

    main: LoadedObject | None
    scope: list[LoadedObject] = field(default_factory=list)
    names: dict[str, LoadedObject] = field(default_factory=dict)
    files: dict[Hashable, LoadedObject] = field(default_factory=dict)

    def copy(self) -> Process:
        """One that has loaded the same, to try something in."""
        return Process(self.main, list(self.scope), dict(self.names), dict(self.files))


@dataclass(frozen=True)
class LoadSet:
    """The result of loading one file: its search list in the loader's order, and what was not found.

    ``fresh`` are the objects of the list that were not in the process before; ``names`` finds an object by
    its soname and by the name that a file needed it by.
    """

    objects: tuple[LoadedObject, ...]
    fresh: tuple[LoadedObject, ...]
    missing: tuple[MissingLibrary, ...]
    names: Mapping[str, LoadedObject]


class Loader:
    """Loads files into processes without running anything.

    ``library_path`` is LD_LIBRARY_PATH, already split.
    """

    def __init__(self, index: ElfIndex, settings: LoaderSettings, library_path: Sequence[str] = ()) -> None:
        self._index = index
        self._settings = settings
        self._library_path = tuple(library_path)
        self._steps: dict[LoadedObject, tuple[SearchStep, ...]] = {}
        self._rpaths: dict[tuple[str, str, bool], SearchStep] = {}
        self._expanded: dict[tuple[str, str], tuple[str, ...]] = {}
        self._left = 0
        self._hardware: dict[str, tuple[str, ...]] = {}

    def start(self, program: str) -> tuple[Process, LoadSet]:
        """A new process with ``program`` as its main program. Raises `UnreadableElfError`."""
        path = os.path.realpath(program)
        process = Process(None)
        loaded = self.load(process, path, keep=True)
        process.main = loaded.objects[0]
        process.scope = list(loaded.objects)
        return process, loaded

    def preload(self, process: Process, path: str, *, everywhere: bool = False) -> LoadSet:
        """Load a file into the process for good; ``everywhere`` is RTLD_GLOBAL.

        Raises `UnreadableElfError`.
        """
        loaded = self.load(process, path, keep=True)
        if everywhere:
            process.scope.extend(item for item in loaded.objects if item not in process.scope)
        return loaded

    def load(self, process: Process, path: str, *, keep: bool = False) -> LoadSet:
        """What loading ``path`` would bring in; the process changes only with ``keep``.

        Raises `UnreadableElfError` where ``path`` itself cannot be read.
        """
        names = process.names if keep else dict(process.names)
        files = process.files if keep else dict(process.files)
        identity = self._index.identity(path)
        first = files.get(identity)
        fresh: list[LoadedObject] = []
        if first is None:
            first = LoadedObject(path, self._index.elf(path), process.main)
            fresh.append(first)
        _register(first, path, identity, names, files)
        queue = [first]
        seen = {first}
        missing: list[MissingLibrary] = []
        self._left = _MOST_STEPS
        for item in queue:
            self._spend(len(item.elf.needed), path)
            for name in item.elf.needed:
                found = names.get(name)
                if found is None:
                    answer = self._find(name, item)
                    if isinstance(answer, MissingLibrary):
                        missing.append(answer)
                        continue
                    identity = self._index.identity(answer)
                    found = files.get(identity)
                    if found is None:
                        found = LoadedObject(answer, self._index.elf(answer), item)
                        fresh.append(found)
                    _register(found, name, identity, names, files)
                if found not in seen:
                    seen.add(found)
                    queue.append(found)
        return LoadSet(tuple(queue), tuple(fresh), tuple(missing), names)

    def _spend(self, steps: int, path: str) -> None:
        self._left -= steps
        if self._left < 0:
            raise UnreadableElfError(f"its libraries take implausibly many steps to find, at last for {path}")

    def search_steps(self, item: LoadedObject) -> tuple[SearchStep, ...]:
        """Where the loader looks for what ``item`` needs, in order."""
        steps = self._steps.get(item)
        if steps is None:
            steps = self._steps[item] = tuple(self._search_steps(item))
        return steps

    def _search_steps(self, item: LoadedObject) -> Iterator[SearchStep]:
        if item.elf.runpath is None:
            holder: LoadedObject | None = item
            while holder is not None:
                if holder.elf.rpath:
                    yield self._rpath(holder, own=holder is item)
                holder = holder.loader
        if self._library_path:
            text = ":".join(self._library_path)
            yield SearchStep(f"LD_LIBRARY_PATH {text}", self._expand(text, item))
        if item.elf.runpath:
            yield SearchStep(f"RUNPATH {_shown(item.elf.runpath)}", self._expand(item.elf.runpath, item))

    def _rpath(self, holder: LoadedObject, *, own: bool) -> SearchStep:
        """One object for all that inherit it: a chain of libraries with long search paths would take all memory."""
        key = (holder.path, holder.elf.rpath, own)
        found = self._rpaths.get(key)
        if found is None:
            owner = "" if own else f" of {holder.path}"
            rule = f"RPATH{owner} {_shown(holder.elf.rpath)}"
            found = self._rpaths[key] = SearchStep(rule, self._expand(holder.elf.rpath, holder))
        return found

    def _expand(self, text: str, item: LoadedObject) -> tuple[str, ...]:
        """The directories of a search path, its tokens replaced; an empty one is the current one."""
        key = (text, os.path.dirname(item.path))  # noqa: PTH120  # strings, in bulk
        if key in self._expanded:
            return self._expanded[key]
        directories: list[str] = []
        for element in text.split(":"):
            path = self._replace_tokens(element, item)
            if not path.startswith("/"):
                path = os.path.join(os.getcwd(), path)  # noqa: PTH109, PTH118  # strings, in bulk
            if len(path) <= MAX_NAME:  # a longer one cannot be opened
                directories.extend(self._variants(_plain(path)))
        found = self._expanded[key] = tuple(dict.fromkeys(directories))
        return found

    def _replace_tokens(self, text: str, item: LoadedObject) -> str:
        if "$" not in text:
            return text
        tokens = {
            "ORIGIN": os.path.dirname(item.path),  # noqa: PTH120  # strings, in bulk
            "LIB": self._settings.library_token,
            "PLATFORM": self._settings.platform_token,
        }
        for name, value in tokens.items():
            text = text.replace("${" + name + "}", value).replace("$" + name, value)
        return text

    def _variants(self, directory: str) -> tuple[str, ...]:
        """A directory after those of its subdirectories that hold code for better processors."""
        found = self._hardware.get(directory)
        if found is None:
            better: list[str] = []
            if "glibc-hwcaps" in self._index.entries(directory):
                better = [f"{directory}/{name}" for name in self._settings.hardware_directories]
            found = self._hardware[directory] = (*better, directory)
        return found

    def _find(self, name: str, item: LoadedObject) -> str | MissingLibrary:
        """The path of a needed library, or why there is none."""
        unfit: list[str] = []
        stopped = False
        if "/" in name:
            candidates: Iterator[str] = iter([self._replace_tokens(name, item)])
        else:
            candidates = self._candidates(name, item)
        for path in candidates:
            problem, stopped = self._problem(path)
            if problem is None:
                return path
            unfit.append(f"{path}: {problem}")
            if stopped:
                break
        rules = [step.rule for step in self.search_steps(item)[:_MOST_RULES]]
        if not stopped:
            rules += ["ld.so.cache"] + ([] if item.elf.no_default_path else ["the system's directories"])
        return MissingLibrary(name, item.path, tuple(rules), tuple(unfit))

    def _candidates(self, name: str, item: LoadedObject) -> Iterator[str]:
        """Existing files of that name, in the order of the search."""
        for step in self.search_steps(item):
            self._spend(len(step.directories), item.path)
            for directory in step.directories:
                if name in self._index.entries(directory):
                    yield f"{directory}/{name}"
        defaults = tuple(
            variant for directory in self._settings.system_directories for variant in self._variants(directory)
        )
        cached = self._settings.cache.get(name)
        if cached and self._index.identity(cached) is not None:
            outside = os.path.dirname(cached) not in defaults  # noqa: PTH120  # strings, in bulk
            if outside or not item.elf.no_default_path:
                yield cached
        if not item.elf.no_default_path:
            for directory in defaults:
                if name in self._index.entries(directory):
                    yield f"{directory}/{name}"

    def _problem(self, path: str) -> tuple[str | None, bool]:
        """Why a candidate is not taken, and whether the loader stops there instead of searching on."""
        if self._index.identity(path) is None:
            return "it is a link to nothing or not a file", False
        try:
            elf = self._index.elf(path)
            if elf.bits != 64 or elf.machine != self._settings.machine or not elf.understood:
                return f"it is built for {elf.machine} ({elf.bits} bits)", False
            if not elf.is_dynamic or elf.kind != "shared" or elf.is_pie:
                return "it is no shared library", True
            self._index.undefined(path)  # the loader will read its symbols and relocations
        except UnreadableElfError as error:
            return error.reason, True
        return None, False


def _shown(search_path: str) -> str:
    """A search path for people."""
    return search_path if len(search_path) <= _LONGEST_RULE else f"{search_path[:_LONGEST_RULE]}…"


def _plain(directory: str) -> str:
    """Without ``//`` and ``/./``: a search path can name one directory in thousands of ways."""
    parts = [part for part in directory.split("/") if part not in ("", ".")]
    return "/" + "/".join(parts)


def _register(
    item: LoadedObject,
    name: str,
    identity: Hashable | None,
    names: dict[str, LoadedObject],
    files: dict[Hashable, LoadedObject],
) -> None:
    """Let later needs find an object by the name that was asked for and by its soname."""
    names.setdefault(name, item)
    if item.elf.soname:
        names.setdefault(item.elf.soname, item)
    if identity is not None:
        files.setdefault(identity, item)
