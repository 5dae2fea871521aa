"""Requirements files as pip reads them, line by line. Pure: from text to data.

Source of the format: https://pip.pypa.io/en/stable/reference/requirements-file-format/. A line that means something
which a plan could not keep (an editable checkout, an option of pip's installer) is an error with the remedy.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from crossgrade.errors import Place, TaskError

Kind = Literal["requirement", "file", "constraints", "index", "extra index", "find links", "prereleases", "hashes"]

_COMMENT = re.compile(r"(^|\s+)#.*$")
_HASH = re.compile(r"\s+--hash[=\s]\s*(\S+)")
_OPTION = re.compile(r"^(-\w|--[\w-]+)(?:\s*=\s*|\s+|(?<=-\w)(?=\S))?(.*)$")
_KINDS: dict[str, Kind] = {
    "-r": "file",
    "--requirement": "file",
    "-c": "constraints",
    "--constraint": "constraints",
    "-i": "index",
    "--index-url": "index",
    "--extra-index-url": "extra index",
    "-f": "find links",
    "--find-links": "find links",
    "--pre": "prereleases",
    "--require-hashes": "hashes",  # always so here
}
_REMEDIES = {
    "-e": "Let extension_build make a wheel of it and name that in `wheels`, or write `NAME @ git+URL@REVISION`.",
    "--no-index": "Take the line out and give `index_url` and `find_links` in the playbook.",
    "--trusted-host": "Take the line out and set UV_INSECURE_HOST in the task's `environment`.",
    "--no-binary": "Let extension_build build a wheel from the source and name it in `wheels`.",
    "--only-binary": "Take the line out: the plan warns of each dist that would be built from source.",
    "--prefer-binary": "Take the line out: the plan warns of each dist that would be built from source.",
}
_REMEDIES["--editable"] = _REMEDIES["-e"]


@dataclass(frozen=True)
class Line:
    """One logical line: a requirement with the hashes that it asks for, or an option's value."""

    kind: Kind
    value: str
    place: Place
    hashes: tuple[str, ...] = ()


def parse_requirements(text: str, name: str) -> Iterator[Line]:
    """The lines of a requirements file; `name` is what errors call the file.

    Raises TaskError with file and line for an option that cannot be taken over.
    """
    for number, line in _logical_lines(text):
        place = Place(name, number, 1)
        if line.startswith("-"):
            yield _option(line, place)
        else:
            yield Line("requirement", _HASH.sub("", line).strip(), place, tuple(_HASH.findall(line)))


def _option(line: str, place: Place) -> Line:
    found = _OPTION.match(line)
    option, value = (found[1], found[2].strip()) if found else (line, "")
    kind = _KINDS.get(option)
    if kind is None or bool(value) is (kind in ("prereleases", "hashes")):
        raise TaskError(
            f"the option {option} cannot be taken over from a requirements file",
            remedy=_REMEDIES.get(option, "Take the line out; what python_env has for it is in docs/modules.md."),
            place=place,
        )
    return Line(kind, value, place)


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Number and text of each line, continuations joined, comments and empty lines left out."""
    joined, start = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        if not joined:
            start = number
        part = _COMMENT.sub("", line)
        if line.endswith("\\") and part == line:
            joined += line[:-1]
            continue
        joined = (joined + part).strip()
        if joined:
            yield start, joined
        joined = ""
    if joined.strip():
        yield start, joined.strip()
