"""Names of Python that a module for the limited API (``abi3``) uses without being allowed to.

A wheel ``cp310-abi3-…`` promises to work with every CPython from 3.10 on. The loader does not check that: a name of a
later Python is missing in an earlier one, and what never was in the stable ABI may change or go with any release.

Source: CPython's `Misc/stable_abi.toml`, as the PyPI package abi3info carries it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_NAME = re.compile(r"_?Py[A-Z_]")
_TAG = re.compile(r"cp3(\d{1,4})(?:\.cp3\d{1,4})*-abi3\b")


@dataclass(frozen=True)
class Beyond:
    """A name that is not in the stable ABI of the promised Python; ``since`` is the first that has it, or None."""

    name: str
    since: tuple[int, int] | None


def promised(tags: Iterable[str]) -> tuple[int, int] | None:
    """The oldest Python that a wheel with these tags promises by abi3; None where it promises none."""
    found = [int(match[1]) for tag in tags if (match := _TAG.match(tag))]
    return (3, min(found)) if found else None


def beyond_limited_api(names: Iterable[str], oldest: tuple[int, int]) -> tuple[Beyond, ...]:
    """Which undefined symbols of a module are not in the stable ABI of ``oldest``, in order of name."""
    from abi3info import DATAS, FUNCTIONS  # some 30 ms, and only where there is such a module
    from abi3info.models import Symbol

    found = []
    for name in sorted(names):
        if not _NAME.match(name):
            continue
        item = FUNCTIONS.get(Symbol(name)) or DATAS.get(Symbol(name))
        since = (item.added.major, item.added.minor) if item else None
        if since is None or since > oldest:
            found.append(Beyond(name, since))
    return tuple(found)
