"""Where many words occur in a large output, in one pass over it.

A few hundred searches with `bytes.find` read a large output a few hundred times. Instead four bytes of each word are
chosen, rare ones; one pass by numpy finds where any of them stands, and only there the words are compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FIRST_PLACES, LAST_PLACES = 150, 50  # how many places of one word are looked at, from both ends of the text
SHORTEST = 4  # letters of a word
LARGE = 1 << 20  # bytes from which on the one pass is worth the import of numpy
_CHUNK = 4 << 20
_MOST_IN_A_CHUNK = 200_000  # places worth comparing; a text that has more was made to have them
_FACTOR = 2654435761  # Knuth's multiplicative hash: 2**32 divided by the golden ratio
_COMMON = b" etaoinsrhldcumfpgwybvkxjqz"  # the commonest letters of English first, the space before them


def occurrences(lowered: bytes, words: Iterable[str]) -> dict[str, list[int]]:
    """Where each word begins, in order: of many places the first and the last ones. Words are in lower case."""
    wanted = {word: word.encode() for word in words}
    if len(lowered) < LARGE:
        return {word: _by_find(lowered, sought) for word, sought in wanted.items()}
    return _in_one_pass(lowered, wanted)


def _by_find(lowered: bytes, sought: bytes) -> list[int]:
    found: list[int] = []
    place = lowered.find(sought)
    while place >= 0 and len(found) < FIRST_PLACES:
        found.append(place)
        place = lowered.find(sought, place + 1)
    after = found[-1] + 1 if found else len(lowered)
    last: list[int] = []
    place = lowered.rfind(sought, after)
    while place >= 0 and len(last) < LAST_PLACES:
        last.append(place)
        place = lowered.rfind(sought, after, place + len(sought) - 1)
    return found + last[::-1]


def _in_one_pass(lowered: bytes, wanted: Mapping[str, bytes]) -> dict[str, list[int]]:
    import numpy as np

    by_piece: dict[int, list[tuple[str, bytes, int]]] = {}
    for word, sought in wanted.items():
        offset = _rarest(sought)
        piece = int.from_bytes(sought[offset : offset + 4], "little")
        by_piece.setdefault(piece, []).append((word, sought, offset))
    hashes = np.zeros(1 << 16, dtype=bool)
    hashes[[(piece * _FACTOR & 0xFFFFFFFF) >> 16 for piece in by_piece]] = True
    data = np.frombuffer(lowered, dtype=np.uint8)
    first: dict[str, list[int]] = {word: [] for word in wanted}
    last: dict[str, list[int]] = {word: [] for word in wanted}
    for begin in range(0, len(lowered), _CHUNK):
        places, pieces = _candidates(lowered, begin, hashes)
        if not len(places):
            continue
        order = np.argsort(pieces, kind="stable")
        places, pieces = places[order], pieces[order]
        values, starts = np.unique(pieces, return_index=True)
        ends = np.append(starts[1:], len(pieces))
        for value, start, end in zip(values.tolist(), starts.tolist(), ends.tolist(), strict=True):
            for word, sought, offset in by_piece.get(value, ()):
                found = _compared(data, sought, places[start:end] - offset)
                room = FIRST_PLACES - len(first[word])
                first[word] += found[:room]
                last[word] = (last[word] + found[room:])[-LAST_PLACES:]
    return {word: first[word] + last[word] for word in wanted}


def _candidates(lowered: bytes, begin: int, hashes: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
    """The places in one chunk where four bytes have the hash of a piece, and those four bytes."""
    import numpy as np

    places, pieces = [], []
    for shift in range(4):
        offset = begin + shift
        count = min(_CHUNK // 4, (len(lowered) - offset) // 4)
        four = np.frombuffer(lowered, dtype="<u4", count=max(0, count), offset=min(offset, len(lowered)))
        hit = np.flatnonzero(hashes[(four * np.uint32(_FACTOR)) >> np.uint32(16)])
        if len(hit) > _MOST_IN_A_CHUNK:
            hit = np.concatenate((hit[: _MOST_IN_A_CHUNK // 2], hit[-_MOST_IN_A_CHUNK // 2 :]))
        places.append(hit.astype(np.int64) * 4 + offset)
        pieces.append(four[hit])
    return np.concatenate(places), np.concatenate(pieces)


def _compared(data: NDArray[np.uint8], sought: bytes, places: NDArray[np.int64]) -> list[int]:
    """Those of the places where the word really stands, in order."""
    places = places[(places >= 0) & (places <= len(data) - len(sought))]
    for number, byte in enumerate(sought):
        places = places[data[places + number] == byte]
    places.sort()
    found: list[int] = places.tolist()
    return found


def _rarest(sought: bytes) -> int:
    """Where the four bytes of a word stand that are the least common in text."""

    def commonness(offset: int) -> int:
        found = 1
        for byte in sought[offset : offset + 4]:
            rank = _COMMON.find(byte)
            found *= 30 - rank if rank >= 0 else 4
        return found

    return min(range(len(sought) - 3), key=commonness)
