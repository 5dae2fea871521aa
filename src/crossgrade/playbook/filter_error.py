"""The error of a filter, a test or a lookup that cannot do its work."""

from __future__ import annotations


class FilterError(ValueError):
    """A filter, test or lookup that got what it cannot work with. `remedy` says what to write instead."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.remedy = remedy
