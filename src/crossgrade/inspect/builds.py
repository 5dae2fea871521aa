"""What native modules were compiled against, as far as their bytes tell: numpy, torch, the limited API of Python.

One pass over the ``.so`` files that RECORDs list. Names with a number behind (``libcublas.so.12``) are libraries that
belong to no Python, and are left out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from crossgrade.inspect.dists import InstalledDist, site_packages
from crossgrade.inspect.elf import FileSource, UnreadableElfError, parse_elf
from crossgrade.inspect.elf_index import ElfIndex
from crossgrade.inspect.elf_lookup import defines
from crossgrade.inspect.elf_symbols import scan_symbols
from crossgrade.inspect.installed_files import Recorded
from crossgrade.inspect.limited_api import Beyond, beyond_limited_api, promised
from crossgrade.inspect.numpy_api import NumpyApi, numpy_api
from crossgrade.inspect.python_abi import Interpreter, extension_problem, extension_tag
from crossgrade.inspect.wheel_fit import wheel_tags

# Names in the namespaces c10, at and torch, and of torch's stable C interface.
_OF_TORCH = re.compile(rb"_Z(?:N[KVRO]*|T[ISV]N?)(?:3c10|2at|5torch)|(?:aoti_)?torch_")
# One build for each torch side by side: libtorch_c_dlpack_addon_torch29-cuda.so
_VARIANT = re.compile(r"torch_?(\d)[._]?(\d{1,4})")
_TORCH_LIBRARIES = ("libtorch.so", "libtorch_", "libc10.so", "libc10_")


@dataclass(frozen=True)
class Build:
    """One native file of a dist that uses numpy's C-API or torch's C++ API, or that breaks its promise of abi3.

    ``path`` is relative to site-packages. ``module`` tells Python modules from libraries. ``lacks`` are the names of
    torch that the file needs and the installed torch does not define (in order), ``beyond`` those that are not in
    the stable ABI of ``promised``, the oldest Python that its wheel is for.
    """

    dist: InstalledDist
    path: str
    module: bool
    numpy: NumpyApi | None = None
    uses_torch: bool = False
    lacks: tuple[str, ...] = ()
    promised: tuple[int, int] | None = None
    beyond: tuple[Beyond, ...] = ()


def read_builds(venv: Path, records: Sequence[Recorded], interpreter: Interpreter) -> tuple[Build, ...]:
    """The native files that tell what they were compiled against, in order of dist and path.

    What cannot be read as ELF is left out here, for `inspect_native` names it, and so are modules for another Python,
    which this one never loads. 600 files with 90 MB of read-only data take some 0.35 s. Raises
    UnreadableEnvironmentError for what is no environment.
    """
    site = str(site_packages(venv))
    found: list[Build] = []
    wants: dict[str, frozenset[bytes]] = {}
    for recorded in records:
        paths = [path for path in recorded.files if path.endswith(".so") and not extension_problem(path, interpreter)]
        oldest = promised(wheel_tags(recorded.dist)) if any(".abi3" in path for path in paths) else None
        for path in paths:
            try:
                build, wanted = _read(f"{site}/{path}", recorded.dist, path, oldest or interpreter.version)
            except (UnreadableElfError, OSError):
                continue
            if wanted:
                wants[path] = wanted
            if build.numpy or build.uses_torch or build.beyond:
                found.append(build)
    lacks = _lacks_of_torch(site, found, wants)
    return tuple(replace(build, lacks=lacks.get(build.path, ())) for build in found)


def _read(place: str, dist: InstalledDist, path: str, oldest: tuple[int, int]) -> tuple[Build, frozenset[bytes]]:
    """The file, and the names of torch that it wants from others."""
    with FileSource(place) as source:
        elf = parse_elf(source)
        if not elf.is_dynamic or elf.bits != 64:
            return Build(dist, path, False), frozenset()
        name = path.rpartition("/")[2]
        limited = ".abi3" in name
        uses_torch = dist.name != "torch" and any(each.startswith(_TORCH_LIBRARIES) for each in elf.needed)
        module = bool(extension_tag(name)) or not name.startswith("lib")
        build = Build(dist, path, module, numpy_api(source, elf), uses_torch)
        if not limited and not uses_torch:
            return build, frozenset()
        undefined, _ = scan_symbols(source, elf)
    if limited:
        names = (os.fsdecode(each) for each in undefined.plain)
        build = replace(build, promised=oldest, beyond=beyond_limited_api(names, oldest))
    wanted = frozenset(each for each in undefined.plain if _OF_TORCH.match(each)) if uses_torch else frozenset()
    return build, wanted


def _lacks_of_torch(
    site: str, builds: Iterable[Build], wants: dict[str, frozenset[bytes]]
) -> dict[str, tuple[str, ...]]:
    """For each path: the names that neither torch nor another file of the same dist defines, and that are used."""
    libraries = sorted(Path(site, "torch", "lib").glob("lib*.so"))
    if not wants or not libraries:
        return {}
    unknown = frozenset[bytes]().union(*wants.values())
    for library in libraries:
        if not library.name.startswith(_TORCH_LIBRARIES):
            continue
        try:
            with FileSource(library) as source:
                unknown -= defines(source, parse_elf(source), unknown)
        except (UnreadableElfError, OSError):
            return {}  # a torch that cannot be read is named elsewhere, and says nothing about the others
    if not unknown:
        return {}
    try:
        return _used_of(site, list(builds), wants, unknown)
    except UnreadableElfError:
        return {}  # a file that was whole a moment ago: something is being installed


def _used_of(
    site: str, builds: Sequence[Build], wants: Mapping[str, frozenset[bytes]], unknown: frozenset[bytes]
) -> dict[str, tuple[str, ...]]:
    """For each path the names among ``unknown`` that no sibling defines, and that a relocation refers to."""
    index = ElfIndex()
    found: dict[str, tuple[str, ...]] = {}
    for build in builds:
        lacking = wants.get(build.path, frozenset()) & unknown
        for other in builds if lacking else ():
            if other.dist == build.dist and other.uses_torch:
                lacking -= index.defined(f"{site}/{other.path}").plain
        if lacking and (used := index.referenced(f"{site}/{build.path}", lacking)):
            found[build.path] = tuple(sorted(map(os.fsdecode, used)))
    return found


def made_for(path: str) -> str:
    """The torch that the name of a file is about: ``2.9`` for ``…_torch29-cuda.so``; empty where it is about none."""
    match = _VARIANT.search(path.rpartition("/")[2])
    return f"{match[1]}.{match[2]}" if match else ""
