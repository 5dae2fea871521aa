"""Plain roles: where they are, what they hold, and which of their variables a task sees."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossgrade.playbook.library import Library, at_home, first_file, is_folder, unique, with_endings
from crossgrade.playbook.loader import Variables
from crossgrade.playbook.positions import Spot
from crossgrade.playbook.values import Reader
from crossgrade.playbook.variables import Layer, Precedence, Scope

ROLES_PATH = "ANSIBLE_ROLES_PATH"
DEFAULT_ROLES_PATH = "~/.ansible/roles:/usr/share/ansible/roles:/etc/ansible/roles"
NO_ARGUMENT_SPECS = (
    "a role's `argument_specs` are not checked here yet",
    "Remove them, or write `assert` at the beginning of the role's tasks.",
)


@dataclass(frozen=True)
class From:
    """`tasks_from`, `handlers_from`, `vars_from` and `defaults_from`: which files of the role."""

    tasks: str = "main"
    handlers: str = "main"
    vars: str = "main"
    defaults: str = "main"


@dataclass(frozen=True, eq=False)
class Role:
    """One use of a role. `given` are the variables of its `vars`, `parameters` the other keys beside its name.

    `parents` are the roles that this one belongs to, the outermost first: it is a dependency of theirs, or was called
    by a task of theirs; only the latter are `callers`, the nearest first. `identity` is the same for two uses
    that do the same: the second does not run, unless `allow_duplicates` is set.
    """

    name: str
    path: Path
    defaults: tuple[Variables, ...] = ()
    vars: tuple[Variables, ...] = ()
    given: Variables | None = None
    parameters: Variables | None = None
    parents: tuple[Role, ...] = ()
    callers: tuple[Role, ...] = ()
    dependencies: tuple[Role, ...] = ()
    allow_duplicates: bool = False
    public: bool = True
    identity: str = ""

    @property
    def chain(self) -> tuple[Role, ...]:
        """This role and those that it was called from, the outermost last: where files are looked for."""
        return (self, *reversed(self.parents))

    def all_dependencies(self) -> Iterator[Role]:
        """Those of dependencies first."""
        for role in self.dependencies:
            yield from role.all_dependencies()
            yield role

    def default_layers(self) -> Iterator[Layer]:
        """The role's defaults, the strongest last."""
        for role in (*self.all_dependencies(), *self.parents, self):
            yield from (_layer(Precedence.ROLE_DEFAULTS, each) for each in role.defaults)

    def public_layers(self) -> Iterator[Layer]:
        """What every task of the play sees of this role."""
        yield from self.default_layers()
        for role in (*self.parents, *self.all_dependencies(), self):
            yield from (_layer(Precedence.ROLE_VARS, each) for each in role.vars)

    def own_layers(self) -> Iterator[Layer]:
        """What only the role's own tasks see, above what they share."""
        yield from self.public_layers()
        for role in (*self.parents, self):
            if role.given is not None:
                yield _layer(Precedence.ROLE_VARS, role.given)
            if role.parameters is not None:
                yield _layer(Precedence.PARAMETERS, role.parameters)

    def magic(self) -> dict[str, Any]:
        """The variables that say which role a task belongs to."""
        return {
            "role_name": self.name,
            "role_path": str(self.path),
            "ansible_role_name": self.name,
            "ansible_parent_role_names": [role.name for role in self.callers],
            "ansible_parent_role_paths": [str(role.path) for role in self.callers],
        }


def _layer(precedence: Precedence, variables: Variables) -> Layer:
    return Layer(precedence, variables.values, spot=variables.spot)


def with_layers(scope: Scope, layers: Iterator[Layer]) -> Scope:
    """The scope with these layers, each above those of its precedence."""
    for layer in layers:
        scope = scope.with_layer(layer.precedence, layer.values, templated=layer.templated, spot=layer.spot)
    return scope


def role_places(name: str, playbook_directory: Path, calling: Role | None) -> list[Path]:
    """Where a role of this name may be, the first place first."""
    if name.startswith(("/", "~")):
        return [at_home(name)]
    configured = os.environ.get(ROLES_PATH) or DEFAULT_ROLES_PATH
    beside = [calling.path.parent] if calling is not None else []
    folders = [playbook_directory / "roles", *map(Path, configured.split(os.pathsep)), *beside, playbook_directory]
    return unique(at_home(str(folder)) / name for folder in folders if str(folder))


@dataclass
class RoleFiles:
    """The files of one role directory."""

    library: Library
    path: Path
    reader: Reader

    def main(self, folder: str, name: str) -> Path | None:
        """`tasks/main.yml` for `tasks` and `main`, or None."""
        return first_file(with_endings(self.path / folder / name))

    def variables(self, folder: str, name: str, spot: Spot) -> tuple[Variables, ...]:
        """Of `defaults` or `vars`: a file, or for `main` all files of a directory of that name.

        A file that the playbook names must be there; without `main` there are none.
        """
        found = self.main(folder, name)
        directory = self.path / folder / name
        if found is None and name == "main" and is_folder(directory):
            files = sorted(each for each in directory.rglob("*") if each.is_file() and not each.name.startswith("."))
            return tuple(self.library.variables_in(each) for each in files if each.suffix in (".yml", ".yaml", ".json"))
        if found is None:
            if name != "main":
                self.reader.note(spot, f"the role has no {folder}/{name}", looked_in(with_endings(directory)))
            return ()
        return (self.library.variables_in(found),)

    def meta(self) -> tuple[Spot, Mapping[str, Any]] | None:
        """`meta/main.yml`, or None where there is none."""
        specifications = self.main("meta", "argument_specs")
        if specifications is not None:
            self.reader.note(Spot(self.library.source(specifications)), *NO_ARGUMENT_SPECS)
        found = self.main("meta", "main")
        if found is None:
            return None
        spot = Spot(self.library.source(found))
        value = self.reader.mapping(spot, spot.node.value)
        if "argument_specs" in value:
            self.reader.note(spot.at("argument_specs"), *NO_ARGUMENT_SPECS, key=True)
        return spot, value


def looked_in(places: list[Path]) -> str:
    """Where was looked, for people."""
    return "Looked for: " + ", ".join(map(str, places)) + "."
