"""The host compilers, and what each toolkit's own limit says of the one that its nvcc would take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from crossgrade.facts.toolkits import InstalledToolkit
from crossgrade.inspect.host_compiler import CompilerJudgement, HostCompiler, find_host_compilers, judge_host_compiler
from crossgrade.inspect.query import Runner


@dataclass(frozen=True)
class CompilerForToolkit:
    """What a toolkit's `crt/host_config.h` (`newest_gcc`) means for the machine's g++."""

    toolkit: str
    newest_gcc: int | None
    fits: bool | None
    message: str
    remedy: str = ""


@dataclass(frozen=True)
class CompilerFacts:
    """The compilers on PATH, `taken` the path of the one that nvcc takes by itself (g++), and each toolkit's limit."""

    compilers: tuple[HostCompiler, ...]
    taken: str | None
    toolkits: tuple[CompilerForToolkit, ...] = ()
    unknown: Mapping[str, str] = field(default_factory=dict)


def read_compilers(
    environment: Mapping[str, str], runner: Runner, toolkits: Sequence[InstalledToolkit] = ()
) -> CompilerFacts:
    """Ask every gcc and g++ on PATH for its version, and hold it against the limit of each toolkit."""
    compilers = find_host_compilers(environment.get("PATH", ""), runner)
    taken = default_compiler(compilers)
    unknown = {} if taken else {"compilers": "there is no g++ on PATH"}
    judged = tuple(_for_toolkit(taken, toolkit, compilers) for toolkit in toolkits)
    return CompilerFacts(compilers, taken.path if taken else None, judged, unknown)


def default_compiler(compilers: Sequence[HostCompiler]) -> HostCompiler | None:
    """The g++ that nvcc takes where nobody names another one."""
    return next((compiler for compiler in compilers if compiler.command == "g++"), None)


def _for_toolkit(
    taken: HostCompiler | None, toolkit: InstalledToolkit, compilers: Sequence[HostCompiler]
) -> CompilerForToolkit:
    facts = toolkit.facts
    judged: CompilerJudgement = judge_host_compiler(taken, facts.newest_gcc, facts.name, compilers)
    return CompilerForToolkit(facts.home, facts.newest_gcc, judged.fits, judged.message, judged.remedy)
