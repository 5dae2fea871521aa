"""What a three-way merge needs from outside: ``git merge-file``, and the files of a dist as its wheel has them.

git is asked rather than a library: its merge is the one that people know from their own repositories, with the same
marks, and it stays outside of crossgrade as any program does.
"""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from crossgrade.inspect.dists import InstalledDist, direct_url, installed_dists
from crossgrade.inspect.query import programs_on_path
from crossgrade.inspect.three_way import ORIGINAL, OURS, THEIRS, Merge, Merged
from crossgrade.modules import uv
from crossgrade.process import StartError

if TYPE_CHECKING:
    from crossgrade.process import Completed

MERGE_SECONDS = 60.0
DOWNLOAD_SECONDS = 3600.0
_ERRORS_FROM = 128  # git merge-file's exit code counts conflicts, at most 127; errors are 128 and 255


def git_merge(folder: Path, run: uv.Run, environment: Mapping[str, str]) -> Merge:
    """A merge by ``git merge-file``; `folder` holds the three texts meanwhile."""
    programs = programs_on_path(environment.get("PATH", ""), "git")

    def merge(original: bytes, ours: bytes, theirs: bytes) -> Merged:
        if not programs:
            return Merged(problem="git, which merges, is not on PATH")
        places = [folder / name for name in ("ours", "original", "theirs")]
        for place, content in zip(places, (ours, original, theirs), strict=True):
            place.write_bytes(content)
        labels = [word for label in (OURS, ORIGINAL, THEIRS) for word in ("-L", label)]
        argv = [str(programs[0]), "merge-file", "--diff3", "--quiet", *labels, *map(str, places)]
        try:
            completed = run(argv, timeout=MERGE_SECONDS)
        except StartError as error:
            return Merged(problem=str(error))
        if completed.timed_out or not 0 <= completed.returncode < _ERRORS_FROM:
            said = (completed.stderr.strip() or "nothing").splitlines()[0]
            return Merged(problem=f"git merge-file: {completed.outcome()}, it said: {said}")
        return Merged(places[0].read_bytes(), completed.returncode)

    return merge


def requirement_of(dist: InstalledDist) -> str:
    """What names the very wheel that a dist was installed from, as far as that is on record."""
    came_from = direct_url(dist)
    if came_from is not None and came_from.url.partition("#")[0].endswith(".whl"):
        return f"{dist.name} @ {came_from.url}"
    return f"{dist.name}=={dist.version}"


def find_dist(venv: Path, name: str) -> InstalledDist | None:
    return next((dist for dist in installed_dists(venv) if dist.name == name), None)


@dataclass
class WheelFiles:
    """The files of exact versions of dists, laid out below `folder` by uv as links into its cache, each once.

    `python_version` (``3.11``) is that of the environment that they are for; its interpreter is not started. `options`
    are uv's for indexes. What the cache lacks is fetched; nothing is built and nothing is executed.
    """

    folder: Path
    python_version: str
    run: uv.Run
    environment: Mapping[str, str]
    options: Sequence[str] = ()
    _laid: dict[str, tuple[Path | None, str]] = field(default_factory=dict)

    def place(self, requirement: str) -> tuple[Path | None, str]:
        """Where the files of one line of a requirements file lie, like site-packages; else None and why not."""
        if requirement not in self._laid:
            self._laid[requirement] = self._lay(requirement, self.folder / str(len(self._laid)))
        return self._laid[requirement]

    def _lay(self, requirement: str, place: Path) -> tuple[Path | None, str]:
        place.mkdir()
        lines = place / "requirements.txt"
        lines.write_text(f"{requirement}\n", encoding="utf-8")
        target = place / "files"
        argv = [uv.uv_program(), "pip", "install", "--python", getattr(sys, "_base_executable", "") or sys.executable]
        argv += ["--python-version", self.python_version, "--no-deps", "--no-build", "--link-mode", "symlink"]
        argv += [*self.options, "--target", str(target), "--requirements", str(lines)]
        added = uv.index_environment(self.environment)
        completed: Completed | None = None
        for more in (["--offline"], []):  # what the cache has costs no question to an index
            try:
                completed = self.run([*argv, *more], environment=added, timeout=DOWNLOAD_SECONDS)
            except StartError as error:
                return None, str(error)
            if completed.succeeded:
                return target, ""
        assert completed is not None  # noqa: S101 - the loop ran
        return None, f"uv could not lay out its wheel: {uv.explain(completed.stderr) or completed.outcome()}"


def read_from_wheel(wheel: Path, path: str) -> bytes | None:
    """A file as a wheel would install it to site-packages; None when it brings none. Raises OSError, BadZipFile."""
    stem = "-".join(wheel.name.split("-")[:2])
    with zipfile.ZipFile(wheel) as archive:
        there = set(archive.namelist())
        names = (path, f"{stem}.data/purelib/{path}", f"{stem}.data/platlib/{path}")
        found = next((name for name in names if name in there), None)
        return None if found is None else archive.read(found)
