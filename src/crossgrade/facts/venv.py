"""A Python environment as its files tell it: who made it, what is installed, which checkouts it uses in place.

Sources: PEP 405 (pyvenv.cfg); uv and virtualenv write their own version into it; conda keeps conda-meta/history;
PEP 610 (direct_url.json); gitrepository-layout(5). Nothing of it is run; git is asked about checkouts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from crossgrade.facts.text import is_there, text_of
from crossgrade.inspect.dists import (
    InstalledDist,
    UnreadableEnvironmentError,
    direct_url,
    installed_dists,
    installer,
    site_packages,
)
from crossgrade.inspect.query import Runner, programs_on_path
from crossgrade.process import StartError

GIT_SECONDS = 20.0
# No hook, no helper and no lock: a repository's own configuration must not decide what runs
_GIT_OPTIONS = ("--no-optional-locks", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")


@dataclass(frozen=True)
class Dist:
    """One installed dist; `installer` is who wrote it, empty where that is not recorded."""

    name: str
    version: str
    installer: str = ""


@dataclass(frozen=True)
class Checkout:
    """A folder that a dist is used from in place.

    `commit` is the full hash, `branch` empty for a detached head. `changed` lists files that differ from the commit and
    `untracked` counts those that git does not know, `ahead` the commits that no remote branch and no tag holds; None
    where git could not be asked, `problem` says why.
    """

    dist: str
    path: str
    commit: str = ""
    branch: str = ""
    changed: tuple[str, ...] | None = None
    untracked: int | None = None
    problem: str = ""
    ahead: int | None = None

    @property
    def has_local_work(self) -> bool | None:
        """Whether it holds what nobody else has, as far as git tells; None where it could not be asked."""
        if self.problem or self.changed is None or self.ahead is None:
            return None
        return bool(self.changed or self.untracked or self.ahead)

    def told(self) -> str:
        """In words, what is its own."""
        if self.problem or self.changed is None:
            return self.problem or "git could not be asked"
        at = f"on {self.branch}" if self.branch else "on no branch"
        ahead = "unknown" if self.ahead is None else self.ahead
        return f"{at}, changed: {len(self.changed)}, untracked: {self.untracked}, commits of its own: {ahead}"


@dataclass(frozen=True)
class VenvFacts:
    """One environment. `kind` is ``uv``, ``venv``, ``virtualenv``, ``conda`` or ``system``; `maker` its version.

    `base` is the Python below it. `installers` counts dists by who installed them.
    """

    path: str
    kind: str = ""
    maker: str = ""
    python: str | None = None
    base: str | None = None
    system_packages: bool | None = None
    has_pip: bool | None = None
    dists: tuple[Dist, ...] = ()
    installers: Mapping[str, int] = field(default_factory=dict)
    checkouts: tuple[Checkout, ...] = ()
    unknown: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class VenvConfiguration:
    """What pyvenv.cfg says."""

    kind: str
    maker: str
    python: str | None
    base: str | None
    system_packages: bool


def parse_configuration(text: str) -> VenvConfiguration:
    """Read pyvenv.cfg. uv and virtualenv say who they are; what says nothing was made by the standard library."""
    pairs = (line.partition("=") for line in text.splitlines())
    said = {name.strip().lower(): value.strip() for name, equals, value in pairs if equals}
    kind, maker = next(((name, said[name]) for name in ("uv", "virtualenv") if name in said), ("venv", ""))
    return VenvConfiguration(
        kind=kind,
        maker=maker,
        python=said.get("version_info") or said.get("version"),
        base=said.get("home"),
        system_packages=said.get("include-system-site-packages", "false").lower() == "true",
    )


def parse_status(text: str) -> tuple[str, str, tuple[str, ...], int]:
    """Commit, branch, changed files and the number of untracked ones from ``git status --porcelain=v2 --branch -z``."""
    commit = branch = ""
    changed: list[str] = []
    untracked = 0
    entries = iter(text.split("\0"))
    for entry in entries:
        kind, _, rest = entry.partition(" ")
        if entry.startswith("# branch.oid "):
            commit = entry.removeprefix("# branch.oid ").replace("(initial)", "")
        elif entry.startswith("# branch.head "):
            branch = entry.removeprefix("# branch.head ").replace("(detached)", "")
        elif kind == "?":
            untracked += 1
        elif kind in ("1", "u"):
            changed.append(rest.split(" ", 7 if kind == "1" else 9)[-1])
        elif kind == "2":
            changed.append(rest.split(" ", 8)[-1])
            next(entries, None)  # where it was renamed from
    return commit, branch, tuple(changed), untracked


def read_venv(path: Path, environment: Mapping[str, str], runner: Runner) -> VenvFacts:
    """Read an environment. What is no environment has an empty `kind`, and `unknown` says so."""
    configuration = path / "pyvenv.cfg"
    conda = is_there(path / "conda-meta")
    said = parse_configuration(text_of(configuration))
    if conda:
        said = VenvConfiguration("conda", _conda_version(path), said.python, said.base, False)
    elif not is_there(configuration):
        said = VenvConfiguration("system", "", None, None, False)
    try:
        site = site_packages(path)
        installed = installed_dists(path)
    except (UnreadableEnvironmentError, OSError) as error:
        kind = said.kind if conda or is_there(configuration) else ""
        why = error.message if isinstance(error, UnreadableEnvironmentError) else f"{path}: {error.strerror}"
        return VenvFacts(str(path), kind, said.maker, said.python, said.base, unknown={"dists": why})
    dists = tuple(Dist(dist.name, dist.version, installer(dist)) for dist in installed)
    installers: dict[str, int] = {}
    for dist in dists:
        installers[dist.installer] = installers.get(dist.installer, 0) + 1
    return VenvFacts(
        path=str(path),
        kind=said.kind,
        maker=said.maker,
        python=said.python or site.parent.name.removeprefix("python"),
        base=said.base,
        system_packages=said.system_packages,
        has_pip=any(dist.name == "pip" for dist in dists),
        dists=dists,
        installers=installers,
        checkouts=editable_checkouts(installed, environment, runner),
    )


def _conda_version(path: Path) -> str:
    """What the first line of conda-meta/history that names a tool says: ``# conda version: 24.5.0``."""
    for line in text_of(path / "conda-meta/history").splitlines():
        if line.startswith("# conda version:"):
            return line.partition(":")[2].strip()
    return ""


def editable_checkouts(
    dists: Sequence[InstalledDist], environment: Mapping[str, str], runner: Runner
) -> tuple[Checkout, ...]:
    """The folders that dists are used from in place, as git tells their state."""
    found = []
    for dist in dists:
        url = direct_url(dist)
        if url is not None and url.editable and url.directory is not None:
            found.append(_checkout(dist.name, url.directory, environment, runner))
    return tuple(found)


def write_checkout_patch(checkout: Checkout, place: Path, environment: Mapping[str, str], runner: Runner) -> str:
    """Write what a checkout has and no remote branch and no tag holds, commits and changes alike, as one patch.

    `place` is there already, empty. Files that git does not know are not in it. Returns why it could not be written.
    """
    programs = programs_on_path(environment.get("PATH", ""), "git")
    if not programs or checkout.ahead is None:
        return checkout.told()
    git = [str(programs[0]), *_GIT_OPTIONS, "-C", checkout.path]
    base = "HEAD"
    if checkout.ahead:
        asked = runner([*git, "rev-list", "--boundary", "HEAD", "--not", "--remotes", "--tags"], timeout=GIT_SECONDS)
        bases = [line[1:] for line in asked.stdout.split() if line.startswith("-")]
        if len(bases) != 1:
            return f"its {checkout.ahead} commits begin at {len(bases)} published ones: use git format-patch"
        base = bases[0]
    options = ["--no-ext-diff", "--no-textconv", "--no-color", "--binary", f"--output={place}"]
    answer = runner([*git, "diff", *options, base, "--", "."], timeout=GIT_SECONDS)
    return "" if answer.succeeded else f"git diff: {answer.outcome()}, it said: {answer.stderr.strip()}"


def _checkout(dist: str, path: Path, environment: Mapping[str, str], runner: Runner) -> Checkout:
    if not is_there(path):
        return Checkout(dist, str(path), problem="the folder is gone, or may not be entered")
    programs = programs_on_path(environment.get("PATH", ""), "git")
    if not programs:
        return Checkout(dist, str(path), problem="git is not on PATH")
    arguments = ["-C", str(path), "status", "--porcelain=v2", "--branch", "-z", "--", "."]
    try:
        answer = runner([str(programs[0]), *_GIT_OPTIONS, *arguments], timeout=GIT_SECONDS)
    except StartError as error:
        return Checkout(dist, str(path), problem=str(error))
    if not answer.succeeded:
        said = (answer.stderr.strip() or "nothing").splitlines()[0]
        return Checkout(dist, str(path), problem=f"git status: {answer.outcome()}, it said: {said}")
    commit, branch, changed, untracked = parse_status(answer.stdout)
    own = ["-C", str(path), "rev-list", "--count", "HEAD", "--not", "--remotes", "--tags"]
    counted = runner([str(programs[0]), *_GIT_OPTIONS, *own], timeout=GIT_SECONDS)
    ahead = int(counted.stdout) if counted.succeeded and counted.stdout.strip().isdecimal() else None
    return Checkout(dist, str(path), commit, branch, changed, untracked, ahead=ahead)
