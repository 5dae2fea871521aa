"""include_vars: read variables from a file, or from the files of a directory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from crossgrade.errors import TaskError
from crossgrade.modules.contract import ApplyContext, Change, HostView, Module, Outcome, Plan
from crossgrade.playbook.arguments import argument
from crossgrade.playbook.library import at_home, is_file, is_folder
from crossgrade.playbook.markers import DependsOnUnknown
from crossgrade.playbook.values import is_variable_name


@dataclass(frozen=True)
class Arguments:
    """Reads variables, for the rest of the run. `set_fact` and `register` win over them."""

    file: str | None = argument(doc="The YAML or JSON file.", default=None, free_form=True)
    dir: str | None = argument(doc="A directory, all of whose files are read, sorted by name.", default=None)
    name: str | None = argument(doc="One variable that gets them all, as a mapping.", default=None)
    depth: int = argument(doc="How deep below `dir`; 0 is without limit.", default=0)
    files_matching: str | None = argument(doc="Only files below `dir` in whose names this expression is.", default=None)
    ignore_files: tuple[str, ...] = argument(doc="Files below `dir` that are left out: expressions.", default=())
    extensions: tuple[str, ...] = argument(doc="Endings of files that are read.", default=("yaml", "yml", "json"))
    ignore_unknown_extensions: bool = argument(doc="Leave out files below `dir` with other endings.", default=False)
    mutually_exclusive: ClassVar[tuple[tuple[str, ...], ...]] = (
        ("file", "dir"),
        ("file", "files_matching"),
        ("file", "ignore_files"),
    )
    refused: ClassVar[Mapping[str, str]] = {
        "hash_behaviour": "read them under a `name`, and put the two together with `combine(..., recursive=true)`."
    }
    required_one_of: ClassVar[tuple[tuple[str, ...], ...]] = (("file", "dir"),)


@dataclass(frozen=True)
class State:
    """What was read, and from which files."""

    variables: Mapping[str, Any]
    files: tuple[str, ...]


def inspect(arguments: Arguments, host: HostView) -> State:
    """Raises TaskError for what is not there, PlaybookError for what is no file of variables."""
    if arguments.file is not None:
        files = [_find(arguments.file, host, is_file, "file of variables")]
    else:
        directory = _find(str(arguments.dir), host, is_folder, "directory of variables")
        files = list(_files_below(directory, arguments))
    variables: dict[str, Any] = {}
    for file in files:
        if host.check_mode and host.predicted("path", str(file)) is not None:
            raise DependsOnUnknown(f"{file}, which an earlier task makes")
        variables.update(host.read_variables(file))
    if arguments.name:
        if not is_variable_name(arguments.name):
            raise TaskError(f"{arguments.name!r} cannot be the name of a variable")
        variables = {arguments.name: variables}
    return State(variables, tuple(map(str, files)))


def _find(name: str, host: HostView, is_there: Any, what: str) -> Path:
    wanted = at_home(name)
    folders = (folder for folder in host.search_directories for folder in (folder / "vars", folder))
    places = list(dict.fromkeys(folder / wanted for folder in folders))
    found = next((place for place in places if is_there(place)), None)
    foreseen = next((place for place in places if host.predicted("path", str(place)) is not None), None)
    if found is None and foreseen is not None and host.check_mode:
        raise DependsOnUnknown(f"{foreseen}, which an earlier task makes")
    if found is None:
        raise TaskError(f"there is no {what} {name!r}", remedy="Looked at: " + ", ".join(map(str, places)))
    return found


def _files_below(directory: Path, arguments: Arguments) -> Iterator[Path]:
    endings = tuple("." + ending.lstrip(".") for ending in arguments.extensions)
    for file in sorted(directory.rglob("*")):
        level = len(file.relative_to(directory).parts)
        if not file.is_file() or (arguments.depth and level > arguments.depth):
            continue
        if arguments.files_matching and not re.search(arguments.files_matching, file.name):
            continue
        if any(re.search(rf"{pattern}$", file.name) for pattern in arguments.ignore_files):
            continue
        if file.suffix in endings:
            yield file
        elif not arguments.ignore_unknown_extensions:
            raise TaskError(
                f"{file} has none of the endings {', '.join(endings)}",
                remedy="Set `ignore_unknown_extensions`, or name its ending in `extensions`.",
            )


def plan(arguments: Arguments, state: State) -> Plan:  # noqa: ARG001 (the contract's shape)
    values = {"ansible_facts": dict(state.variables), "ansible_included_var_files": list(state.files)}
    return Change("read " + ", ".join(state.files), values=values)


def apply(arguments: Arguments, change: Change, context: ApplyContext) -> Outcome:  # noqa: ARG001 (the contract's shape)
    return Outcome(change.values, included=change.values["ansible_facts"])


MODULE = Module(
    name="include_vars",
    arguments=Arguments,
    effect="reads",
    inspect=inspect,
    plan=plan,
    apply=apply,
    summary="Read variables from files.",
)
