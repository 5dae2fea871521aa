"""Archives of generations: what is in one, in which order. `archive_writing` writes them, `archive_reading` reads them.

A `.tar.zst` file whose members are, in this order:

    crossgrade.json              the record below
    manifest.jsonl               the manifest of the venv, as the store keeps it
    extras/lock.txt, extras/verdicts/*.json    where the generation has them
    venv/...                     every entry of the manifest, in order of path
    toolkits/DIGEST.jsonl        the manifest of a toolkit that the generation names
    toolkits/DIGEST/...          its entries

The manifests come first, so that whoever unpacks knows what must follow: a member that no manifest lists is refused
before a byte of it is written. JIT caches are left out: they are made again, and belong to one machine.
"""

from __future__ import annotations

import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from crossgrade.errors import StoreError
from crossgrade.store.generation import Generation
from crossgrade.store.layout import Store
from crossgrade.store.manifest import Entry, Manifest

SCHEMA = 1
RECORD = "crossgrade.json"
MANIFEST = "manifest.jsonl"
EXTRAS = "extras/"
VENV = "venv"
TOOLKITS = "toolkits"
SUFFIX = ".tar.zst"
# Some 900,000 entries, ten times a large environment. Whoever reads one holds all of it in memory.
MANIFEST_BYTES = 1 << 28
_MOST_PLACES = 64
_NOBODY = (1 << 32) - 1  # for chown(2): leave it as it is
_FOREVER = 1 << 62  # nanoseconds: some 146 years before and after 1970
LEVELS = range(1, 20)  # zstd's own, but for those that need --ultra


class ArchiveError(StoreError):
    """An archive is torn, was changed, or is not one of ours. Nothing of it was kept."""


@dataclass(frozen=True)
class Record:
    """What an archive says of itself. `store` and `places` are paths that its files may name.

    `created` is UTC, RFC 3339.
    """

    generation: Generation
    manifest: str
    toolkits: tuple[str, ...]
    store: str
    places: tuple[str, ...]
    host: str
    created: str
    version: str

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **asdict(self), "generation": self.generation.to_json()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Record:
        """Raises ArchiveError when it is not one of ours, or of a later schema."""
        try:
            if value["schema"] != SCHEMA:
                raise ArchiveError(
                    f"the archive has schema {value['schema']!r}, this crossgrade knows schema {SCHEMA}",
                    remedy="Use the crossgrade version that wrote it.",
                )
            generation = Generation.from_json(value["generation"])
            if len(value["places"]) > _MOST_PLACES or len(value["toolkits"]) > _MOST_PLACES:
                raise ArchiveError("the record in the archive is damaged: it names more places than there can be")
            strange = [place for place in value["places"] if not _is_place(str(place))]
            if strange:
                raise ArchiveError(
                    f"the record in the archive is damaged: {strange[0]!r} is no place of an environment"
                )
            return cls(
                generation,
                str(value["manifest"]),
                tuple(str(digest) for digest in value["toolkits"]),
                str(value["store"]),
                tuple(str(place) for place in value["places"]),
                str(value["host"]),
                str(value["created"]),
                str(value["version"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ArchiveError(f"the record in the archive is damaged: {error!r}") from error


def _is_place(path: str) -> bool:
    """Whether files of an environment may name it as theirs: `/` and `/usr` are too much to be replaced by another."""
    return path.startswith("/") and len(path.strip("/").split("/")) > 1 and ".." not in path.split("/")


def check_entries(manifest: Manifest, where: str) -> None:
    """Refuse a manifest whose entries could lead outside, or be more than files, directories and links.

    Every entry must lie in a directory that the manifest lists: so nothing is ever written through a link.
    Raises ArchiveError.
    """
    for path, entry in manifest.entries.items():
        problem = _problem(path, entry, manifest.entries)
        if problem:
            raise ArchiveError(f"{where}: {path!r} {problem}")


def _problem(path: str, entry: Entry, entries: Mapping[str, Entry]) -> str:
    numbers = (entry.mode, entry.uid, entry.gid, entry.size, entry.mtime_ns)
    if not all(isinstance(each, str) for each in (path, entry.path, entry.type, entry.digest, entry.target)):
        return "is not described as a manifest describes it"
    if not all(isinstance(each, int) for each in numbers) or entry.path != path:
        return "is not described as a manifest describes it"
    if (
        not 0 <= entry.mode <= 0o7777
        or min(entry.uid, entry.gid, entry.size) < 0
        or max(entry.uid, entry.gid) >= _NOBODY
        or not -_FOREVER < entry.mtime_ns < _FOREVER
    ):
        return "has a mode, an owner, a size or a time that nothing has"
    parts = path.split("/")
    if not path or path.startswith("/") or "\0" in path or any(part in ("", ".", "..") for part in parts):
        return "leads outside the environment"
    parent = "/".join(parts[:-1])
    if parent and (parent not in entries or entries[parent].type != "directory"):
        return "does not lie in a directory of the environment"
    if entry.type == "other":
        return "is neither a file, a directory nor a link"
    if entry.type == "file" and entry.mode & (stat.S_ISUID | stat.S_ISGID):
        return "would run as another user (setuid or setgid)"
    if entry.type == "link" and not entry.target:
        return "is a link to nowhere"
    return ""


def check_venv(manifest: Manifest) -> None:
    """Raises ArchiveError for what holds no venv: it could be activated, and nothing would run from it."""
    for path in ("pyvenv.cfg", "bin/python"):
        if path not in manifest.entries:
            raise ArchiveError(f"there is no venv in the archive: it has no {path}")


def check_folder(store: Store, folder: Path) -> None:
    """Refuse a folder for archives inside what they are a backup of. Raises StoreError."""
    real = folder.resolve()
    inside = [store.root.resolve(), *([store.active_link.resolve()] if store.active_link else [])]
    for place in inside:
        if real.is_relative_to(place):
            raise StoreError(
                f"{folder} lies inside {place}, of which the archive is to be a backup",
                remedy="Name a directory elsewhere, best on another disk.",
            )


def archive_name(store: Store, generation: Generation) -> str:
    """The name of a generation's archive: it says which environment, which number, and which content."""
    link = store.active_link
    name = link.name if link else "environment"
    return f"{name}-generation-{generation.number}-{generation.manifest[:12]}{SUFFIX}"


def part_of(target: Path) -> Path:
    """Where an archive is written until it is whole."""
    return target.with_name(f".{target.name}.part")
