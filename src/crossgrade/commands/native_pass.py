"""A peer for `bench inspect`, run as a program: needed libraries and all dynamic symbols of files, by numpy.

As fast as a plain pass can be: nothing is resolved, compared or kept.
"""

from __future__ import annotations

import os
import sys

import numpy as np

from crossgrade.inspect.elf import FileSource, UnreadableElfError, parse_elf

_SYMTAB, _STRTAB, _STRSZ = 6, 5, 10
_DYNSYM = 11


def main(listed: str) -> None:
    symbols = needed = 0
    with open(listed, "rb") as file:  # noqa: PTH123 - a script
        paths = [os.fsdecode(path) for path in file.read().split(b"\0") if path]
    for path in paths:
        try:
            with FileSource(path) as source:
                elf = parse_elf(source)
                needed += len(elf.needed)
                table = next((section for section in elf.sections if section.kind == _DYNSYM), None)
                strings = elf.tag(_STRTAB)
                if table is None or strings is None:
                    continue
                entries = np.frombuffer(source.read(table.offset, table.size), dtype="<u4").reshape(-1, 6)
                names = np.frombuffer(elf.read(source, strings, elf.tag(_STRSZ) or 0), dtype="u1")
                symbols += len(entries)
                (names == 0).nonzero()[0].searchsorted(entries[:, 0])  # where each name ends
        except UnreadableElfError:
            continue
    sys.stdout.write(f"{len(paths)} files, {needed} needed libraries, {symbols} symbols\n")


if __name__ == "__main__":
    main(sys.argv[1])
