"""Everything that the files of a virtual environment say about whether its dists fit together, read in one go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from crossgrade.inspect.builds import Build, read_builds
from crossgrade.inspect.dists import InstalledDist
from crossgrade.inspect.installed_files import Recorded, missing_files, read_records
from crossgrade.inspect.ownership import Conflict, conflicts
from crossgrade.inspect.python_abi import find_interpreter
from crossgrade.inspect.requirements import Unmet, unmet
from crossgrade.inspect.version_pairs import Mismatch, mismatched
from crossgrade.inspect.wheel_fit import Unfit, unfit_wheels


@dataclass(frozen=True)
class Consistency:
    """What was found. ``dists`` are all of them, in order of name; ``unreadable_records`` have a ``problem`` each.

    ``records`` are those of all dists. ``missing`` maps a dist to those of its files that are not there.
    ``no_interpreter`` is True where the environment's Python was not found, so that wheels and builds were not judged.
    """

    dists: tuple[InstalledDist, ...] = ()
    unreadable_records: tuple[Recorded, ...] = ()
    missing: Mapping[InstalledDist, tuple[str, ...]] = field(default_factory=dict)
    conflicts: tuple[Conflict, ...] = ()
    unmet: tuple[Unmet, ...] = ()
    unfit: tuple[Unfit, ...] = ()
    mismatches: tuple[Mismatch, ...] = ()
    builds: tuple[Build, ...] = ()
    no_interpreter: bool = False
    records: tuple[Recorded, ...] = ()


def read_consistency(venv: Path, *, native: bool = True) -> Consistency:
    """Read RECORD, METADATA and WHEEL of each dist, and its native files; nothing is imported or run.

    A stack of 207 dists and 75,000 files takes some 0.8 s, the native files 0.35 s of it: without ``native`` there are
    no ``builds``.
    Raises UnreadableEnvironmentError for what is no environment.
    """
    records = read_records(venv)
    dists = tuple(recorded.dist for recorded in records)
    interpreter = find_interpreter(venv)
    return Consistency(
        dists=dists,
        unreadable_records=tuple(recorded for recorded in records if recorded.problem),
        missing=missing_files(venv, records),
        conflicts=conflicts(venv, records),
        unmet=unmet(venv),
        unfit=unfit_wheels(dists, interpreter) if interpreter else (),
        mismatches=mismatched(dists),
        builds=read_builds(venv, records, interpreter) if interpreter and native else (),
        no_interpreter=interpreter is None,
        records=records,
    )
