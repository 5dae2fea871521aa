"""Which processes run from a generation: their program, directory, mapped or open files lie inside it."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from crossgrade.store.layout import Store


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


def find_users(store: Store, numbers: Collection[int]) -> Use:
    """Look through /proc (proc(5)). A process that ends meanwhile is none."""
    folders = {f"{store.folder(number).resolve()}/": number for number in numbers}
    users: dict[int, list[User]] = {}
    hidden = 0
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            places = "\n".join(_places(process))
        except PermissionError:
            hidden += 1
            continue
        for folder, number in folders.items():
            if folder in places:
                users.setdefault(number, []).append(User(int(process.name), _command(process)))
    return Use({number: tuple(found) for number, found in users.items()}, hidden)


def _places(process: Path) -> Iterator[str]:
    """Raises PermissionError for another user's process; a kernel thread has no program and no places."""
    with suppress(FileNotFoundError, ProcessLookupError):
        yield f"{(process / 'exe').readlink()}/"
        yield f"{(process / 'cwd').readlink()}/"
        yield (process / "maps").read_text(errors="replace")
        for descriptor in os.scandir(process / "fd"):
            with suppress(FileNotFoundError, ProcessLookupError):
                yield f"{Path(descriptor.path).readlink()}/"


def _command(process: Path) -> str:
    try:
        words = (process / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    except OSError:
        return "?"
    return " ".join(word.decode(errors="replace") for word in words)[:120]
