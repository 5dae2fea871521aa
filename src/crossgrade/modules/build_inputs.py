"""What a build can see of the machine, as text for its key: toolkit, compilers, interpreter; and how many jobs fit."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from crossgrade.errors import TaskError
from crossgrade.modules.contract import HostView
from crossgrade.modules.cuda_toolkit import RECORD as TOOLKIT_RECORD
from crossgrade.modules.cuda_toolkit import base_python

# Variables of the surroundings that compilers and build tools listen to.
HEARD = (
    "CC", "CXX", "CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS", "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "NVCC_CCBIN",
    "CUDAHOSTCXX", "CUDAFLAGS", "CMAKE_ARGS", "CMAKE_GENERATOR", "CMAKE_PREFIX_PATH", "CMAKE_BUILD_TYPE",
    "SKBUILD_CMAKE_ARGS", "CPATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH",
)  # fmt: skip
_MEMORY_LIMIT = Path("/sys/fs/cgroup/memory.max")


def toolkit_identity(cuda_home: str, host: HostView) -> str:
    """What a toolkit is, wherever it lies: the digest of one of the store's, the version of any other.

    Raises TaskError when it is not there and no earlier task will make it.
    """
    if not cuda_home:
        return ""
    home = Path(cuda_home)
    if home.parent.parent == host.store.toolkit("any").parent:
        digest = home.parent.name
        if (home.parent / TOOLKIT_RECORD).is_file() or host.predicted("toolkit", digest) is not None:
            return digest
        raise TaskError(f"there is no toolkit {digest} in the store", remedy="Let cuda_toolkit make it first.")
    from crossgrade.inspect.toolkit import read_toolkit, require_matched

    found = read_toolkit(home, host.run)
    require_matched(found)
    return f"{found.name} {found.nvcc_version} {found.real_home}"


def compiler_identity(environment: Mapping[str, str]) -> str:
    """The version of the C++ compiler that builds take; "none" where there is none, which a pure build may not mind."""
    from crossgrade.inspect.host_compiler import compiler_version
    from crossgrade.inspect.query import run_query
    from crossgrade.process import StartError

    program = shutil.which(environment.get("CXX") or "g++", path=environment.get("PATH"))
    if program is None:
        return "none"
    try:
        return compiler_version(Path(program), run_query)
    except (StartError, ValueError):
        return "unknown"


def python_program(given: str | None, host: HostView) -> str:
    """The interpreter's path. Raises TaskError when there is none."""
    if given is None:
        return base_python()
    found = shutil.which(os.path.expanduser(given), path=host.environment.get("PATH"))  # noqa: PTH111 - may be a bare name
    if found is None:
        raise TaskError(f"there is no Python at {given}", remedy="Give the path of an interpreter, or leave it out.")
    return found


def python_identity(given: str | None, host: HostView) -> str:
    """Implementation, ABI and platform: what decides whether a wheel fits. Not the patch release."""
    if given is None:
        return _abi(sys.implementation.cache_tag, sysconfig.get_config_var("SOABI"), sysconfig.get_platform())
    from crossgrade.inspect.query import run_query

    question = (
        "import sys, sysconfig; "
        "print(sys.implementation.cache_tag, sysconfig.get_config_var('SOABI'), sysconfig.get_platform())"
    )
    program = python_program(given, host)
    answer = run_query([program, "-I", "-c", question])
    if not answer.succeeded:
        raise TaskError(f"{program} does not start: {answer.outcome()}")
    return _abi(*answer.stdout.split())


def _abi(*parts: str | None) -> str:
    return " ".join(str(part) for part in parts)


def memory_bytes() -> int:
    """The memory that a build may use: the machine's, or less where a control group limits it (cgroup v2)."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = _MEMORY_LIMIT.read_text(encoding="ascii").strip()
    except OSError:
        return physical
    return min(physical, int(limit)) if limit.isdigit() else physical


def job_bytes(project: str) -> int:
    """The memory of one compiler process of this project (`knowledge/build_memory.yml`; `extension` without a row)."""
    from crossgrade.knowledge import table

    known = {str(row["of"]): int(str(row["bytes"])) for row in table("build_memory")}
    return known.get(project, known["extension"])


def default_jobs(cores: int, memory: int, of_one: int | None = None) -> int:
    """One job for each core, as far as the memory is enough for all of them; both in bytes."""
    return max(1, min(cores, memory // (of_one or job_bytes("extension"))))
