"""The store on disk: where everything lies, and reading and writing its records.

    ROOT/store.json               schema, path of the active link
    ROOT/journal.db  ROOT/lock
    ROOT/generations/N/           generation.json  manifest.jsonl  venv/  caches/  verdicts/KEY.json  answers/KEY.json
                                  server_info.json
    ROOT/toolkits/DIGEST/         a CUDA toolkit, shared by generations; toolkit.json marks it complete
    ROOT/wheels/KEY/              a wheel that was built here; wheel.json marks it complete
    ROOT/build-environments/D/    a venv that builds run in, named by its lock; build-environment.json marks it complete
    ROOT/sources/KIND-DIGEST/     what was fetched to be built: a bare git repository, a source distribution
    ROOT/locks/DIGEST.json        resolved locks
    ROOT/downloads/               large files on their way here, as far as they have come
    ROOT/runs/ID/                 report.json, logs and samples of a run
    ROOT/launches.jsonl           figures of every launch that was measured (bench/history.py)
    ROOT/tmp/                     work in progress; emptied by recovery

A record is written after what it describes is complete and durable, so its presence is the proof.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from crossgrade.errors import StoreError
from crossgrade.gates.verdict import Verdict
from crossgrade.jsontype import JSON
from crossgrade.store.atomic import make_folder, sync_directory, write_json
from crossgrade.store.generation import Generation

SCHEMA = 1
# A server may run as another user than the one that upgrades: it must get through to its venv and toolkit, though
# it can list nothing on the way. What is private lies in files of mode 0600 and in folders of mode 0700.
_PASSABLE = 0o711
_FOLDERS = {
    "generations": _PASSABLE,
    "toolkits": _PASSABLE,
    "wheels": 0o700,
    "build-environments": 0o700,
    "sources": 0o700,
    "locks": 0o700,
    "runs": 0o700,
    "tmp": 0o700,
}


class Store:
    """Paths and records of one store. Making one touches nothing; `create` makes the folders."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def exists(self) -> bool:
        return (self.root / "store.json").is_file()

    @property
    def journal_path(self) -> Path:
        return self.root / "journal.db"

    @property
    def lock_path(self) -> Path:
        return self.root / "lock"

    @property
    def temporary(self) -> Path:
        return self.root / "tmp"

    def folder(self, number: int) -> Path:
        """The folder of generation `number`, there or not."""
        return self.root / "generations" / str(number)

    def venv(self, number: int) -> Path:
        """The venv of generation `number`: what the active link points at."""
        return self.folder(number) / "venv"

    def manifest_path(self, number: int) -> Path:
        return self.folder(number) / "manifest.jsonl"

    def toolkit(self, digest: str) -> Path:
        return self.root / "toolkits" / digest

    def wheel_folder(self, key: str) -> Path:
        return self.root / "wheels" / key

    def build_environment(self, digest: str) -> Path:
        return self.root / "build-environments" / digest

    @property
    def sources(self) -> Path:
        return self.root / "sources"

    def run_folder(self, run_id: str) -> Path:
        return self.root / "runs" / run_id

    def create(self) -> None:
        """Make the store's folders, as private as a server of another user allows. Harmless when they are there."""
        make_folder(self.root)
        self.root.chmod(_PASSABLE)
        for name, mode in _FOLDERS.items():
            make_folder(self.root / name)
            (self.root / name).chmod(mode)
        if not self.exists:
            link = self._lost_link()
            write_json(self.root / "store.json", {"schema": SCHEMA, "active_link": str(link) if link else None})
        else:
            self._record()

    def _lost_link(self) -> Path | None:
        """Where the active link is when only the store's own record is gone: the adopted generation knows."""
        for number in self.numbers():
            with suppress(StoreError):
                place = self.generation(number).contents.get("adopted_from")
                if place and Path(place).is_symlink() and self.number_at(Path(place)) is not None:
                    return Path(place)
        return None

    def _record(self) -> dict[str, Any]:
        record = read_record(self.root / "store.json")
        if record.get("schema") != SCHEMA:
            raise StoreError(
                f"the store {self.root} has schema {record.get('schema')}, this crossgrade knows schema {SCHEMA}",
                remedy="Use the crossgrade version that made it.",
            )
        return record

    # ---- the active link

    @property
    def active_link(self) -> Path | None:
        """The path that people use for the environment; None before anything was adopted."""
        if not self.exists:
            return None
        link = self._record().get("active_link")
        return Path(link) if link else None

    def set_active_link(self, link: Path) -> None:
        write_json(self.root / "store.json", {"schema": SCHEMA, "active_link": str(link)})

    def active(self) -> int | None:
        """The number of the generation that the active link leads to, read from the disk; None when it is not ours.

        Where it leads counts, not how that is written: a link may be relative, and the root be reached by another link.
        """
        link = self.active_link
        return None if link is None or not link.is_symlink() else self.number_at(link)

    def number_at(self, path: Path) -> int | None:
        """The number of the generation whose venv a path is in the end; None when it is none of ours."""
        real = Path(os.path.realpath(path))
        if real.name != "venv" or real.parent.parent != Path(os.path.realpath(self.root / "generations")):
            return None
        return int(real.parent.name) if is_number(real.parent.name) else None

    # ---- generations

    def numbers(self) -> list[int]:
        """The numbers of all generations that have a record, in order; the record may be damaged."""
        folder = self.root / "generations"
        if not folder.is_dir():
            return []
        numbers = sorted(int(entry.name) for entry in os.scandir(folder) if is_number(entry.name))
        return [number for number in numbers if (self.folder(number) / "generation.json").exists()]

    def generations(self) -> list[Generation]:
        """All recorded generations in order of number. Raises StoreError for a damaged record."""
        return [self.generation(number) for number in self.numbers()]

    def generation(self, number: int) -> Generation:
        """The record of one generation. Raises StoreError when there is none or it is damaged."""
        path = self.folder(number) / "generation.json"
        if not path.exists():
            raise StoreError(
                f"there is no generation {number} in {self.root}",
                remedy="`crossgrade status` lists the generations that are there.",
            )
        try:
            return Generation.from_json(read_record(path))
        except (KeyError, TypeError, ValueError, StoreError) as error:
            message = error.message if isinstance(error, StoreError) else f"the record {path} is damaged: {error!r}"
            raise StoreError(
                message,
                remedy=f"Its files are in {self.venv(number)}, untouched. `crossgrade rollback --to N` takes another "
                f"generation; to be rid of this one, move {self.folder(number)} away.",
            ) from error

    def next_number(self) -> int:
        """The number that the next generation gets: one more than the highest folder there is."""
        folder = self.root / "generations"
        if not folder.is_dir():
            return 1
        return 1 + max((int(entry.name) for entry in os.scandir(folder) if is_number(entry.name)), default=0)

    def write_generation(self, generation: Generation) -> None:
        folder = self.folder(generation.number)
        make_folder(folder)
        folder.chmod(_PASSABLE)
        write_json(folder / "generation.json", generation.to_json())

    def remove_generation(self, number: int) -> bool:
        """Remove a generation's folder, its record last: a kill in between leaves it known. True when it was there.

        Raises StoreError for the active generation, whatever the reason for removing it.
        """
        if self.active() == number:
            raise StoreError(f"generation {number} is the active one: it is not removed")
        folder = self.folder(number)
        if not folder.exists():
            return False
        record = folder / "generation.json"
        if record.exists():
            self.write_generation(self.generation(number).with_state("building", manifest=""))
        for entry in os.scandir(folder):
            if entry.name != record.name:
                remove_path(Path(entry.path))
        remove_path(folder)
        sync_directory(folder.parent)
        return True

    def pinned(self) -> set[int]:
        """The generations that `gc` must keep."""
        return {number for number in self.numbers() if self._pin(number).exists()}

    def set_pinned(self, number: int, *, pinned: bool) -> bool:
        """Pin a generation or let it go. True when that changed something."""
        pin = self._pin(number)
        if pinned == pin.exists():
            return False
        if pinned:
            write_json(pin, {"schema": SCHEMA})
        else:
            pin.unlink()
            sync_directory(pin.parent)
        return True

    def _pin(self, number: int) -> Path:
        return self.folder(number) / "pinned.json"

    # ---- verdicts

    def _verdict_path(self, number: int, key: str) -> Path:
        return self.folder(number) / "verdicts" / f"{key}.json"

    def verdict(self, number: int, key: str) -> Verdict | None:
        path = self._verdict_path(number, key)
        return _verdict(path) if path.exists() else None

    def verdicts(self, number: int) -> list[Verdict]:
        """The newest recorded verdict of each gate of a generation, by name of gate."""
        folder = self.folder(number) / "verdicts"
        newest: dict[str, Verdict] = {}
        for path in sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime_ns) if folder.is_dir() else ():
            verdict = _verdict(path)
            newest[verdict.gate] = verdict
        return [newest[gate] for gate in sorted(newest)]

    def write_verdict(self, number: int, key: str, verdict: Verdict) -> None:
        path = self._verdict_path(number, key)
        make_folder(path.parent, 0o700)
        write_json(path, verdict.to_json())

    # ---- what a server said of itself

    def _server_info_path(self, number: int) -> Path:
        return self.folder(number) / "server_info.json"

    def server_info(self, number: int) -> dict[str, Any] | None:
        """What the server of a generation last said of itself; None where none was asked. Raises StoreError."""
        path = self._server_info_path(number)
        return read_record(path) if path.exists() else None

    def write_server_info(self, number: int, info: dict[str, Any]) -> None:
        """Keep it, readable by its owner only."""
        write_json(self._server_info_path(number), {"schema": SCHEMA, **info})


def _verdict(path: Path) -> Verdict:
    try:
        return Verdict.from_json(read_record(path))
    except ValueError as error:
        raise StoreError(
            f"the record {path} is damaged: {error}", remedy="Remove it: the gate judges again when it is asked."
        ) from error


def is_number(name: str) -> bool:
    """Whether a folder's name is a generation's number: `²` is a digit too, and none."""
    return name.isascii() and name.isdigit()


def read_record(path: Path) -> dict[str, Any]:
    """A JSON object from a file of the store. Raises StoreError when it is damaged."""
    try:
        value: JSON = json.loads(path.read_bytes())
    except ValueError as error:
        raise StoreError(f"the record {path} is damaged: {error}") from error
    if not isinstance(value, dict):
        raise StoreError(f"the record {path} is damaged: an object was expected")
    return dict(value)


def remove_path(path: Path) -> bool:
    """Remove a file, a link or a whole folder. True when it was there. Raises OSError."""
    if path.is_dir() and not path.is_symlink():
        import shutil  # some 8 ms that a rollback does not need

        try:
            shutil.rmtree(path)
        except PermissionError:  # folders that even their owner may not write to, as archives may hold them
            path.chmod(0o700)
            for folder, names, _ in os.walk(path):
                for below in (Path(folder, name) for name in names):
                    if not below.is_symlink():
                        below.chmod(0o700)
            shutil.rmtree(path)
        return True
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True


def generation_environment(store: Store, generation: Generation) -> Mapping[str, str]:
    """The variables for whatever runs from a generation: its own, and a place inside it for every JIT cache.

    A kernel that the old toolkit compiled can then never be loaded by the new one. The cache variables are
    data: `knowledge/caches.yml`.
    """
    from crossgrade.knowledge import table  # YAML is only needed here

    caches = store.folder(generation.number) / "caches"
    # a row without a file is joined with "", which leaves the folder as it is
    environment = {
        str(row["variable"]): str(caches / str(row["folder"]) / str(row.get("file", ""))) for row in table("caches")
    }
    environment["VIRTUAL_ENV"] = str(store.venv(generation.number))
    environment.update(generation.environment)
    return environment


def places_of(store: Store, generation: Generation) -> tuple[str, ...]:
    """The places that the files of a generation may name: where it lies, and where it was adopted from."""
    adopted_from = generation.contents.get("adopted_from")
    return (str(store.venv(generation.number)), *([str(adopted_from)] if adopted_from else []))
