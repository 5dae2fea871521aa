"""Processes that run from an environment, and those that hold GPUs, from /proc (proc(5), cgroups(7))."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from crossgrade.facts.gpus import Gpu
from crossgrade.store.processes import ancestors

_DEVICE = re.compile(r"/dev/nvidia(\d+)$")
_UNIT = re.compile(r"/([^/]+\.service)(?:/|$)")
_CONTAINER = re.compile(r"([0-9a-f]{64})")
_COMMAND_CHARACTERS = 200


@dataclass(frozen=True)
class ProcessSight:
    """What /proc shows of one process. `devices` are the NVIDIA device files that it holds open.

    `mapped` are the files in its memory, `import_path` is its PYTHONPATH, `hidden` says that it is another user's and
    only its command line is seen.
    """

    pid: int
    arguments: tuple[str, ...]
    uid: int | None = None
    program: str = ""
    directory: str = ""
    virtual_env: str = ""
    library_path: str = ""
    mapped: frozenset[str] = frozenset()
    devices: tuple[str, ...] = ()
    control_group: str = ""
    hidden: bool = False
    import_path: str = ""


@dataclass(frozen=True)
class Holder:
    """A process that runs from the environment (`why` says by what that shows) or holds GPUs (their indexes).

    `unit` is its systemd service and `container` the start of its container's id; empty without one.
    """

    pid: int
    uid: int | None
    command: str
    why: str
    gpus: tuple[int, ...]
    unit: str
    container: str
    library_path: str = ""
    import_path: str = ""

    @property
    def from_venv(self) -> bool:
        return bool(self.why)


@dataclass(frozen=True)
class HolderFacts:
    """Who uses what. `hidden` counts processes of other users that could not be looked into."""

    holders: tuple[Holder, ...]
    hidden: int
    unknown: Mapping[str, str] = field(default_factory=dict)


# ---- pure


def why_from(sight: ProcessSight, venv: str) -> str:
    """By what a process shows that it runs from an environment; empty when it does not.

    A shell in which somebody has activated it does not: only a Python counts by its VIRTUAL_ENV.
    """
    inside = f"{venv}/"
    if sight.program.startswith(inside):
        return "its program lies there"
    words = [os.path.normpath(os.path.join(sight.directory or "/", word)) for word in sight.arguments[:2]]  # noqa: PTH118
    if any(word.startswith(inside) for word in words):
        return "its command line names it"
    if any(path.startswith(inside) for path in sight.mapped):
        return "it has loaded libraries from there"
    if sight.virtual_env == venv and Path(sight.program).name.startswith("python"):
        return "its VIRTUAL_ENV"
    return ""


def judge_sights(sights: Sequence[ProcessSight], venvs: Sequence[str], gpus: Sequence[Gpu]) -> tuple[Holder, ...]:
    """The processes that matter. `venvs` are the spellings of one environment: as named, and where its links lead.

    A GPU's holders are those that the driver names, and those that have its device file open.
    """
    named = {process.pid: process.name for gpu in gpus for process in gpu.processes or ()}
    by_driver: dict[int, set[int]] = {}
    for gpu in gpus:
        for process in gpu.processes or ():
            by_driver.setdefault(process.pid, set()).add(gpu.index)
    index_of = {gpu.index if gpu.minor is None else gpu.minor: gpu.index for gpu in gpus}
    found = []
    seen = {sight.pid for sight in sights}
    unseen = [ProcessSight(pid, (name,), hidden=True) for pid, name in named.items() if pid not in seen]
    for sight in (*sights, *unseen):
        why = next((reason for venv in venvs if (reason := why_from(sight, venv))), "")
        minors = {int(match[1]) for device in sight.devices if (match := _DEVICE.match(device))}
        held = by_driver.get(sight.pid, set()) | {index_of.get(minor, minor) for minor in minors}
        if why or held:
            unit, container = _UNIT.search(sight.control_group), _CONTAINER.search(sight.control_group)
            command = " ".join(sight.arguments)[:_COMMAND_CHARACTERS] or named.get(sight.pid, "")
            found.append(
                Holder(
                    sight.pid,
                    sight.uid,
                    command,
                    why,
                    tuple(sorted(held)),
                    unit[1] if unit else "",
                    container[1][:12] if container else "",
                    sight.library_path,
                    sight.import_path,
                )
            )
    return tuple(sorted(found, key=lambda holder: holder.pid))


# ---- reading


def read_holders(venv: Path | None, gpus: Sequence[Gpu] = (), *, system: Path = Path("/")) -> HolderFacts:
    """Look through /proc. crossgrade and the shells above it are left out. Without `venv` only GPUs count."""
    ourselves = ancestors(os.getpid())
    sights = [sight for sight in _sights(system / "proc") if sight.pid not in ourselves]
    hidden = sum(sight.hidden for sight in sights)
    venvs = () if venv is None else tuple(dict.fromkeys([str(venv.absolute()), os.path.realpath(venv)]))
    unknown = {}
    if hidden:
        more = "" if os.geteuid() == 0 else "; root can"
        unknown["holders"] = f"{hidden} process(es) could not be looked into{more}"
    return HolderFacts(judge_sights(sights, venvs, gpus), hidden, unknown)


def _sights(proc: Path) -> Iterator[ProcessSight]:
    for folder in proc.iterdir():
        if folder.name.isdigit():
            with suppress(FileNotFoundError, ProcessLookupError, NotADirectoryError):
                try:
                    arguments = _words(folder / "cmdline")
                except PermissionError:  # /proc is mounted with hidepid=1
                    yield ProcessSight(int(folder.name), (), hidden=True)
                    continue
                if arguments:  # kernel threads have none
                    yield _sight(folder, arguments)


def _sight(folder: Path, arguments: tuple[str, ...]) -> ProcessSight:
    pid, uid = int(folder.name), folder.stat().st_uid
    group = (folder / "cgroup").read_text(errors="replace") if (folder / "cgroup").exists() else ""
    try:
        variables = dict(word.partition("=")[::2] for word in _words(folder / "environ"))
        mapped = frozenset(line[73:] for line in (folder / "maps").read_text(errors="replace").splitlines())
        targets = [_target(Path(descriptor.path)) for descriptor in os.scandir(folder / "fd")]
        return ProcessSight(
            pid,
            arguments,
            uid,
            _target(folder / "exe"),
            _target(folder / "cwd"),
            variables.get("VIRTUAL_ENV", ""),
            variables.get("LD_LIBRARY_PATH", ""),
            frozenset(path for path in mapped if path.startswith("/")),
            tuple(sorted({target for target in targets if target.startswith("/dev/nvidia")})),
            group,
            import_path=variables.get("PYTHONPATH", ""),
        )
    except PermissionError:
        return ProcessSight(pid, arguments, uid, control_group=group, hidden=True)


def _target(path: Path) -> str:
    try:
        return os.readlink(path)  # noqa: PTH115 - the target may be no path at all: `pipe:[12]`
    except (FileNotFoundError, ProcessLookupError, OSError) as error:
        if isinstance(error, PermissionError):
            raise
        return ""


def _words(path: Path) -> tuple[str, ...]:
    return tuple(os.fsdecode(word) for word in path.read_bytes().split(b"\0") if word)
