"""Bytes that can be read at any place: of an open file, or in memory; and the error of what cannot be read.

Everything is read with `os.pread` in a few small pieces, so that a library of a gigabyte costs as much as one of a
kilobyte, and a file that is cut short while it is read gives an error, not the SIGBUS of a mapping.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from types import TracebackType
from typing import Protocol

from crossgrade.errors import CrossgradeError


class UnreadableElfError(CrossgradeError, ValueError):
    """The file cannot be read as an ELF file; `reason` is one line for people."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, remedy="Install the package that owns the file again.")
        self.reason = reason


def beyond(end: int, size: int) -> UnreadableElfError:
    """The error for a part that ends behind the end of the file; both in bytes."""
    return UnreadableElfError(f"truncated: a part of it ends at {end} bytes, the file at {size}")


class Source(Protocol):
    """Bytes that can be read at any place."""

    @property
    def size(self) -> int:
        """Length in bytes."""
        ...

    def read(self, offset: int, size: int) -> bytes:
        """Exactly ``size`` bytes from ``offset``; raises `UnreadableElfError` where they do not exist."""
        ...


class BytesSource:
    """A source in memory."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size = len(data)

    def read(self, offset: int, size: int) -> bytes:
        if offset < 0 or size < 0 or offset + size > self.size:
            raise beyond(offset + size, self.size)
        return self._data[offset : offset + size]


class FileSource:
    """An open file; use it in a `with` statement."""

    def __init__(self, path: str | Path) -> None:
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise UnreadableElfError(f"cannot be opened: {error.strerror}") from error
        status = os.fstat(self._descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(self._descriptor)
            raise UnreadableElfError("it is no regular file")
        self.size = status.st_size

    def read(self, offset: int, size: int) -> bytes:
        if offset < 0 or size < 0 or offset + size > self.size:
            raise beyond(offset + size, self.size)
        try:
            data = os.pread(self._descriptor, size, offset)
            while len(data) < size:
                more = os.pread(self._descriptor, size - len(data), offset + len(data))
                if not more:
                    raise UnreadableElfError("the file was cut short while it was read")
                data += more
        except OSError as error:
            raise UnreadableElfError(f"cannot be read: {error.strerror}") from error
        return data

    def __enter__(self) -> FileSource:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)
