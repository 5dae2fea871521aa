"""What lies directly in site-packages and belongs to no dist: halves of installations, .pth files, a dist twice.

Only names are read, and the few lines of .pth files; nothing is imported.

Sources: pip's `AdjacentTempDirectory` (pip/_internal/utils/temp_dir.py: a package that is being uninstalled is renamed
to ``~`` and the rest of its name, put back or removed afterwards; earlier releases of pip wrote ``-``), which is why a
folder ``~orch`` and a ``~orch-2.9.1.dist-info`` are left where pip was killed; the documentation of `site` (.pth files:
a line is a path, a comment, or code that begins with ``import`` and runs at each start of Python); setuptools' develop
mode (.egg-link: its first line is the folder that is used in place).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from crossgrade.inspect.dists import InstalledDist
from crossgrade.inspect.installed_files import Recorded
from crossgrade.inspect.reading import read_regular
from crossgrade.knowledge import table

_PTH_BYTES = 1 << 20
_HALF_UNINSTALLED = ("~", "-")


@dataclass(frozen=True)
class PathFile:
    """A .pth file. `owner` is the dist whose RECORD lists it, None where none does; `folders` are what it adds.

    Each of `folders` is absolute; `gone` are those of them that are not there. `code` are its lines that run at each
    start. `problem` says why it could not be read.
    """

    name: str
    owner: InstalledDist | None
    folders: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    code: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True)
class Leftovers:
    """What was found. `half_uninstalled` are names of folders and files, `without_metadata` are .dist-info folders
    that are no dist, by neither their name nor a METADATA.

    `twice` are dists of one name, in order; `path_files` are all .pth files but those that are known to be whole by
    themselves (`knowledge/path_files.yml`); `linked` maps the name of an .egg-link to the folder that it names.
    """

    half_uninstalled: tuple[str, ...] = ()
    without_metadata: tuple[str, ...] = ()
    twice: tuple[tuple[InstalledDist, ...], ...] = ()
    path_files: tuple[PathFile, ...] = ()
    linked: tuple[tuple[str, str], ...] = ()


def read_leftovers(site: Path, records: Sequence[Recorded]) -> Leftovers:
    """Look through site-packages itself, not below it. Raises OSError where it cannot be listed."""
    with os.scandir(site) as entries:
        names = sorted(entry.name for entry in entries)
    dists = [recorded.dist for recorded in records]
    known = {dist.folder.name for dist in dists}
    count = Counter(dist.name for dist in dists)
    return Leftovers(
        half_uninstalled=tuple(name for name in names if name.startswith(_HALF_UNINSTALLED)),
        without_metadata=tuple(
            name
            for name in names
            if name.endswith(".dist-info") and not name.startswith(_HALF_UNINSTALLED) and name not in known
        ),
        twice=tuple(tuple(dist for dist in dists if dist.name == name) for name in sorted(count) if count[name] > 1),
        path_files=tuple(_path_files(site, names, records)),
        linked=tuple(
            (name.removesuffix(".egg-link"), _first_line(site / name)) for name in names if name.endswith(".egg-link")
        ),
    )


def _path_files(site: Path, names: Iterable[str], records: Sequence[Recorded]) -> Iterable[PathFile]:
    owners = {path: recorded.dist for recorded in records for path in recorded.files if path.endswith(".pth")}
    whole = {str(row["name"]) for row in table("path_files")}
    for name in names:
        if not name.endswith(".pth") or name in whole or name.startswith("."):  # Python skips hidden ones, too
            continue
        try:
            text = read_regular(site / name, _PTH_BYTES).decode("utf-8", "replace")
        except OSError as error:
            yield PathFile(name, owners.get(name), problem=f"cannot be read ({error.strerror})")
            continue
        lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
        code = tuple(line for line in lines if line.startswith(("import ", "import\t")))
        folders = tuple(os.path.normpath(site / line) for line in lines if line not in code)
        gone = tuple(folder for folder in folders if not os.path.exists(folder))  # noqa: PTH110  # a string
        yield PathFile(name, owners.get(name), folders, gone, code)


def _first_line(path: Path) -> str:
    try:
        text = read_regular(path, _PTH_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
    return text.splitlines()[0].strip() if text.strip() else ""
