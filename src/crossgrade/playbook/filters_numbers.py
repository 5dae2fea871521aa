"""Filters of Ansible's for numbers: powers, sizes as people write them, and chance."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from jinja2 import pass_context

from crossgrade.playbook.filter_error import FilterError
from crossgrade.playbook.filters_sets import listed
from crossgrade.playbook.markers import Unknown

if TYPE_CHECKING:
    from random import Random

_POWERS = {"Y": 80, "Z": 70, "E": 60, "P": 50, "T": 40, "G": 30, "M": 20, "K": 10, "B": 0}  # of two
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*([A-Za-z]+)?", re.ASCII)
_NAMES = ("yotta", "zetta", "exa", "peta", "tera", "giga", "mega", "kilo", "")


def log(value: float, base: float = math.e) -> float:
    return math.log10(value) if base == 10 else math.log(value, base)


def root(value: float, base: float = 2) -> Any:
    return math.sqrt(value) if base == 2 else math.pow(value, 1.0 / float(base))


def human_readable(size: float, isbits: bool = False, unit: str | None = None) -> str:
    """`1.00 MB` of a number of bytes, or `1.00 Mb` of bits; a prefix stands for a power of 1024."""
    if isinstance(size, bool) or not isinstance(size, int | float):
        raise FilterError("`human_readable` expected a number")
    chosen = next(
        (
            letter
            for letter, power in _POWERS.items()
            if (unit is None and size >= 2**power) or (unit is not None and unit.upper() == letter)
        ),
        "B",
    )
    base = "bits" if isbits else "Bytes"
    suffix = base if chosen == "B" else chosen + base[0]
    return f"{size / 2 ** _POWERS[chosen]:.2f} {suffix}"


def human_to_bytes(size: Any, default_unit: str | None = None, isbits: bool = False) -> int:
    """The number that `1.5G`, `2 MB`, `1 kilobyte` or (with `isbits`) `8Mb` stands for."""
    found = _SIZE.fullmatch(str(size))
    if found is None:
        raise FilterError(f'`human_to_bytes`: "{size}" is no size', "Write it as 10, 1.5G or 2 MB.")
    unit = found[2] or default_unit
    if unit is None:
        return round(float(found[1]))
    return round(float(found[1]) * (1 << _power(unit, isbits, str(size))))


def _power(unit: str, isbits: bool, size: str) -> int:
    """Of two: that of a letter (`k`), of `KB` (or `Kb`, for bits), or of a word (`kilobyte`, `kilobit`)."""
    letter, word = unit[0].upper(), "bit" if isbits else "byte"
    words = {f"{name}{word}": power for name, power in zip(_NAMES, _POWERS.values(), strict=True)}
    if unit.lower() in words:
        return words[unit.lower()]
    if letter in _POWERS and (len(unit) == 1 or (letter != "B" and unit == letter + ("b" if isbits else "B"))):
        return _POWERS[letter]
    raise FilterError(
        f'`human_to_bytes`: "{size}" is no number of {word}s',
        "MB stands for bytes, and Mb for bits, which isbits=true reads.",
    )


def _source(context: Any, seed: Any, what: str) -> Random | Unknown:
    """Where chance comes from. Without a seed, nobody knows in a plan what a run will draw."""
    from random import Random, SystemRandom

    if seed is not None:
        return Random(seed)  # noqa: S311 - repeatable on purpose
    return Unknown(f"what {what} draws") if context.templar.foresees else SystemRandom()


@pass_context
def random_choice(context: Any, end: Any, start: int | None = None, step: int | None = None, seed: Any = None) -> Any:
    """One item of a list, or a number below `end`; the same for the same `seed`."""
    source = _source(context, seed, "`random` without a seed")
    if isinstance(end, int):
        numbers = range(start or 0, end, step or 1)
        if not numbers:
            raise FilterError("`random` has no number to choose from")
        return source if isinstance(source, Unknown) else source.randrange(start or 0, end, step or 1)
    if start or step:
        raise FilterError("`random`: start and step are for numbers only")
    items = listed(end, "random") if not isinstance(end, str) else list(end)
    if not items:
        raise FilterError("`random` got an empty list")
    return source if isinstance(source, Unknown) else source.choice(items)


@pass_context
def shuffle(context: Any, value: Any, seed: Any = None) -> Any:
    """The items in an order by chance; the same for the same `seed`. What is no list stays as it is."""
    try:
        items = list(value)
    except TypeError:
        return value
    source = _source(context, seed, "`shuffle` without a seed")
    if isinstance(source, Unknown):
        return source if len(items) > 1 else items
    source.shuffle(items)
    return items


FILTERS: dict[str, Any] = {
    "human_readable": human_readable,
    "human_to_bytes": human_to_bytes,
    "log": log,
    "pow": math.pow,
    "random": random_choice,
    "root": root,
    "shuffle": shuffle,
}
