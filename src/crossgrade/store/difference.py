"""What differs between two generations, as data. Pure: records, manifests and verdicts in, differences out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from crossgrade.gates.verdict import Verdict
from crossgrade.store.generation import Generation
from crossgrade.store.manifest import Entry, Manifest

# Files that name the place of their venv, or are made from others: they differ between any two venvs.
_OWN_PLACE = ("pyvenv.cfg", "bin/", ".crossgrade.json")


@dataclass(frozen=True)
class Pair:
    """One thing by name, as it is on the one side and on the other; None where it is not there."""

    name: str
    before: str | None
    after: str | None


@dataclass(frozen=True)
class Files:
    """Paths relative to the venv. `sizes` are bytes of all files, before and after."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    sizes: tuple[int, int]


@dataclass(frozen=True)
class Difference:
    """Everything that differs. `libraries` are native files: what each is called and needs, before and after.

    `server` is what the servers said of themselves when they were last started; like the verdicts it is no part of the
    generation.
    """

    one: int
    other: int
    dists: tuple[Pair, ...]
    settings: tuple[Pair, ...]
    libraries: tuple[Pair, ...]
    gates: tuple[Pair, ...]
    files: Files
    server: tuple[Pair, ...] = ()

    @property
    def identical(self) -> bool:
        files = self.files
        return not (self.dists or self.settings or self.libraries or files.added or files.removed or files.changed)

    def to_json(self) -> dict[str, Any]:
        return {"schema": 1, "identical": self.identical, **asdict(self)}


def pairs(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[Pair, ...]:
    """The names whose values differ, in order."""
    names = sorted(before.keys() | after.keys())
    return tuple(Pair(name, before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name))


def dist_pairs(one: Generation, other: Generation) -> tuple[Pair, ...]:
    return pairs(_texts(one.contents.get("dists", {})), _texts(other.contents.get("dists", {})))


def setting_pairs(one: Generation, other: Generation) -> tuple[Pair, ...]:
    """Python, toolkits, and the variables that programs get."""
    return pairs(_settings(one), _settings(other))


def _settings(generation: Generation) -> dict[str, str]:
    contents = generation.contents
    found = {
        name: str(contents[name])
        for name in ("python", "lock", "base", "archived", "local_patches")
        if contents.get(name)
    }
    for name in ("toolkits", "wheels"):
        if contents.get(name):
            found[name] = ", ".join(str(each) for each in contents[name])
    return {**found, **{f"environment {name}": value for name, value in generation.environment.items()}}


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {str(name): str(value) for name, value in values.items()}


def server_pairs(
    one: Mapping[str, Any] | None, other: Mapping[str, Any] | None, volatile: Iterable[str]
) -> tuple[Pair, ...]:
    """The servers' settings that differ, without those named by `volatile`; none where one of the two told nothing."""
    if one is None or other is None:
        return ()
    left_out = frozenset(volatile)
    return pairs(
        *(
            {name: text for name, text in _flat(each["info"]) if name.split(".")[0] not in left_out}
            for each in (one, other)
        )
    )


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Every setting by its dotted name, lists as they are."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _flat(item, f"{name}.{key}" if name else str(key))
    else:
        yield name, json.dumps(value)


def file_difference(one: Manifest, other: Manifest) -> Files:
    """Files and links by content, mode and owner; bytecode and what only names its own place are left out."""
    before, after = _files(one.entries), _files(other.entries)
    changed = sorted(
        path for path in before.keys() & after.keys() if not before[path].same_content(after[path]) and not _own(path)
    )
    return Files(
        tuple(sorted(after.keys() - before.keys())),
        tuple(sorted(before.keys() - after.keys())),
        tuple(changed),
        (one.total_bytes, other.total_bytes),
    )


def _files(entries: Mapping[str, Entry]) -> dict[str, Entry]:
    return {
        path: entry
        for path, entry in entries.items()
        if entry.type != "directory" and "__pycache__" not in path.split("/")
    }


def _own(path: str) -> bool:
    return path.startswith(_OWN_PLACE) or path.endswith((".dist-info/RECORD", ".dist-info/INSTALLER"))


def gate_pairs(one: Iterable[Verdict], other: Iterable[Verdict]) -> tuple[Pair, ...]:
    """The verdicts on record, the benchmark's figures among them."""
    return pairs({each.gate: _told(each) for each in one}, {each.gate: _told(each) for each in other})


def _told(verdict: Verdict) -> str:
    return f"{verdict.outcome}: {verdict.reason}" if verdict.reason else verdict.outcome
