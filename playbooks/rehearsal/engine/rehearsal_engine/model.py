"""The model: weights from a seed, words for tokens, and generation one token at a time."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence

import numpy as np

from rehearsal_engine import _kernels

HIDDEN = 256
# 32 * 32 words of two syllables each.
VOCABULARY = 1024
# The work of one token: this many rounds of a 256 x 256 matrix, 1 to 2 ms on one core of a server processor.
ROUNDS_PER_TOKEN = 400
# Reading a prompt is cheaper than writing, as on a real server.
ROUNDS_PER_PROMPT_TOKEN = 4
SEED = 20250826

_SYLLABLES = [consonant + vowel for consonant in "bdfklmnr" for vowel in "aeio"]


def word(token: int) -> str:
    """The text of one token, with the space before it."""
    return " " + _SYLLABLES[token // 32] + _SYLLABLES[token % 32]


def tokenize(text: str) -> list[int]:
    """One token for each word of the text, by its checksum: the same on every machine."""
    return [zlib.crc32(part.encode()) % VOCABULARY for part in text.split()]


def _matrix(source: np.random.PCG64, rows: int) -> bytes:
    """rows x HIDDEN numbers from -128 to 127 as int16.

    The raw numbers of a bit generator are the same in every release of numpy; those of Generator's methods
    may change.
    """
    raw = source.random_raw(rows * HIDDEN)
    values: bytes = ((raw & np.uint64(255)).astype(np.int16) - np.int16(128)).tobytes()
    return values


class Model:
    """Weights on one device. ``extra_work`` multiplies the arithmetic of each token and changes no token."""

    def __init__(self, device: str = "cpu", extra_work: float = 1.0) -> None:
        if extra_work < 1.0:
            raise ValueError(f"extra_work must be at least 1.0, not {extra_work}")
        source = np.random.PCG64(SEED)
        self.device = device
        self.extra_rounds = round(ROUNDS_PER_TOKEN * (extra_work - 1.0))
        self._handle = _kernels.load(
            _matrix(source, HIDDEN),
            _matrix(source, VOCABULARY),
            _matrix(source, VOCABULARY),
            HIDDEN,
            VOCABULARY,
            device,
        )

    def generate(self, prompt: Sequence[int], count: int) -> Iterator[int]:
        """``count`` tokens, each made when it is asked for."""
        state = bytes(2 * HIDDEN)
        for token in prompt:
            state, _ = _kernels.step(self._handle, state, token, ROUNDS_PER_PROMPT_TOKEN, 0)
        # The state is all zeros before the first token, so an empty prompt starts from a fixed one.
        token = prompt[-1] if prompt else 0
        for _ in range(count):
            state, token = _kernels.step(self._handle, state, token, ROUNDS_PER_TOKEN, self.extra_rounds)
            yield token
