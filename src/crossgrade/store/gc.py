"""What may go: the choice is pure, the removal is one function."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from crossgrade.store.confirmation import read_confirmation
from crossgrade.store.generation import Generation
from crossgrade.store.layout import Store, is_number, remove_path
from crossgrade.store.processes import Turn, find_users


@dataclass(frozen=True)
class Collected:
    """What was removed, and why the rest was kept, by number. `bytes` is what the removed files held.

    `for_builds` are build environments and fetched sources: no generation needs them, a build makes them again.
    """

    generations: tuple[int, ...]
    kept: Mapping[int, str]
    hidden_processes: int
    toolkits: tuple[str, ...]
    wheels: tuple[str, ...]
    bytes: int
    for_builds: tuple[str, ...] = ()


def reasons_to_keep(
    generations: Sequence[Generation],
    *,
    active: int | None,
    predecessor: int | None,
    keep: int,
    pinned: Collection[int] = (),
    unconfirmed: Collection[int] = (),
) -> dict[int, str]:
    """Why a generation stays, by number; what is not named may go, unless a process runs from it.

    A rejected or half-made generation is none of the newest to keep: the place belongs to one that can be activated.
    Generation 1 of an adopted environment is the backup: it is kept however old it is.
    """
    good = sorted(generation.number for generation in generations if generation.state == "ready")
    reasons = dict.fromkeys(good[-keep:] if keep else [], f"one of the newest {keep}")
    for generation in generations:
        if generation.origin == "adopted":
            reasons[generation.number] = "the backup of what was adopted"
        if generation.number in pinned:
            reasons[generation.number] = "pinned"
        if generation.number in unconfirmed:
            reasons[generation.number] = "an activation waits to be confirmed"
    if predecessor is not None:
        reasons[predecessor] = "where `rollback` goes"
    if active is not None:
        reasons[active] = "active"
    return reasons


def collect(store: Store, *, predecessor: int | None, turns: Sequence[Turn], keep: int) -> Collected:
    """Remove what may go, and the toolkits and wheels that no remaining generation names. Needs the lock.

    `turns` are all turns of the active link, in order. Where the link leads to no generation of the store, nobody can
    know which one is in use: then every complete one stays.
    """
    generations, active = store.generations(), store.active()
    waiting = read_confirmation(store)
    reasons = reasons_to_keep(
        generations,
        active=active,
        predecessor=predecessor,
        keep=keep,
        pinned=store.pinned(),
        unconfirmed=(waiting.generation, waiting.previous) if waiting else (),
    )
    if active is None:
        unknown = "the active link leads to no generation of this store"
        reasons |= {each.number: unknown for each in generations if each.state == "ready"}
    candidates = [generation.number for generation in generations if generation.number not in reasons]
    hidden = 0
    if candidates:
        use = find_users(store, candidates, turns)
        hidden = use.hidden
        for number, users in use.users.items():
            reasons[number] = "in use by " + ", ".join(f"pid {user.pid} ({user.command})" for user in users)
    numbers = [number for number in candidates if number not in reasons]
    freed = sum(size_of(store.folder(number)) for number in numbers)
    for number in numbers:
        store.remove_generation(number)
    known = {generation.number for generation in generations}
    for entry in os.scandir(store.root / "generations"):  # folders without a record: a removal that was killed
        # one that holds an environment is never removed without a record that says what it is
        if is_number(entry.name) and int(entry.name) not in known and not (Path(entry.path) / "venv").is_dir():
            freed += size_of(Path(entry.path))
            remove_path(Path(entry.path))
    remaining = [generation for generation in generations if generation.number not in numbers]
    toolkits, more = _collect_folder(store.root / "toolkits", _named(remaining, "toolkits"))
    freed += more
    downloads = store.root / "downloads"  # nobody is downloading while the lock is held
    freed += size_of(downloads)
    remove_path(downloads)
    wheels, more = _collect_folder(store.root / "wheels", _named(remaining, "wheels"))
    for_builds, for_them = _remove_all(store.root / "build-environments", store.sources)
    freed += more + for_them
    kept = {number: reasons[number] for number in sorted(reasons) if number in known}
    return Collected(tuple(numbers), kept, hidden, tuple(toolkits), tuple(wheels), freed, tuple(for_builds))


def _named(generations: Sequence[Generation], what: str) -> set[str]:
    return {str(name) for generation in generations for name in generation.contents.get(what, ())}


def _collect_folder(folder: Path, named: Collection[str]) -> tuple[list[str], int]:
    # With nothing named (no generation was built here) nothing is known about use: keep everything.
    if not named or not folder.is_dir():
        return [], 0
    gone = sorted(entry.name for entry in os.scandir(folder) if entry.name not in named)
    freed = sum(size_of(folder / name) for name in gone)
    for name in gone:
        remove_path(folder / name)
    return gone, freed


def _remove_all(*folders: Path) -> tuple[list[str], int]:
    gone, freed = [], 0
    for folder in folders:
        for entry in sorted(folder.iterdir()) if folder.is_dir() else ():
            freed += size_of(entry)
            remove_path(entry)
            gone.append(f"{folder.name}/{entry.name}")
    return gone, freed


def size_of(folder: Path) -> int:
    """Bytes of all files below the folder, hard links counted once."""
    seen: dict[tuple[int, int], int] = {}
    for directory, _, names in os.walk(folder):
        for name in names:
            status = os.lstat(os.path.join(directory, name))  # noqa: PTH118 - str paths from os.walk
            seen[status.st_dev, status.st_ino] = status.st_size
    return sum(seen.values())
