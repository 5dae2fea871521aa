"""The dists that are installed in a virtual environment, read from its files; its Python is never started.

Which Python an environment runs is `crossgrade.inspect.python_abi.find_interpreter`'s to say.

Sources: the PyPA specifications "Recording installed projects" (RECORD, INSTALLER), "Direct URL data
structure" (direct_url.json), "Names and normalization", and "Binary distribution format" (names of .dist-info
directories).
"""

from __future__ import annotations

import base64
import csv
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from crossgrade.errors import CrossgradeError
from crossgrade.inspect.reading import read_regular

# What today's installers write; names of directories that do not look so are looked up in METADATA.
_FOLDER = re.compile(r"([A-Za-z0-9][A-Za-z0-9._]*)-(v?\d[A-Za-z0-9.!+_]*)\.dist-info$")
_HEADER = re.compile(r"^(Name|Version):(.*)$", re.MULTILINE)
METADATA_BYTES = 1 << 20


class UnreadableEnvironmentError(CrossgradeError, ValueError):
    """The directory is no virtual environment, or a part of it is missing or damaged."""


@dataclass(frozen=True)
class InstalledDist:
    """One installed dist. `name` is normalized (``sgl-kernel``), `folder` its .dist-info directory."""

    name: str
    version: str
    folder: Path

    @property
    def record(self) -> Path:
        """Where the list of its files stands; an editable or damaged dist may lack it."""
        return self.folder / "RECORD"

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


@dataclass(frozen=True)
class RecordEntry:
    """One line of a RECORD: `path` as written, relative to site-packages; `size` in bytes.

    `algorithm` and `digest` (URL-safe base64 without padding) are empty, and `size` is None, where the line
    states none, as for RECORD itself and for compiled Python files.
    """

    path: str
    algorithm: str
    digest: str
    size: int | None

    @property
    def hex_digest(self) -> str:
        """The digest as sha256sum prints it; empty where there is none or it is no base64."""
        try:
            return base64.urlsafe_b64decode(self.digest + "=" * (-len(self.digest) % 4)).hex()
        except ValueError:
            return ""


@dataclass(frozen=True)
class DirectUrl:
    """Where a dist came from when it was not an index. `editable` is true for a checkout used in place."""

    url: str
    editable: bool = False
    revision: str = ""

    @property
    def directory(self) -> Path | None:
        """The local directory that a ``file:`` URL names."""
        from urllib.parse import unquote, urlsplit

        parts = urlsplit(self.url)
        return Path(unquote(parts.path)) if parts.scheme == "file" else None


def normalize_name(name: str) -> str:
    """The normalized form of a dist's name: ``SGL_Kernel`` → ``sgl-kernel``."""
    return re.sub(r"[-_.]+", "-", name).lower()


def site_packages(venv: Path) -> Path:
    """The directory of a virtual environment that packages are installed to.

    Raises UnreadableEnvironmentError where there is none.
    """
    found = sorted(path for path in venv.glob("lib/python3*/site-packages") if path.is_dir())
    if len(found) > 1:
        from crossgrade.inspect.python_abi import find_interpreter

        # Left over from an upgrade of Python in place; pyvenv.cfg tells which one counts.
        interpreter = find_interpreter(venv)
        if interpreter is not None and Path(interpreter.site_packages) in found:
            return Path(interpreter.site_packages)
    if not found:
        raise UnreadableEnvironmentError(
            f"{venv} has no lib/python3.*/site-packages, so it is not a virtual environment",
            remedy="Name the directory that `python -m venv` or `uv venv` made (it holds pyvenv.cfg).",
        )
    return found[-1]


def installed_dists(venv: Path) -> tuple[InstalledDist, ...]:
    """All dists of a virtual environment, in order of name.

    A name may come twice where an installer was interrupted. Only the names of directories are read, unless
    one of them is not in the standard form. Raises UnreadableEnvironmentError for what is no environment.
    """
    directory = site_packages(venv)
    with os.scandir(directory) as entries:
        folders = [entry.name for entry in entries if entry.name.endswith(".dist-info") and entry.is_dir()]
    found = [dist for name in folders if (dist := _dist(directory / name)) is not None]
    return tuple(sorted(found, key=lambda dist: (dist.name, dist.version, dist.folder)))


def installer(dist: InstalledDist) -> str:
    """The program that installed the dist (``pip``, ``uv``, ``conda``); empty where that is not recorded."""
    text = _text(dist.folder / "INSTALLER").strip()
    return text.splitlines()[0] if text else ""


def direct_url(dist: InstalledDist) -> DirectUrl | None:
    """Where the dist came from; None for a package index and for what cannot be read."""
    try:
        document = json.loads(_text(dist.folder / "direct_url.json") or "null")
    except ValueError:
        return None
    if not isinstance(document, dict) or not isinstance(document.get("url"), str):
        return None
    directory, version_control = document.get("dir_info"), document.get("vcs_info")
    revision = version_control.get("commit_id", "") if isinstance(version_control, Mapping) else ""
    editable = isinstance(directory, Mapping) and directory.get("editable") is True
    return DirectUrl(document["url"], editable, revision if isinstance(revision, str) else "")


def record_entries(dist: InstalledDist) -> tuple[RecordEntry, ...]:
    """The lines of the dist's RECORD in order.

    Raises UnreadableEnvironmentError where RECORD is missing or damaged.
    """
    try:
        with dist.record.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
            return tuple(_entry(row) for row in csv.reader(file) if row)
    except OSError as error:
        reason = f"cannot be read ({error.strerror})"
    except (csv.Error, ValueError) as error:
        reason = f"is damaged ({error})"
    raise UnreadableEnvironmentError(f"{dist}: {dist.record} {reason}", remedy=f"Install {dist} again.")


def _entry(row: list[str]) -> RecordEntry:
    if len(row) != 3:
        raise ValueError(f"a line has {len(row)} fields where 3 belong: {row[0][:80]}")
    path, digest, size = row
    algorithm, _, value = digest.partition("=")
    return RecordEntry(path, algorithm, value, int(size) if size else None)


def _dist(folder: Path) -> InstalledDist | None:
    """None for a directory that is no dist: it has neither a name that says so nor a METADATA file."""
    if match := _FOLDER.match(folder.name):
        return InstalledDist(normalize_name(match[1]), match[2], folder)
    if folder.name.startswith(("~", "-")):  # what pip leaves of an uninstallation that was cut short
        return None
    headers = _text(folder / "METADATA").replace("\r\n", "\n").partition("\n\n")[0]
    stated = {name: value.strip(" \t") for name, value in _HEADER.findall(headers)}
    if not stated.get("Name") or not stated.get("Version"):
        return None
    return InstalledDist(normalize_name(stated["Name"]), stated["Version"], folder)


def _text(path: Path) -> str:
    try:
        return read_regular(path, METADATA_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
