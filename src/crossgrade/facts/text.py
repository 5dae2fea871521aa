"""Reading small text files of the system."""

from __future__ import annotations

from pathlib import Path

LIMIT_BYTES = 1 << 20


def text_of(path: Path) -> str:
    """The start of a text file; empty where it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(LIMIT_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def is_there(path: Path) -> bool:
    """Whether a path leads to something; False too where a folder on the way may not be entered."""
    try:
        path.stat()
    except OSError:
        return False
    return True


def lines_of(text: str) -> list[str]:
    """The lines with something on them, without the space around."""
    return [line.strip() for line in text.splitlines() if line.strip()]
