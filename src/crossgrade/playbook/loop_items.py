"""`with_NAME`: from what a playbook gives to the items of the loop, as Ansible's lookup of this name makes them."""

from __future__ import annotations

import glob
import itertools
import json
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossgrade.errors import CrossgradeError
from crossgrade.playbook.argument_types import name_of_type, shown, to_bool
from crossgrade.playbook.limits import MAX_ITEMS, LimitExceeded, too_large
from crossgrade.playbook.markers import DependsOnUnknown

MAX_FILE_BYTES = 10_000_000


class LoopError(CrossgradeError, ValueError):
    """What stands at `with_…` gives no items."""


@dataclass(frozen=True)
class LoopPlaces:
    """Where a loop's lookups look: `directories` for relative paths (each and its `files`), in their order.

    `lines_of` gives what a program prints; where a plan must not start one, it raises. `foreseen` is that of a Templar.
    """

    directories: Sequence[Path]
    environment: Mapping[str, str]
    lines_of: Callable[[str], Sequence[str]]
    foreseen: Callable[[str], Any] = lambda _: None

    def find(self, name: str) -> Path | None:
        """Raises DependsOnUnknown in a plan for what an earlier task makes, changes or removes."""
        path = Path(name).expanduser()
        for place in (place / path for directory in self.directories for place in (directory / "files", directory)):
            if self.foreseen(str(place)) is not None:
                raise DependsOnUnknown(f"{place}, which an earlier task makes")
            if place.exists():
                return place
        return None


def loop_items(name: str, given: Any, places: LoopPlaces) -> list[Any]:
    """The items of `with_NAME: given`, templates expanded. Raises LoopError, OSError and what `lines_of` raises."""
    terms = given if isinstance(given, list) else [given]
    try:
        items = list(itertools.islice(_LOOKUPS[name](terms, places), MAX_ITEMS + 1))
        if len(items) > MAX_ITEMS:
            raise too_large("the list of items")
    except LimitExceeded as error:
        raise LoopError(f"with_{name}: {error}") from error
    except LoopError as error:
        raise LoopError(f"with_{name}: {error.message}", remedy=error.remedy) from error
    return items


def _one_level(terms: Iterable[Any]) -> Iterable[Any]:
    for term in terms:
        if isinstance(term, list | tuple):
            yield from term
        else:
            yield term


def _items(terms: list[Any], _: LoopPlaces) -> Iterable[Any]:
    return _one_level(terms)


def _list(terms: list[Any], _: LoopPlaces) -> Iterable[Any]:
    return terms


def _dict(terms: list[Any], _: LoopPlaces) -> Iterable[Any]:
    for term in terms:
        if not isinstance(term, Mapping):
            raise LoopError(f"a mapping was expected, got {shown(term)}")
        for key, value in term.items():
            yield {"key": key, "value": value}


def _flattened(terms: list[Any], places: LoopPlaces) -> Iterable[Any]:
    for term in terms:
        if isinstance(term, list | tuple):
            yield from _flattened(list(term), places)
        elif term is not None:
            yield term


def _indexed_items(terms: list[Any], _: LoopPlaces) -> Iterable[Any]:
    return ([at, item] for at, item in enumerate(_one_level(terms)))


def _nested(terms: list[Any], _: LoopPlaces) -> Iterable[Any]:
    if not terms:
        raise LoopError("at least one list is needed")
    lists = [term if isinstance(term, list | tuple) else [term] for term in terms]
    total = 1
    for one in lists:
        total *= len(one)
    if total > MAX_ITEMS:
        raise too_large("the list of items")
    return (list(_one_level(combination)) for combination in itertools.product(*lists))


def _together(terms: list[Any], _: LoopPlaces) -> Iterable[Any]:
    lists = [term if isinstance(term, list | tuple) else [term] for term in terms]
    if not lists:
        raise LoopError("at least one list is needed")
    return (list(_one_level(combination)) for combination in itertools.zip_longest(*lists))


def _subelements(terms: list[Any], _: LoopPlaces) -> Iterable[Any]:
    if len(terms) not in (2, 3) or not isinstance(terms[1], str):
        raise LoopError("a list of mappings, the key of a list in each, and perhaps `{skip_missing: true}` are needed")
    elements, path, *rest = terms
    flags = rest[0] if rest and isinstance(rest[0], Mapping) else {}
    skip_missing = to_bool(flags.get("skip_missing", False))
    if isinstance(elements, Mapping):
        elements = list(elements.values())
    for element in elements if isinstance(elements, list | tuple) else [elements]:
        if not isinstance(element, Mapping):
            raise LoopError(f"a mapping was expected, got {shown(element)}")
        if element.get("skipped", False) is not False:
            continue  # the result of a task that was skipped
        value: Any = element
        for key in path.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        if value is None and skip_missing:
            continue
        if not isinstance(value, list | tuple):
            what = "is not there" if value is None else f"is {name_of_type(value)}, not a list"
            raise LoopError(f"the key {path!r} {what} in {shown(dict(element))}")
        without = _without(element, path.split("."))
        yield from ([without, item] for item in value)


def _without(element: Mapping[Any, Any], keys: Sequence[str]) -> dict[Any, Any]:
    """A copy without what lies at `keys`: Ansible takes the list out of the mapping that it comes from."""
    copy = dict(element)
    if len(keys) == 1:
        del copy[keys[0]]
    else:
        copy[keys[0]] = _without(copy[keys[0]], keys[1:])
    return copy


_SHORT_SEQUENCE = re.compile(
    r"(?P<start>-?(?:0x)?[0-9a-fA-F]+)?(?:(?<=.)-(?P<end>-?(?:0x)?[0-9a-fA-F]+))?"
    r"(?:/(?P<stride>-?(?:0x)?[0-9a-fA-F]+))?(?::(?P<format>.+))?"
)


def _sequence(terms: list[Any], _: LoopPlaces) -> Iterable[Any]:
    for term in terms:
        yield from _one_sequence(term)


def _one_sequence(term: Any) -> Iterable[str]:
    words = _sequence_words(term)
    start, stride = _whole(words.get("start", 1)), _whole(words.get("stride", 1))
    if ("end" in words) == ("count" in words):
        raise LoopError("either `end` or `count` is needed", remedy="For example: with_sequence: start=1 end=4")
    if "count" in words:
        count = _whole(words["count"])
        end = start + stride * (count - 1)
        if count == 0:
            return
    else:
        end = _whole(words["end"])
    if stride > 0 and end < start:
        raise LoopError("to count backwards, `stride` must be negative")
    if stride < 0 and end > start:
        raise LoopError("to count forwards, `stride` must be positive")
    if stride == 0:
        return
    numbers = range(start, end + (1 if stride > 0 else -1), stride)
    if len(numbers) > MAX_ITEMS:
        raise too_large("the list of items")
    pattern = str(words.get("format", "%d"))
    try:
        pattern % start
    except (TypeError, ValueError) as error:
        raise LoopError(f"`format` {pattern!r} fits no number: {error}") from error
    yield from (pattern % number for number in numbers)


def _sequence_words(term: Any) -> dict[str, Any]:
    if isinstance(term, Mapping):
        return dict(term)
    text = str(term).strip()
    short = _SHORT_SEQUENCE.fullmatch(text)
    if short and short["start"]:
        found = {name: value for name, value in short.groupdict().items() if value is not None}
        if "end" not in found:  # one number alone is the end
            found["end"] = found.pop("start")
        return found
    words = dict(word.partition("=")[::2] for word in text.split())
    unknown = set(words) - {"start", "end", "count", "stride", "format"}
    if unknown:
        raise LoopError(f"a sequence has no {min(unknown)!r}", remedy="It has start, end, count, stride, format.")
    return words


def _whole(value: Any) -> int:
    text = str(value).strip()
    try:
        return int(text, 16 if text.lower().lstrip("+-").startswith("0x") else 10)  # 0600 is 600, as in Ansible
    except ValueError:
        raise LoopError(f"a whole number was expected, got {shown(value)}") from None


def _fileglob(terms: list[Any], places: LoopPlaces) -> Iterable[Any]:
    for term in terms:
        pattern = Path(str(term)).expanduser()
        folders = [Path()] if pattern.is_absolute() else _folders(places)
        for folder in folders:
            found = sorted(glob.glob(str(folder / pattern)))  # noqa: PTH207 - the pattern may be absolute
            files = [name for name in found if Path(name).is_file()]
            if files:
                yield from files
                break


def _folders(places: LoopPlaces) -> list[Path]:
    return [place for directory in places.directories for place in (directory / "files", directory)]


def _file(terms: list[Any], places: LoopPlaces) -> Iterable[Any]:
    for term in terms:
        path = places.find(str(term))
        if path is None:
            raise LoopError(f"there is no file {str(term)!r}", remedy="Paths start at the playbook, or at its `files`.")
        with path.open("rb") as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise too_large("the file's text")
        yield data.decode("utf-8", "strict").rstrip()


def _lines(terms: list[Any], places: LoopPlaces) -> Iterable[Any]:
    for term in terms:
        yield from places.lines_of(str(term))


def _first_found(terms: list[Any], places: LoopPlaces) -> Iterable[Any]:
    skip = False
    tried: list[str] = []
    for term in terms:
        if isinstance(term, Mapping):
            skip = skip or to_bool(term.get("skip", False))
            files, paths = _listed(term.get("files")), _listed(term.get("paths"))
            names = [str(Path(path) / file) for path in paths for file in files] if paths and files else files or paths
        else:
            names = [str(item) for item in (term if isinstance(term, list | tuple) else [term])]
        for name in names:
            tried.append(name)
            path = places.find(name)
            if path is not None:
                yield str(path)
                return
    if not skip:
        raise LoopError(
            f"none of these is there: {', '.join(tried) or 'nothing was named'}",
            remedy="With `skip: true` beside `files` that would be no error.",
        )


def _listed(value: Any) -> list[str]:
    """A list, or a text that is split at commas, semicolons and colons, as Ansible does here."""
    if value is None:
        return []
    if isinstance(value, list | tuple):
        return [part for item in value for part in _listed(item)]
    return [part.strip() for part in re.split(r"[,;:]", str(value)) if part.strip()]


def _random_choice(terms: list[Any], _: LoopPlaces) -> Iterable[Any]:
    """The same each time for the same list: otherwise a plan could not say what a run will do."""
    if terms:
        seed = json.dumps(terms, sort_keys=True, default=str)
        yield random.Random(seed).choice(terms)  # noqa: S311 - no secret hangs on it


def _env(terms: list[Any], places: LoopPlaces) -> Iterable[Any]:
    return (places.environment.get(str(term), "") for term in terms)


_LOOKUPS: dict[str, Callable[[list[Any], LoopPlaces], Iterable[Any]]] = {
    "items": _items,
    "list": _list,
    "dict": _dict,
    "flattened": _flattened,
    "sequence": _sequence,
    "nested": _nested,
    "cartesian": _nested,
    "together": _together,
    "subelements": _subelements,
    "indexed_items": _indexed_items,
    "fileglob": _fileglob,
    "file": _file,
    "lines": _lines,
    "first_found": _first_found,
    "random_choice": _random_choice,
    "env": _env,
}
