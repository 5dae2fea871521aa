"""How much a piece of code does, counted and not timed: a slow machine counts the same."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def bounded_work(most: int) -> Iterator[None]:
    """Fails when the body calls more Python functions than `most`."""
    calls = 0
    before = sys.getprofile()

    def count(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(before)
    assert calls <= most, f"{calls} calls"
