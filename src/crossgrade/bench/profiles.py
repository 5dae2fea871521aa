"""Several loads on one server, each judged by itself: `profiles` of a playbook, or of a YAML file.

    profiles:
      - {name: one stream, concurrency: 1, requests: 16}
      - {name: eight streams, concurrency: 8, requests: 64}

Parsing tells every problem with the place of its item, and reads nothing but the files that an item names.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from crossgrade.bench.lengths import parse_lengths
from crossgrade.bench.load_profile import LoadProfile
from crossgrade.bench.prompt_files import PromptFileError, PromptSet, read_prompt_set
from crossgrade.bench.samples import LoadResult
from crossgrade.errors import TaskError


@dataclass(frozen=True)
class ProfileProblem:
    """What is wrong, and where: `keys` lead to the value, `(1, "concurrency")` for that of the second item."""

    keys: tuple[str | int, ...]
    message: str

    def told(self, what: str) -> str:
        """`profiles[1].concurrency: "many" is no whole number`."""
        return (
            what
            + "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in self.keys)
            + (f": {self.message}")
        )


class ProfilesError(TaskError):
    """Profiles that cannot be used; `problems` has all of them."""

    def __init__(self, what: str, problems: Sequence[ProfileProblem]) -> None:
        super().__init__("; ".join(problem.told(what) for problem in problems))
        self.problems = tuple(problems)


def parse_profiles(
    raw: object, defaults: LoadProfile | None = None, *, what: str = "profiles"
) -> tuple[LoadProfile, ...]:
    """The profiles of a list as YAML gives it; what an item does not say is as in `defaults`.

    An item is a mapping of LoadProfile's fields. `prompt_set` is the path of a file (`prompt_files`), lengths are as
    in `lengths`. Without a `name` it is called after its concurrency or rate (`concurrency-8`, `rate-2.5`). Names are
    unique: figures and verdicts go by them. Raises ProfilesError with every problem, each beginning with `what` and
    the item's place.
    """
    defaults = defaults or LoadProfile()
    if not isinstance(raw, Sequence) or isinstance(raw, str | bytes) or not raw:
        raise ProfilesError(what, [ProfileProblem((), f"a list of profiles is needed, not {_shown(raw)}")])
    problems: list[ProfileProblem] = []
    profiles: list[LoadProfile] = []
    names: dict[str, int] = {}
    for position, item in enumerate(raw):
        try:
            profile = _parse_item(item, defaults)
        except _ItemProblems as error:
            problems += [ProfileProblem((position, *keys), message) for keys, message in error.found]
            continue
        if profile.name in names:
            message = f"another profile is called {profile.name!r} too, item {names[profile.name]}"
            problems.append(ProfileProblem((position, "name"), message))
        names.setdefault(profile.name, position)
        profiles.append(profile)
    if problems:
        raise ProfilesError(what, problems)
    return tuple(profiles)


def run_profiles(
    base_url: str,
    profiles: Sequence[LoadProfile],
    on_profile: Callable[[LoadProfile], None] | None = None,
    stall_timeout: float | None = None,
) -> list[LoadResult]:
    """Put each profile's load on the same running server, one after the other; results in the same order.

    `base_url` is `RunningServer.base_url`. `on_profile` is told each profile before its load. Each begins with its
    own warm-up. `stall_timeout` as in `run_load`. Raises LoadError and StallError.
    """
    from crossgrade.bench.load import run_load

    results = []
    for profile in profiles:
        if on_profile is not None:
            on_profile(profile)
        results.append(run_load(base_url, profile, stall_timeout))
    return results


class _ItemProblems(Exception):  # noqa: N818 - it carries several
    def __init__(self, found: Sequence[tuple[tuple[str | int, ...], str]]) -> None:
        super().__init__(found)
        self.found = found


def _parse_item(item: object, defaults: LoadProfile) -> LoadProfile:
    if not isinstance(item, Mapping):
        raise _ItemProblems([((), f"a profile is a mapping, such as {{concurrency: 8}}, not {_shown(item)}")])
    values: dict[str, Any] = {}
    found: list[tuple[tuple[str | int, ...], str]] = []
    for key, value in item.items():
        reader = _READERS.get(key) if isinstance(key, str) else None
        if reader is None:
            close = difflib.get_close_matches(str(key), _READERS, 1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(_READERS)}"
            found.append(((), f"{key!r} is nothing that a profile can say; {hint}"))
            continue
        try:
            values[key] = reader(value)
        except ValueError as error:
            found.append(((key,), str(error)))
    if "rate" in values and "concurrency" in values:
        found.append((("concurrency",), "an open loop (`rate`) has no concurrency; `most_in_flight` bounds it"))
    if found:
        raise _ItemProblems(found)
    if "concurrency" in values:
        values.setdefault("rate", None)
    for given, other in (("prompts", "prompt_set"), ("prompt_set", "prompts")):
        if given in values:
            values.setdefault(other, _NO_PROMPTS[other])
    try:
        profile = replace(defaults, **{"name": "", **values})
    except TaskError as error:
        raise _ItemProblems([((), error.message.removeprefix("load profile: "))]) from error
    return profile if profile.name else replace(profile, name=_made_name(profile))


def _made_name(profile: LoadProfile) -> str:
    return f"concurrency-{profile.concurrency}" if profile.rate is None else f"rate-{profile.rate:g}"


def _whole(value: object) -> int:
    """A whole number, also as text, as a template may give it."""
    try:
        if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
            return int(value)
    except ValueError:
        pass
    raise ValueError(f"{_shown(value)} is no whole number")


def _number(value: object) -> float:
    try:
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            number = float(value)
            if math.isfinite(number):
                return number
    except (ValueError, OverflowError):
        pass
    raise ValueError(f"{_shown(value)} is no number")


def _text(value: object) -> str:
    if isinstance(value, str) and value.strip():
        return value
    raise ValueError(f"{_shown(value)} is no text")


def _texts(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    if isinstance(value, Sequence) and all(isinstance(text, str) for text in value):
        return tuple(value)
    raise ValueError(f"{_shown(value)} is no list of texts")


def _mapping(value: object) -> dict[str, Any]:
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return dict(value)
    raise ValueError(f"{_shown(value)} is no mapping")


def _prompt_set(value: object) -> PromptSet:
    try:
        return read_prompt_set(Path(_text(value)))
    except PromptFileError as error:
        raise ValueError(error.message) from error


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


_NO_PROMPTS: Mapping[str, Any] = {"prompts": (), "prompt_set": None}  # an item's own go before those of the defaults

_READERS: Mapping[str, Callable[[object], Any]] = {
    "name": _text,
    "concurrency": _whole,
    "requests": _whole,
    "warmup_requests": _whole,
    "max_tokens": _whole,
    "prompts": _texts,
    "prompt_words": _whole,
    "seed": _whole,
    "timeout": _number,
    "endpoint": _text,
    "model": _text,
    "error_limit": _whole,
    "extra_body": _mapping,
    "rate": _number,
    "arrivals": _text,
    "most_in_flight": _whole,
    "queue_limit": _whole,
    "prompt_lengths": parse_lengths,
    "output_lengths": parse_lengths,
    "prompt_set": _prompt_set,
    "shared_prefix_words": _whole,
    "shared_prefix_share": _number,
    "tool": _text,
    "tool_command": _texts,
    "tool_arguments": _texts,
}
