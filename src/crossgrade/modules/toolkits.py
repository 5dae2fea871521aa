"""What the methods of cuda_toolkit have in common: a toolkit that is there or foreseen, and the work that makes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossgrade.errors import StoreError
from crossgrade.jsontype import JSON
from crossgrade.modules.contract import Difference, Space
from crossgrade.store.layout import Store, read_record

# Part of every digest: raise it when the same parts are laid out in another way.
LAYOUT = 2
RECORD = "toolkit.json"


@dataclass(frozen=True)
class Toolkit:
    """A toolkit, there or foreseen. `nvcc` is None where it has none (the wheels of CUDA 12).

    `proved` are the architectures that its nvcc has compiled, linked and been inspected for; without any,
    `not_proved` says why.
    """

    cuda_home: str
    digest: str
    version: str
    nvcc: str | None
    versions: Mapping[str, str]
    proved: tuple[str, ...] = ()
    not_proved: str = ""

    def values(self) -> dict[str, Any]:
        return {
            "cuda_home": self.cuda_home,
            "digest": self.digest,
            "version": self.version,
            "nvcc": self.nvcc,
            "proved": list(self.proved),
            "not_proved": self.not_proved,
        }


@dataclass(frozen=True)
class Work:
    """What a method has to do for a toolkit that is not there. `details` are the method's own."""

    toolkit: Toolkit
    summary: str
    differences: tuple[Difference, ...]
    space: tuple[Space, ...]
    details: Any


def in_store(store: Store, asked: str) -> Toolkit | None:
    """The complete toolkit of the store that was made for this request (its digest), or None."""
    folder = store.toolkit("any").parent
    if not folder.is_dir():
        return None
    for place in sorted(folder.iterdir()):
        record = place / RECORD
        if record.is_file() and read_record(record).get("request") == asked:
            return read_toolkit(place)
    return None


def read_toolkit(place: Path) -> Toolkit:
    """A complete toolkit of the store. Raises StoreError when its record is damaged or its tree is gone."""
    record = read_record(place / RECORD)
    home = place / "cuda_home"
    if not home.is_dir():
        raise StoreError(f"the toolkit {place} has lost its cuda_home", remedy=f"Remove {place} and run again.")
    try:
        nvcc = str(home / "bin" / "nvcc") if record["has_nvcc"] else None
        return Toolkit(
            str(home), place.name, record["version"], nvcc, record["versions"], tuple(record.get("proved", ()))
        )
    except KeyError as error:
        raise StoreError(f"the record {place / RECORD} is damaged: {error} is missing") from error


def record_of(toolkit: Toolkit, request: str, lock: str = "") -> dict[str, JSON]:
    """The record that marks a toolkit of the store as complete."""
    return {
        "schema": 1,
        "layout": LAYOUT,
        "digest": toolkit.digest,
        "request": request,
        "lock": lock,
        "version": toolkit.version,
        "versions": dict(toolkit.versions),
        "has_nvcc": toolkit.nvcc is not None,
        "proved": list(toolkit.proved),
    }


def release_of(version: str) -> str:
    """`13.0` of `13.0.2`."""
    return ".".join(version.split(".")[:2])


def package_suffix(version: str) -> str:
    """`13-0`, as NVIDIA names the packages of a release."""
    return release_of(version).replace(".", "-")


def is_of_version(found: Sequence[str | None], asked: str) -> bool:
    """Whether one of the versions that a toolkit states is the asked one, or one of that release. Pure."""
    return any(each == asked or each.startswith(f"{asked}.") for each in found if each)
