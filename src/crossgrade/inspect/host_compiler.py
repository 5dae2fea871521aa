"""The C and C++ compilers of a machine, and whether CUDA's nvcc takes them.

nvcc compiles the host part of a file with the machine's own gcc and refuses one that is newer than it knows
(`crt/host_config.h` of the toolkit: ``#if __GNUC__ > 15``). `judge_host_compiler` is pure;
`find_host_compilers` asks the compilers themselves.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from crossgrade.inspect.query import Runner, programs_on_path
from crossgrade.process import StartError

_NAME = re.compile(r"(gcc|g\+\+)(?:-(\d+))?$")
_VERSION = re.compile(r"\d+(?:\.\d+)*$")
QUERY_SECONDS = 10.0


@dataclass(frozen=True)
class HostCompiler:
    """A gcc or g++ on the search path.

    `command` is the name to call it by (``g++-14``), `path` where that name leads first, `version` as
    ``-dumpfullversion`` says it, empty where it does not answer. `compiles_cpp` says whether the part that
    compiles C++ (cc1plus) is installed; None for gcc and where it could not be asked. `problem` says why
    something could not be observed, empty otherwise.
    """

    command: str
    path: str
    version: str
    compiles_cpp: bool | None = None
    problem: str = ""

    @property
    def is_cpp(self) -> bool:
        """Whether this is g++, the one that nvcc uses."""
        return self.command.startswith("g++")

    @property
    def major(self) -> int | None:
        """The release that nvcc's limit speaks of: 12 for 12.2.0."""
        return int(self.version.split(".")[0]) if self.version else None


@dataclass(frozen=True)
class CompilerJudgement:
    """Whether nvcc can work with a host compiler.

    `fits` is None where it cannot be told. `message` is one sentence; `remedy` is empty where it fits.
    `use` is the path of the g++ that fits: the one judged, or another one of this machine that fits better.
    """

    fits: bool | None
    message: str
    remedy: str = ""
    use: str = ""


def find_host_compilers(search_path: str, runner: Runner) -> tuple[HostCompiler, ...]:
    """gcc, g++ and their numbered variants (``g++-14``) on the search path; plain names first.

    Starts one short program for each compiler, and another for each g++.
    """
    names = {"gcc", "g++"} | _numbered_names(search_path)
    order = sorted(names, key=lambda name: ("-" in name, name))
    located = ((name, programs_on_path(search_path, name)) for name in order)
    return tuple(_ask(name, programs[0], runner) for name, programs in located if programs)


def compiler_version(program: Path, runner: Runner) -> str:
    """What ``PROGRAM -dumpfullversion`` says: ``12.2.0``. Raises StartError, ValueError for another answer.

    gcc before 7 knows only ``-dumpversion``, and so does clang under the name of g++.
    """
    answer = runner([str(program), "-dumpfullversion", "-dumpversion"], timeout=QUERY_SECONDS)
    version = answer.stdout.strip()
    if not answer.succeeded or not _VERSION.match(version):
        said = (answer.stderr.strip() or version or "nothing").splitlines()[0]
        raise ValueError(f"{program} -dumpfullversion: {answer.outcome()}, it said: {said}")
    return version


def judge_host_compiler(
    compiler: HostCompiler | None,
    newest_gcc: int | None,
    toolkit: str,
    available: Sequence[HostCompiler] = (),
) -> CompilerJudgement:
    """Whether a toolkit's nvcc takes this g++; pure.

    `newest_gcc` is the newest gcc release that the toolkit knows (`ToolkitFacts.newest_gcc`, else the row of
    `knowledge/host_compilers.yml`), None where that is unknown. `toolkit` names it: ``CUDA 13.0``.
    `available` are the machine's compilers, among which an older one may be the remedy.
    """
    others = [other for other in available if other.is_cpp and _fits(other, newest_gcc)]
    other = max(others, key=lambda candidate: candidate.major or 0, default=None)
    if compiler is None:
        return CompilerJudgement(
            False,
            f"nvcc of {toolkit} needs g++ and there is none on PATH",
            _remedy(other, newest_gcc),
            other.path if other else "",
        )
    if compiler.compiles_cpp is False:
        return CompilerJudgement(
            False,
            f"{compiler.path} cannot compile C++: its cc1plus is not installed",
            _remedy(other, newest_gcc),
            other.path if other else "",
        )
    if compiler.major is None or newest_gcc is None:
        unknown = compiler.problem if compiler.major is None else f"the newest gcc for {toolkit} is not known"
        return CompilerJudgement(
            None,
            f"whether nvcc of {toolkit} takes {compiler.path} cannot be told: {unknown}",
            "Compile a small program with nvcc to find out.",
        )
    if compiler.major > newest_gcc:
        return CompilerJudgement(
            False,
            f"{compiler.path} is gcc {compiler.version}; nvcc of {toolkit} takes gcc {newest_gcc} at most",
            _remedy(other, newest_gcc),
            other.path if other else "",
        )
    return CompilerJudgement(
        True,
        f"{compiler.path} is gcc {compiler.version}; {toolkit} takes up to {newest_gcc}",
        use=compiler.path,
    )


def known_newest_gcc(cuda_release: str) -> int | None:
    """The newest gcc for a CUDA release (``13.0``) by `knowledge/host_compilers.yml`; None where no row says.

    Only for a toolkit that is not installed yet: an installed one says it itself.
    """
    from crossgrade.knowledge import table

    for row in table("host_compilers"):
        newest = row["newest_gcc"]
        if row["cuda"] == cuda_release and isinstance(newest, int):
            return newest
    return None


def _fits(compiler: HostCompiler, newest_gcc: int | None) -> bool:
    if compiler.compiles_cpp is not True or compiler.major is None:
        return False
    return newest_gcc is None or compiler.major <= newest_gcc


def _remedy(other: HostCompiler | None, newest_gcc: int | None) -> str:
    if other is not None:
        return f"Set NVCC_CCBIN={other.path} (gcc {other.version}) for the build."
    package = f"g++-{newest_gcc} (or an older one)" if newest_gcc else "g++"
    return f"Install {package} from the system's packages, then set NVCC_CCBIN to its path if it is not `g++`."


def _numbered_names(search_path: str) -> set[str]:
    directories = filter(None, search_path.split(os.pathsep))
    return {name for directory in directories for name in _names(directory) if _NAME.match(name)}


def _names(directory: str) -> list[str]:
    try:
        return [path.name for path in Path(directory).iterdir()]
    except OSError:
        return []


def _ask(command: str, path: Path, runner: Runner) -> HostCompiler:
    try:
        version = compiler_version(path, runner)
    except (StartError, ValueError) as error:
        return HostCompiler(command, str(path), "", problem=str(error))
    if not command.startswith("g++"):
        return HostCompiler(command, str(path), version)
    try:
        answer = runner([str(path), "-print-prog-name=cc1plus"], timeout=QUERY_SECONDS)
    except StartError as error:
        return HostCompiler(command, str(path), version, problem=str(error))
    # A bare name means that the driver did not find the program in any of its own directories.
    cc1plus = answer.stdout.strip()
    return HostCompiler(command, str(path), version, os.path.isabs(cc1plus) and os.access(cc1plus, os.X_OK))  # noqa: PTH117  # a string from a program
