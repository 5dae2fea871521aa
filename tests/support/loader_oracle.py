"""The loader itself as the oracle of a whole environment: what it says of every native file, the driver set aside.

A library with the symbols that the files want of `libcuda.so.1` and the like stands for the driver; it is only ever
loaded, never called. Each file is opened (RTLD_NOW) in a process of its own, forked from one that has imported what
the file's package imports first.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from crossgrade.inspect.native import NativeFile, NativeReport, inspect_native

_OPENS = r"""
import ctypes, importlib, json, os, sys
for name in sys.argv[2:]:
    importlib.import_module(name)
for path in open(sys.argv[1], errors="surrogateescape").read().split("\n"):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            ctypes.CDLL(path, mode=os.RTLD_NOW)
            said = ""
        except OSError as error:
            said = str(error) or "refused"
        os.write(write, said.encode(errors="surrogateescape")[:4000])
        os._exit(0)
    os.close(write)
    said = b""
    while more := os.read(read, 4096):
        said += more
    os.close(read)
    status = os.waitpid(child, 0)[1]
    text = said.decode(errors="replace") if os.WIFEXITED(status) else f"signal {os.WTERMSIG(status)}"
    print("@" + json.dumps([path, text]), flush=True)
"""


@dataclass(frozen=True)
class Agreement:
    """How many files of each kind and outcome both say the same of, and what they say differently."""

    agreed: Counter[str]
    disagreed: tuple[str, ...]


def stand_for_the_driver(report: NativeReport, folder: Path) -> Path:
    """Libraries with every symbol that the files of a report want of the driver; gives their folder."""
    folder.mkdir(parents=True, exist_ok=True)
    symbols = sorted({symbol for file in report.files for symbol in file.from_driver.symbols})
    code = "".join(f"int {symbol}(void) {{ return 100; }}\n" for symbol in symbols) or "int nothing;\n"
    for soname in sorted({name for file in report.files for name in file.from_driver.libraries}):
        argv = ["gcc", "-shared", "-fPIC", "-w", f"-Wl,-soname,{soname}", "-o", str(folder / soname), "-xc", "-"]
        subprocess.run(argv, input=code, text=True, check=True)
    return folder


def compare_with_loader(venv: Path, work: Path) -> Agreement:
    """Every extension and library of this machine's kind: does it load, and what is the first thing missing?"""
    driver = stand_for_the_driver(inspect_native(venv), work / "driver")
    report = inspect_native(venv, library_path=[driver])
    groups: dict[tuple[str, ...], list[NativeFile]] = {}
    for file in report.files:
        if file.kind in ("extension", "library") and not file.foreign:
            groups.setdefault(file.loads_after, []).append(file)
    agreed: Counter[str] = Counter()
    disagreed: list[str] = []
    for imported, files in groups.items():
        said = opened(venv, [f"{report.root}/{file.path}" for file in files], imported, driver, work)
        for file in files:
            answer = said.get(f"{report.root}/{file.path}", "no answer")
            if _same(file, answer):
                outcome = "aborts once loaded" if answer.startswith("signal") else "loads"
                agreed[outcome if file.resolves else "unreadable" if file.unreadable else "lacks something"] += 1
            else:
                disagreed.append(f"{file.path}: we say {_ours(file) or 'it loads'}; the loader: {answer or 'it loads'}")
    return Agreement(agreed, tuple(disagreed))


def opened(venv: Path, paths: list[str], imported: tuple[str, ...], driver: Path, work: Path) -> dict[str, str]:
    """What the loader says of each path after these imports; empty where it loads, ``signal 6`` where that aborts."""
    listed = work / "files"
    listed.write_text("\n".join(paths), errors="surrogateescape")
    done = subprocess.run(
        [venv / "bin" / "python", "-c", _OPENS, listed, *imported],
        env={**os.environ, "LD_LIBRARY_PATH": str(driver), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"import of {', '.join(imported)}: {done.stderr[-2000:]}"
    return dict(json.loads(line[1:]) for line in done.stdout.splitlines() if line.startswith("@"))


def _ours(file: NativeFile) -> list[str]:
    """What is missing, by the names that the loader would use."""
    names = [missing.soname for missing in file.missing_libraries]
    names += [missing.version for missing in file.missing_versions]
    return names + [missing.name for missing in file.missing_symbols]


def _same(file: NativeFile, answer: str) -> bool:
    if answer == f"signal {int(signal.SIGBUS)}":  # pages that a truncated file does not have
        return not file.resolves
    if answer.startswith("signal"):  # the loader was content, and then the library's own code gave up
        return file.resolves
    if file.resolves or not answer:
        return file.resolves == (answer == "")
    return bool(file.unreadable) or any(name in answer for name in _ours(file))
