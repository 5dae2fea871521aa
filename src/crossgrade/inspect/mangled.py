"""C++ names as compilers write them: what they say, and what makes two of them the same function but for its types.

Source: the Itanium C++ ABI, chapter "External Names (a.k.a. Mangling)".
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_MOST_ALIKE = 5
# _Z, or _ZN with its cv- and ref-qualifiers for a name in a namespace or class
_HEAD = re.compile(rb"_Z(?:N[rVK]*[RO]?)?")
_NUMBER = re.compile(rb"[1-9][0-9]*")
_STANDARD = re.compile(rb"S[tabsiod]")  # std and its best known members


def demangled(name: str) -> str:
    """As C++ writes it; the name itself where it is not mangled, or where this system cannot say."""
    if not name.startswith("_Z"):
        return name
    try:
        import cxxfilt  # asks the C++ library of this system: some 30 ms, and only for what is missing

        return str(cxxfilt.demangle(name))
    except Exception:  # noqa: BLE001 - no libstdc++, or no such name: then the mangled one must do
        return name


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


def most_alike(name: bytes, offered: Iterable[bytes]) -> tuple[bytes, ...]:
    """Names of the same function with other types, the shortest first: what a library has in place of `name`."""
    wanted = qualified_name(name)
    if not wanted:
        return ()
    found = {each for each in offered if each != name and each.startswith(wanted) and qualified_name(each) == wanted}
    return tuple(sorted(found, key=lambda each: (len(each), each))[:_MOST_ALIKE])
