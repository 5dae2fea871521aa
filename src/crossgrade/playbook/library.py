"""The files that a playbook is made of: each is read once, and what was read is known by its sha256."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from crossgrade.playbook.build_task import ModuleCatalogue
from crossgrade.playbook.loader import Variables, load_variables
from crossgrade.playbook.positions import Source
from crossgrade.playbook.yamltext import parse_yaml, read_text

ENDINGS = ("", ".yml", ".yaml", ".json")
MAX_DEPTH = 50  # files that include or import each other, and roles that need each other


@dataclass
class Library:
    """Reads tasks, roles and variables for one playbook. `variables` are those of `-e`, for names of static imports.

    `digests` maps the path of each file that was read to the sha256 of its text, in hex: a saved plan is tied to them.
    `keep_sealed` leaves values under `!vault` in them as they are.
    """

    modules: ModuleCatalogue
    variables: Mapping[str, Any] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    keep_sealed: bool = False
    _sources: dict[Path, tuple[str, Source]] = field(default_factory=dict)

    def source(self, file: Path) -> Source:
        """The YAML of a file; what is unchanged since it was last read is not parsed again. Raises PlaybookError."""
        text = read_text(file)
        digest = sha256(text.encode()).hexdigest()
        known = self._sources.get(file)
        if known is None or known[0] != digest:
            known = self._sources[file] = (digest, parse_yaml(text, str(file), keep_sealed=self.keep_sealed))
        self.digests[str(file)] = digest
        return known[1]

    def variables_in(self, file: Path) -> Variables:
        """The variables of a file. Raises PlaybookError."""
        found = load_variables(file, keep_sealed=self.keep_sealed)
        with suppress(OSError):
            self.digests[str(file)] = sha256(file.read_bytes()).hexdigest()
        return found


def is_file(path: Path) -> bool:
    """Whether a file is there; no path is too odd to ask."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def is_folder(path: Path) -> bool:
    """Whether a directory is there; no path is too odd to ask."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def at_home(name: str) -> Path:
    """The path with `~` expanded where that can be done."""
    try:
        return Path(name).expanduser()
    except RuntimeError:
        return Path(name)


def first_file(places: Iterable[Path]) -> Path | None:
    """The first of these that is a file."""
    return next((place for place in places if is_file(place)), None)


def with_endings(path: Path) -> list[Path]:
    """As it is written, and with the endings that Ansible tries."""
    return [Path(f"{path}{ending}") for ending in ENDINGS]


def unique(places: Iterable[Path]) -> list[Path]:
    """Each once, the earliest first."""
    return list(dict.fromkeys(places))
