"""A server's launch line as groups of words, and what a newer version of the server calls its options. Pure.

What was renamed since which version is the table `launch_translations`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from crossgrade.facts.secrets import is_secret, looks_secret
from crossgrade.facts.serving import Launch, find_launch
from crossgrade.knowledge import Row, table

CONCEALED = "***"
_PASSES = 8  # how often an option may have been renamed before something must be wrong with the table


@dataclass(frozen=True)
class Group:
    """An option with its values, as they stand on a line: `words` is never empty.

    Words before the first option are a group of their own, whose `option` is empty.
    """

    words: tuple[str, ...]

    @property
    def option(self) -> str:
        """The option as it is written, without a value after ``=``."""
        return self.words[0].partition("=")[0] if is_option(self.words[0]) else ""

    @property
    def values(self) -> tuple[str, ...]:
        _, equals, value = self.words[0].partition("=")
        if not self.option:
            return self.words
        return ((value,) if equals else ()) + self.words[1:]

    @property
    def secret(self) -> bool:
        """Whether a value of it is a secret, which nothing may show."""
        return any(is_secret(self.option, value) if self.option else looks_secret(value) for value in self.values)

    def concealed(self) -> Group:
        """The same with every secret value replaced."""
        if not self.secret:
            return self
        first = self.words[0]
        if not self.option:
            return Group(tuple(CONCEALED if looks_secret(word) else word for word in self.words))
        name, equals, value = first.partition("=")
        if equals and is_secret(name, value):
            first = f"{name}={CONCEALED}"
        return Group((first, *(CONCEALED if is_secret(name, word) else word for word in self.words[1:])))


@dataclass(frozen=True)
class LaunchLine:
    """A command that starts a server: the words up to the server's own arguments, and those in groups.

    `engine` is the server's name in the tables. `script` says that the console script starts it (`sglang serve`).
    """

    engine: str
    start: tuple[str, ...]
    groups: tuple[Group, ...]
    script: bool = False

    @property
    def words(self) -> tuple[str, ...]:
        return (*self.start, *(word for group in self.groups for word in group.words))

    def concealed(self) -> LaunchLine:
        return replace(self, groups=tuple(group.concealed() for group in self.groups))


def is_option(word: str) -> bool:
    """Whether argparse takes a word for an option: a dash, unless a number follows it."""
    return len(word) > 1 and word[0] == "-" and not re.fullmatch(r"-\d+|-\d*\.\d+", word)


def grouped(words: Sequence[str]) -> tuple[Group, ...]:
    """The words in groups, each beginning with an option."""
    found: list[list[str]] = []
    for word in words:
        if is_option(word) or not found:
            found.append([word])
        else:
            found[-1].append(word)
    return tuple(Group(tuple(group)) for group in found)


def read_line(words: Sequence[str]) -> LaunchLine | None:
    """A command as a launch line; None when it starts no server that is known.

    `{python}` and `{venv}` may stand in it, and what runs the server may stand before it (``numactl``, ``env``).
    """
    plain = [word.replace("{python}", "python").replace("{venv}", "/venv") for word in words]
    scripts = {str(row["script"]) for row in table("servers") if "script" in row}
    for at, word in enumerate(plain):
        launch = find_launch(plain[at:])
        if launch is None and Path(word).name in scripts:
            launch = find_launch(["python", *plain[at:]])
        if launch is not None:
            return _line(words, launch)
    return None


def _line(words: Sequence[str], launch: Launch) -> LaunchLine:
    own = len(words) - len(launch.arguments)
    return LaunchLine(
        str(launch.row["engine"]), tuple(words[:own]), grouped(words[own:]), script="script" in launch.row
    )


# ---- translating


@dataclass(frozen=True)
class Rewritten:
    """One option that is written in another way: the words before and after it, why, and where that stands.

    `after` is empty for an option that was left out.
    """

    option: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    why: str
    source: str

    def __str__(self) -> str:
        return f"{' '.join(self.before)} -> {' '.join(self.after) or '(left out)'}"


@dataclass(frozen=True)
class Translation:
    """A launch line for another version. `advice` is by option, for those that only a person can replace."""

    line: LaunchLine
    rewritten: tuple[Rewritten, ...] = ()
    advice: tuple[tuple[str, str], ...] = ()


def translate(line: LaunchLine, version: str) -> Translation:
    """The line as `version` of its server calls things; "" where the version is not known: then nothing changes.

    What a line has that the version does not know was written for an earlier one, so that one need not be known. A line
    that was translated already stays as it is.
    """
    groups: list[Group] = []
    rewritten: list[Rewritten] = []
    advice: list[tuple[str, str]] = []
    written = {group.option for group in line.groups}
    for group in line.groups:
        now, why = [group], ""
        source = ""
        for _ in range(_PASSES):
            rows = [(each, row) for each in now if (row := row_for(line.engine, each, version)) is not None]
            if not rows:
                break
            each, row = rows[0]
            if not ({"becomes", "values"} & {*row} or row.get("drop")):
                advice.append((each.option, str(row["advice"])))
                break
            more = _become(each, row, written)
            at = now.index(each)
            now[at : at + 1] = more
            why, source = str(row.get("advice", "")) or why, str(row["source"])
        groups += now
        if now != [group]:
            before, after = group.concealed().words, [word for each in now for word in each.concealed().words]
            rewritten.append(Rewritten(group.option, before, tuple(after), why, source))
    return Translation(replace(line, groups=tuple(groups)), tuple(rewritten), tuple(advice))


def row_for(engine: str, group: Group, version: str) -> Row | None:
    """The row that says what became of an option, or of the value that it has here, by this version.

    Of several for one option the last in the table counts, which holds since a later version.
    """
    if not version:
        return None
    found: Row | None = None
    for row in table("launch_translations"):
        if row["engine"] != engine or row["option"] != group.option or not reached(str(row["since"]), version):
            continue
        values = row.get("values")
        if not isinstance(values, dict) or any(value in values for value in group.values):
            found = row
    return found


def reached(since: str, version: str) -> bool:
    """Whether a version is `since` or later. A text that is no version has reached nothing."""
    from packaging.version import InvalidVersion, Version

    try:
        return Version(version) >= Version(since)
    except InvalidVersion:
        return False


def _become(group: Group, row: Row, written: set[str]) -> list[Group]:
    if row.get("drop"):
        return []
    values = row.get("values")
    if isinstance(values, dict):
        return [Group((group.option, *(str(values.get(value, value)) for value in group.values)))]
    becomes = row["becomes"]
    assert isinstance(becomes, list)  # noqa: S101 - the table's shape, which a test checks
    names = row.get("map")
    called = names if isinstance(names, dict) else {}
    filled = list(_filled(becomes, [str(called.get(value, value)) for value in group.values]))
    return [new for new in grouped(filled) if new.option not in written]


def _filled(words: Sequence[object], values: Sequence[str]) -> Iterator[str]:
    for word in words:
        if word == "{values}":
            yield from values
        else:
            yield str(word)
