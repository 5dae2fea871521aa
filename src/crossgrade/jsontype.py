"""The type of a value that JSON can carry, for everything that is stored or printed as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Union

# A union written with `Union`: the alias is evaluated when the module is imported, and Python 3.10 cannot
# apply `|` to a quoted name.
JSON = Union[None, bool, int, float, str, "list[JSON]", "dict[str, JSON]"]

# What a function may be given where it only reads: tuples and read-only mappings fit as well.
ReadableJSON = Union[None, bool, int, float, str, "Sequence[ReadableJSON]", "Mapping[str, ReadableJSON]"]


class Concealed(str):
    """A text that may hold a secret: what is told of a task's result has stars in its place."""

    __slots__ = ()
