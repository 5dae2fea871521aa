"""Reading playbooks and files of variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossgrade.playbook.build_task import ModuleCatalogue
from crossgrade.playbook.model import Playbook
from crossgrade.playbook.positions import PlaybookErrors, Source, Spot
from crossgrade.playbook.recovery import raise_all
from crossgrade.playbook.yamltext import parse_yaml, read_text, read_yaml

__all__ = ["ModuleCatalogue", "Variables", "load_playbook", "load_variables", "peek_variables"]

MAX_IMPORTS = 20  # playbooks that import each other, when only the store is looked for


@dataclass(frozen=True)
class Variables:
    """The variables of a file, raw, and where they stand."""

    values: Mapping[str, Any]
    spot: Spot


def load_playbook(
    file: Path, modules: ModuleCatalogue, variables: Mapping[str, Any] | None = None, *, keep_sealed: bool = False
) -> Playbook:
    """The playbook in a file, with all that it imports. `variables` are those of `-e`.

    `keep_sealed` leaves values under `!vault` as they are, for who does not need them.

    Raises PlaybookErrors (exit code 4) with every problem that can be seen without running it, and PlaybookError
    when the file cannot be read at all.
    """
    from crossgrade.playbook.build import build_playbook

    def build(source: Source) -> Playbook:
        return build_playbook(source, file, modules, variables, keep_sealed=keep_sealed)

    reading = read_yaml(read_text(file), str(file), keep_sealed=keep_sealed)
    if reading.source is None or reading.problems:
        raise_all(reading, build)
    return build(reading.source)


def load_variables(file: Path, *, keep_sealed: bool = False) -> Variables:
    """The variables in a YAML or JSON file (`vars_files`, `-e @FILE`, `group_vars`). Raises PlaybookError."""
    reading = read_yaml(read_text(file), str(file), keep_sealed=keep_sealed)
    if reading.source is None or reading.problems:
        raise_all(reading, lambda source: variables_of(Spot(source)))
    return variables_of(Spot(reading.source))


def variables_of(spot: Spot) -> Variables:
    """The variables of a document. An empty one has none. Raises PlaybookErrors."""
    from crossgrade.playbook.values import Reader

    reader = Reader()
    values = reader.variables(spot, spot.node.value)
    if reader.problems:
        raise PlaybookErrors(reader.problems)
    return Variables(values, spot)


def peek_variables(file: Path, depth: int = 0) -> dict[str, Any]:
    """The `vars` of all plays, imported ones too, raw; of two with one name, the first play's. It checks nothing else.

    For commands that must be quick and only need to find the store. Raises PlaybookError for a file that cannot
    be read or is not YAML.
    """
    source = parse_yaml(read_text(file), str(file), keep_sealed=True)
    found: dict[str, Any] = {}
    plays = source.root.value
    for play in plays if isinstance(plays, list) else []:
        own = play.get("vars") if isinstance(play, dict) else None
        imported = play.get("import_playbook") if isinstance(play, dict) else None
        if isinstance(imported, str) and depth < MAX_IMPORTS and os.path.isfile(file.parent / imported):  # noqa: PTH113 - it never raises
            found = {**peek_variables(file.parent / imported, depth + 1), **found}
        if isinstance(own, dict):
            for name, value in own.items():
                found.setdefault(name, value)
    return found
