"""Running compilers: each command is shown, and a failure is explained with what to do about it."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from buildtools.toolkit import BuildError

INSTALL_COMPILER = "install a C++ compiler with its headers: apt install build-essential"

# Error text of the tools -> what it means and what to do. The first match counts.
_KNOWN_FAILURES: tuple[tuple[str, str, str], ...] = (
    (r"cc1plus", "gcc is there, but its C++ half (cc1plus) is not", INSTALL_COMPILER),
    (
        r"fatal error: (stdlib|stdio|string|features|bits/\S+|cstd\S+|cstring|math)(\.h)?: No such file",
        "the C and C++ headers are missing",
        INSTALL_COMPILER,
    ),
    (
        r"cannot find (-lstdc\+\+|-lc|-lm|crti\.o|Scrt1\.o)",
        "the C and C++ libraries are missing",
        INSTALL_COMPILER,
    ),
    (
        r"unsupported GNU version",
        "this g++ is newer than the CUDA toolkit accepts",
        "install an older one (apt install g++-14) and set CXX=g++-14",
    ),
    (
        r"Unsupported gpu architecture|is not defined for option 'gpu-name'",
        "this CUDA toolkit does not know one of the architectures",
        "change CROSSGRADE_CUDA_ARCHITECTURES, or use a newer toolkit (12.0f needs CUDA 12.9)",
    ),
    (
        r"cuda/std/\S+: No such file|nv/target: No such file",
        "the CUDA C++ core headers are missing from CUDA_HOME/include",
        "install cuda-toolkit[cccl] of the same version",
    ),
    (r"No space left on device", "the disk is full", "free some space, or set TMPDIR to another disk"),
)


def say(line: str) -> None:
    """One line for the build log, in order with what the tools write."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def explain_failure(program: str, status: int, output: str) -> BuildError:
    """The error for a command that failed, from what it printed."""
    for pattern, meaning, remedy in _KNOWN_FAILURES:
        if re.search(pattern, output):
            return BuildError(f"{program} failed (exit status {status}): {meaning}", remedy)
    return BuildError(f"{program} failed with exit status {status}", "its own message stands above")


@dataclass(frozen=True)
class Runner:
    """Runs commands in ``directory`` with exactly ``environment``."""

    directory: Path
    environment: dict[str, str]

    def run(self, command: Sequence[str]) -> str:
        """Run one command; its output. Raises BuildError when it fails."""
        started = time.monotonic()
        try:
            done = subprocess.run(
                command,
                cwd=self.directory,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                check=False,
            )
        except OSError as error:
            raise BuildError(
                f"cannot run {command[0]}: {error.strerror}", "check that the file is executable"
            ) from error
        # One write, so that commands that run at the same time do not mix their lines.
        say(f"+ {shlex.join(command)}   # {time.monotonic() - started:.1f} s\n{done.stdout}".rstrip("\n"))
        if done.returncode != 0:
            raise explain_failure(Path(command[0]).name, done.returncode, done.stdout)
        return done.stdout


def find_host_compiler(environment: dict[str, str]) -> str:
    """The path of g++, or of what CXX names."""
    name = environment.get("CXX") or "g++"
    path = shutil.which(name, path=environment.get("PATH"))
    if path is None:
        raise BuildError(f"there is no C++ compiler: {name} is not on PATH", INSTALL_COMPILER)
    return path


def tool_environment(environment: dict[str, str], scratch: Path) -> dict[str, str]:
    """The environment for the tools: English messages and scratch files in ``scratch``.

    The variables left out make nvcc and gcc add options or search directories of their own.
    """
    unwanted = (
        "NVCC_",
        "CPATH",
        "CPLUS_INCLUDE_PATH",
        "C_INCLUDE_PATH",
        "LIBRARY_PATH",
        "GCC_",
        "CUDA_",
        "LD_",
    )
    kept = {name: value for name, value in environment.items() if not name.startswith(unwanted)}
    return {**kept, "LC_ALL": "C", "TMPDIR": str(scratch)}
