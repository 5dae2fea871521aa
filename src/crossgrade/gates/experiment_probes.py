"""The probes of `knowledge/experiments.yml`: from a row and source files to what they say of a target, with quotes.

A reading `refuses` or `allows`, or it `depends` on something that a person must see to, or it is `unknown`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from crossgrade.inspect import source_probes as probes
from crossgrade.jsontype import JSON
from crossgrade.knowledge import Row

# What a name says of architectures without a number: `is_blackwell` is true for majors 10, 11 and 12 (sglang 0.5.9 and
# 0.5.23, srt/utils/common.py, is_blackwell_supported), `is_hopper` for 9.
NAMES: Mapping[str, tuple[int, ...]] = {"blackwell": (10, 11, 12), "hopper": (9,)}


@dataclass(frozen=True)
class Target:
    """For what is asked: a compute capability, how many GPUs a server spreads over, and how they reach each other.

    `gpus` and `nvlink` (every pair by NVLink) are None where that is not known; `cuda` is the CUDA release of torch, ""
    where it is not known.
    """

    major: int
    minor: int
    gpus: int | None = None
    nvlink: bool | None = None
    cuda: str = ""

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


@dataclass(frozen=True)
class Quote:
    """A line of a source file, relative to site-packages; lines count from 1."""

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}"


@dataclass(frozen=True)
class Reading:
    """What one probe says, and the lines that say it."""

    answer: Literal["allows", "refuses", "depends", "unknown"]
    text: str
    quotes: tuple[Quote, ...] = ()

    def to_json(self) -> dict[str, JSON]:
        quotes: list[JSON] = [{"file": each.file, "line": each.line, "text": each.text} for each in self.quotes]
        return {"answer": self.answer, "text": self.text, "quotes": quotes}


class Files(Protocol):
    """Where source files come from."""

    def tree(self, file: str) -> ast.Module | None:
        """None where the file is not there. Raises ValueError for one that cannot be read."""
        ...

    def quote(self, file: str, line: int) -> Quote: ...


@dataclass(frozen=True)
class Place:
    """A file in which something may stand; `name` and `keyword` say what, "" where the kind of probe needs none.

    `says` is what it means there, and `text` what stands there, where these differ by place.
    """

    file: str
    name: str = ""
    keyword: str = ""
    says: str = ""
    text: str = ""


def look(probe: Row, files: Files, target: Target, versions: Mapping[str, str]) -> Iterator[Reading]:
    """What a probe says. Of its places the first that is there counts."""
    about = str(probe["about"])
    if probe["kind"] == "dist":
        yield _dist(probe, about, versions)
        return
    places = [_place(each) for each in _rows(probe["places"])]
    asked = _ASKED[str(probe["kind"])]
    for place in places:
        try:
            tree = files.tree(place.file)
            found = None if tree is None else asked(probe, place, tree, files, target)
        except ValueError as error:
            yield Reading("unknown", f"{about}: {error}")
            return
        if found is not None:
            yield found
            return
    if not probe.get("optional"):
        yield _missing(probe, about, places)


def _missing(probe: Row, about: str, places: list[Place]) -> Reading:
    where = " or ".join(f"{place.file}{f' ({place.name})' if place.name else ''}" for place in places)
    if probe["kind"] == "defined":
        return Reading("refuses", f"{about}: this version has none ({where})")
    return Reading("unknown", f"{about}: not found where it is known to stand ({where})")


def _place(value: Row) -> Place:
    name, keyword, says, text = (str(value.get(word, "")) for word in ("name", "keyword", "says", "text"))
    return Place(str(value["file"]), name, keyword, says, text)


def _rows(value: JSON) -> list[Row]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _listed(majors: tuple[int, ...]) -> str:
    return ", ".join(f"{major}.x" for major in majors)


def _names(probe: Row, place: Place, tree: ast.Module, files: Files, target: Target) -> Reading | None:
    found = probes.architectures_asked(tree, place.name, NAMES)
    if found is None:
        return None
    quotes = tuple(files.quote(place.file, line) for line in found.lines)
    if not found.majors:
        return Reading(
            "unknown", f"{probe['about']}: {place.name} asks for no architecture by a name that is known", quotes
        )
    if target.major in found.majors:
        return Reading("allows", f"{probe['about']}: {_listed(found.majors)}", quotes)
    return Reading("refuses", f"{probe['about']}: {_listed(found.majors)} only, not {target}", quotes)


def _list(probe: Row, place: Place, tree: ast.Module, files: Files, target: Target) -> Reading | None:
    found = probes.numbers_given(tree, place.name, place.keyword)
    if found is None:
        return None
    majors, line = found
    quotes = (files.quote(place.file, line),)
    if majors is None:
        return Reading("allows", f"{probe['about']}: no list of architectures leaves one out", quotes)
    if target.major in majors:
        return Reading("allows", f"{probe['about']}: {_listed(majors)}", quotes)
    return Reading("refuses", f"{probe['about']}: {_listed(majors)} only, not {target}", quotes)


def _table(probe: Row, place: Place, tree: ast.Module, files: Files, target: Target) -> Reading | None:
    found = probes.table_of(tree, place.name)
    if found is None:
        return None
    quotes = [files.quote(place.file, found.line)]
    if target.major in found.keys:
        sizes = found.inner.get(target.major, ())
        if target.gpus is not None and sizes and target.gpus not in sizes:
            some = ", ".join(map(str, sizes))
            return Reading("refuses", f"{probe['about']}: with {some} GPUs, not with {target.gpus}", tuple(quotes))
        return Reading("allows", f"{probe['about']}: {_listed(found.keys)}", tuple(quotes))
    how = ""
    lookup = str(probe.get("lookup", ""))
    if lookup and (other := files.tree(lookup)) is not None:
        line = probes.subscript_line(other, place.name)
        how = "; it is not in use then" if line is None else f"; the server ends with KeyError: {target.major}"
        line = probes.use_line(other, place.name) if line is None else line
        quotes += [files.quote(lookup, line)] if line is not None else []
    return Reading("refuses", f"{probe['about']}: {_listed(found.keys)} only, not {target}{how}", tuple(quotes))


def _refused_if(probe: Row, place: Place, tree: ast.Module, files: Files, target: Target) -> Reading | None:
    line = probes.condition_line(tree, str(probe["condition"]))
    if line is None:
        return None
    quotes = (files.quote(place.file, line),)
    about = probe["about"]
    if probe["refuses"] != "over_pcie_above_two":
        return Reading("refuses", f"{about}: it is turned off", quotes)
    if target.nvlink or (target.gpus is not None and target.gpus <= 2):
        return Reading("allows", f"{about}: two GPUs, or more that are all joined by NVLink", quotes)
    if target.gpus is None or target.nvlink is None:
        missing = "how many GPUs" if target.gpus is None else "whether they are joined by NVLink"
        text = f"{about}: two, or more that are all joined by NVLink; {missing} is not known here"
        return Reading("depends", text, quotes)
    return Reading(
        "refuses", f"{about}: two, or more that are all joined by NVLink; here are {target.gpus} without", quotes
    )


def _forced(probe: Row, place: Place, tree: ast.Module, files: Files, target: Target) -> Reading | None:  # noqa: ARG001
    lines: tuple[int | None, ...]
    if text := place.text or str(probe.get("text", "")):
        lines = (probes.text_line(tree, text),)
    elif place.name:
        lines = (probes.member_line(tree, place.name, str(probe["member"])),)
    else:
        lines = probes.statement_lines(tree, str(probe["condition"]), str(probe["statement"])) or (None,)
    quotes = tuple(files.quote(place.file, line) for line in lines if line is not None)
    if not quotes:
        return None
    return Reading("depends", f"{probe['about']}: {place.says or probe['says']}", quotes)


def _defined(probe: Row, place: Place, tree: ast.Module, files: Files, target: Target) -> Reading | None:  # noqa: ARG001
    line = probes.definition_line(tree, place.name)
    return None if line is None else Reading("allows", f"{probe['about']}: it does", (files.quote(place.file, line),))


def _cuda(probe: Row, place: Place, tree: ast.Module, files: Files, target: Target) -> Reading | None:
    needed = probes.cuda_needed(tree, target.major, target.minor)
    if needed is None:
        return None
    quotes = (files.quote(place.file, needed.line),)
    about = f"{probe['about']}: {needed.release} or newer for {target}"
    if not target.cuda:
        return Reading("depends", f"{about}; torch here does not say its own", quotes)
    enough = _numbers(target.cuda) >= _numbers(needed.release)
    return Reading("allows" if enough else "refuses", f"{about}; torch here is for {target.cuda}", quotes)


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split(".") if part.isdecimal())


def _dist(probe: Row, about: str, versions: Mapping[str, str]) -> Reading:
    dists = probe["dists"]
    names = [str(each) for each in dists] if isinstance(dists, list) else []
    found = [f"{name} {versions[name]}" for name in names if name in versions]
    return Reading("depends" if found else "unknown", f"{about}: {', '.join(found) or 'not installed here'}")


_Asked = Callable[[Row, Place, ast.Module, Files, Target], "Reading | None"]
_ASKED: Mapping[str, _Asked] = {
    "architecture_names": _names,
    "architecture_list": _list,
    "architecture_table": _table,
    "refused_if": _refused_if,
    "forced": _forced,
    "defined": _defined,
    "cuda_release": _cuda,
}
