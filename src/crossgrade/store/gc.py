"""What may go: the choice is pure, the removal is one function."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from crossgrade.store.generation import Generation
from crossgrade.store.layout import Store, remove_path


@dataclass(frozen=True)
class Collected:
    """What was removed. `bytes` is what the removed files held."""

    generations: tuple[int, ...]
    kept_in_use: tuple[int, ...]
    toolkits: tuple[str, ...]
    wheels: tuple[str, ...]
    bytes: int


def removable(
    generations: Sequence[Generation],
    *,
    active: int | None,
    predecessor: int | None,
    keep: int,
    in_use: Collection[int],
) -> list[int]:
    """The numbers that may be removed: all but the active one, its predecessor, those in use and the newest `keep`.

    A rejected or half-made generation is none of those to keep: the place belongs to one that can be activated.
    Generation 1 of an adopted environment is the backup: it is kept however old it is.
    """
    good = sorted(generation.number for generation in generations if generation.state == "ready")
    newest = set(good[-keep:]) if keep else set()
    return [
        generation.number
        for generation in generations
        if generation.number not in newest
        and generation.number not in in_use
        and generation.number not in (active, predecessor)
        and generation.origin != "adopted"
    ]


def in_use(store: Store, numbers: Collection[int]) -> set[int]:
    """Generations that a process runs from: its program, working directory or a mapped file lies inside."""
    folders = {str(store.folder(number).resolve()) + "/": number for number in numbers}
    used: set[int] = set()
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        seen: list[str] = []
        # A process may be gone by now, or another user's: then it cannot be looked into.
        with suppress(OSError):
            seen.append(f"{(process / 'exe').readlink()}/")
        with suppress(OSError):
            seen.append(f"{(process / 'cwd').readlink()}/")
        with suppress(OSError):
            seen.append((process / "maps").read_text(errors="replace"))
        text = "\n".join(seen)
        used |= {number for folder, number in folders.items() if folder in text}
    return used


def collect(store: Store, *, predecessor: int | None, keep: int) -> Collected:
    """Remove what may go, and the toolkits and wheels that no remaining generation names. Needs the lock."""
    generations = store.generations()
    active = store.active()
    candidates = removable(generations, active=active, predecessor=predecessor, keep=keep, in_use=())
    busy = in_use(store, candidates) if candidates else set()
    numbers = [number for number in candidates if number not in busy]
    freed = 0
    for number in numbers:
        freed += _size(store.folder(number))
        store.remove_generation(number)
    remaining = [generation for generation in generations if generation.number not in numbers]
    toolkits, more = _collect_folder(store.root / "toolkits", _named(remaining, "toolkits"))
    freed += more
    wheels, more = _collect_folder(store.root / "wheels", _named(remaining, "wheels"))
    return Collected(tuple(numbers), tuple(sorted(busy)), tuple(toolkits), tuple(wheels), freed + more)


def _named(generations: Sequence[Generation], what: str) -> set[str]:
    return {str(name) for generation in generations for name in generation.contents.get(what, ())}


def _collect_folder(folder: Path, named: Collection[str]) -> tuple[list[str], int]:
    # With nothing named (no generation was built here) nothing is known about use: keep everything.
    if not named or not folder.is_dir():
        return [], 0
    gone = sorted(entry.name for entry in os.scandir(folder) if entry.name not in named)
    freed = sum(_size(folder / name) for name in gone)
    for name in gone:
        remove_path(folder / name)
    return gone, freed


def _size(folder: Path) -> int:
    """Bytes of all files below the folder, hard links counted once."""
    seen: dict[tuple[int, int], int] = {}
    for directory, _, names in os.walk(folder):
        for name in names:
            status = os.lstat(os.path.join(directory, name))  # noqa: PTH118 - str paths from os.walk
            seen[status.st_dev, status.st_ino] = status.st_size
    return sum(seen.values())
