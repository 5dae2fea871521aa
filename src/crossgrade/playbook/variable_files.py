"""`group_vars/` and `host_vars/`: files of variables beside an inventory and beside the playbook."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ENDINGS = ("", ".yml", ".yaml", ".json")  # the first that is there is read, the others are passed over


@dataclass(frozen=True)
class VariableFiles:
    """The folders in which `group_vars/` and `host_vars/` are looked for; what is in later ones wins.

    Each file is read when it is first asked for, once. The methods raise PlaybookError for a file with errors.
    """

    folders: tuple[Path, ...] = ()
    _read: dict[tuple[Path, str], Mapping[str, Any]] = field(default_factory=dict, compare=False, repr=False)

    def of_group(self, folder: Path, name: str) -> Mapping[str, Any]:
        return self._of(folder / "group_vars", name)

    def of_host(self, folder: Path, name: str) -> Mapping[str, Any]:
        return self._of(folder / "host_vars", name)

    def _of(self, folder: Path, name: str) -> Mapping[str, Any]:
        if "/" in name or name.startswith("."):
            return {}
        found = self._read.get((folder, name))
        if found is None:
            found = self._read[folder, name] = _variables(folder, name)
        return found


def _variables(folder: Path, name: str) -> dict[str, Any]:
    from crossgrade.playbook.loader import load_variables

    values: dict[str, Any] = {}
    for ending in ENDINGS:
        path = folder / f"{name}{ending}"
        if path.is_dir() and not ending:
            for file in _files_in(path):
                values.update(load_variables(file).values)
            return values
        if path.is_file():
            return dict(load_variables(path).values)
    return values


def _files_in(folder: Path) -> list[Path]:
    """The files of variables in a directory and below it, by their names."""
    found: list[Path] = []
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.name.endswith("~"):
            continue
        if path.is_dir():
            found += _files_in(path)
        elif path.is_file() and path.suffix in ENDINGS:
            found.append(path)
    return found
