"""Which processes run from a generation.

Some say so themselves: their program, directory, mapped or open files lie inside it, or their command line names it.
A Python that was started through the active link does not: its program is the interpreter behind the venv, its modules
are closed again, and the link may have been turned since. It runs from the generation that was active when it started.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from crossgrade.store.layout import Store

# A turn of the active link: seconds since 1970, and the generation that was active from then on (None: the plain
# directory).
Turn = tuple[float, int | None]
# The kernel counts a process's start in ticks since boot, and tells the boot in whole seconds.
_UNSURE_SECONDS = 2.0


@dataclass(frozen=True)
class User:
    """A process that uses a generation. `command` is its command line, shortened."""

    pid: int
    command: str


@dataclass(frozen=True)
class Use:
    """Users by generation, and how many processes could not be looked into because they are another user's."""

    users: Mapping[int, tuple[User, ...]]
    hidden: int


def find_users(store: Store, numbers: Collection[int], turns: Sequence[Turn]) -> Use:
    """Look through /proc (proc(5)). A process that ends meanwhile is none. `turns` are in order of time."""
    folders = {f"{store.folder(number).resolve()}/": number for number in numbers}
    link = store.active_link
    ourselves = ancestors(os.getpid())
    users: dict[int, list[User]] = {}
    hidden = 0
    for process in Path("/proc").iterdir():
        if not process.name.isdigit() or int(process.name) in ourselves:
            continue
        try:
            places = "\n".join(_places(process))
            named = link is not None and _names(process, link)
        except PermissionError:
            hidden += 1
            continue
        found = {number for folder, number in folders.items() if folder in places}
        if named:
            found |= _active_at(_started(process), turns) & set(numbers)
        for number in found:
            users.setdefault(number, []).append(User(int(process.name), _command(process)))
    return Use({number: tuple(found) for number, found in users.items()}, hidden)


def _places(process: Path) -> Iterator[str]:
    """Raises PermissionError for another user's process; a kernel thread has no program and no places."""
    with suppress(FileNotFoundError, ProcessLookupError):
        yield f"{(process / 'exe').readlink()}/"
        yield f"{(process / 'cwd').readlink()}/"
        yield from (f"{word}/" for word in _words(process / "cmdline"))
        yield (process / "maps").read_text(errors="replace")
        for descriptor in os.scandir(process / "fd"):
            with suppress(FileNotFoundError, ProcessLookupError):
                yield f"{Path(descriptor.path).readlink()}/"


def _names(process: Path, link: Path) -> bool:
    """Whether a command line names the active link, or the environment says that it is the process's venv."""
    with suppress(FileNotFoundError, ProcessLookupError):
        here = str((process / "cwd").readlink())
        words = [os.path.normpath(os.path.join(here, word)) for word in _words(process / "cmdline")]  # noqa: PTH118
        if any(word == str(link) or word.startswith(f"{link}/") for word in words):
            return True
        return f"VIRTUAL_ENV={link}" in _words(process / "environ")
    return False


def _words(path: Path) -> list[str]:
    return [os.fsdecode(word) for word in path.read_bytes().split(b"\0")]


def _started(process: Path) -> float:
    """Seconds since 1970; now for one that has just ended. Field 22 of stat, and btime of /proc/stat (proc(5))."""
    with suppress(OSError, IndexError, ValueError):
        ticks = int((process / "stat").read_text(errors="replace").rpartition(")")[2].split()[19])
        boot = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime "))
        return int(boot.split()[1]) + ticks / os.sysconf("SC_CLK_TCK")
    return float("inf")


def _active_at(time: float, turns: Sequence[Turn]) -> set[int]:
    """The generations that may have been active then; all that ever were where no turn is known."""
    found: set[int] = set()
    for number, (since, active) in enumerate(turns):
        until = turns[number + 1][0] if number + 1 < len(turns) else float("inf")
        if active is not None and since - _UNSURE_SECONDS <= time <= until + _UNSURE_SECONDS:
            found.add(active)
    # started before the first turn: from the plain directory, which became the generation that was adopted
    first = next((active for _, active in turns if active is not None), None)
    if turns and first is not None and time < turns[0][0]:
        found.add(first)
    return found


def ancestors(pid: int) -> set[int]:
    """The process and those that started it: the shell in which somebody types is no server."""
    found: set[int] = set()
    while pid > 1 and pid not in found:
        found.add(pid)
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
        except (OSError, IndexError, ValueError):
            break
    return found


def _command(process: Path) -> str:
    try:
        return " ".join(_words(process / "cmdline")).strip()[:120]
    except OSError:
        return "?"
