"""What keeps a template from using up the machine: limits of CPU time, text and items.

A playbook may run any command, so this is no defence against its author. It turns accidents (a loop over the
wrong list, a number that came out as a factor) into errors with a place.
"""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

MAX_TEXT = 10_000_000  # characters
MAX_ITEMS = 1_000_000  # of a list
MAX_BITS = 100_000  # of a whole number
MAX_WIDTH = 100_000  # of a formatted field
CPU_SECONDS = 10.0

_WIDTHS = re.compile(r"\d{6,}")


class LimitExceeded(Exception):  # noqa: N818 - becomes a TemplateLimitError where the template is known
    """A template asks for more than it may have."""


class TimeIsUp(BaseException):
    """The CPU time of a template is used up. No `except Exception` in a filter may hold it back."""


def too_large(what: str) -> LimitExceeded:
    return LimitExceeded(f"{what} would be larger than a template may make it")


@contextmanager
def cpu_time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeIsUp in the body when it has used this many seconds of CPU time.

    It uses the process's virtual timer, which nothing else here does; it works in the main thread only, and in
    other threads does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(_number: int, _frame: FrameType | None) -> None:
        raise TimeIsUp

    before = signal.signal(signal.SIGVTALRM, ring)
    # it rings again and again: an exception raised inside a finalizer is lost
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds, 0.1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, before)


def check_size(value: Any) -> Any:
    """The value, when a template may hold one as large."""
    if isinstance(value, str):
        if len(value) > MAX_TEXT:
            raise too_large("the text")
    elif isinstance(value, list | tuple | dict | set) and len(value) > MAX_ITEMS:
        raise too_large("the list")
    return value


def bounded_list(iterator: Any) -> list[Any]:
    """All of an iterator."""
    items: list[Any] = []
    for item in iterator:
        items.append(item)
        if len(items) > MAX_ITEMS:
            raise too_large("the list")
    return items


def check_range(*arguments: Any) -> range:
    """`range` of a bounded length."""
    made = range(*arguments)
    if len(made) > MAX_ITEMS:
        raise too_large("the range")
    return made


def _length(value: Any) -> int:
    return len(value) if isinstance(value, str | list | tuple | bytes) else 0


def check_operation(operator: str, left: Any, right: Any) -> None:
    """Before `left operator right` is worked out. Raises LimitExceeded."""
    if operator == "*":
        for sequence, factor in ((left, right), (right, left)):
            if isinstance(factor, int) and _length(sequence) * max(factor, 0) > (
                MAX_TEXT if isinstance(sequence, str) else MAX_ITEMS
            ):
                raise too_large("the product")
        if isinstance(left, int) and isinstance(right, int) and left.bit_length() + right.bit_length() > MAX_BITS:
            raise too_large("the number")
    elif operator == "**":
        if isinstance(left, int) and isinstance(right, int) and left.bit_length() * max(right, 0) > MAX_BITS:
            raise too_large("the number")
    elif operator == "+":
        if _length(left) + _length(right) > (MAX_TEXT if isinstance(left, str) else MAX_ITEMS):
            raise too_large("the sum")
    elif operator == "%" and isinstance(left, str):
        check_format(left, right if isinstance(right, tuple) else (right,))


def check_format(pattern: str, arguments: Any, named: Mapping[str, Any] | None = None) -> None:
    """Before a text is formatted: no field may be wider than `MAX_WIDTH`."""
    for digits in _WIDTHS.findall(pattern):
        if int(digits[:12]) > MAX_WIDTH:
            raise too_large("the formatted text")
    dynamic = "*" in pattern or "{:{" in pattern or re.search(r"\{[^{}]*:[^{}]*\{", pattern)
    values = [*arguments, *(named or {}).values()] if dynamic else []
    if any(isinstance(value, int) and abs(value) > MAX_WIDTH for value in values):
        raise too_large("the formatted text")


def check_method(owner: Any, name: str, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    """Before a method of a text is called that can make it much longer. Raises LimitExceeded."""
    if not isinstance(owner, str):
        return
    if name in ("ljust", "rjust", "center", "zfill", "expandtabs"):
        width = max([value for value in (*arguments, *named.values()) if isinstance(value, int)], default=8)
        growth = len(owner) * max(width, 1) if name == "expandtabs" else width
        if growth > MAX_TEXT:
            raise too_large("the text")
    elif name == "replace" and len(arguments) >= 2 and all(isinstance(part, str) for part in arguments[:2]):
        check_replace(owner, arguments[0], arguments[1])
    elif name == "join" and arguments:
        items = arguments[0]
        if isinstance(items, list | tuple) and len(owner) * len(items) > MAX_TEXT:
            raise too_large("the text")
    elif name in ("format", "format_map"):
        check_format(owner, arguments, named)


def check_replace(text: str, old: str, new: str) -> None:
    """Before `text.replace(old, new)`."""
    times = text.count(old)
    if len(text) + times * max(len(new) - len(old), 0) > MAX_TEXT:
        raise too_large("the text")
