"""What the processes of a server that hangs are doing: their Python stacks by py-spy, and the kernel's view.

py-spy (https://github.com/benfred/py-spy) reads another process's stacks without its help; it needs the right to trace
it (root, or a child and ptrace_scope 0 or 1). A dump has names of functions and files and no values of variables
(`--locals` is not asked for); the command lines that py-spy prints are left out, for they may hold keys.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from crossgrade.process import StartError, run_process

PROCESS_SECONDS = 15.0  # for one process: with eight ranks and their libraries, symbols take a while
ALL_SECONDS = 120.0
MOST_PROCESSES = 64
_COMMAND_LINE = re.compile(r"^(Process \d+): .*$", re.MULTILINE)
_STATES = {
    "R": "running", "S": "sleeping", "D": "waiting in the kernel, cannot be interrupted", "T": "stopped", "t": "traced",
    "Z": "ended, not yet reaped", "I": "idle",
}  # fmt: skip


@dataclass(frozen=True)
class Stacks:
    """A file, and in words what it holds: `the stacks of 3 of its 4 processes`."""

    file: Path
    holds: str

    def __str__(self) -> str:
        return f"{self.holds}: {self.file}"


def find_pyspy(environment: Mapping[str, str], *folders: Path) -> Path | None:
    """py-spy in one of the folders, in the order given, or on the environment's PATH."""
    named = [*folders, *(Path(entry) for entry in environment.get("PATH", "").split(":") if entry)]
    for folder in named:
        program = folder / "py-spy"
        with contextlib.suppress(OSError):
            if program.is_file() and program.stat().st_mode & 0o111:
                return program
    return None


def dump_stacks(pids: Sequence[int], target: Path, program: Path | None, environment: Mapping[str, str]) -> Stacks:
    """Write a section for each process to `target`, private to its owner.

    Without py-spy there is the kernel's view alone. It takes at most two minutes.
    """
    deadline = time.monotonic() + ALL_SECONDS
    dumped = 0
    problem = "" if program else "py-spy is neither in its environment nor on PATH"
    target.touch(mode=0o600)
    with target.open("w", encoding="utf-8") as file:
        for pid in pids[:MOST_PROCESSES]:
            file.write(f"==== {kernel_view(pid)}\n")
            left = deadline - time.monotonic()
            if program is None or left <= 0:
                continue
            text, why = _python_stacks(pid, program, min(PROCESS_SECONDS, left), environment)
            file.write(f"{text or why}\n\n")
            dumped += bool(text)
            problem = problem or ("" if text else why)
        if len(pids) > MOST_PROCESSES:
            file.write(f"==== and {len(pids) - MOST_PROCESSES} more processes\n")
    processes = "process" if len(pids) == 1 else f"{len(pids)} processes"
    if dumped:
        return Stacks(target, f"the stacks of {dumped} of its {len(pids)} processes")
    return Stacks(target, f"what the kernel says of its {processes}, without stacks ({problem})")


def _python_stacks(pid: int, program: Path, timeout: float, environment: Mapping[str, str]) -> tuple[str, str]:
    """The stacks, or why there are none: the process is no Python, or may not be traced."""
    argv = [str(program), "dump", "--full-filenames", "--pid", str(pid)]
    try:
        completed = run_process(argv, env=environment, timeout=timeout, grace=1.0)
    except StartError as error:
        return "", error.message
    if completed.succeeded and completed.stdout.strip():
        return _COMMAND_LINE.sub(r"\1", completed.stdout.strip()), ""
    said = (completed.stderr.strip() or "nothing").splitlines()[0]
    return "", f"py-spy: {completed.outcome()}, it said: {said[:200]}"


def kernel_view(pid: int) -> str:
    """`process 12 (python): sleeping, in futex_wait_queue`, from /proc (proc(5): stat, wchan)."""
    folder = Path(f"/proc/{pid}")
    try:
        before, _, after = (folder / "stat").read_text(errors="replace").rpartition(")")
    except OSError:
        return f"process {pid}: gone"
    state = after.split()[0]
    place = ""
    with contextlib.suppress(OSError):
        place = (folder / "wchan").read_text(errors="replace").strip("0 \n")
    name = before.partition("(")[2]
    return f"process {pid} ({name}): {_STATES.get(state, state)}" + (f", in {place}" if place else "")
