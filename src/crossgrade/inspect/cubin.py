"""Reading the headers of a cubin: an ELF file of machine code for one GPU architecture.

There are two layouts of the ELF flags. Up to ABI 7 (EI_OSABI 0x33; code below sm_100, by nvcc 12 and earlier) the
architecture stands in bits 0 to 7 and bit 11 marks architecture-specific code (suffix a). From ABI 8 on (EI_OSABI 0x41)
the architecture stands in bits 8 to 15; bit 3 is the mark of nvcc 12.8, and from nvcc 13.0 on attribute 9
(EICOMPAT_ATTR_CUDA_ACCELERATOR_TARGET, as cuobjdump calls it) of the section .nv.compat. Family-specific code
(suffix f) has no mark of its own: only the compiler's command line in .note.nv.tkinfo tells, and cuobjdump prints it
without its suffix. All this was read from the output of ptxas 12.4, 12.8 and 13.0, see
`tests/integration/test_device_code_oracle.py`.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

from crossgrade.inspect.elf import MAGIC, Source, UnreadableElfError

_CUDA = 190
_EXECUTABLE = 0x4  # SHF_EXECINSTR
_RELOCATABLE = 1  # ET_REL
_SHT_NOTE, _SHT_COMPAT = 7, 0x70000086
_TOOLS_NOTE = 0x7D0
_ACCELERATOR_TARGET = b"\x02\x09\x01"  # one-byte attribute 9, value 1
_COMMAND = re.compile(rb"sm_(\d{2,4})([af]?)\b")
# The largest kernels of flashinfer-cubin have some hundred sections; a note holds one command line.
_MAX_SECTIONS, _MAX_NOTE = 1 << 16, 1 << 16


@dataclass(frozen=True)
class Cubin:
    """``architecture`` is 120 for sm_120, ``variant`` is ``""``, ``"a"`` or ``"f"``. ``relocatable`` code runs only
    after a device link. ``empty`` is True where there is no section with machine code."""

    architecture: int
    variant: str
    relocatable: bool
    empty: bool


def flag_variant(head: bytes) -> str:
    """``"a"`` where the ELF header alone (its first 64 bytes) marks architecture-specific code."""
    if len(head) < 52 or head[:5] != MAGIC + b"\2":
        return ""
    flags = int.from_bytes(head[48:52], "little")
    return "a" if flags & (0x8 if head[8] >= 8 else 0x800) else ""


def read_cubin(source: Source) -> Cubin:
    """Read one cubin, in a few small pieces. Raises `UnreadableElfError` for anything else."""
    head = source.read(0, 64)
    kind, machine = struct.unpack_from("<HH", head, 16)
    if head[:5] != MAGIC + b"\2" or machine != _CUDA:
        raise UnreadableElfError("it is no cubin")
    sections = _sections(source, head)
    flags = int.from_bytes(head[48:52], "little")
    architecture = flags >> 8 & 0xFF if head[8] >= 8 else flags & 0xFF
    variant = flag_variant(head)
    if not variant:
        variant = _variant_of(source, sections, architecture)
    empty = not any(flags & _EXECUTABLE for _, flags, _, _ in sections)
    return Cubin(architecture, variant, kind == _RELOCATABLE, empty)


def _sections(source: Source, head: bytes) -> list[tuple[int, int, int, int]]:
    """Kind, flags, offset and size of each section."""
    place = int.from_bytes(head[40:48], "little")
    size, count = struct.unpack_from("<HH", head, 58)
    if place == 0:
        return []
    if size != 64:
        raise UnreadableElfError("its section headers have an unexpected size")
    if count == 0:
        count = int.from_bytes(source.read(place + 32, 8), "little")
    if count > _MAX_SECTIONS:
        raise UnreadableElfError(f"it claims {count} sections")
    rows = struct.iter_unpack("<IIQQQQIIQQ", source.read(place, 64 * count))
    return [(kind, flags, offset, length) for _, kind, flags, _, offset, length, *_ in rows]


def _variant_of(source: Source, sections: list[tuple[int, int, int, int]], architecture: int) -> str:
    """The variant by what the compiler noted."""
    for kind, _, offset, size in sections:
        if kind == _SHT_COMPAT and size <= _MAX_NOTE:
            if any(chunk == _ACCELERATOR_TARGET for chunk in _attributes(source.read(offset, size))):
                return "a"
        elif kind == _SHT_NOTE and size <= _MAX_NOTE:
            note = source.read(offset, size)
            if len(note) < 24 or int.from_bytes(note[8:12], "little") != _TOOLS_NOTE:
                continue
            for number, variant in _COMMAND.findall(note):
                if int(number) == architecture and variant:
                    return str(variant.decode())
    return ""


def _attributes(data: bytes) -> list[bytes]:
    """Form, number and value of each one-byte attribute; others, which have a size, are passed over."""
    found, place = [], 0
    while place + 4 <= len(data):
        if data[place] == 4:  # a size of two bytes, then as many bytes
            place += 4 + int.from_bytes(data[place + 2 : place + 4], "little")
            continue
        found.append(data[place : place + 3])
        place += 4
    return found
