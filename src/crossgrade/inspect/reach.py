"""How a server comes to load a native file: from its entry points, by imports and by names in Python code.

Nothing is imported. The entry points of known servers stand in `knowledge/entry_points.yml`.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from crossgrade.inspect import mentions
from crossgrade.inspect.environment import recorded
from crossgrade.inspect.graph_ahead import GraphAhead
from crossgrade.inspect.import_graph import ImportGraph
from crossgrade.inspect.native import NativeFile, NativeReport
from crossgrade.inspect.python_abi import find_interpreter, module_stem
from crossgrade.inspect.python_source import Surroundings, When
from crossgrade.knowledge import table

ORDER = ("always", "perhaps", "later", "tolerated", "variant", "plugin", "never")  # the surest first
_SHORTEST_START = 6
_MOST_PARSED = 200
_BLOCK = 1 << 20
_LARGEST_OPENER = 512 << 20  # bytes of a library that is searched for the names of others


@dataclass(frozen=True)
class Reach:
    """How a native file is reached.

    ``when`` is one of `always`, `perhaps` (on a condition that is not known here), `later` (when a function is
    called), `tolerated` (its failure is caught), `variant` (its namesake loads), `plugin` (another library opens it by
    name) and `never`. ``chain`` are the modules from the entry point to the one that loads it, or that other file.
    """

    when: str
    chain: tuple[str, ...] = ()


def known_entry_points(site_packages: str) -> tuple[str, ...]:
    """The modules that the servers among the dists of an environment start with."""
    site = Path(site_packages)
    found: list[str] = []
    for row in table("entry_points"):
        modules = row.get("modules")
        if isinstance(modules, list) and any(site.glob(f"{row['dist']}-*.dist-info")):
            found += map(str, modules)
    return tuple(found)


class Reaching:
    """Answers for one site-packages, an absolute path."""

    def __init__(self, graph: ImportGraph, python: tuple[int, int]) -> None:
        self._graph = graph
        self._surroundings = Surroundings(python)
        self._codes: dict[str, mentions.Code] = {}
        self._sources: dict[tuple[str, ...], dict[str, bytes]] = {}

    @property
    def begins(self) -> bool:
        """Whether any of the entry points is there."""
        return bool(self._graph.steps)

    def imported(self, path: str) -> Reach | None:
        """How an extension module comes to be imported by a statement; None where it does not."""
        name = self._module(path)
        step = self._graph.steps.get(name) if name else None
        return Reach(step.when.name.lower(), self._graph.chain(name)) if step else None

    def reach(self, path: str, packages: Sequence[str], neighbours: Sequence[str]) -> Reach:
        """How the file at the absolute `path` is reached.

        `packages` are the top-level packages whose code may name it, `neighbours` the libraries that may open it.
        """
        found: list[tuple[When, tuple[str, ...]]] = []
        name = self._module(path)
        step = self._graph.steps.get(name) if name else None
        if step is not None:
            found.append((step.when, self._graph.chain(name)[:-1]))
        stem = module_stem(os.path.basename(path)).partition(".so")[0]  # noqa: PTH119 - a string
        if not found or found[0][0] > When.ALWAYS:
            named = mentions.find(stem, self._codes_about(tuple(packages), stem), self._imported)
            if named is not None:
                found.append((named.when, self._graph.chain(named.module)))
        if found:
            when, chain = min(found)
            return Reach(when.name.lower(), chain)
        opener = self._opener(path, neighbours)
        return Reach("plugin", (opener,)) if opener else Reach("never")

    def _imported(self, module: str) -> When:
        step = self._graph.steps.get(module)
        return step.when if step else When.NEVER

    def _module(self, path: str) -> str:
        if not path.startswith(f"{self._graph.site}/"):
            return ""
        folder, name = os.path.split(path[len(self._graph.site) + 1 :])
        return ".".join(filter(None, [folder.replace("/", "."), module_stem(name)]))

    def _codes_about(self, packages: tuple[str, ...], stem: str) -> dict[str, mentions.Code]:
        """The code of the reached modules of these packages that name the library, or that lead to those that do."""
        sources = self._sources_of(packages)
        start = mentions.VERSION.sub("", stem)
        start = start if len(start) >= _SHORTEST_START else stem
        pattern = re.compile(rb"""["'/}]""" + re.escape(start.encode()))
        codes = {name: self._code(name) for name, source in sources.items() if pattern.search(source)}
        followed: set[str] = set()
        while len(codes) < _MOST_PARSED:
            functions = mentions.functions_towards(stem, codes) - followed
            if not functions:
                break
            followed |= functions
            called = [f"{function}(".encode() for function in functions]
            for name, source in sources.items():
                if name not in codes and any(word in source for word in called):
                    codes[name] = self._code(name)
        return codes

    def _code(self, module: str) -> mentions.Code:
        if module not in self._codes:
            self._codes[module] = mentions.code_of(self._graph.source(module), self._surroundings)
        return self._codes[module]

    def _sources_of(self, packages: tuple[str, ...]) -> dict[str, bytes]:
        found = self._sources.get(packages)
        if found is None:
            prefixes = tuple(f"{package}." for package in packages)
            modules = (name for name in self._graph.steps if name in packages or name.startswith(prefixes))
            found = {name: self._graph.source(name) for name in modules}
            # Only the last ones are kept: files of one dist are asked about in a row, and PyTorch has 50 MB of code.
            self._sources = {packages: found}
        return found

    def _opener(self, path: str, neighbours: Sequence[str]) -> str:
        """The library that holds the name of this one among its bytes."""
        base = os.path.basename(path)  # noqa: PTH119 - a string
        plain = base.partition(".so")[0]
        for other in neighbours:
            if os.path.basename(other).partition(".so")[0] == plain:  # noqa: PTH119
                continue
            try:
                if _holds(other, plain.encode() + b".so"):
                    return os.path.basename(other)  # noqa: PTH119
            except OSError:
                continue
        return ""


def _holds(path: str, word: bytes) -> bool:
    """Whether a library holds these bytes, read block by block: a mapping would count as memory of this process."""
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - a string, as the others
        if os.fstat(file.fileno()).st_size > _LARGEST_OPENER:
            return False
        rest = b""
        while block := file.read(_BLOCK):
            if word in rest + block:
                return True
            rest = block[-len(word) :]
    return False


def followed_from(root: Path, entries: Sequence[str] | None) -> GraphAhead:
    """Begin to follow what a server imports, from `entries` or from those of the known servers among the dists."""
    python = find_interpreter(root)
    if python is None:
        return GraphAhead("", (0, 0), ())
    chosen = known_entry_points(python.site_packages) if entries is None else entries
    return GraphAhead(python.site_packages, python.version, chosen)


def reach_of(report: NativeReport, paths: Sequence[str], ahead: GraphAhead) -> dict[str, Reach]:
    """How each of `paths` (as in the report) is reached from the entry points.

    Empty where the report has no Python, or none of the entry points is there: then nothing can be said.
    """
    if report.interpreter is None or not paths:
        return {}
    reaching = Reaching(ahead.graph(), report.interpreter.version)
    if not reaching.begins:
        return {}
    files = {file.path: file for file in report.files}
    chosen = [files[path] for path in paths if path in files]
    packages = _packages(Path(report.interpreter.site_packages), {file.dist for file in chosen})
    folders: dict[str, list[NativeFile]] = {}
    for file in report.files:
        if file.kind in ("library", "extension"):
            folders.setdefault(os.path.dirname(file.path), []).append(file)  # noqa: PTH120 - a string, in bulk
    needers: dict[str, list[NativeFile]] = {}
    for file in report.files:
        for name in file.needed:
            needers.setdefault(name, []).append(file)
    found = {}
    for file in chosen:
        beside = folders.get(os.path.dirname(file.path), []) if file.kind == "library" else []  # noqa: PTH120
        path = os.path.join(report.root, file.path)  # noqa: PTH118 - a path of the report may be absolute
        neighbours = [os.path.join(report.root, each.path) for each in beside]  # noqa: PTH118
        own = reaching.reach(path, packages.get(file.dist, ()), neighbours)
        needing = [reaching.imported(os.path.join(report.root, each)) for each in _needing(file, needers, files)]  # noqa: PTH118
        found[file.path] = min([own, *filter(None, needing)], key=lambda reach: ORDER.index(reach.when))
    return {path: _variant(files[path], reach, report.files) for path, reach in found.items()}


def _needing(
    file: NativeFile, needers: Mapping[str, Sequence[NativeFile]], files: Mapping[str, NativeFile]
) -> list[str]:
    """The Python modules that need a library by name, themselves or through other libraries."""
    if file.kind != "library":
        return []
    names = [file.soname or os.path.basename(file.path)]  # noqa: PTH119 - a string; a damaged file tells no soname
    seen = {file.path}
    found: list[str] = []
    while names and len(seen) < len(files):
        for needer in needers.get(names.pop(), ()):
            if needer.path in seen:
                continue
            seen.add(needer.path)
            if needer.kind == "extension":
                found.append(needer.path)
            elif needer.soname:
                names.append(needer.soname)
    return found


def _variant(file: NativeFile, reach: Reach, files: Sequence[NativeFile]) -> Reach:
    """A file with a namesake in a sibling folder of its package which loads is one of several, for other GPUs, say."""
    folder, name = os.path.split(file.path)
    parent = os.path.dirname(folder)  # noqa: PTH120
    if file.kind != "extension" or reach.when in ("never", "plugin") or parent.endswith("site-packages"):
        return reach
    for other in files:
        place, other_name = os.path.split(other.path)
        beside = place != folder and os.path.dirname(place) == parent and other.dist == file.dist != ""  # noqa: PTH120
        if beside and other_name == name and other.resolves and not other.python_problem:
            return Reach("variant", (other.path,))
    return reach


def _packages(site: Path, dists: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The top-level packages and modules that these dists ("torch 2.9.1") brought, by their RECORD."""
    found = {}
    for dist in filter(None, dists):
        name, _, version = dist.rpartition(" ")
        folder = next(iter(site.glob(f"{re.sub(r'[-_.]+', '[-_.]', name)}-{glob.escape(version)}.dist-info")), None)
        if folder is not None:
            tops = {
                path.partition("/")[0].removesuffix(".py")
                for path in recorded(folder / "RECORD")
                if path.endswith(".py")
            }
            found[dist] = tuple(sorted(top for top in tops if top.isidentifier()))
    return found
