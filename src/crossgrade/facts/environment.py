"""All that can be wrong with an environment as people have them, read from its files and from who runs it, in a second.

Native files are opened when that is asked for: what they were built against takes longer to find out than all the rest.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from crossgrade.facts.venv import Checkout, editable_checkouts, parse_configuration
from crossgrade.inspect.consistency import Consistency, read_consistency
from crossgrade.inspect.cuda_consistency import CudaFacts
from crossgrade.inspect.cuda_majors import CudaMajors, read_majors
from crossgrade.inspect.dists import direct_url, site_packages
from crossgrade.inspect.leftovers import Leftovers, read_leftovers
from crossgrade.inspect.local_changes import LocalChanges, local_changes
from crossgrade.inspect.python_abi import find_interpreter
from crossgrade.inspect.query import Runner
from crossgrade.inspect.reading import read_regular

_CONFIGURATION_BYTES = 1 << 20


@dataclass(frozen=True)
class Leak:
    """A way by which Python imports what lies outside of the environment.

    `origin` says what opens it (``PYTHONPATH of process 7``), `folders` are where it leads. It is `inside` where the
    environment's own files open it, so that another environment has it only as a copy of this one.
    """

    origin: str
    folders: tuple[str, ...]
    inside: bool = False


@dataclass(frozen=True)
class EnvironmentFacts:
    """What was read of the environment `root`, whose packages lie in `site`.

    `cuda` is None where native files were not opened, `changes` where files were not compared. `checkouts` name the
    folders that dists are used from in place: `git_asked` is False where nobody asked git about them.
    `hidden_processes` counts those of other users, which could run from it unseen. `unknown` maps what could not be
    looked at to why.
    """

    root: str
    site: str
    consistency: Consistency
    leftovers: Leftovers
    majors: CudaMajors
    cuda: CudaFacts | None = None
    changes: LocalChanges | None = None
    checkouts: tuple[Checkout, ...] = ()
    git_asked: bool = False
    leaks: tuple[Leak, ...] = ()
    hidden_processes: int = 0
    unknown: Mapping[str, str] = field(default_factory=dict)


def read_environment(
    venv: Path,
    environment: Mapping[str, str],
    *,
    whose: str = "this shell",
    runner: Runner | None = None,
    consistency: Consistency | None = None,
    native: bool = False,
    compare_files: bool = True,
    processes: Path | None = Path("/proc"),
) -> EnvironmentFacts:
    """Read an environment; `environment` are variables, and `whose` they are. 169 dists of 10 GB take about a second.

    With `native` files are opened, too, for what they were built against: several seconds. Without a `runner` git is
    not asked, without `processes` (a /proc) nobody else's PYTHONPATH is seen. `consistency` is what was read already.
    Raises UnreadableEnvironmentError for what is no environment, OSError where its folder of packages cannot be listed.
    """
    site = site_packages(venv)
    found = consistency or read_consistency(venv, native=native)
    dists = found.dists
    unknown: dict[str, str] = {}
    if runner is not None:
        checkouts = editable_checkouts(dists, environment, runner)
        unknown.update({f"the checkout of {one.dist}": one.problem for one in checkouts if one.problem})
    else:
        checkouts = tuple(
            Checkout(dist.name, str(url.directory))
            for dist in dists
            if (url := direct_url(dist)) is not None and url.editable and url.directory is not None
        )
    changes = local_changes(venv, found.records, trusted_bytes=0) if compare_files else None
    if changes is not None:
        without = {str(recorded.dist) for recorded in found.records if recorded.problem}  # these are told as such
        unknown.update({what: why for what, why in changes.unknown.items() if what not in without})
    leaks = [*_of_variables(whose, environment), *_of_configuration(venv, environment, unknown)]
    hidden = 0
    if processes is not None:
        of_processes, hidden = _of_processes(venv, processes)
        leaks += of_processes
    return EnvironmentFacts(
        root=str(venv),
        site=str(site),
        consistency=found,
        leftovers=read_leftovers(site, found.records),
        majors=read_majors(site, found.records),
        cuda=_read_cuda(venv, found) if native else None,
        changes=changes,
        checkouts=checkouts,
        git_asked=runner is not None,
        leaks=tuple(leaks),
        hidden_processes=hidden,
        unknown=unknown,
    )


def _read_cuda(venv: Path, found: Consistency) -> CudaFacts:
    from crossgrade.inspect.cuda_consistency import read_cuda
    from crossgrade.inspect.native import inspect_native

    return read_cuda(inspect_native(venv), found.conflicts)


# ---- what leads outside


def _of_variables(whose: str, environment: Mapping[str, str]) -> list[Leak]:
    return [
        Leak(f"{name} of {whose}", folders)
        for name in ("PYTHONPATH", "PYTHONHOME")
        if (folders := tuple(part for part in environment.get(name, "").split(os.pathsep) if part))
    ]


def _of_processes(venv: Path, processes: Path) -> tuple[list[Leak], int]:
    """The variables of what runs from the environment, each once, and how many processes could not be looked into."""
    from crossgrade.facts.holders import read_holders

    found = read_holders(venv, system=processes.parent)
    by_path: dict[str, list[int]] = {}
    for holder in found.holders:
        if holder.import_path:
            by_path.setdefault(holder.import_path, []).append(holder.pid)
    leaks = []
    for path, pids in by_path.items():
        whose = f"process {pids[0]}" + (f" and {len(pids) - 1} more" if len(pids) > 1 else "")
        leaks += _of_variables(whose, {"PYTHONPATH": path})
    return leaks, found.hidden


def _of_configuration(venv: Path, environment: Mapping[str, str], unknown: dict[str, str]) -> Sequence[Leak]:
    """The base Python's packages, and its user's, where pyvenv.cfg lets them in (PEP 405, PEP 370)."""
    try:
        text = read_regular(venv / "pyvenv.cfg", _CONFIGURATION_BYTES).decode("utf-8", "replace")
    except OSError as error:
        unknown["pyvenv.cfg"] = f"unreadable: {error.strerror}"
        return ()
    if not parse_configuration(text).system_packages:
        return ()
    interpreter = find_interpreter(venv)
    if interpreter is None:
        unknown["packages of the base Python"] = "the Python of this environment was not found"
        return ()
    python = Path(interpreter.site_packages).parent.name
    user = Path(environment.get("PYTHONUSERBASE") or Path(environment.get("HOME") or "/") / ".local")
    base = Path(interpreter.prefix) / "lib"
    folders = [base / python / "site-packages", base / python / "dist-packages", base / "python3" / "dist-packages"]
    if not environment.get("PYTHONNOUSERSITE"):
        folders.insert(0, user / "lib" / python / "site-packages")
    there = tuple(str(folder) for folder in folders if folder.is_dir())
    return (Leak("include-system-site-packages in pyvenv.cfg", there, inside=True),)
