"""The native code of a whole environment: what each ELF file needs, what it finds, what it holds for GPUs.

`inspect_native` reads files and decides nothing: the gates `abi` and `gpu_arch` judge its report. Nothing is
imported, executed or loaded (but for the system's loader, which is asked for its settings).
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path

from crossgrade.inspect.cuda_libraries import known_libraries
from crossgrade.inspect.elf import ElfFile, UnreadableElfError
from crossgrade.inspect.elf_index import ElfIndex
from crossgrade.inspect.environment import Dist, elf_files, is_library_name, owners
from crossgrade.inspect.gpu_architecture import DeviceCode
from crossgrade.inspect.import_order import ImportOrder
from crossgrade.inspect.loader_settings import LoaderSettings, read_loader_settings
from crossgrade.inspect.loading import Loader, LoadSet, MissingLibrary, Process
from crossgrade.inspect.mangled import most_alike, qualified_name
from crossgrade.inspect.python_abi import (
    Interpreter,
    extension_problem,
    extension_tag,
    find_interpreter,
    module_stem,
    wheel_problem,
)
from crossgrade.inspect.symbols import (
    MissingSymbol,
    MissingVersion,
    SymbolChecker,
    SymbolFindings,
    driver_symbols,
)
from crossgrade.jsontype import JSON

_MOST_COMPARED = 1000  # missing symbols for which the same function with other types is looked for


@dataclass(frozen=True)
class FromDriver:
    """What only the NVIDIA driver brings, and this system lacks: no fault of the environment."""

    libraries: tuple[str, ...] = ()
    symbols: tuple[str, ...] = ()


@dataclass(frozen=True)
class Alike:
    """A symbol that a file defines, where another one of the same function is missing."""

    name: str
    path: str
    dist: str


@dataclass(frozen=True)
class NativeFile:
    """One ELF file; paths are relative to the root of the report, or absolute where they lie outside.

    ``kind`` is ``extension`` (a Python module), ``library``, ``executable``, ``cubin`` or ``object`` (neither
    loaded by the loader). ``search_path`` is what the file itself states, such as ``RUNPATH $ORIGIN``.
    ``foreign`` is True for another machine than this. ``loads_with`` names a file in whose company a library
    finds what it lacks alone; ``loads_after`` the packages that its own package imports first and that bring what it
    lacks (what is missing is then what is missing even so). ``python_problem`` says why the interpreter does not
    import an extension. ``defined_elsewhere`` maps a missing symbol to the files of the environment that define it,
    ``alike`` to what they define in its place: the same function with other types. ``known_libraries`` are the
    sonames of `knowledge/sonames.yml` among what loading it brings in or lacks.
    """

    path: str
    kind: str
    machine: str
    size: int
    dist: str = ""
    soname: str | None = None
    needed: tuple[str, ...] = ()
    search_path: str = ""
    unreadable: str = ""
    foreign: bool = False
    missing_libraries: tuple[MissingLibrary, ...] = ()
    missing_versions: tuple[MissingVersion, ...] = ()
    missing_symbols: tuple[MissingSymbol, ...] = ()
    missing_interpreter: str = ""
    from_driver: FromDriver = FromDriver()
    python_problem: str = ""
    loads_with: str = ""
    loads_after: tuple[str, ...] = ()
    defined_elsewhere: tuple[tuple[str, tuple[str, ...]], ...] = ()
    alike: tuple[tuple[str, tuple[Alike, ...]], ...] = ()
    device_code: DeviceCode | None = None
    known_libraries: tuple[str, ...] = ()

    @property
    def resolves(self) -> bool:
        """Whether loading alone finds everything but the driver."""
        return not (
            self.unreadable
            or self.missing_libraries
            or self.missing_versions
            or self.missing_symbols
            or self.missing_interpreter
        )


@dataclass(frozen=True)
class NativeReport:
    """The native code below ``root``; ``preload_problems`` are preloads that are not there or do not load."""

    root: str
    machine: str
    glibc: str
    interpreter: Interpreter | None
    library_path: tuple[str, ...]
    preload: tuple[str, ...]
    preload_problems: tuple[str, ...]
    files: tuple[NativeFile, ...]
    seconds: float

    def to_json(self) -> dict[str, JSON]:
        """The report as plain data."""
        plain: dict[str, JSON] = json.loads(json.dumps(dataclasses.asdict(self)))  # tuples become lists
        return plain


def inspect_native(
    root: Path,
    *,
    interpreter: Path | None = None,
    library_path: Sequence[str | Path] = (),
    preload: Sequence[str] = (),
    settings: LoaderSettings | None = None,
    also: Sequence[Path] = (),
) -> NativeReport:
    """Inspect every ELF file below ``root`` (a virtual environment, or any directory), and the files ``also``.

    What of it cannot be read is a file of the report that says so; where that is the Python, `UnreadableElfError` is
    raised.

    ``interpreter`` is the Python that will load them (default: the environment's own; without one, a process
    without a main program's symbols is assumed). ``library_path`` is LD_LIBRARY_PATH, an entry for each
    directory. ``preload`` lists what Python code loads before anything else, as paths or globs below
    site-packages, in order.
    """
    started = time.perf_counter()
    base = os.path.abspath(root)  # noqa: PTH100  # symlinks stay: $ORIGIN depends on them
    python = find_interpreter(Path(base))
    settings = settings or read_loader_settings()
    index = ElfIndex()
    loader = Loader(index, settings, [str(path) for path in library_path])
    inspection = _Inspection(base, settings, index, loader, python)
    main = interpreter or (Path(python.executable) if python else None)
    process = _started(loader, str(main)) if main else Process(None)
    site = Path(python.site_packages) if python else Path(base)
    problems = inspection.preload(process, site, preload)
    paths = list(dict.fromkeys([*elf_files(base), *map(os.path.abspath, also)]))
    inspection.imports = ImportOrder(site, paths, python.version if python else (3, 12))
    inspection.dists = owners(site, frozenset(paths))
    files = inspection.complete([inspection.file(process, path) for path in paths])
    return NativeReport(
        root=base,
        machine=settings.machine,
        glibc=settings.glibc,
        interpreter=python,
        library_path=tuple(str(path) for path in library_path),
        preload=tuple(preload),
        preload_problems=tuple(problems),
        files=tuple(files),
        seconds=round(time.perf_counter() - started, 4),
    )


def _started(loader: Loader, program: str) -> Process:
    try:
        return loader.start(program)[0]
    except UnreadableElfError as error:
        raise UnreadableElfError(f"the environment's Python, {program}, cannot be read: {error.reason}") from error


class _Inspection:
    """The state of one call of `inspect_native`."""

    def __init__(
        self,
        root: str,
        settings: LoaderSettings,
        index: ElfIndex,
        loader: Loader,
        interpreter: Interpreter | None,
    ) -> None:
        self._root = root
        self._settings = settings
        self._index = index
        self._loader = loader
        self._checker = SymbolChecker(index, loader)
        self._interpreter = interpreter
        self._preloaded: dict[Hashable, tuple[LoadSet, SymbolFindings]] = {}
        self._company: dict[Hashable, str] = {}
        self._after: dict[tuple[str, ...], Process] = {}
        self.dists: dict[str, Dist] = {}
        self.imports = ImportOrder(Path(root), ())

    def preload(self, process: Process, site: Path, patterns: Sequence[str]) -> list[str]:
        """Load what Python code loads first, in order; gives what could not be loaded."""
        problems: list[str] = []
        for pattern in patterns:
            place = Path(pattern)
            found = [place] if place.is_absolute() and place.exists() else []
            if not place.is_absolute():
                found = sorted(path for path in site.glob(pattern) if path.is_file())
            if not found:
                problems.append(f"{pattern} matches no file")
            for path in map(str, found):
                try:
                    trial = self._loader.load(process, path, keep=False)
                    findings = self._checker.check(process, trial)
                except UnreadableElfError as error:
                    problems.append(f"{self._relative(path)}: {error.reason}")
                    continue
                absent = {missing.soname for missing in trial.missing} - driver_symbols().keys()
                if absent or findings.versions or findings.symbols:
                    problems.append(f"{self._relative(path)} does not load itself")
                    continue
                loaded = self._loader.preload(process, path, everywhere=True)
                for item in loaded.fresh:
                    self._preloaded[self._index.identity(item.path)] = (loaded, findings)
        return problems

    def file(self, process: Process, path: str) -> NativeFile:
        """Everything about one file."""
        dist = self.dists.get(path)
        unread = NativeFile(self._relative(path), "library", "", 0, str(dist) if dist else "")
        try:
            unread = dataclasses.replace(unread, size=os.stat(path).st_size)  # noqa: PTH116  # a string, in bulk
            return self._read(process, path, unread.size)
        except OSError as error:
            return dataclasses.replace(unread, unreadable=f"cannot be opened: {error.strerror}")
        except UnreadableElfError as error:
            return dataclasses.replace(unread, unreadable=error.reason)

    def _read(self, process: Process, path: str, size: int) -> NativeFile:
        """The same; raises `UnreadableElfError`."""
        name = self._relative(path)
        dist = self.dists.get(path)
        owner = str(dist) if dist else ""
        elf, modules, device_code = self._index.read(path)
        kind = _kind(elf, modules)
        loadable = kind in ("extension", "library", "executable")
        ours = elf.machine == self._settings.machine and elf.bits == 64 and elf.understood
        foreign = loadable and not ours
        if (kind in ("object", "cubin") or elf.kind == "executable") and is_library_name(path):
            raise UnreadableElfError(f"it is named as a library, and no library: {elf.kind} for {elf.machine}")
        if kind == "library" and ours and not elf.is_dynamic:
            return NativeFile(name, kind, elf.machine, size, owner, unreadable="it has no dynamic section")
        common = NativeFile(
            path=name,
            kind=kind,
            machine=elf.machine,
            size=size,
            dist=owner,
            soname=elf.soname,
            needed=elf.needed,
            search_path=_search_path(elf),
            foreign=foreign,
            python_problem=self._python_problem(path, modules, dist),
            device_code=device_code,
        )
        if not loadable or foreign or not elf.is_dynamic:
            return common
        if common.kind == "executable":
            return self._resolve(common, *self._program(path))
        identity = self._index.identity(path)
        if identity in self._preloaded:
            return self._resolve(common, *self._preloaded[identity])
        loaded = self._loader.load(process, path)
        findings = self._checker.check(process, loaded)
        if any(missing.soname not in driver_symbols() for missing in loaded.missing) and (
            packages := self.imports.before(path)
        ):
            later = self._process_after(process, packages)
            again = self._loader.load(later, path)
            if len(again.missing) < len(loaded.missing):
                loaded, findings = again, self._checker.check(later, again)
                first = tuple(package for package in packages if self.imports.loads(package))
                common = dataclasses.replace(common, loads_after=first)
        if loaded.fresh and not loaded.missing and not findings.symbols and not findings.versions:
            for item in loaded.fresh[1:]:
                self._company.setdefault(self._index.identity(item.path), name)
        return self._resolve(common, loaded, findings)

    def _process_after(self, process: Process, packages: tuple[str, ...]) -> Process:
        """What a process holds once these packages have been imported, as far as their native files load at all."""
        found = self._after.get(packages)
        if found is None:
            found = self._after[packages] = process.copy()
            for load in (load for package in packages for load in self.imports.loads(package)):
                try:
                    ours = self._index.elf(load.path)
                    if ours.kind != "shared" or ours.machine != self._settings.machine:
                        continue
                    trial = self._loader.load(found, load.path, keep=False)
                except UnreadableElfError:
                    continue
                if all(missing.soname in driver_symbols() for missing in trial.missing):
                    self._loader.preload(found, load.path, everywhere=load.everywhere)
        return found

    def complete(self, files: list[NativeFile]) -> list[NativeFile]:
        """Add what can be said only once all files are known."""
        wanted = {os.fsencode(s.name) for file in files for s in file.missing_symbols if s.needed_by == file.path}
        offers: dict[str, list[str]] = {}
        alike: dict[str, list[Alike]] = {}
        functions = {symbol: name for symbol in sorted(wanted)[:_MOST_COMPARED] if (name := qualified_name(symbol))}
        if wanted:
            for file in files:
                if file.unreadable or file.foreign or file.kind not in ("library", "extension"):
                    continue
                try:
                    defined = self._index.defined(f"{self._root}/{file.path}").plain
                except UnreadableElfError:
                    continue
                for symbol in wanted & defined:
                    offers.setdefault(os.fsdecode(symbol), []).append(file.path)
                for symbol, names in most_alike(functions, defined).items():
                    alike.setdefault(os.fsdecode(symbol), []).extend(
                        Alike(os.fsdecode(name), file.path, file.dist) for name in names
                    )
        importable = {
            os.path.join(os.path.dirname(file.path), module_stem(os.path.basename(file.path)))  # noqa: PTH118, PTH119, PTH120  # strings
            for file in files
            if file.kind == "extension" and not file.python_problem
        }
        return [self._completed(file, offers, alike, importable) for file in files]

    def _completed(
        self,
        file: NativeFile,
        offers: dict[str, list[str]],
        alike: dict[str, list[Alike]],
        importable: set[str],
    ) -> NativeFile:
        changes: dict[str, object] = {}
        if not file.resolves and file.kind == "library":
            company = self._company.get(self._index.identity(f"{self._root}/{file.path}"), "")
            changes["loads_with"] = company
        known = {s.name: tuple(offers[s.name][:5]) for s in file.missing_symbols if s.name in offers}
        if known:
            changes["defined_elsewhere"] = tuple(known.items())
        near = {s.name: tuple(alike[s.name][:5]) for s in file.missing_symbols if s.name in alike}
        if near:
            changes["alike"] = tuple(near.items())
        folder, name = os.path.split(file.path)
        if file.python_problem and os.path.join(folder, module_stem(name)) in importable:  # noqa: PTH118  # strings
            changes["loads_with"] = f"{module_stem(name)}, which is there for this Python as well"
        return dataclasses.replace(file, **changes) if changes else file  # type: ignore[arg-type]  # by name

    def _program(self, path: str) -> tuple[LoadSet, SymbolFindings]:
        process, loaded = self._loader.start(path)
        return loaded, self._checker.check(process, loaded)

    def _resolve(self, file: NativeFile, loaded: LoadSet, findings: SymbolFindings) -> NativeFile:
        driver = driver_symbols()
        absent = sorted({missing.soname for missing in loaded.missing if missing.soname in driver})
        interpreter = loaded.objects[0].elf.interpreter if file.kind == "executable" else None
        lost = interpreter if interpreter and self._index.identity(interpreter) is None else ""
        return dataclasses.replace(
            file,
            missing_libraries=tuple(
                dataclasses.replace(missing, needed_by=self._relative(missing.needed_by))
                for missing in loaded.missing
                if missing.soname not in driver
            ),
            missing_versions=tuple(
                dataclasses.replace(missing, needed_by=self._relative(missing.needed_by))
                for missing in findings.versions
            ),
            missing_symbols=tuple(
                dataclasses.replace(missing, needed_by=self._relative(missing.needed_by))
                for missing in findings.symbols
            ),
            missing_interpreter=lost or "",
            known_libraries=known_libraries(loaded),
            from_driver=FromDriver(tuple(absent), findings.driver_symbols),
        )

    def _python_problem(self, path: str, modules: tuple[str, ...], dist: Dist | None) -> str:
        if not modules or self._interpreter is None:
            return ""
        name = os.path.basename(path)  # noqa: PTH119  # a string, in bulk
        problem = extension_problem(name, self._interpreter)
        if not problem and not extension_tag(name) and dist is not None:
            problem = wheel_problem(dist.tags, self._interpreter)
        return problem

    def _relative(self, path: str) -> str:
        return os.path.normpath(path).removeprefix(f"{self._root}/")


def _kind(elf: ElfFile, modules: tuple[str, ...]) -> str:
    if elf.machine == "cuda":
        return "cubin"
    if elf.kind not in ("shared", "executable"):
        return "object"
    if elf.kind == "executable" or elf.is_pie or elf.interpreter:
        # A library with an interpreter, such as libc.so.6, can be run; DF_1_PIE tells programs apart since
        # 2018.
        return "executable" if elf.kind == "executable" or elf.is_pie or not elf.soname else "library"
    return "extension" if modules else "library"


def _search_path(elf: ElfFile) -> str:
    if elf.runpath is not None:
        return f"RUNPATH {elf.runpath}"
    return f"RPATH {elf.rpath}" if elf.rpath else ""
