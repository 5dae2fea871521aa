"""Files, directories and links that a test lays ready, as data."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

WHEN = 1_600_000_000  # seconds; even, as zip archives count in twos


@dataclass(frozen=True)
class Put:
    """One of them, or a member of an archive. A directory ends with a slash, `link` and `hard` what links lead to."""

    name: str
    content: bytes = b""
    mode: int = 0o644
    link: str = ""
    hard: str = ""
    when: int = WHEN


def folder(name: str, mode: int = 0o755) -> Put:
    return Put(f"{name}/", mode=mode)


def lay(one: Put, place: Path) -> None:
    """Put it there."""
    path = place / one.name
    path.parent.mkdir(parents=True, exist_ok=True)
    if one.hard:
        path.hardlink_to(place / one.hard)
        return
    if one.link:
        path.symlink_to(one.link)
        return
    if one.name.endswith("/"):
        path.mkdir(exist_ok=True)
    else:
        path.write_bytes(one.content)
        os.utime(path, (one.when, one.when))
    path.chmod(one.mode)
