"""Every CUDA toolkit of a machine: what led to it, what it holds, and who put it there.

Sources: the CUDA Installation Guide for Linux (runfiles leave bin/cuda-uninstaller, packages make /usr/local/cuda an
alternative); dpkg's own lists in /var/lib/dpkg/info; update-alternatives(1).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from crossgrade.facts.text import is_there, text_of
from crossgrade.inspect.dists import UnreadableEnvironmentError, site_packages
from crossgrade.inspect.query import Runner, programs_on_path
from crossgrade.inspect.toolkit import ToolkitError, ToolkitFacts, home_of, read_toolkit

_VARIABLES = ("CUDA_HOME", "CUDA_PATH")
_RPM_SECONDS = 10.0


@dataclass(frozen=True)
class InstalledToolkit:
    """One toolkit. `origins` says by what it was found, the first that a build would take first.

    `manager` is who put it there: ``dpkg: NAME``, ``rpm: NAME``, ``runfile``, ``wheels``, ``conda``, ``crossgrade``, or
    empty where nobody claims it.
    """

    facts: ToolkitFacts
    origins: tuple[str, ...]
    manager: str


@dataclass(frozen=True)
class LocalCuda:
    """What /usr/local/cuda is. `kind` is ``missing``, ``directory``, ``link`` or ``dangling link``.

    `chain` are the targets of the links from there on, `manager` is ``update-alternatives`` where it leads through
    /etc/alternatives, ``somebody`` for another link, empty where there is none.
    """

    kind: str
    chain: tuple[str, ...] = ()
    manager: str = ""


@dataclass(frozen=True)
class ToolkitsFacts:
    """All toolkits, each once. `problems` says why a place that is named holds none."""

    toolkits: tuple[InstalledToolkit, ...]
    local_cuda: LocalCuda
    problems: tuple[str, ...] = ()
    unknown: Mapping[str, str] = field(default_factory=dict)


def read_toolkits(
    environment: Mapping[str, str],
    runner: Runner,
    *,
    venv: Path | None = None,
    store_toolkits: Path | None = None,
    system: Path = Path("/"),
) -> ToolkitsFacts:
    """Look where builds look (CUDA_HOME, CUDA_PATH, every nvcc on PATH), then below /usr/local and /opt, in the venv's
    wheels and its prefix, and in a store's `toolkits` folder."""
    homes: dict[str, Path] = {}
    origins: dict[str, list[str]] = {}
    for origin, home in _places(environment, runner, venv, store_toolkits, system):
        real = os.path.realpath(home)
        homes.setdefault(real, home)
        origins.setdefault(real, []).append(origin)
    found, problems = [], []
    for real, home in homes.items():
        try:
            facts = read_toolkit(home, runner)
        except ToolkitError as error:
            problems.append(f"{origins[real][0]}: {error.message}")
            continue
        except OSError as error:  # a folder on the way may not be entered
            problems.append(f"{origins[real][0]}: {home}: {error.strerror}")
            continue
        found.append(
            InstalledToolkit(facts, tuple(origins[real]), _manager(Path(real), store_toolkits, system, runner))
        )
    unknown = {} if found else {"toolkits": "no nvcc in CUDA_HOME, CUDA_PATH, PATH, /usr/local/cuda*, /opt or the venv"}
    return ToolkitsFacts(tuple(found), local_cuda(system), tuple(problems), unknown)


def _places(
    environment: Mapping[str, str], runner: Runner, venv: Path | None, store_toolkits: Path | None, system: Path
) -> Iterator[tuple[str, Path]]:
    for name in _VARIABLES:
        if environment.get(name):
            yield name, Path(environment[name])
    for nvcc in programs_on_path(environment.get("PATH", ""), "nvcc"):
        yield f"PATH ({nvcc})", home_of(nvcc, runner)
    local = [system / "usr/local/cuda", *sorted((system / "usr/local").glob("cuda-*"))]
    local += [system / "opt/cuda", *sorted((system / "opt").glob("cuda-*"))]
    yield from ((str(place), place) for place in local if _has_nvcc(place))
    if venv is not None:
        yield from ((f"venv ({place})", place) for place in _in_environment(venv) if _has_nvcc(place))
    if store_toolkits is not None:
        candidates = [place for folder in _below(store_toolkits) for place in (folder, *_below(folder))]
        yield from ((f"store ({place})", place) for place in candidates if _has_nvcc(place))


def _below(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir())
    except OSError:
        return []


def _has_nvcc(home: Path) -> bool:
    return is_there(home / "bin/nvcc")


def _in_environment(venv: Path) -> Iterator[Path]:
    """Where the wheels of CUDA 13 and 12 have their programs, and where conda has them."""
    yield venv
    try:
        nvidia = site_packages(venv) / "nvidia"
    except (UnreadableEnvironmentError, OSError):  # facts.venv says why
        return
    yield nvidia / "cu13"
    yield nvidia / "cuda_nvcc"


def local_cuda(system: Path = Path("/")) -> LocalCuda:
    """What /usr/local/cuda points at, link by link."""
    path = system / "usr/local/cuda"
    chain: list[str] = []
    step = path
    while step.is_symlink() and len(chain) < 40:  # as many as the kernel follows
        target = os.readlink(step)  # noqa: PTH115 - as it is written
        chain.append(target)
        # an absolute target is meant from the system's own root
        step = system / target.lstrip("/") if target.startswith("/") else step.parent / target
    if not chain:
        return LocalCuda("directory" if path.is_dir() else "missing")
    manager = "update-alternatives" if any("etc/alternatives" in target for target in chain) else "somebody"
    return LocalCuda("link" if step.exists() else "dangling link", tuple(chain), manager)


def _manager(home: Path, store_toolkits: Path | None, system: Path, runner: Runner) -> str:
    """Who put a toolkit there; `home` is its real path."""
    if store_toolkits is not None and home.is_relative_to(store_toolkits.resolve()):
        return "crossgrade"
    if "site-packages" in home.parts or "dist-packages" in home.parts:
        return "wheels"
    if (home / "conda-meta").is_dir():
        return "conda"
    if (home / "bin/cuda-uninstaller").exists() or (home / "bin/uninstall_cuda").exists():
        return "runfile"
    nvcc = str(home / "bin/nvcc")
    owner = owner_of(nvcc.removeprefix(str(system)) if str(system) != "/" else nvcc, system)
    if owner:
        return f"dpkg: {owner}"
    for rpm in programs_on_path("/usr/bin:/bin", "rpm") if (system / "var/lib/rpm").is_dir() else ():
        answer = runner([str(rpm), "-qf", "--queryformat", "%{NAME}", nvcc], timeout=_RPM_SECONDS)
        if answer.succeeded:
            return f"rpm: {answer.stdout.strip()}"
    return ""


def owner_of(path: str, system: Path = Path("/")) -> str:
    """The Debian package that holds a toolkit's nvcc, from dpkg's lists (``cuda-nvcc-13-0``); empty where none does."""
    wanted = "/" + path.lstrip("/")
    for listing in sorted((system / "var/lib/dpkg/info").glob("*cuda*.list")):
        if wanted in text_of(listing).splitlines():
            return listing.name.removesuffix(".list").partition(":")[0]
    return ""


def first_of_release(toolkits: Sequence[InstalledToolkit], release: str) -> InstalledToolkit | None:
    """The toolkit of a CUDA release (``13.0``) that stands first, or None."""
    return next((each for each in toolkits if each.facts.release == release), None)
