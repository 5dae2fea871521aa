"""Permission bits as people write them."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Any

from crossgrade.errors import TaskError

_SYMBOLIC = re.compile(r"(?P<who>[ugoa]*)(?P<changes>(?:[-+=](?:[rwxXst]*|[ugo]))+)")
_CHANGE = re.compile(r"([-+=])([rwxXst]*|[ugo])(?=[-+=]|$)")


def read_mode(mode: Any) -> int | str | None:
    """A mode as people write it: `"0644"`, `0644` (420 to YAML), `u=rw,g=r`, `preserve`."""
    if mode is None or (isinstance(mode, int) and not isinstance(mode, bool) and 0 <= mode <= 0o7777):
        return mode
    if isinstance(mode, str):
        text = mode.strip()
        if re.fullmatch(r"(0o)?[0-7]{1,5}", text) and int(text, 8) <= 0o7777:
            return int(text, 8)
        if text == "preserve" or all(_SYMBOLIC.fullmatch(part) for part in text.split(",")):
            return text
    raise TaskError(f"{mode!r} is not a mode", remedy='Write it as "0644" (with quotes) or as u=rw,g=r,o=r.')


def symbolic_mode(text: str, current: int, *, directory: bool, umask: int) -> int:
    """The bits that chmod(1) makes of `current` for a symbolic mode (POSIX, utility chmod).

    Without u, g, o or a the bits of the umask are left alone; X means x for directories and for what
    anybody may execute already.
    """
    mode = current
    for part in text.split(","):
        match = _SYMBOLIC.fullmatch(part)
        if match is None:
            raise TaskError(f"{text!r} is not a mode", remedy="Write it as u=rw,g=r,o=r or in octal.")
        who = match["who"].replace("a", "ugo") or "ugo"
        masked = umask if not match["who"] else 0
        for operator, permissions in _CHANGE.findall(match["changes"]):
            before = mode
            for user in dict.fromkeys(who):
                shift = {"u": 6, "g": 3, "o": 0}[user]
                bits = _bits(permissions, user, before, directory=directory) & ~masked
                own = (0o7 << shift) | {"u": stat.S_ISUID, "g": stat.S_ISGID, "o": stat.S_ISVTX}[user]
                mode = {"=": (mode & ~own) | bits, "+": mode | bits, "-": mode & ~bits}[operator]
    return mode


def _bits(permissions: str, user: str, current: int, *, directory: bool) -> int:
    shift = {"u": 6, "g": 3, "o": 0}
    if permissions in ("u", "g", "o"):
        return ((current >> shift[permissions]) & 0o7) << shift[user]
    bits = 0
    for letter in permissions:
        if letter == "X":
            bits |= (1 << shift[user]) if directory or current & 0o111 else 0
        elif letter == "s":
            bits |= {"u": stat.S_ISUID, "g": stat.S_ISGID, "o": 0}[user]
        elif letter == "t":
            bits |= stat.S_ISVTX if user == "o" else 0
        else:
            bits |= {"r": 4, "w": 2, "x": 1}[letter] << shift[user]
    return bits


def current_umask() -> int:
    """The umask of this process, read without setting it (proc(5), since Linux 4.7)."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("Umask:"):
            return int(line.split()[1], 8)
    value = os.umask(0o077)
    os.umask(value)
    return value
