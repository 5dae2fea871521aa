"""Whether what the dists of a virtual environment require is there: other dists, and the Python; it is never started.

Sources: the PyPA specifications "Core metadata" (Requires-Dist, Requires-Python), "Dependency specifiers" (PEP 508:
requirements and the variables of markers) and "Version specifiers" (PEP 440: which versions fit; a local version such
as 2.9.1+cu128 fits ``==2.9.1``, and what is installed counts even where it is a prerelease).

Dists that only the base Python has (``include-system-site-packages``) and those without a .dist-info directory
(.egg-info) are not seen; neither is what an extra of a requirement (``x[extra]``) brings, as with ``pip check``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from crossgrade.inspect.dists import METADATA_BYTES, InstalledDist, installed_dists, normalize_name, site_packages
from crossgrade.inspect.python_abi import find_interpreter
from crossgrade.inspect.reading import read_regular

if TYPE_CHECKING:
    from packaging.requirements import Requirement

Lack = Literal["missing", "version", "python", "requirement", "metadata"]

_NAME = re.compile(r"^Name:[ \t]*\S", re.MULTILINE | re.IGNORECASE)
_REQUIRES = re.compile(r"^Requires-Dist:(.*)$", re.MULTILINE | re.IGNORECASE)
_REQUIRES_PYTHON = re.compile(r"^Requires-Python:(.*)$", re.MULTILINE | re.IGNORECASE)
_FOLDED = re.compile(r"\n[ \t]+")
# venv and uv write 3.14.0rc2, virtualenv 3.14.0.candidate.2.
_PYTHON_VERSION = re.compile(
    r"^version(?:_info)?[ \t]*=[ \t]*(\d+\.\d+)(\.\d+(?:(?:a|b|rc|\.alpha\.|\.beta\.|\.candidate\.)\d+)?)",
    re.MULTILINE | re.IGNORECASE,
)
_LEVELS = {".alpha.": "a", ".beta.": "b", ".candidate.": "rc"}
# packaging raises ValueError for what is not in the standards' form, its parser recurses for each parenthesis.
UNPARSABLE = (ValueError, RecursionError)


@dataclass(frozen=True)
class Unmet:
    """A requirement of ``dist`` that is not met, or that cannot be judged.

    ``lack`` is ``missing`` (no dist of that name), ``version`` (``installed`` are the versions that are there; more
    than one where an installer was interrupted), ``python`` (the environment's Python, whose version is ``installed``,
    is not one that Requires-Python allows), ``requirement`` (it, or its marker, or the version that is there is
    not in the standards' form) or ``metadata`` (the dist's METADATA is missing or damaged, so what it requires is not
    known). ``requirement`` is as METADATA writes it, ``asked`` its short form (``numpy<2``), ``problem`` says what is
    wrong with what cannot be judged.
    """

    dist: InstalledDist
    lack: Lack
    requirement: str = ""
    asked: str = ""
    name: str = ""
    installed: tuple[str, ...] = ()
    problem: str = ""

    @property
    def words(self) -> str:
        """What it lacks: ``needs numpy<2, and numpy 2.1 is installed``."""
        if self.lack == "missing":
            return f"needs {self.asked}, and {self.name} is not installed"
        if self.lack == "version":
            return f"needs {self.asked}, and {self.name} {' and '.join(self.installed)} is installed"
        if self.lack == "python":
            return f"needs Python {self.asked}, and this environment runs {' and '.join(self.installed)}"
        if self.lack == "requirement":
            return f"has a requirement that cannot be judged ({self.requirement[:200]}): {self.problem}"
        return f"has requirements that are not known: {self.problem}"

    def __str__(self) -> str:
        return f"{self.dist} {self.words}"


def unmet(venv: Path) -> tuple[Unmet, ...]:
    """The requirements of the installed dists that are not met, in order of the dists' names.

    What stands behind an extra is left out; a requirement by URL is met by any version of its name. What cannot be
    parsed is an item of its own. Raises UnreadableEnvironmentError for what is no environment.
    """
    dists = installed_dists(venv)
    versions: dict[str, list[str]] = {}
    for dist in dists:
        versions.setdefault(dist.name, []).append(dist.version)
    environment = marker_environment(venv)
    full, release = environment["python_full_version"], environment["python_version"]
    # Where only X.Y is known, whatever allows one of its releases is met.
    pythons = [full] if _stated_version(venv, release) else [full, f"{release}.99"]
    return tuple(item for dist in dists for item in _unmet_by(dist, versions, environment, pythons))


def required_names(dist: InstalledDist) -> frozenset[str]:
    """The normalized names of the dists that a dist asks for, also behind a marker or an extra.

    What cannot be parsed is left out. Raises OSError, and ValueError for what is no METADATA.
    """
    from packaging.requirements import Requirement

    names = set()
    for line in stated_requirements(dist)[0]:
        with suppress(*UNPARSABLE):
            names.add(normalize_name(Requirement(line).name))
    return frozenset(names)


def marker_environment(venv: Path) -> dict[str, str]:
    """The variables of markers (PEP 508) for the environment's own Python on this machine, and no extra.

    The Python's version is that of pyvenv.cfg, else ``X.Y.0`` after its library directory.
    """
    from packaging.markers import default_environment

    interpreter = find_interpreter(venv)
    python = ".".join(map(str, interpreter.version)) if interpreter else ""
    python = python or site_packages(venv).parent.name.removeprefix("python").removesuffix("t")
    full = _stated_version(venv, python) or f"{python}.0"
    stated = {name: str(value) for name, value in default_environment().items()}
    return {
        **stated,
        "implementation_name": "cpython",
        "implementation_version": full,
        "platform_python_implementation": "CPython",
        "python_full_version": full,
        "python_version": python,
        "extra": "",
    }


def _stated_version(venv: Path, python: str) -> str:
    """The full version that pyvenv.cfg states, as ``platform.python_version()`` would; empty if of another Python."""
    try:
        text = read_regular(venv / "pyvenv.cfg", METADATA_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
    for release, rest in _PYTHON_VERSION.findall(text):
        if release == python:
            for level, short in _LEVELS.items():
                rest = rest.replace(level, short)
            return f"{release}{rest}"
    return ""


def _unmet_by(
    dist: InstalledDist, versions: Mapping[str, list[str]], environment: dict[str, str], pythons: list[str]
) -> list[Unmet]:
    try:
        requirements, python = stated_requirements(dist)
    except OSError as error:
        return [Unmet(dist, "metadata", problem=f"its METADATA cannot be read ({error.strerror})")]
    except ValueError as error:
        return [Unmet(dist, "metadata", problem=f"its METADATA is damaged ({error})")]
    judged = [_judge_python(dist, python, pythons)] if python else []
    judged += [_judge(dist, text, versions, environment) for text in requirements]
    return [item for item in judged if item is not None]


def _judge_python(dist: InstalledDist, asked: str, pythons: list[str]) -> Unmet | None:
    from packaging.specifiers import SpecifierSet

    try:
        specifiers = SpecifierSet(asked)
        if any(specifiers.contains(version, prereleases=True) for version in pythons):
            return None
    except UNPARSABLE as error:
        problem = str(error).partition("\n")[0]
        return Unmet(dist, "requirement", requirement=f"Requires-Python: {asked}", problem=problem)
    return Unmet(dist, "python", f"Requires-Python: {asked}", asked, "Python", (pythons[0],))


def _judge(
    dist: InstalledDist, text: str, versions: Mapping[str, list[str]], environment: dict[str, str]
) -> Unmet | None:
    from packaging.requirements import Requirement

    try:
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate(environment):
            return None
        name = normalize_name(requirement.name)
        installed = versions.get(name, [])
        if installed and _fits(requirement, installed):
            return None
    except UNPARSABLE as error:
        return Unmet(dist, "requirement", requirement=text, problem=str(error).partition("\n")[0])
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    asked = f"{requirement.name}{extras}{requirement.specifier}"
    return Unmet(dist, "version" if installed else "missing", text, asked, name, tuple(installed))


def _fits(requirement: Requirement, installed: list[str]) -> bool:
    """Of two dists of one name nobody can say which counts, so that each has to fit. Raises ValueError."""
    from packaging.version import Version

    if requirement.url or not requirement.specifier:
        return True
    # Version() raises for what is no version; whether contains() does depends on the release of packaging.
    return all(requirement.specifier.contains(Version(version), prereleases=True) for version in installed)


def stated_requirements(dist: InstalledDist) -> tuple[list[str], str]:
    """The values of Requires-Dist in order, each once, and that of Requires-Python, empty if it has none.

    Raises OSError, and ValueError for what is no METADATA.
    """
    text = read_regular(dist.folder / "METADATA", METADATA_BYTES).decode("utf-8", "replace").replace("\r\n", "\n")
    headers = _FOLDED.sub(" ", text.partition("\n\n")[0])
    if not _NAME.search(headers):
        raise ValueError("it states no name" if text.strip() else "it is empty")
    python = _REQUIRES_PYTHON.search(headers)
    requirements = dict.fromkeys(value.strip(" \t") for value in _REQUIRES.findall(headers))
    return list(requirements), python[1].strip() if python else ""
