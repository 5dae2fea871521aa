"""Decompressing small pieces of device code: an LZ4 block or a Zstandard frame, as nvcc stores them.

Source: the LZ4 block format description (github.com/lz4/lz4, doc/lz4_Block_format.md).
"""

from __future__ import annotations


def beginning(data: bytes, compression: str, size: int) -> bytes:
    """At most the first ``size`` bytes of what ``data`` unpacks to; fewer where it is damaged. ``compression`` is
    ``""``, ``"lz4"`` or ``"zstd"``."""
    if compression == "lz4":
        return _lz4(data, size)
    if compression == "zstd":
        return _zstd(data, size)
    return data[:size]


def _zstd(data: bytes, size: int) -> bytes:
    import sys

    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd

    try:
        return bytes(zstd.ZstdDecompressor().decompress(data, max_length=size))
    except (zstd.ZstdError, EOFError):
        return b""


def _lz4(data: bytes, size: int) -> bytes:
    """One LZ4 block: sequences of literals, each followed by a copy of what was written before."""
    out = bytearray()
    place = 0
    while place < len(data) and len(out) < size:
        token = data[place]
        length, place = _length(data, place + 1, token >> 4)
        out += data[place : place + length]
        place += length
        if place + 2 > len(data) or len(out) >= size:
            break
        distance = data[place] | data[place + 1] << 8
        length, place = _length(data, place + 2, token & 15)
        if not 0 < distance <= len(out):
            break
        length = min(length + 4, size - len(out))
        source = out[-distance:]
        out += (source * (length // distance + 1))[:length]
    return bytes(out[:size])


def _length(data: bytes, place: int, nibble: int) -> tuple[int, int]:
    """A length and the place behind it: 15 says that further bytes are added, as long as they are 255."""
    if nibble < 15:
        return nibble, place
    length = nibble
    while place < len(data):
        length += data[place]
        place += 1
        if data[place - 1] != 255:
            break
    return length, place
