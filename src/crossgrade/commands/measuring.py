"""How `bench store` takes a measure: seconds and peak memory of programs, with or without the page cache."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from crossgrade.errors import CrossgradeError

_DROP = Path("/proc/sys/vm/drop_caches")


@dataclass(frozen=True)
class Measure:
    """Wall-clock seconds of a run (the median, where there were several); peak memory in bytes, of all its programs."""

    label: str
    seconds: float
    peak: int
    cache: str

    def line(self, base: float) -> str:
        """`base` is what the ratio refers to, in seconds; 0 for none yet."""
        ratio = f"{self.seconds / base:>6.2f}" if base else " " * 6
        return f"{self.label:<52}{self.seconds:>9.2f} s {ratio} {self.peak / 1e6:>7,.0f} MB  {self.cache}"


def can_drop_caches() -> bool:
    return os.access(_DROP, os.W_OK)


def drop_caches() -> str:
    """Write out what is dirty and forget what was read; "cold cache", or "warm cache" where that is not permitted."""
    os.sync()
    try:
        _DROP.write_text("3\n", encoding="ascii")
    except OSError:
        return "warm cache"
    return "cold cache"


def measure(label: str, *stages: Sequence[str], cold: bool = True, output: Path | None = None) -> Measure:
    """Run a pipeline of programs once. `output` takes what the last one writes. Raises CrossgradeError if one fails."""
    cache = drop_caches() if cold else "warm cache"
    began = time.perf_counter()
    peak = _run_pipeline(stages, output)
    return Measure(label, time.perf_counter() - began, peak, cache)


def median_of(measures: Sequence[Measure]) -> Measure:
    first = measures[0]
    peak = max(measure.peak for measure in measures)
    return Measure(first.label, statistics.median(measure.seconds for measure in measures), peak, first.cache)


def quietly(*stages: Sequence[str]) -> None:
    """Run a pipeline that is not measured. Raises CrossgradeError if it fails."""
    _run_pipeline(stages, None)


def _environment() -> dict[str, str]:
    """As an installed program has it: Python may keep its bytecode."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _run_pipeline(stages: Sequence[Sequence[str]], output: Path | None) -> int:
    """The peak memory of the programs together, in bytes. None of them outlives this call."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        with open(output or os.devnull, "wb") as sink:  # noqa: PTH123 - the null device is a str
            _start(stages, sink, processes)
        return _wait(stages, processes)
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
                process.wait()


def _start(stages: Sequence[Sequence[str]], sink: IO[bytes], processes: list[subprocess.Popen[bytes]]) -> None:
    for argv in stages:
        last = len(processes) + 1 == len(stages)
        before = processes[-1].stdout if processes else None
        process = subprocess.Popen(
            argv,
            stdin=before or subprocess.DEVNULL,
            stdout=sink if last else subprocess.PIPE,
            stderr=subprocess.PIPE if last else subprocess.DEVNULL,
            env=_environment(),
        )
        processes.append(process)
        if before:
            before.close()  # its reader has its own copy


def _wait(stages: Sequence[Sequence[str]], processes: Sequence[subprocess.Popen[bytes]]) -> int:
    errors = processes[-1].stderr
    said = errors.read() if errors else b""
    if errors:
        errors.close()
    peak = 0
    for process, argv in zip(processes, stages, strict=True):
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        peak += usage.ru_maxrss * 1024
        if process.returncode:
            raise CrossgradeError(f"`{' '.join(argv)}` failed: {said.decode(errors='replace').strip()}")
    return peak


def filesystem_of(path: Path) -> str:
    done = subprocess.run(
        ["df", "--output=fstype", str(path)],  # noqa: S607 - coreutils, from wherever they are
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.split()[-1] if done.stdout.split() else "unknown"


def program(name: str) -> str:
    """A program of the venv that we run in."""
    return str(Path(sys.executable).parent / name)
