"""Whether each symbol and version that a file wants is there in what it loads.

The rules of binding are glibc 2.36's: `elf/dl-version.c` (each version that a file was linked against must be
defined by the library, or loading stops) and `elf/dl-lookup.c` (which definition answers a reference).
Lookups run through the global scope (main program, its libraries, what was preloaded with RTLD_GLOBAL) and
then through the search list of the file. Only references that a relocation uses count.
"""

from __future__ import annotations

import os
import re
from collections.abc import Hashable, Sequence, Set
from dataclasses import dataclass, field
from functools import cache

from crossgrade.inspect.elf import UnreadableElfError
from crossgrade.inspect.elf_index import ElfIndex
from crossgrade.inspect.elf_symbols import Defined, Undefined, Wanted
from crossgrade.inspect.loading import LoadedObject, Loader, LoadSet, Process
from crossgrade.knowledge import table


@dataclass(frozen=True)
class MissingVersion:
    """A version that a file was linked against and that the library found here does not define.

    ``newest`` is the library's newest version of the same series, such as GLIBC_2.36; empty where it has
    none.
    """

    library: str
    version: str
    needed_by: str
    newest: str


@dataclass(frozen=True)
class MissingSymbol:
    """A symbol without a definition; ``version`` and ``library`` are empty where the file states none."""

    name: str
    version: str
    library: str
    needed_by: str


@dataclass(frozen=True)
class SymbolFindings:
    """What is missing for one file and all that it loads; ``driver_symbols`` come with the NVIDIA driver.

    ``complete`` is False where libraries are missing, so that symbols could not be judged.
    """

    versions: tuple[MissingVersion, ...] = ()
    symbols: tuple[MissingSymbol, ...] = ()
    driver_symbols: tuple[str, ...] = ()
    complete: bool = True


@dataclass
class _Remainder:
    """What is still wanted after looking through some libraries."""

    plain: frozenset[bytes]
    versioned: dict[bytes, Wanted]
    seen: set[Hashable] = field(default_factory=set)

    def look_in(self, file: Hashable, offer: Defined) -> None:
        self.seen.add(file)
        if self.plain:
            self.plain = self.plain - offer.plain
        if self.versioned:
            keyed = offer.keyed
            rest = self.versioned.keys() - keyed
            if rest:
                rest = {key for key in rest if self.versioned[key].name not in keyed}
            self.versioned = {key: self.versioned[key] for key in rest}

    @property
    def empty(self) -> bool:
        return not self.plain and not self.versioned


@cache
def driver_symbols() -> dict[str, re.Pattern[str]]:
    """For each library that only the driver brings, by soname: which symbols are its own."""
    return {str(row["soname"]): re.compile(str(row["symbols"])) for row in table("driver_libraries")}


class SymbolChecker:
    """Checks the symbols of files in one process."""

    def __init__(self, index: ElfIndex, loader: Loader) -> None:
        self._index = index
        self._loader = loader
        self._alone: dict[Hashable, _Remainder] = {}

    def check(self, process: Process, loaded: LoadSet) -> SymbolFindings:
        """What is missing for every object that ``loaded`` brings into the process."""
        versions = tuple(missing for item in loaded.fresh for missing in self._versions(item, loaded))
        absent = {missing.soname for missing in loaded.missing}
        patterns = driver_symbols()
        if absent - patterns.keys():
            return SymbolFindings(versions, complete=False)
        unusable = {(missing.needed_by, missing.version) for missing in versions}
        scope = list(dict.fromkeys((*process.scope, *loaded.objects)))
        files = {self._index.identity(member.path) for member in scope}
        symbols: list[MissingSymbol] = []
        driver: set[str] = set()
        for item in loaded.fresh:
            rest = self._unanswered(item, process, scope, files)
            if rest.empty:
                continue
            used = self._index.referenced(item.path, frozenset(_names(rest)))
            for wanted in _wanted(rest):
                name = os.fsdecode(wanted.name)
                if wanted.name not in used or (item.path, wanted.version) in unusable:
                    continue
                if any(patterns[soname].match(name) for soname in absent):
                    driver.add(name)
                else:
                    symbols.append(MissingSymbol(name, wanted.version, wanted.library, item.path))
        return SymbolFindings(versions, tuple(symbols), tuple(sorted(driver)))

    def _versions(self, item: LoadedObject, loaded: LoadSet) -> list[MissingVersion]:
        found = []
        absent = {missing.soname for missing in loaded.missing}
        for need in item.elf.needed_versions:
            library = loaded.names.get(need.library)
            if library is None and need.library not in absent:
                found.append(MissingVersion(need.library, need.version, item.path, ""))  # nothing loads that library
            if library is None or need.weak or not library.elf.defined_versions:
                continue  # not found (reported as such), not required, or built without versions
            defined = [version.version for version in library.elf.defined_versions]
            if need.version not in defined:
                newest = newest_of_series(need.version, defined)
                found.append(MissingVersion(need.library, need.version, item.path, newest))
        return found

    def _unanswered(
        self, item: LoadedObject, process: Process, scope: Sequence[LoadedObject], files: Set[Hashable]
    ) -> _Remainder:
        """What ``item`` wants and the scope, whose ``files`` these are, does not define.

        Most files find everything in the libraries that they load themselves. That is looked up once for each
        file and serves for every scope that holds those libraries.
        """
        identity = self._index.identity
        alone = self._alone.get(identity(item.path))
        if alone is None:
            undefined = self._index.undefined(item.path)
            alone = _Remainder(undefined.plain, dict(undefined.versioned))
            own = self._loader.load(process, item.path, keep=False)
            self._look_through(alone, (*process.scope, *own.objects))
            self._alone[identity(item.path)] = alone
        start: Undefined | _Remainder = alone
        if not alone.seen <= files:
            start = self._index.undefined(item.path)
        rest = _Remainder(start.plain, dict(start.versioned))
        self._look_through(rest, scope)
        return rest

    def _look_through(self, rest: _Remainder, scope: Sequence[LoadedObject]) -> None:
        for member in scope:
            if rest.empty:
                return
            try:
                rest.look_in(self._index.identity(member.path), self._index.defined(member.path))
            except UnreadableElfError:
                continue  # its symbols cannot be read; what it should define stays unanswered


def newest_of_series(version: str, defined: Sequence[str]) -> str:
    """The newest of ``defined`` in the series of ``version``: GLIBC_2.36 for GLIBC_2.38."""
    series = version.rpartition("_")[0]

    def number(text: str) -> tuple[int, ...]:
        return tuple(int(part) for part in text.rpartition("_")[2].split(".") if part.isdecimal())

    same = [text for text in defined if text.rpartition("_")[0] == series and number(text)]
    return max(same, key=number, default="")


def _wanted(rest: _Remainder) -> list[Wanted]:
    return [*(Wanted(name, "", "") for name in sorted(rest.plain)), *rest.versioned.values()]


def _names(rest: _Remainder) -> set[bytes]:
    return {*rest.plain, *(wanted.name for wanted in rest.versioned.values())}
