"""What dists bring for GPUs beside the native files that a process loads: static archives, fatbins, PTX as text, and
CUDA sources that are compiled at the first use.

Dists are known by their RECORD; where there is none (a plain folder), the folder itself is searched. Sources alone do
not mean that they are compiled at run time: headers are for those who build. A dist counts as such a builder when its
own Python code, or a native file of it, names a compiler or a build helper of `knowledge/kernel_builders.yml`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from crossgrade.inspect.device_code import read_device_file
from crossgrade.inspect.elf import FileSource, UnreadableElfError
from crossgrade.inspect.environment import recorded_files
from crossgrade.inspect.gpu_architecture import DeviceCode, DeviceImage
from crossgrade.knowledge import table

_KINDS = {".a": "archive", ".fatbin": "fatbin", ".ptx": "ptx"}
_SOURCES = (".cu", ".cuh", ".cu.jinja", ".cuh.jinja")
_NAMED = re.compile(rb"(?:sm|compute)_(\d{2,3}[af]?)\b")
_VERSION = re.compile(rb"^\s*\.version\s+(\d{1,2})\.(\d{1,2})", re.MULTILINE)
_TARGET = re.compile(rb"^\s*\.target\s+sm_(\d{2,4})([af]?)", re.MULTILINE)
# The directives stand at the top of PTX, below comments; code that builds stands in small files; deep_gemm's
# extension, which runs nvcc itself, has 5 MB.
_PTX_HEAD, _MAX_PYTHON, _MAX_NATIVE = 1 << 16, 1 << 18, 16 << 20


@dataclass(frozen=True)
class DeviceFile:
    """A file with device code that no process loads by itself; ``kind`` is ``archive``, ``fatbin`` or ``ptx``.

    ``path`` is relative to the root, or absolute where it lies outside. ``unreadable`` says why it could not be read.
    """

    path: str
    kind: str
    dist: str
    code: DeviceCode | None
    unreadable: str = ""


@dataclass(frozen=True)
class KernelSources:
    """A dist that compiles CUDA sources of its own while it runs.

    ``files`` counts them, ``builders`` are the means by which it does, such as ``nvcc``, ``architectures`` are the
    names (``120f``) that the code which builds them mentions, in order.
    """

    dist: str
    files: int
    builders: tuple[str, ...]
    architectures: tuple[str, ...]


@dataclass(frozen=True)
class DevicePackages:
    """``compilers`` lists the nvcc programs inside of the environment, as paths relative to its root."""

    files: tuple[DeviceFile, ...] = ()
    sources: tuple[KernelSources, ...] = ()
    compilers: tuple[str, ...] = ()


def device_packages(root: str, site_packages: str | None) -> DevicePackages:
    """Look below ``root``; ``site_packages`` is where the dists are, None where there are none."""
    files: list[DeviceFile] = []
    sources: list[KernelSources] = []
    compilers: list[str] = []
    for dist, names in _listed(root, site_packages):
        chosen = [name for name in names if name.endswith(_SOURCES)]
        if chosen and dist and (found := _builder(dist, len(chosen), names)) is not None:
            sources.append(found)
        for path in names:
            kind = _KINDS.get(os.path.splitext(path)[1])  # noqa: PTH122  # strings, in bulk
            if kind and (file := _file(root, path, kind, dist)) is not None:
                files.append(file)
            elif path.endswith("/bin/nvcc"):
                compilers.append(_relative(root, path))
    return DevicePackages(tuple(files), tuple(sources), tuple(compilers))


def _listed(root: str, site_packages: str | None) -> Iterator[tuple[str, list[str]]]:
    """Each dist with its files, as absolute paths; a folder without dists as one without a name."""
    if site_packages is None:
        found = []
        for place, folders, names in os.walk(root):
            folders.sort()
            found += [f"{place}/{name}" for name in sorted(names)]
        yield "", found
        return
    for dist, files in recorded_files(Path(site_packages)):
        yield str(dist), files


def _file(root: str, path: str, kind: str, dist: str) -> DeviceFile | None:
    name = _relative(root, path)
    try:
        with FileSource(path) as source:
            code = _ptx(source.read(0, min(source.size, _PTX_HEAD))) if kind == "ptx" else read_device_file(source)
    except UnreadableElfError as error:
        return DeviceFile(name, kind, dist, None, error.reason)
    return DeviceFile(name, kind, dist, code) if code is not None else None


def _ptx(text: bytes) -> DeviceCode | None:
    """What PTX as text says of itself; None for a file that is something else."""
    version, target = _VERSION.search(text), _TARGET.search(text)
    if version is None or target is None:
        return None
    number, variant = int(target[1]), target[2].decode()
    written = f"{int(version[1])}.{int(version[2])}"
    image = DeviceImage(f"compute_{number}{variant}", "ptx", number, variant, "", written, 1, len(text))
    return DeviceCode((image,), (((image.name,), 1),))


def _builder(dist: str, count: int, names: Sequence[str]) -> KernelSources | None:
    rows = table("kernel_builders")
    if any(_defines(names, row) for row in rows):
        return None
    markers = {str(row["marker"]).encode(): str(row["builder"]) for row in rows}
    found: dict[str, None] = {}
    named: dict[str, None] = {}
    python = [name for name in names if name.endswith(".py")]
    for path in python:
        _note(path, _MAX_PYTHON, markers, found, named)
    if not found:
        for path in (name for name in names if name.endswith(".so")):
            _note(path, _MAX_NATIVE, markers, found, {})
    if not found:
        return None
    order = sorted(named, key=lambda text: (int(text.rstrip("af")), text))
    return KernelSources(dist, count, tuple(found), tuple(order))


def _defines(names: Iterable[str], row: Mapping[str, object]) -> bool:
    """Whether a dist brings the build helper itself: it is not one that uses it."""
    helper = row.get("defined_in")
    return isinstance(helper, str) and any(name.endswith(f"/{helper}") for name in names)


def _note(path: str, limit: int, markers: Mapping[bytes, str], found: dict[str, None], named: dict[str, None]) -> None:
    """Look into one file; what cannot be read names nothing."""
    try:
        with FileSource(path) as source:
            text = source.read(0, source.size) if source.size <= limit else b""
    except UnreadableElfError:
        return
    here = [builder for marker, builder in markers.items() if marker in text]
    if here:
        found.update(dict.fromkeys(here))
        named.update(dict.fromkeys(match.decode() for match in _NAMED.findall(text)))


def _relative(root: str, path: str) -> str:
    return path.removeprefix(f"{root}/")
