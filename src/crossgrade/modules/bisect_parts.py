"""What differs between two generations, as changes that a bisect can try apart: dists, toolkit, variables, options.

`read_ingredients` reads a generation's records and METADATA; the rest is pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from crossgrade.errors import TaskError
from crossgrade.facts import launch_line
from crossgrade.inspect.dists import InstalledDist, direct_url, installed_dists
from crossgrade.inspect.mixing import Dist, changed_names, grouped, needs_of, read_dists
from crossgrade.modules.locks import lock_entries
from crossgrade.modules.wheels import BuiltWheel, WheelSource, name_and_version, sha256_of
from crossgrade.store.generation import Generation
from crossgrade.store.layout import Store

Kind = Literal["dist", "toolkit", "variable", "option"]
LOCK_FILE = "lock.txt"


@dataclass(frozen=True)
class Ingredients:
    """What one generation is made of, so that parts of it can be put into another one.

    `lines` are the requirement that pins each dist, `wheels` the dists that come from a file on this machine instead,
    both by normalized name. `variables` are without those that follow from the toolkit.
    """

    number: int
    dists: Mapping[str, Dist]
    lines: Mapping[str, str]
    wheels: Mapping[str, WheelSource] = field(default_factory=dict)
    toolkit: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    python: str = ""
    origin: str = "built"

    def version(self, name: str) -> str | None:
        """What a dist is for people: its version, and which build where it was built here; None where it is not."""
        if name not in self.dists:
            return None
        wheel = self.wheels.get(name)
        return self.dists[name].version + (f" (wheel {wheel.sha256[:8]})" if wheel else "")


@dataclass(frozen=True)
class Part:
    """One change: `before` and `after` are None where there is nothing on that side."""

    kind: Kind
    name: str
    before: str | None
    after: str | None

    @property
    def title(self) -> str:
        """`torch 2.9.1 -> 2.14.1`; the values of variables and options may be secret and are not in it."""
        if self.kind in ("variable", "option"):
            how = "added" if self.before is None else "removed" if self.after is None else "changed"
            return f"{self.kind} {self.name} ({how})"
        return (
            f"{'' if self.kind == 'dist' else 'the '}{self.name} {self.before or 'absent'} -> {self.after or 'absent'}"
        )


@dataclass(frozen=True)
class PartGroup:
    """Parts that move together; `needs` are positions of earlier groups without which these cannot be tried."""

    parts: tuple[Part, ...]
    needs: frozenset[int] = frozenset()

    @property
    def title(self) -> str:
        return ", ".join(part.title for part in self.parts)

    @property
    def key(self) -> str:
        """The same for the same change, whatever else there is."""
        return "; ".join(f"{part.kind}:{part.name}" for part in self.parts)

    @property
    def built(self) -> bool:
        """Whether it is a change of what is built: an option of the launch line is none."""
        return any(part.kind != "option" for part in self.parts)


def read_ingredients(store: Store, generation: Generation, given: Sequence[WheelSource] = ()) -> Ingredients:
    """What a generation is made of, from its lock and its wheels, else from what is installed.

    `given` are wheel files that the playbook names. Raises UnreadableEnvironmentError, and TaskError for a damaged
    lock.
    """
    venv = store.venv(generation.number)
    dists = read_dists(venv)
    lines = {dist.name: _installed_line(dist) for dist in installed_dists(venv)}
    wheels = {wheel.name: wheel for dist in installed_dists(venv) if (wheel := _from_file(dist)) is not None}
    lock = store.folder(generation.number) / LOCK_FILE
    if lock.is_file():
        for entry in lock_entries(lock.read_text(encoding="utf-8")):
            lines[entry.dist.name] = requirement_line(entry.text)
    for wheel in given:
        if wheel.file is not None and wheel.name in dists and dists[wheel.name].version == wheel.version:
            wheels.setdefault(wheel.name, wheel)
    for key in generation.contents.get("wheels", ()):
        record = BuiltWheel.read(store.wheel_folder(key))
        if record is not None:
            file = store.wheel_folder(key) / record.file
            wheels[record.name] = WheelSource(key, key, file, record.name, record.version, record.sha256)
    toolkits = list(generation.contents.get("toolkits", ()))
    toolkit = str(toolkits[0]) if toolkits else ""
    variables = dict(generation.environment)
    if toolkit and variables.get("CUDA_HOME") == str(store.toolkit(toolkit) / "cuda_home"):
        del variables["CUDA_HOME"]
    return Ingredients(
        generation.number,
        dists,
        lines,
        {name: wheel for name, wheel in wheels.items() if name in dists},
        toolkit,
        variables,
        str(generation.contents.get("python") or ""),
        generation.origin,
    )


def requirement_line(text: str) -> str:
    """The requirement of a lock's entry, without hashes and comments: ``torch==2.9.1 ; marker``."""
    joined = " ".join(line.rstrip("\\").strip() for line in text.splitlines())
    return joined.partition(" --hash")[0].partition(" #")[0].strip()


def _installed_line(dist: InstalledDist) -> str:
    origin = direct_url(dist)
    if origin is not None and origin.revision:
        return f"{dist.name} @ git+{origin.url}@{origin.revision}"
    return f"{dist.name}=={dist.version}"


def _from_file(dist: InstalledDist) -> WheelSource | None:
    """The wheel file that a dist was installed from, where it is still there."""
    origin = direct_url(dist)
    path = origin.directory if origin is not None and not origin.editable else None
    if path is None or path.suffix != ".whl" or not path.is_file():
        return None
    try:
        name, version = name_and_version(path)
    except TaskError:
        return None
    if (name, version) != (dist.name, dist.version):
        return None
    sha256 = sha256_of(path)
    return WheelSource(f"sha256:{sha256}", "", path, name, version, sha256)


# ---- the changes


def part_groups(
    older: Ingredients,
    newer: Ingredients,
    commands: tuple[Sequence[str], Sequence[str]],
    environment: Mapping[str, str],
) -> tuple[PartGroup, ...]:
    """All changes from the older to the newer generation, in groups; those of dists first, each after what it needs.

    `commands` are the launch lines of both, `environment` the variables of markers.
    """
    changed = {*changed_names(older.dists, newer.dists)}
    changed |= {
        name
        for name in older.dists.keys() & newer.dists.keys()
        if _content(older.wheels.get(name)) != _content(newer.wheels.get(name))
    }
    names = sorted(changed)
    needs = needs_of(older.dists, newer.dists, names, environment)
    groups = [
        PartGroup(
            tuple(Part("dist", name, older.version(name), newer.version(name)) for name in group.names), group.needs
        )
        for group in grouped(names, needs)
    ]
    if older.toolkit != newer.toolkit:
        toolkits = [one.toolkit[:12] or None for one in (older, newer)]
        groups.append(PartGroup((Part("toolkit", "toolkit", *toolkits),)))
    groups += [PartGroup((part,)) for part in _differing("variable", older.variables, newer.variables)]
    options = [options_of(command) for command in commands]
    shown = [{name: " ".join(words) for name, words in one.items()} for one in options]
    groups += [PartGroup((part,)) for part in _differing("option", *shown)]
    return tuple(groups)


def _content(wheel: WheelSource | None) -> str:
    return wheel.sha256 if wheel else ""


def _differing(kind: Kind, before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[Part]:
    for name in dict.fromkeys((*before, *after)):
        if before.get(name) != after.get(name):
            yield Part(kind, name, before.get(name), after.get(name))


COMMAND = "the command"


def options_of(command: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The words of a launch line by option; those before the first option are `the command`, a second one counts on."""
    found: dict[str, tuple[str, ...]] = {}
    for group in launch_line.grouped(command):
        name, number = group.option or COMMAND, 1
        while name in found:
            number += 1
            name = f"{group.option or COMMAND} ({number})"
        found[name] = group.words
    return found


def mixed_command(older: Sequence[str], newer: Sequence[str], chosen: Collection[str]) -> tuple[str, ...]:
    """The older launch line with the chosen options (their names) as in the newer one, which gives their order."""
    before, after = options_of(older), options_of(newer)
    words: list[str] = []
    for name in dict.fromkeys((*after, *before)):
        words += (after if name in chosen or before.get(name) == after.get(name) else before).get(name, ())
    return tuple(words)


def closure(groups: Sequence[PartGroup], chosen: frozenset[int]) -> frozenset[int]:
    """The groups with all that they need. The needs of a group are whole already."""
    return chosen.union(*(groups[number].needs for number in chosen))
