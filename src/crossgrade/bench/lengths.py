"""How long prompts and answers are: a distribution, drawn from with a seeded generator. Pure but for `lengths_file`."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from crossgrade.jsontype import JSON

LARGEST_LENGTH = 1 << 20  # words or tokens: far above any context
MOST_LENGTHS = 100_000  # of a file
LARGEST_FILE_BYTES = 8 << 20
_PARAMETERS = {"fixed": 1, "uniform": 2, "normal": 2, "lognormal": 2}

Kind = Literal["fixed", "uniform", "normal", "lognormal", "listed"]


@dataclass(frozen=True)
class Lengths:
    """A distribution of whole numbers from `least` to `most`.

    `parameters`: of `fixed` the number; of `uniform` the lowest and the highest; of `normal` the mean and the
    standard deviation; of `lognormal` the median and the standard deviation of the logarithm; of `listed` the
    numbers themselves, one of which is taken. What is drawn outside `least` to `most` is brought to the nearer end.
    """

    kind: Kind
    parameters: tuple[float, ...]
    least: int = 1
    most: int = LARGEST_LENGTH

    def __post_init__(self) -> None:
        wanted = _PARAMETERS.get(self.kind)
        if wanted is not None and len(self.parameters) != wanted:
            raise ValueError(f"{self.kind} takes {wanted} numbers, not {len(self.parameters)}")
        if not self.parameters:
            raise ValueError("no lengths are listed")
        if not all(math.isfinite(number) and 0 <= number <= LARGEST_LENGTH for number in self.parameters):
            raise ValueError(f"a length is below 0, above {LARGEST_LENGTH} or no number")
        if not 1 <= self.least <= self.most <= LARGEST_LENGTH:
            raise ValueError(f"lengths go from {self.least} to {self.most}, not from 1 or more upwards")
        if self.kind == "uniform" and self.parameters[0] > self.parameters[1]:
            raise ValueError("uniform takes the lowest length first, then the highest")
        if self.kind == "lognormal" and not self.parameters[0] > 0:
            raise ValueError("the median of lognormal is above 0")

    def draw(self, choose: random.Random) -> int:
        """One length; the same generator in the same state gives the same one."""
        first = self.parameters[0]
        if self.kind == "fixed":
            drawn = first
        elif self.kind == "uniform":
            drawn = choose.randint(round(first), round(self.parameters[1]))
        elif self.kind == "normal":
            drawn = choose.gauss(first, self.parameters[1])
        elif self.kind == "lognormal":
            # The exponent is bounded, so that a wide distribution cannot overflow.
            drawn = math.exp(min(math.log(first) + choose.gauss(0.0, self.parameters[1]), 50.0))
        else:
            drawn = choose.choice(self.parameters)
        return min(self.most, max(self.least, round(drawn)))

    def to_json(self) -> dict[str, JSON]:
        return {"kind": self.kind, "parameters": list(self.parameters), "least": self.least, "most": self.most}


def parse_lengths(value: object) -> Lengths:
    """From YAML: `128`, `{uniform: [32, 256]}`, `{normal: [128, 32], most: 512}`, `{lognormal: [128, 0.5]}` or
    `{file: lengths.txt}`.

    Raises ValueError.
    """
    if not isinstance(value, Mapping):
        return Lengths("fixed", (_number(value),))
    rest = dict(value)
    bounds = {name: round(_number(rest.pop(name))) for name in ("least", "most") if name in rest}
    if len(rest) != 1:
        raise ValueError(f"lengths are one of {', '.join(_PARAMETERS)} and file, with `least` and `most` beside it")
    ((kind, given),) = rest.items()
    if kind == "file":
        if not isinstance(given, str):
            raise ValueError(f"{given!r} is no path")
        return Lengths("listed", lengths_file(Path(given)), **bounds)
    if kind not in _PARAMETERS:
        raise ValueError(f"{kind!r} is no distribution; there are {', '.join(_PARAMETERS)} and file")
    numbers = given if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    return Lengths(kind, tuple(_number(number) for number in numbers), **bounds)


def lengths_file(path: Path) -> tuple[float, ...]:
    """The whole numbers of a file, one in each line; blank lines and those that begin with `#` are passed over.

    Raises ValueError for a file that cannot be read, is too large or holds something else, with the line.
    """
    try:
        if path.stat().st_size > LARGEST_FILE_BYTES:
            raise ValueError(f"{path} is larger than {LARGEST_FILE_BYTES >> 20} MiB")
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text: {error}") from error
    found: list[float] = []
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        if not (text.isascii() and text.isdecimal() and 1 <= len(text) <= 7 and 1 <= int(text) <= LARGEST_LENGTH):
            raise ValueError(f"{path}:{number}: {text[:40]!r} is no length from 1 to {LARGEST_LENGTH}")
        found.append(float(text))
        if len(found) > MOST_LENGTHS:
            raise ValueError(f"{path} holds more than {MOST_LENGTHS} lengths")
    if not found:
        raise ValueError(f"{path} holds no length")
    return tuple(found)


def _number(value: Any) -> float:
    """Also from text, as a template may give it."""
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        try:
            number = float(value)
        except (ValueError, OverflowError):
            pass
        else:
            if math.isfinite(number):
                return number
    raise ValueError(f"{str(value)[:40]!r} is no number")
