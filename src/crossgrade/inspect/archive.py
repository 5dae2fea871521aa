"""Reading the table of a static archive (`ar`): the names and places of its members.

Source: ar(5) of GNU binutils and System V: magic, then for each member 60 bytes of text and its content, padded to an
even length. ``/`` and ``/SYM64/`` are symbol tables, ``//`` holds long names, ``/123`` is a name in it; with BSD's
``#1/N`` the name stands in the first N bytes. A thin archive (``!<thin>``) names files that lie elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from crossgrade.inspect.elf import Source, UnreadableElfError

ARCHIVE_MAGIC, THIN_MAGIC = b"!<arch>\n", b"!<thin>\n"
_HEADER = 60
# libcublasLt_static.a has some 10,000 members.
MAX_MEMBERS = 1 << 18
_MAX_NAMES = 64 << 20


class UnreadableArchiveError(UnreadableElfError):
    """The archive cannot be read; `reason` is one line for people."""


@dataclass(frozen=True)
class Member:
    """One file in an archive; ``offset`` is where its content begins, ``size`` is in bytes."""

    name: str
    offset: int
    size: int


class Part:
    """A part of a source as a source of its own."""

    def __init__(self, source: Source, offset: int, size: int) -> None:
        self._source = source
        self._offset = offset
        self.size = size

    def read(self, offset: int, size: int) -> bytes:
        if offset < 0 or size < 0 or offset + size > self.size:
            raise UnreadableElfError(f"truncated: a part of it ends at {offset + size} bytes, the file at {self.size}")
        return self._source.read(self._offset + offset, size)


def read_archive(source: Source) -> Iterator[Member]:
    """The members of an archive but for its symbol tables. Raises `UnreadableArchiveError`."""
    magic = source.read(0, min(8, source.size))
    if magic == THIN_MAGIC:
        raise UnreadableArchiveError("a thin archive: its members lie elsewhere, and are not read")
    if magic != ARCHIVE_MAGIC:
        raise UnreadableArchiveError("it is no archive")
    place, count, names = 8, 0, b""
    while place < source.size:
        if source.size - place < _HEADER:
            if not source.read(place, source.size - place).strip(b"\0\n"):
                return
            raise UnreadableArchiveError("it ends in the middle of a member's header")
        header = source.read(place, _HEADER)
        size = header[48:58].strip()
        if header[58:] != b"`\n" or not size.isdigit():
            raise UnreadableArchiveError(f"it has no member's header at {place}")
        start, length = place + _HEADER, int(size)
        if start + length > source.size:
            raise UnreadableArchiveError(
                f"truncated: a member ends at {start + length} bytes, the file at {source.size}"
            )
        place = start + length + length % 2
        count += 1
        if count > MAX_MEMBERS:
            raise UnreadableArchiveError("it claims too many members")
        raw = header[:16].rstrip()
        if raw == b"//":
            names = source.read(start, min(length, _MAX_NAMES))
        elif raw not in (b"/", b"/SYM64/") and not raw.startswith(b"__.SYMDEF"):
            yield _member(source, raw, start, length, names)


def _member(source: Source, raw: bytes, start: int, length: int, names: bytes) -> Member:
    if raw.startswith(b"#1/") and raw[3:].isdigit():
        taken = int(raw[3:])
        if taken > min(length, 4096):
            raise UnreadableArchiveError("a member's name is longer than the member")
        return Member(_text(source.read(start, taken).rstrip(b"\0")), start + taken, length - taken)
    if raw.startswith(b"/") and raw[1:].isdigit():
        begin = int(raw[1:])
        end = names.find(b"\n", begin, begin + 4096)
        if end < 0:
            raise UnreadableArchiveError("a member's name lies outside the table of names")
        raw = names[begin:end]
    return Member(_text(raw.removesuffix(b"/")), start, length)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")
