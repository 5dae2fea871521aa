"""FlashInfer's JIT cache on disk: where it lies in a generation, what crossgrade has put there, what an old one holds.

    BASE/.cache/flashinfer/VERSION/ARCHITECTURES/cached_ops/NAME/NAME.so     what FlashInfer loads
                                                /crossgrade.json             what was built here, and proved
                                                /crossgrade-answers.jsonl    what the building process said

FlashInfer's own key is version and architectures: it holds no CUDA version. The record therefore says with which
toolkit the modules were compiled, and is worth nothing for another one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from crossgrade.errors import StoreError, TaskError
from crossgrade.store.atomic import write_json
from crossgrade.store.layout import read_record

SCHEMA = 1
RECORD, ANSWERS = "crossgrade.json", "crossgrade-answers.jsonl"
_ARCHITECTURE = re.compile(r"(?P<major>\d+)\.(?P<minor>\d+[af]?)")


def counted(number: int) -> str:
    return f"{number} module{'' if number == 1 else 's'}"


@dataclass(frozen=True)
class BuiltModule:
    """One module as it was proved: the library's size in bytes and its time, and the device code in it.

    `device_code` is empty for a module without any. `library` lies in the cache, or in the dist that ships it.
    """

    library: str
    size: int
    mtime_ns: int
    device_code: tuple[str, ...] = ()

    def is_there(self) -> bool:
        try:
            status = Path(self.library).stat()
        except OSError:
            return False
        return (status.st_size, status.st_mtime_ns) == (self.size, self.mtime_ns)


@dataclass(frozen=True)
class Record:
    """What was built in one folder of the cache. `names`: asked for → FlashInfer's own name, None where it has none.

    `listed` are the names that FlashInfer itself lists, once `all` was asked for.
    """

    toolkit: str = ""
    cuda_home: str = ""
    names: Mapping[str, str | None] = field(default_factory=dict)
    listed: tuple[str, ...] | None = None
    modules: Mapping[str, BuiltModule] = field(default_factory=dict)

    def left(self, wanted: Sequence[str] | None) -> tuple[str, ...] | None:
        """Which of the wanted names are not settled; () when none is left, None when only FlashInfer can say."""
        asked = self.listed if wanted is None else tuple(wanted)
        if asked is None:
            return None
        return tuple(name for name in asked if not self._settled(name))

    def _settled(self, asked: str) -> bool:
        if asked in self.names and self.names[asked] is None:
            return True
        built = self.modules.get(self.names.get(asked) or asked)
        return built is not None and built.is_there()


@dataclass(frozen=True)
class Place:
    """One folder of FlashInfer's cache: of one version, for one set of architectures."""

    folder: Path

    @property
    def cached_ops(self) -> Path:
        return self.folder / "cached_ops"

    @property
    def answers(self) -> Path:
        return self.folder / ANSWERS

    def record(self) -> Record:
        """The record, an empty one where there is none or it is damaged: then all is looked at again."""
        try:
            value = read_record(self.folder / RECORD)
            modules = {
                name: BuiltModule(one["library"], one["size"], one["mtime_ns"], tuple(one["device_code"]))
                for name, one in value["modules"].items()
            }
            listed = None if value["listed"] is None else tuple(value["listed"])
            return Record(value["toolkit"], value["cuda_home"], value["names"], listed, modules)
        except (FileNotFoundError, NotADirectoryError, StoreError, KeyError, TypeError, AttributeError):
            return Record()

    def write(self, record: Record) -> None:
        value: dict[str, Any] = {"schema": SCHEMA, **asdict(record)}
        value["listed"] = None if record.listed is None else list(record.listed)
        write_json(self.folder / RECORD, json.loads(json.dumps(value)))

    def said(self) -> list[dict[str, Any]]:
        """What the building process has said; a line that was cut off by a kill is left out."""
        try:
            lines = self.answers.read_text(encoding="utf-8").splitlines()
        except OSError:
            return []
        return list(_objects(lines))


def _objects(lines: Sequence[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            yield value


def place_of(base: Path, version: str, architectures: Sequence[str]) -> Place:
    """The folder that FlashInfer makes of its base, its version and its architectures (flashinfer/jit/env.py)."""
    pairs = sorted(parse_architecture(one) for one in architectures)
    return Place(base / ".cache" / "flashinfer" / version / "_".join(f"{major}{minor}" for major, minor in pairs))


def parse_architecture(text: str) -> tuple[int, str]:
    """`12.0f` as (12, "0f"). Raises TaskError for what FlashInfer does not take, or would spell by the toolkit."""
    found = _ARCHITECTURE.fullmatch(text)
    if found is None:
        raise TaskError(f"{text!r} is no architecture", remedy='Write it as "12.0f" (RTX PRO 6000) or "9.0a".')
    major, minor = int(found["major"]), found["minor"]
    if major >= 9 and minor.isdigit():
        raise TaskError(
            f"architecture {text} needs its letter: FlashInfer keeps {major}{minor}a and {major}{minor}f apart",
            remedy=f'For FlashInfer 0.7 with CUDA 12.9 or newer, 12.0 is "12.0f"; before, "12.0a". Write {text}a or '
            f"{text}f.",
        )
    return major, minor


def names_in(path: Path) -> tuple[str, ...]:
    """The modules that are compiled in an old server's cache, in order of name.

    `path` is `~/.cache/flashinfer`, a folder of one version and architecture below it, or its `cached_ops`. Raises
    TaskError when there is none, more than one to choose from, or it cannot be read.
    """
    try:
        next(path.iterdir(), None)  # glob says nothing of a folder that may not be read
        folders = [path] if path.name == "cached_ops" else [*path.glob("cached_ops"), *path.glob("*/*/cached_ops")]
        held = {folder: _compiled(folder) for folder in sorted(folders)}
    except OSError as error:
        raise TaskError(
            f"the cache {path} cannot be read: {error.strerror}",
            remedy="Name the cache of the user that the server runs as, and run as somebody who may read it.",
        ) from error
    held = {folder: names for folder, names in held.items() if names}
    if not held:
        raise TaskError(
            f"there is no compiled FlashInfer module in {path}",
            remedy="Name the folder `.cache/flashinfer` of the user that the server runs as, or list `modules`.",
        )
    if len(held) > 1:
        found = ", ".join(str(folder) for folder in held)
        raise TaskError(f"{path} holds more than one cache: {found}", remedy="Name one of them in `from_cache`.")
    return next(iter(held.values()))


def _compiled(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(one.name for one in folder.iterdir() if (one / f"{one.name}.so").is_file()))
