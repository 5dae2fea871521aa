"""Reading device code headers: layouts that nvcc writes, and hostile bytes."""

from __future__ import annotations

import struct
from contextlib import suppress

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from crossgrade.inspect.device_code import summarize
from crossgrade.inspect.elf import BytesSource
from crossgrade.inspect.fatbin import FatbinContainer, UnreadableFatbinError, read_fatbin

ZSTD, LZ4, SPECIFIC, FAMILY = 1 << 15, 1 << 13, 1 << 20, 1 << 21


def entry(
    kind: int,
    architecture: int,
    flags: int = 0x11,
    payload: bytes = b"",
    *,
    header_size: int = 64,
    version: tuple[int, int] = (9, 0),
    compressed: int = 0,
    original: int = 0,
) -> bytes:
    """One entry as nvcc writes it; read from files of nvcc 12.8 and 13.0."""
    major, minor = version
    if not payload:
        payload = (b"\x28\xb5\x2f\xfd" if flags & ZSTD else b"\x7fELF").ljust(64, b"\0")
    fields = (
        kind,
        257,
        header_size,
        len(payload),
        compressed,
        64,
        minor,
        major,
        architecture,
        0,
        0,
        flags,
        0,
    )
    head = struct.pack("<HHIQIIHHIIIQQQ", *fields, original)
    return head.ljust(header_size, b"\0") + payload


def container(*entries: bytes) -> bytes:
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def read(data: bytes) -> tuple[FatbinContainer, ...]:
    return read_fatbin(BytesSource(data), 0, len(data))


def test_kinds_variants_and_compression() -> None:
    data = container(
        entry(2, 120, header_size=112),
        entry(2, 120, 0x11 | SPECIFIC | ZSTD, compressed=33, original=5000),
        entry(1, 120, 0x11 | FAMILY | LZ4, header_size=80, compressed=60, original=400),
        entry(8, 120, 0x10011 | ZSTD, b"\x19\xb5\x27\x89".ljust(64, b"x"), header_size=120),
        entry(64, 90),
    )
    (found,) = read(data)
    assert [item.name for item in found.entries] == [
        "sm_120",
        "sm_120a",
        "compute_120f",
        "lto_120",
        "kind64_90",
    ]
    assert [item.compression for item in found.entries] == ["", "zstd", "lz4", "zstd", ""]
    assert [item.version for item in found.entries] == [None, None, (9, 0), None, None]
    assert found.entries[1].payload_size == 33
    assert found.entries[1].uncompressed_size == 5000


def test_containers_stand_in_a_row_with_padding_between() -> None:
    data = container(entry(2, 90)) + bytes(8) + container() + bytes(24) + container(entry(1, 120)) + bytes(4)
    found = read(data)
    assert [[item.name for item in part.entries] for part in found] == [["sm_90"], [], ["compute_120"]]


def cubin(flags: int) -> bytes:
    head = b"\x7fELF\x02\x01\x01".ljust(40, b"\0") + struct.pack("<QIHHHHHH", 64, 0, 64, 0, 0, 64, 1, 0)
    return head + struct.pack("<IIQ", 0, 1, flags).ljust(64, b"\0")


def test_machine_code_without_functions_makes_no_unit() -> None:
    """nvcc's device link adds such a cubin; it must not hide that the file has only PTX."""
    data = container(entry(2, 120, payload=cubin(2))) + container(entry(1, 90))
    code = summarize(read(data))
    assert code is not None
    assert code.names == ("sm_120", "compute_90")
    assert code.units == ((("compute_90",), 1),)
    code = summarize(read(container(entry(2, 120, payload=cubin(6)))))
    assert code is not None
    assert code.units == ((("sm_120",), 1),)


GOOD = container(entry(2, 120, header_size=112), entry(1, 90, header_size=80)) + container(entry(2, 90))


@pytest.mark.parametrize(
    "data",
    [
        b"\x50\xed\x55\xba",
        b"nonsense in the section",
        GOOD[:-1],
        GOOD[:30],
        GOOD[:16] + GOOD[40:],
        struct.pack("<IHHQ", 0xBA55ED50, 2, 16, 0),
        struct.pack("<IHHQ", 0xBA55ED50, 1, 0, 0),
        struct.pack("<IHHQ", 0xBA55ED50, 1, 16, (1 << 64) - 1),
        container(entry(2, 120, header_size=64)[:40]),
        container(struct.pack("<HHIQ", 2, 257, 0, 0) + bytes(48)),
        container(struct.pack("<HHIQ", 2, 257, 64, (1 << 64) - 1) + bytes(48)),
    ],
)
def test_malformed_device_code_is_an_error(data: bytes) -> None:
    with pytest.raises(UnreadableFatbinError) as caught:
        read(data)
    assert "device code" in caught.value.reason


@settings(max_examples=1000, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.binary(min_size=1, max_size=8)), max_size=5),
    st.integers(0, len(GOOD)),
)
@example([], 0)
def test_hostile_bytes(changes: list[tuple[int, bytes]], length: int) -> None:
    data = bytearray(GOOD)
    for place, content in changes:
        data[place : place + len(content)] = content
    for variant in (bytes(data), bytes(data[:length])):
        with suppress(UnreadableFatbinError):
            summarize(read(variant))
