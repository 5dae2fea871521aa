"""Small real ELF files for tests, made by gcc, and what the loader itself says about them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from crossgrade.inspect.native import NativeFile, NativeReport, inspect_native

PYTHON = Path(os.path.realpath(sys.executable))

_OPEN = "import ctypes, sys\nctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_LOCAL | 2)\n"  # 2: RTLD_NOW
_OPEN_AFTER = (
    "import ctypes, sys\n"
    "for path in sys.argv[2:]:\n"
    "    ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL | 2)\n"
    "ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_LOCAL | 2)\n"
)


@dataclass(frozen=True)
class Opened:
    """What dlopen said: whether the file loads, and the loader's message where it does not."""

    loads: bool
    message: str


def have_gcc() -> bool:
    """Whether gcc can be run."""
    return shutil.which("gcc") is not None


def build(
    target: Path,
    code: str = "",
    *,
    libraries: Sequence[Path] = (),
    options: Sequence[str] = (),
    version_script: str = "",
    compiler: str = "gcc",
) -> Path:
    """Compile C ``code`` (C++ with g++) to a shared object, linked against ``libraries``; gives ``target``."""
    target.parent.mkdir(parents=True, exist_ok=True)
    source = target.with_name(target.name + (".cpp" if compiler == "g++" else ".c"))
    source.write_text(code or "int nothing_much;\n")
    command = [compiler, "-shared", "-fPIC", "-O0", "-Wl,--no-as-needed", "-o", str(target), str(source)]
    if version_script:
        script = target.with_name(target.name + ".map")
        script.write_text(version_script)
        command.append(f"-Wl,--version-script={script}")
    command += [*options, *map(str, libraries)]
    subprocess.run(command, check=True, capture_output=True)
    source.unlink()
    return target


def build_program(target: Path, code: str, *, libraries: Sequence[Path] = (), options: Sequence[str] = ()) -> Path:
    """Compile C ``code`` to a program; gives ``target``."""
    target.parent.mkdir(parents=True, exist_ok=True)
    source = target.with_name(target.name + ".c")
    source.write_text(code)
    command = [
        "gcc",
        "-O0",
        "-Wl,--no-as-needed",
        "-o",
        str(target),
        str(source),
        *options,
        *map(str, libraries),
    ]
    subprocess.run(command, check=True, capture_output=True)
    source.unlink()
    return target


def dlopen(
    path: Path,
    *,
    after: Sequence[Path] = (),
    library_path: Sequence[Path] = (),
    python: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Opened:
    """Load a file with RTLD_NOW in a new Python process, after the files in ``after`` (RTLD_GLOBAL)."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("LD_")}
    if library_path:
        variables["LD_LIBRARY_PATH"] = ":".join(map(str, library_path))
    variables |= environment or {}
    arguments = [
        str(python or sys.executable),
        "-c",
        _OPEN_AFTER if after else _OPEN,
        str(path),
        *map(str, after),
    ]
    answer = subprocess.run(arguments, env=variables, capture_output=True, text=True, check=False)
    last = answer.stderr.strip().splitlines()[-1:] or [""]
    return Opened(answer.returncode == 0, last[0])


def report_of(root: Path, *, library_path: Sequence[Path] = (), preload: Sequence[str] = ()) -> NativeReport:
    return inspect_native(root, interpreter=PYTHON, library_path=library_path, preload=preload)


def file_of(report: NativeReport, path: Path) -> NativeFile:
    name = str(path.relative_to(report.root))
    return next(file for file in report.files if file.path == name)


def agree(
    root: Path, path: Path, *, library_path: Sequence[Path] = (), preload: Sequence[Path] = ()
) -> tuple[NativeFile, Opened]:
    """What the inspector says of ``path`` and what dlopen says; both must say the same on loads or not."""
    names = [str(item.relative_to(root)) for item in preload]
    found = file_of(report_of(root, library_path=library_path, preload=names), path)
    opened = dlopen(path, after=preload, library_path=library_path)
    assert found.resolves == opened.loads, (found, opened)
    return found, opened
