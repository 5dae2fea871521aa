"""`bench inspect`: how long the verdict on an environment's native code takes, beside what others do on the same files.

`ldd -r` asks the loader itself for every shared object; cuobjdump lists device code; the plain pass reads the needed
libraries and every dynamic symbol with numpy, and judges nothing. The page cache is warm for all. The environment is
one that the reader has: `--tree VENV`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from crossgrade.commands.benchmarking import machine_name
from crossgrade.commands.measuring import Measure, measure, median_of, program
from crossgrade.errors import ExitCode, WrongOptionsError
from crossgrade.inspect.environment import elf_files
from crossgrade.report.terminal import Terminal
from crossgrade.report.text import Line

_REPEATS = 3
# xargs gives up after a program that exits with 255, as cuobjdump does for a file without device code.
_EACH = ("xargs", "-0", "-n", "1", "-a")
_ALWAYS = ("sh", "-c", '"$@"; true', "sh")


def bench_inspect(options: Mapping[str, Any]) -> int:
    """Raises WrongOptionsError without a venv, CrossgradeError when a program fails."""
    tree = Path(options["tree"] or "").expanduser().absolute()
    if not options["tree"] or not (tree / "pyvenv.cfg").is_file():
        raise WrongOptionsError("bench inspect needs --tree VENV", remedy="Best one with torch and sglang in it.")
    terminal = Terminal(sys.stdout)
    shared = [path for path in elf_files(str(tree)) if ".so" in Path(path).name]
    size = sum(os.stat(path).st_size for path in shared)  # noqa: PTH116 - strings, in bulk
    terminal.write(
        [
            Line(f"machine: {machine_name()}; load before: {os.getloadavg()[0]:.1f}"),
            Line(f"tree: {tree}: {len(shared):,} shared objects, {size / 1e9:.2f} GB; page cache warm"),
            Line(f"{'(ratio: to the plain pass)':<52}{'time':>11} {'ratio':>6} {'memory':>10}"),
        ]
    )
    with tempfile.TemporaryDirectory() as folder:
        listed = Path(folder) / "files"
        listed.write_bytes(b"\0".join(map(os.fsencode, shared)) + b"\0")
        _measure(tree, listed, terminal)
    return ExitCode.DONE


def _measure(tree: Path, listed: Path, terminal: Terminal) -> None:
    script = Path(__file__).with_name("native_pass.py")
    plain = [sys.executable, str(script), str(listed)]
    ours = [program("crossgrade"), "inspect", str(tree), "--for", "sm_120", "--json", "--no-cache"]
    again = [word for word in ours if word not in ("--json", "--no-cache")]
    for argv in (plain, ours, again):
        _failing_is_fine(argv)  # into the page cache
    base = median_of([measure("plain pass (native_pass.py)", plain, cold=False) for _ in range(_REPEATS)])
    terminal.write([Line(base.line(base.seconds))])

    def show(row: Measure) -> Measure:
        terminal.write([Line(row.line(base.seconds))])
        return row

    verdict = show(_whole("crossgrade inspect --for sm_120, everything read", ours))
    show(_whole("crossgrade inspect --for sm_120, nothing changed", again))
    ldd = show(_whole("ldd -r", [*_EACH, str(listed), *_ALWAYS, "ldd", "-r"]))
    terminal.write([Line(""), Line(f"{'ldd -r / crossgrade inspect':<52}{ldd.seconds / verdict.seconds:>9.1f} times")])
    cuobjdump = shutil.which("cuobjdump")
    if cuobjdump is None:
        terminal.write([Line("cuobjdump: not run: it is not on PATH (PyPI: nvidia-cuda-cuobjdump)", "warning")])
        return
    words = [cuobjdump, "--list-elf", "--list-ptx"]
    peer = show(_whole("cuobjdump --list-elf --list-ptx", [*_EACH, str(listed), *_ALWAYS, *words]))
    text = f"{'cuobjdump / crossgrade inspect, the whole verdict':<52}{peer.seconds / verdict.seconds:>9.1f} times"
    terminal.write([Line(text)])


def _whole(label: str, argv: list[str]) -> Measure:
    """A program whose exit code says what it found. The median of several runs, of one for those that take long."""
    wrapped = ["sh", "-c", '"$@" > /dev/null 2>&1; true', "sh", *argv]
    first = measure(label, wrapped, cold=False)
    if first.seconds > 10:
        return first
    return median_of([first, *(measure(label, wrapped, cold=False) for _ in range(_REPEATS - 1))])


def _failing_is_fine(argv: list[str]) -> None:
    subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, check=False)
