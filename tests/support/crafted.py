"""ELF files that no linker makes, written byte by byte; and `crossgrade inspect` under limits of time and memory."""

from __future__ import annotations

import os
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.support.commands import PROGRAM, Answer

SECONDS, MEGABYTES = 30, 1536


def limited(*arguments: str | Path) -> Answer:
    """`crossgrade inspect` with at most 30 s of processor time and 1.5 GB of memory: beyond, it is killed."""
    limits = ["prlimit", f"--cpu={SECONDS}", f"--as={MEGABYTES << 20}"]
    done = subprocess.run(
        [*limits, PROGRAM, "inspect", *arguments],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # each of its threads would reserve memory
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    return Answer(done.returncode, done.stdout, done.stderr)


def library(
    needed: Sequence[str] = (), *, soname: str = "", runpath: str = "", rpath: str = "", versions: int = 0
) -> bytes:
    """A shared library without code, that needs these; with ``versions`` needs of that many versions by one index."""
    strings = bytearray(b"\0")

    def text(content: str) -> int:
        place = len(strings)
        strings.extend(content.encode() + b"\0")
        return place

    tags = [(1, text(name)) for name in needed]
    tags += [(tag, text(value)) for tag, value in ((14, soname), (29, runpath), (15, rpath)) if value]
    names = [f"V{number}" for number in range(versions)]
    records = bytearray(struct.pack("<HHIII", 1, versions, text("libv.so"), 16, 0)) if versions else bytearray()
    for name in names:
        step = 16 if name != names[-1] else 0
        records += struct.pack("<IHHII", _hash(name), 0, 2, text(name), step)
    base = 64 + 2 * 56
    symbols = base
    strings_at = symbols + 24
    records_at = strings_at + len(strings) + -len(strings) % 16
    dynamic = records_at + len(records)
    tags += [(5, strings_at), (10, len(strings)), (6, symbols), (11, 24)]
    if versions:
        tags += [(0x6FFFFFFE, records_at), (0x6FFFFFFF, 1), (0x6FFFFFF0, records_at)]
    entries = b"".join(struct.pack("<QQ", *tag) for tag in [*tags, (0, 0)])
    size = dynamic + len(entries)
    head = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    head += struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0)
    head += struct.pack("<IIQQQQQQ", 1, 6, 0, 0, 0, size, size, 0x1000)
    head += struct.pack("<IIQQQQQQ", 2, 6, dynamic, dynamic, dynamic, len(entries), len(entries), 8)
    return (head + bytes(24) + bytes(strings)).ljust(records_at, b"\0") + bytes(records) + entries


def _hash(name: str) -> int:
    value = 0
    for byte in name.encode():
        value = (value << 4) + byte
        value = (value ^ (value >> 24 & 0xF0)) & 0xFFFFFFF
    return value
