"""Archives, cubins and packed code: what hostile bytes may do (an error, soon), and what is read from sound ones.

Real ones, made by the tools themselves, are in `tests/integration/test_device_code_oracle.py`.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from crossgrade.inspect.archive import Part, UnreadableArchiveError, read_archive
from crossgrade.inspect.cubin import read_cubin
from crossgrade.inspect.decompress import beginning
from crossgrade.inspect.device_code import read_device_file
from crossgrade.inspect.device_packages import device_packages
from crossgrade.inspect.elf import BytesSource, UnreadableElfError


def member(name: str, content: bytes, size: int | None = None) -> bytes:
    length = len(content) if size is None else size
    return f"{name:<16}{0:<12}{0:<6}{0:<6}{644:<8}{length:<10}`\n".encode() + content + b"\n" * (len(content) % 2)


NAMES = member("//", b"a_name_of_more_than_fifteen.o/\n")
GOOD = b"!<arch>\n" + member("/", bytes(8)) + NAMES + member("/0", b"long") + member("odd.o/", b"odd")
GOOD += member("#1/8", b"bsd.o\0\0\0content")


def names(data: bytes) -> list[tuple[str, bytes]]:
    source = BytesSource(data)
    return [(each.name, source.read(each.offset, each.size)) for each in read_archive(source)]


def test_members_of_both_dialects() -> None:
    expected = [("a_name_of_more_than_fifteen.o", b"long"), ("odd.o", b"odd"), ("bsd.o", b"content")]
    assert names(GOOD) == expected


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "no archive"),
        (b"!<thin>\n" + NAMES, "thin archive"),
        (GOOD[:-5], "truncated"),
        (GOOD + b"more", "in the middle"),
        (GOOD + b"x" * 60, "no member's header"),
        (b"!<arch>\n" + member("a/", b"", 1 << 33), "truncated"),
        (b"!<arch>\n" + member("a/", b"").replace(b"0         `", b"-5        `"), "no member's header"),
        (b"!<arch>\n" + NAMES + member("/99999", b""), "outside the table"),
        (b"!<arch>\n" + member("#1/200", b"short"), "longer than the member"),
    ],
)
def test_damaged_archives_are_named(data: bytes, reason: str) -> None:
    with pytest.raises(UnreadableArchiveError, match=reason):
        names(data)


def test_a_part_ends_where_it_ends() -> None:
    part = Part(BytesSource(b"0123456789"), 2, 4)
    assert part.read(1, 3) == b"345"
    for offset, size in ((1, 4), (-1, 2), (5, 0)):
        with pytest.raises(UnreadableElfError):
            part.read(offset, size)


def test_an_archive_within_an_archive_is_not_entered() -> None:
    assert read_device_file(BytesSource(b"!<arch>\n" + member("inner.a/", GOOD))) is None


def cubin(layout: int, flags: int, *sections: tuple[int, int, bytes]) -> bytes:
    """A cubin with sections of (kind, flags, content)."""
    body, headers = b"", b""
    for kind, marks, content in sections:
        headers += struct.pack("<IIQQQQIIQQ", 0, kind, marks, 0, 64 + len(body), len(content), 0, 0, 0, 0)
        body += content
    osabi = 0x41 if layout >= 8 else 0x33
    head = b"\x7fELF\x02\x01\x01" + bytes([osabi, layout]) + bytes(7)
    head += struct.pack("<HHIQQQIHHHHHH", 2, 190, 1, 0, 0, 64 + len(body), flags, 64, 0, 0, 64, len(sections), 0)
    return head + body + headers


def note(command: bytes) -> bytes:
    return struct.pack("<III", 12, len(command), 0x7D0) + b"NVIDIA Corp\0" + command


CODE = (1, 6, b"code")
COMPATIBLE = (0x70000086, 0, bytes.fromhex("040b080050000000 00000000 02090100".replace(" ", "")))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (cubin(7, 0x5A055A, CODE), (90, "", False)),
        (cubin(7, 0x5A0D5A, CODE), (90, "a", False)),
        (cubin(8, 0x6007802, CODE), (120, "", False)),
        (cubin(8, 0x600780A, (1, 2, b"data")), (120, "a", True)),
        (cubin(8, 0x6007802, CODE, COMPATIBLE), (120, "a", False)),
        (cubin(8, 0x6007802, CODE, (7, 0, note(b"ptxas\0-arch sm_120f "))), (120, "f", False)),
        (cubin(8, 0x6007802, CODE, (7, 0, note(b"ptxas\0-arch sm_100f "))), (120, "", False)),  # of something else
    ],
)
def test_marks_of_a_cubin(data: bytes, expected: tuple[int, str, bool]) -> None:
    found = read_cubin(BytesSource(data))
    assert (found.architecture, found.variant, found.empty) == expected
    assert not found.relocatable


LZ4 = bytes([0x35]) + b"abc" + b"\x03\x00" + bytes([0x20]) + b"zz"  # abc, nine bytes from three back, then zz


def test_lz4_blocks() -> None:
    assert beginning(LZ4, "lz4", 100) == b"abcabcabcabczz"
    assert beginning(LZ4, "lz4", 5) == b"abcab"
    long = bytes([0x1F]) + b"x" + b"\x01\x00" + bytes([255, 10])
    assert beginning(long, "lz4", 1000) == b"x" * (1 + 15 + 255 + 10 + 4)
    assert beginning(bytes([0x10]) + b"x" + b"\x09\x00", "lz4", 10) == b"x"  # from before the beginning


WHOLE = cubin(8, 0x6007802, CODE, COMPATIBLE, (7, 0, note(b"ptxas\0-arch sm_120f ")))


@settings(max_examples=600, deadline=None)
@given(
    st.sampled_from([GOOD, WHOLE, LZ4]),
    st.lists(st.tuples(st.integers(0, 400), st.binary(min_size=1, max_size=8)), max_size=5),
    st.integers(0, 500),
)
@example(GOOD, [], 0)
def test_hostile_bytes(good: bytes, changes: list[tuple[int, bytes]], length: int) -> None:
    data = bytearray(good)
    for place, content in changes:
        data[place : place + len(content)] = content
    source = BytesSource(bytes(data[:length]))
    with suppress(UnreadableElfError):
        read_device_file(source)
    with suppress(UnreadableElfError):
        read_cubin(source)
    for compression in ("lz4", "zstd"):
        assert len(beginning(bytes(data[:length]), compression, 1 << 12)) <= 1 << 12


def dist(site: Path, name: str, files: dict[str, str]) -> None:
    for path, content in files.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(content)
    folder = site / f"{name}-1.0.dist-info"
    folder.mkdir()
    (folder / "RECORD").write_text("".join(f"{path},,\n" for path in files))


def test_who_builds_at_first_use(tmp_path: Path) -> None:
    dist(tmp_path, "kernels", {
        "kernels/csrc/a.cu": "", "kernels/csrc/b.cuh": "",
        "kernels/jit.py": "from torch.utils.cpp_extension import load\nflag = 'compute_120f,code=sm_120f,sm_90a'\n",
        "kernels/other.py": "sm_75 = 1",
    })  # fmt: skip
    dist(tmp_path, "headers", {"headers/include/a.cuh": "", "headers/__init__.py": ""})
    dist(tmp_path, "scripts", {"scripts/run.py": "import torch.utils.cpp_extension"})
    dist(tmp_path, "helper", {"torch/utils/cpp_extension.py": "nvcc = 'bin/nvcc'", "torch/a.cuh": ""})
    dist(tmp_path, "compiler", {"nvidia/cu13/bin/nvcc": "#!/bin/sh"})
    found = device_packages(str(tmp_path), str(tmp_path))
    (source,) = found.sources
    assert (source.dist, source.files, source.builders) == ("kernels 1.0", 2, ("nvcc",))
    assert source.architectures == ("90a", "120f")
    assert found.compilers == ("nvidia/cu13/bin/nvcc",)


def test_ptx_as_text_says_what_it_is_for(tmp_path: Path) -> None:
    (tmp_path / "kernel.ptx").write_text("// a comment\n.version 9.0\n.target sm_103a, debug\n.entry f() { ret; }\n")
    (tmp_path / "plot.ptx").write_text("points")
    (tmp_path / "broken.fatbin").write_bytes(b"P\xedU\xba and more")
    found = device_packages(str(tmp_path), None)
    assert {file.path: file.code and file.code.names for file in found.files} == {
        "kernel.ptx": ("compute_103a",), "broken.fatbin": None,
    }  # fmt: skip
    assert [file.path for file in found.files if file.unreadable] == ["broken.fatbin"]
