"""C++ names as compilers write them: what they say, and what makes two of them the same function but for its types.

Source: the Itanium C++ ABI, chapter "External Names (a.k.a. Mangling)".
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

_MOST_ALIKE = 5
# _Z, or _ZN with its cv- and ref-qualifiers for a name in a namespace or class
_HEAD = re.compile(rb"_Z(?:N[rVK]*[RO]?)?")
_NUMBER = re.compile(rb"[1-9][0-9]{0,8}")
# What stands for an earlier part of the name. Each can double what a demangler writes out, so that a name of 270 bytes
# can take all memory. Of 180,000 names in PyTorch and Triton 1 in 400 has more, and stays as it is.
_REFERENCE = re.compile(r"[ST][0-9A-Z]*_")
_MOST_REFERENCES, _LONGEST, _LONGEST_SAID = 24, 4096, 2000
_STANDARD = re.compile(rb"S[tabsiod]")  # std and its best known members


def demangled(name: str) -> str:
    """As C++ writes it; the name itself where it is not mangled, or where this system cannot say."""
    if not name.startswith("_Z") or len(name) > _LONGEST or len(_REFERENCE.findall(name)) > _MOST_REFERENCES:
        return name
    try:
        import cxxfilt  # asks the C++ library of this system: some 30 ms, and only for what is missing

        said = str(cxxfilt.demangle(name))
    except Exception:  # noqa: BLE001 - no libstdc++, or no such name: then the mangled one must do
        return name
    return said if len(said) <= _LONGEST_SAID else f"{said[:_LONGEST_SAID]}…"


def qualified_name(name: bytes) -> bytes:
    """The beginning of a mangled name that says which function it is, without its types; empty where none can be told.

    `_ZN3c104cuda5checkEib` and `_ZN3c104cuda5checkEj` are both `_ZN3c104cuda5check`.
    """
    head = _HEAD.match(name)
    if head is None:
        return b""
    place, parts = head.end(), 0
    while place < len(name):
        if standard := _STANDARD.match(name, place):
            place = standard.end()
            continue
        number = _NUMBER.match(name, place)
        if number is None:
            break
        end = number.end() + int(number[0])
        if end > len(name):
            return b""
        place, parts = end, parts + 1
        if not head[0].startswith(b"_ZN"):
            break  # a name outside of every namespace has one part; what follows are its parameters
    return name[:place] if parts else b""


def most_alike(wanted: Mapping[bytes, bytes], offered: Collection[bytes]) -> dict[bytes, tuple[bytes, ...]]:
    """For each wanted name names of the same function with other types, the shortest first, where there are any.

    ``wanted`` maps names to their `qualified_name`. The time is that of one pass over what is offered.
    """
    found: dict[bytes, list[bytes]] = {function: [] for function in wanted.values() if function}
    if not found:
        return {}
    shortest = min(map(len, found))
    beginnings = {function[:shortest] for function in found}
    for name in offered:
        if name[:shortest] in beginnings and (same := found.get(qualified_name(name))) is not None:
            same.append(name)
    for same in found.values():
        same.sort(key=lambda each: (len(each), each))
    chosen = {
        name: [each for each in found[function][: _MOST_ALIKE + 1] if each != name]
        for name, function in wanted.items()
        if function
    }
    return {name: tuple(same[:_MOST_ALIKE]) for name, same in chosen.items() if same}


_SUBSTITUTION = re.compile(r"[ST][0-9A-Z]*_|L[a-z][0-9]+E|A[0-9]+_")
_SOURCE_NAME = re.compile(r"[1-9][0-9]*")


def without_names(name: str) -> str:
    """A mangled name without the identifiers that are spelt out in it: what is left are its types and operators.

    `_ZN5torch3jit17parseSchemaOrNameERKSsb` becomes `_ZNERKSsb`, in which `Ss` is the std::string of before C++11.
    """
    kept, place = [], 0
    while place < len(name):
        if found := _SUBSTITUTION.match(name, place):
            place = found.end()
        elif found := _SOURCE_NAME.match(name, place):
            place = found.end() + int(found[0])
        else:
            kept.append(name[place])
            place += 1
    return "".join(kept)
