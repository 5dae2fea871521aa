"""A small real project in C, built with CMake and ninja, whose wheel says what its build was told; and git for it."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

PYPROJECT = """\
[build-system]
requires = ["setuptools>=61", "ninja"]  # "torch" it does without
build-backend = "backend"
backend-path = ["."]
[project]
name = "small-kernels"
version = "@VERSION@"
"""
# A whole build back end: configures and builds with CMake and ninja, and packs the library and what it was told.
BACKEND = """\
import os, pathlib, subprocess, zipfile

VERSION = "@VERSION@"


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    subprocess.run(["cmake", "-G", "Ninja", "-B", "build", *os.environ.get("CMAKE_ARGS", "").split()], check=True)
    subprocess.run(["cmake", "--build", "build", "-v"], check=True)
    name = f"small_kernels-{VERSION}-py3-none-linux_x86_64.whl"
    info = f"small_kernels-{VERSION}.dist-info"
    with zipfile.ZipFile(pathlib.Path(wheel_directory, name), "w") as wheel:
        wheel.write("build/libsmall.so", "small_kernels/libsmall.so")
        wheel.writestr("small_kernels/__init__.py", f"TOLD = {dict(os.environ)!r}\\n")
        said = f"Metadata-Version: 2.1\\nName: small-kernels\\nVersion: {VERSION}\\n@NEEDS@"
        wheel.writestr(f"{info}/METADATA", said)
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: false\\nTag: py3-none-linux_x86_64\\n")
        wheel.writestr(f"{info}/RECORD", "")
    return name
"""
CMAKE = """\
cmake_minimum_required(VERSION 3.20)
project(small C)
add_library(small SHARED one.c two.c three.c)
"""


def write_project(place: Path, *, version: str = "1.0", cmake: str = CMAKE, needs: str = "") -> Path:
    """`needs` is one more line of METADATA: `Requires-Dist: torch==2.9.1`."""
    place.mkdir(parents=True, exist_ok=True)
    for name, text in (("pyproject.toml", PYPROJECT), ("backend.py", BACKEND), ("CMakeLists.txt", cmake)):
        filled = text.replace("@VERSION@", version).replace("@NEEDS@", f"{needs}\\n" if needs else "")
        (place / name).write_text(filled)
    for number, name in enumerate(("one", "two", "three"), 1):
        (place / f"{name}.c").write_text(f"int {name}(void) {{ return {number}; }}\n")
    return place


def git(folder: Path, *arguments: str) -> str:
    """Run git there, as nobody in particular; returns what it printed."""
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    identity = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.invalid", "-c", "protocol.file.allow=always")
    command = ["git", "-C", str(folder), *identity, *arguments]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return answer.stdout.strip()


def commit_all(folder: Path, message: str = "work") -> str:
    """The new commit; makes a repository of the folder where it is none."""
    if not (folder / ".git").exists():
        git(folder, "init", "--quiet", "--initial-branch=main")
    git(folder, "add", "-A")
    git(folder, "commit", "--quiet", "-m", message)
    return git(folder, "rev-parse", "HEAD")


def told(wheel_folder: str | Path) -> dict[str, str]:
    """The variables that the build of the wheel in a folder of the store saw."""
    wheel = next(Path(wheel_folder).glob("*.whl"))
    names: dict[str, Any] = {}
    with zipfile.ZipFile(wheel) as archive:
        exec(archive.read("small_kernels/__init__.py").decode(), names)  # noqa: S102 - what the test's own build wrote
    return dict(names["TOLD"])


def call(wheel_folder: str | Path, function: str, place: Path) -> int:
    """What a function of the library in the wheel returns."""
    with zipfile.ZipFile(next(Path(wheel_folder).glob("*.whl"))) as archive:
        library = archive.extract("small_kernels/libsmall.so", place)
    code = f"import ctypes; print(ctypes.CDLL({library!r}).{function}())"
    return int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
