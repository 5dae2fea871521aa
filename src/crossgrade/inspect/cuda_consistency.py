"""What an environment has of CUDA: which release torch is built for, which ones its native files need, its toolkits.

`read_cuda` reads and decides nothing: the gate `cuda` judges. Nothing of the environment is imported or started;
``torch.version.cuda`` is read from the text of `torch/version.py`.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from crossgrade.inspect.cuda_libraries import CudaLibrary, cuda_library, looks_like_cuda
from crossgrade.inspect.dists import InstalledDist, UnreadableEnvironmentError, installed_dists, normalize_name
from crossgrade.inspect.native import NativeFile, NativeReport
from crossgrade.inspect.ownership import Conflict
from crossgrade.inspect.symbols import driver_symbols
from crossgrade.inspect.toolkit_parts import ToolkitParts, read_parts, toolkits_below
from crossgrade.knowledge import table

VERSION_BYTES = 1 << 16
_TORCH = "PyTorch"


@dataclass(frozen=True)
class TorchBuild:
    """What torch says about itself: ``cuda`` is a release (``13.0``), None for a build without CUDA.

    ``problem`` says why that is not known.
    """

    dist: str
    cuda: str | None
    problem: str = ""


@dataclass(frozen=True)
class CudaFile:
    """One native file that needs libraries of CUDA, but is none itself.

    ``needs`` are those that it names whose soname belongs to one major release, ``brings`` those that come with what it
    loads, found or not. ``with_torch`` is True where it shares a process with torch: it needs torch's libraries, or its
    package imports torch.
    """

    path: str
    dist: str
    needs: tuple[CudaLibrary, ...]
    brings: tuple[CudaLibrary, ...]
    with_torch: bool

    @property
    def majors(self) -> frozenset[int]:
        """The CUDA major releases that it was built for."""
        return frozenset(library.cuda for library in self.needs if library.cuda is not None)


@dataclass(frozen=True)
class CudaDist:
    """A dist with libraries of one CUDA major release: ``sonames`` of the table, and the release that its name states.

    ``major`` is by the sonames; where releases share them, by the name; None where neither says.
    """

    dist: str
    major: int | None
    sonames: tuple[str, ...]


@dataclass(frozen=True)
class Overwritten:
    """Libraries that dists of several CUDA major releases write to the same ``paths``.

    ``dists`` gives the major release of each; ``current`` are those whose bytes are there.
    """

    paths: tuple[str, ...]
    dists: Mapping[str, int]
    current: tuple[str, ...]


@dataclass(frozen=True)
class CudaFacts:
    """All that the gate judges.

    ``unreadable`` are the paths of native files that say nothing; ``unknown`` maps sonames that look like CUDA's to the
    dists that need them. ``toolkits`` are those that wheels installed, ``named`` the one that was named, if any.
    ``compilers`` are the dists that compile with nvcc while they run, ``torch_needs`` the sonames that torch's own
    files load.
    """

    torch: TorchBuild | None
    files: tuple[CudaFile, ...] = ()
    dists: tuple[CudaDist, ...] = ()
    overwritten: tuple[Overwritten, ...] = ()
    unreadable: tuple[str, ...] = ()
    unknown: tuple[tuple[str, tuple[str, ...]], ...] = ()
    toolkits: tuple[ToolkitParts, ...] = ()
    named: ToolkitParts | None = None
    compilers: tuple[str, ...] = ()
    torch_needs: frozenset[str] = frozenset()


def read_cuda(report: NativeReport, conflicts: Sequence[Conflict] = (), cuda_home: Path | None = None) -> CudaFacts:
    """Collect the facts of an environment whose native files are known already.

    ``conflicts`` are the files that two dists write (`ownership.conflicts`), ``cuda_home`` a toolkit to look at beside
    those in the environment.
    """
    root = Path(report.root)
    site = Path(report.interpreter.site_packages) if report.interpreter else root
    installed = _installed(root)
    torch = torch_build(site, installed)
    native = [file for file in report.files if not file.foreign and not file.unreadable]
    own = [file for file in native if file.dist and torch is not None and file.dist == torch.dist]
    return CudaFacts(
        torch=torch,
        files=tuple(_cuda_files(native)),
        dists=tuple(_cuda_dists(native, installed)),
        overwritten=tuple(_overwritten(conflicts)),
        unreadable=tuple(file.path for file in report.files if file.unreadable),
        unknown=tuple(_unknown(native)),
        toolkits=tuple(
            read_parts(home, str(home).removeprefix(f"{root}/"))
            for home in toolkits_below(site)
            if cuda_home is None or os.path.realpath(home) != os.path.realpath(cuda_home)
        ),
        named=read_parts(cuda_home) if cuda_home is not None else None,
        compilers=_compilers(installed),
        torch_needs=frozenset(name for file in own for name in file.known_libraries),
    )


def read_torch_build(text: str) -> str | None:
    """The value of ``cuda`` in the text of `torch/version.py`; None for a build without CUDA.

    Raises ValueError where the text is no Python, or does not assign ``cuda`` a literal text or None.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"it is no Python: {error}") from error
    for statement in reversed(tree.body):
        if isinstance(statement, ast.AnnAssign):
            targets: Iterable[ast.expr] = [statement.target]
        elif isinstance(statement, ast.Assign):
            targets = statement.targets
        else:
            continue
        if any(isinstance(target, ast.Name) and target.id == "cuda" for target in targets):
            value = statement.value
            if isinstance(value, ast.Constant) and (value.value is None or isinstance(value.value, str)):
                return value.value or None
            raise ValueError("its `cuda` is no plain text")
    raise ValueError("it does not state `cuda`")


def stated_major(dist: str) -> int | None:
    """The CUDA major release in the name of a dist, by `knowledge/cuda_dists.yml`: 13 for ``nvidia-nccl-cu13``."""
    for pattern in _dist_patterns():
        if match := pattern.fullmatch(normalize_name(dist)):
            return int(match[1])
    return None


@cache
def _dist_patterns() -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(str(row["dist"])) for row in table("cuda_dists"))


def _installed(root: Path) -> tuple[InstalledDist, ...]:
    try:
        return installed_dists(root)
    except UnreadableEnvironmentError:
        return ()


def torch_build(site: Path, installed: Sequence[InstalledDist]) -> TorchBuild | None:
    """What torch says of itself; None where there is neither a dist nor a package of that name."""
    path = site / "torch" / "version.py"
    dist = next((str(each) for each in installed if each.name == "torch"), "")
    if not dist and not path.parent.is_dir():
        return None
    dist = dist or "torch"
    if not path.is_file():  # opening what is no file, such as a pipe, might wait for ever
        return TorchBuild(dist, None, "torch/version.py is missing")
    try:
        with path.open("rb") as file:
            text = file.read(VERSION_BYTES).decode("utf-8", "replace")
        return TorchBuild(dist, read_torch_build(text))
    except OSError as error:
        return TorchBuild(dist, None, f"torch/version.py cannot be read: {error.strerror}")
    except ValueError as error:
        return TorchBuild(dist, None, f"torch/version.py cannot be read: {error}")


def _cuda_files(files: Iterable[NativeFile]) -> Iterable[CudaFile]:
    for file in files:
        if _is_library(file):
            continue
        needs = _of_one_release(file.needed)
        brings = _of_one_release(file.known_libraries)
        if needs or brings:
            yield CudaFile(file.path, file.dist, needs, brings, _with_torch(file))


def _is_library(file: NativeFile) -> bool:
    """Whether a file is one of NVIDIA's own libraries."""
    library = cuda_library(file.soname or file.path.rpartition("/")[2])
    return library is not None and library.name != _TORCH


def _of_one_release(names: Iterable[str]) -> tuple[CudaLibrary, ...]:
    found = {library.soname: library for name in names if (library := cuda_library(name)) is not None}
    return tuple(found[soname] for soname in sorted(found) if found[soname].cuda is not None)


def _with_torch(file: NativeFile) -> bool:
    libraries = (cuda_library(name) for name in (*file.needed, *file.known_libraries))
    return "torch" in file.loads_after or any(library is not None and library.name == _TORCH for library in libraries)


def _cuda_dists(files: Iterable[NativeFile], installed: Sequence[InstalledDist]) -> Iterable[CudaDist]:
    """The dists that bring NVIDIA's libraries under their own names, and those whose names state a release."""
    brought: dict[str, dict[str, int | None]] = {str(dist): {} for dist in installed if stated_major(dist.name)}
    for file in files:
        library = cuda_library(file.soname) if file.soname else None
        if library is not None and library.name != _TORCH and file.dist.startswith("nvidia-"):
            brought.setdefault(file.dist, {})[library.soname] = library.cuda
    for dist, sonames in sorted(brought.items()):
        majors = {major for major in sonames.values() if major is not None}
        major = majors.pop() if len(majors) == 1 else stated_major(dist.partition(" ")[0])
        yield CudaDist(dist, major, tuple(sorted(sonames)))


def _overwritten(conflicts: Iterable[Conflict]) -> Iterable[Overwritten]:
    groups: dict[tuple[tuple[str, ...], tuple[str, ...]], tuple[dict[str, int], list[str]]] = {}
    for conflict in conflicts:
        majors = {str(dist): major for dist in conflict.dists if (major := stated_major(dist.name)) is not None}
        library = cuda_library(conflict.path.rpartition("/")[2])
        if library is None or len(set(majors.values())) < 2 or conflict.agree:
            continue
        key = (tuple(majors), tuple(str(dist) for dist in conflict.current))
        groups.setdefault(key, (majors, []))[1].append(conflict.path)
    for (_, current), (majors, paths) in groups.items():
        yield Overwritten(tuple(paths), majors, current)


def _unknown(files: Iterable[NativeFile]) -> Iterable[tuple[str, tuple[str, ...]]]:
    found: dict[str, set[str]] = {}
    for file in files:
        for name in file.needed:
            if looks_like_cuda(name) and cuda_library(name) is None and name not in driver_symbols():
                found.setdefault(name, set()).add(file.dist or file.path)
    return ((name, tuple(sorted(found[name]))) for name in sorted(found))


def _compilers(installed: Sequence[InstalledDist]) -> tuple[str, ...]:
    names = {normalize_name(str(row["dist"])) for row in table("jit_compilers")}
    return tuple(str(dist) for dist in installed if dist.name in names)
