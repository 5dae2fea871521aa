"""Whether the entries of a dynamic section fit together, as the loader takes for granted.

It does not check: a table without its size, or with entries of another size than it knows, ends in a wild access or in
"Inconsistency detected by ld.so".

Sources: the System V ABI, chapter 5 ("Dynamic Section"); glibc 2.36 `elf/get-dynamic-info.h`.
"""

from __future__ import annotations

from collections.abc import Mapping

from crossgrade.inspect.elf_source import UnreadableElfError

DT_PLTRELSZ, DT_SYMENT, DT_RELA, DT_RELASZ, DT_RELAENT, DT_PLTREL, DT_JMPREL = 2, 11, 7, 8, 9, 20, 23
DT_INIT_ARRAY, DT_FINI_ARRAY, DT_INIT_ARRAYSZ, DT_FINI_ARRAYSZ = 25, 26, 27, 28
DT_RELRSZ, DT_RELR, DT_RELRENT, DT_VERSYM, DT_VERDEF, DT_VERNEED = 35, 36, 37, 0x6FFFFFF0, 0x6FFFFFFC, 0x6FFFFFFE

_VALUES = {DT_SYMENT: 24, DT_RELAENT: 24, DT_RELRENT: 8, DT_PLTREL: DT_RELA}
_TOGETHER = (
    (DT_RELA, DT_RELASZ, DT_RELAENT),
    (DT_JMPREL, DT_PLTRELSZ, DT_PLTREL),
    (DT_RELR, DT_RELRSZ, DT_RELRENT),
    (DT_INIT_ARRAY, DT_INIT_ARRAYSZ),
    (DT_FINI_ARRAY, DT_FINI_ARRAYSZ),
)
_RELA_ONLY = ("x86_64", "aarch64", "riscv", "ppc64", "loongarch")


def check_tags(tags: Mapping[int, int], machine: str) -> None:
    """Raises `UnreadableElfError` where the dynamic section of a 64-bit file of this machine contradicts itself."""
    if machine not in _RELA_ONLY:
        return
    for tag, value in _VALUES.items():
        if tags.get(tag, value) != value:
            raise UnreadableElfError(f"its dynamic section says {tags[tag]} for tag {tag}, where {value} belongs")
    for group in _TOGETHER:
        there = [tag for tag in group if tag in tags]
        if (group[0] in tags or tags.get(group[1])) and len(there) < len(group):
            missing = next(tag for tag in group if tag not in tags)
            raise UnreadableElfError(f"its dynamic section has tag {there[0]} and lacks tag {missing}")
    if (DT_VERDEF in tags or DT_VERNEED in tags) and DT_VERSYM not in tags:
        raise UnreadableElfError("its symbols have lost their versions")
