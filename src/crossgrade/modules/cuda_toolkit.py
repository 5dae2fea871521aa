"""cuda_toolkit: a CUDA toolkit, from PyPI's wheels into the store, or one that the machine has already.

    STORE/toolkits/DIGEST/site/        the wheels, as uv unpacks them
    STORE/toolkits/DIGEST/cuda_home/   links that make one CUDA_HOME of them
    STORE/toolkits/DIGEST/toolkit.json what it is; written last

A toolkit is named by the digest of its lock and never changes, so generations share it, and undoing a run
leaves a complete one where it is: the next attempt finds it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from crossgrade.errors import StoreError, TaskError
from crossgrade.jsontype import JSON
from crossgrade.modules.contract import (
    ApplyContext,
    Change,
    Difference,
    HostView,
    Lock,
    LockRequest,
    Module,
    Outcome,
    Plan,
    Prediction,
    Space,
    Unchanged,
)
from crossgrade.modules.cuda_home import nvcc_release, unify
from crossgrade.modules.files import absolute
from crossgrade.playbook.arguments import argument
from crossgrade.store.atomic import sync_directory, write_json
from crossgrade.store.layout import Store, read_record, remove_path

# Part of every digest: raise it when the same wheels are laid out in another way.
LAYOUT = 1
RECORD = "toolkit.json"


@dataclass(frozen=True)
class Arguments:
    """Wheels are resolved to an exact, hashed lock at plan time; `existing` only checks what is there."""

    version: str = argument(doc="The CUDA version: `13.0` for the newest 13.0.x, or more exact, `13.0.2`.")
    method: Literal["wheels", "existing"] = argument(
        doc="`wheels`: PyPI's dist cuda-toolkit, into the store. `existing`: a toolkit that the machine has.",
        default="wheels",
    )
    components: tuple[str, ...] = argument(
        doc="Extras of cuda-toolkit for `wheels`: nvcc, nvvm, crt, cccl, cudart, nvrtc, cublas, and so on.",
        default=("nvcc", "cccl", "cudart"),
    )
    path: str | None = argument(
        doc="Where the existing toolkit lies. By default /usr/local/cuda-VERSION.", default=None
    )


@dataclass(frozen=True)
class Toolkit:
    """A toolkit, there or foreseen. `nvcc` is None where it has none (the wheels of CUDA 12)."""

    cuda_home: str
    digest: str
    version: str
    nvcc: str | None
    versions: Mapping[str, str]

    def values(self) -> dict[str, Any]:
        return {"cuda_home": self.cuda_home, "digest": self.digest, "version": self.version, "nvcc": self.nvcc}


@dataclass(frozen=True)
class State:
    """`toolkit` when it is there (or predicted); else `lock` says what will be made."""

    toolkit: Toolkit | None
    lock: Lock | None = None
    request: LockRequest | None = None
    digest: str = ""
    place: Path | None = None
    bytes: int = 0


def requirement(arguments: Arguments) -> str:
    """`cuda-toolkit[nvcc,cudart]==13.0.*`."""
    extras = ",".join(dict.fromkeys(arguments.components))
    parts = arguments.version.split(".")
    exact = len(parts) >= 4  # as cuda-toolkit's own versions are
    return f"cuda-toolkit[{extras}]=={arguments.version}{'' if exact else '.*'}"


def base_python() -> str:
    """The interpreter behind the venv that crossgrade runs in: it stays when that venv goes."""
    return str(getattr(sys, "_base_executable", None) or sys.executable)


def request_digest(request: LockRequest) -> str:
    """What was asked for, in words: a toolkit with this in its record needs no resolving to be recognised.

    The interpreter does not count: CUDA's wheels are for any Python 3.
    """
    asked = {**asdict(request), "python": "", "platform": os.uname().machine, "layout": LAYOUT}
    return sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()


# ---- inspect


def inspect(arguments: Arguments, host: HostView) -> State:
    if arguments.method == "existing":
        return State(_existing(arguments, host))
    request = LockRequest((requirement(arguments),), base_python())
    found = _recorded(host.store, request_digest(request))
    if found is not None:
        return State(found)
    lock = host.resolve(request)
    digest = sha256(f"{LAYOUT} {lock.digest}".encode()).hexdigest()[:24]
    place = host.store.toolkit(digest)
    if (place / RECORD).is_file():
        return State(read_toolkit(place))
    if host.predicted("toolkit", digest) is not None:
        return State(_foreseen(place, lock, digest))
    return State(None, lock, request, digest, place, host.installed_bytes(request, lock))


def _recorded(store: Store, asked: str) -> Toolkit | None:
    folder = store.toolkit("any").parent
    if not folder.is_dir():
        return None
    for place in sorted(folder.iterdir()):
        record = place / RECORD
        if record.is_file() and read_record(record).get("request") == asked:
            return read_toolkit(place)
    return None


def read_toolkit(place: Path) -> Toolkit:
    """A complete toolkit of the store. Raises StoreError when its record is damaged or its tree is gone."""
    record = read_record(place / RECORD)
    home = place / "cuda_home"
    if not home.is_dir():
        raise StoreError(f"the toolkit {place} has lost its cuda_home", remedy=f"Remove {place} and run again.")
    try:
        nvcc = str(home / "bin" / "nvcc") if record["has_nvcc"] else None
        return Toolkit(str(home), place.name, record["version"], nvcc, record["versions"])
    except KeyError as error:
        raise StoreError(f"the record {place / RECORD} is damaged: {error} is missing") from error


def _foreseen(place: Path, lock: Lock, digest: str) -> Toolkit:
    home = place / "cuda_home"
    # nvidia-cuda-nvcc-cu12 holds no nvcc, the dist of CUDA 13 without the suffix does
    nvcc = str(home / "bin" / "nvcc") if any(dist.name == "nvidia-cuda-nvcc" for dist in lock.dists) else None
    versions = {dist.name: dist.version for dist in lock.dists}
    return Toolkit(str(home), digest, versions.get("cuda-toolkit", ""), nvcc, versions)


def _existing(arguments: Arguments, host: HostView) -> Toolkit:
    """Raises ToolkitError where no whole toolkit is, TaskError when it is another version."""
    from crossgrade.inspect.toolkit import read_toolkit as read_installed
    from crossgrade.inspect.toolkit import require_matched

    home = absolute(arguments.path or f"/usr/local/cuda-{arguments.version}", host)
    found = read_installed(home, host.run)
    require_matched(found)
    version = found.nvcc_version or ""
    if version != arguments.version and not version.startswith(f"{arguments.version}."):
        raise TaskError(
            f"{home} holds {found.name}, CUDA {arguments.version} is asked for",
            remedy="Give the `path` of the right one, or use `method: wheels`, which needs no root.",
        )
    digest = sha256(f"{found.real_home} {version}".encode()).hexdigest()[:24]
    return Toolkit(str(home), digest, version, found.nvcc, {})


# ---- plan


def plan(arguments: Arguments, state: State) -> Plan:
    if state.toolkit is not None:
        return Unchanged(f"CUDA {state.toolkit.version} is there", state.toolkit.values())
    assert state.lock is not None  # noqa: S101 - inspect gives one of the two
    assert state.place is not None  # noqa: S101 - as above
    toolkit = _foreseen(state.place, state.lock, state.digest)
    value: dict[str, JSON] = {**toolkit.values(), "versions": dict(toolkit.versions)}
    return Change(
        f"install CUDA {toolkit.version or arguments.version} from {len(state.lock.dists)} wheels",
        tuple(Difference(dist.name, "", dist.version) for dist in state.lock.dists),
        toolkit.values(),
        predicts=(Prediction("toolkit", state.digest, value),),
        payload={"lock": state.lock, "request": state.request, "toolkit": toolkit, "place": state.place},
        space=(Space(state.place, state.bytes, f"CUDA {arguments.version}"),),
    )


# ---- apply


def apply(arguments: Arguments, change: Change, context: ApplyContext) -> Outcome:  # noqa: ARG001 (the contract's shape)
    toolkit: Toolkit = change.payload["toolkit"]
    place: Path = change.payload["place"]
    work = context.store.temporary / f"toolkit-{toolkit.digest}"
    with context.step(
        f"install CUDA {toolkit.version} in {place}",
        {"work": str(work), "place": str(place)},
        by_hand=[f"rm -r {work}"],
    ):
        remove_path(work)
        work.mkdir(mode=0o711)
        _install(change.payload["lock"], change.payload["request"], work, context)
        unify(work / "site", work / "cuda_home")
        has_nvcc = _prove(work / "cuda_home", toolkit.version, context)
        record = {
            "schema": 1,
            "layout": LAYOUT,
            "digest": toolkit.digest,
            "request": request_digest(change.payload["request"]),
            "lock": change.payload["lock"].digest,
            "version": toolkit.version,
            "versions": dict(toolkit.versions),
            "has_nvcc": has_nvcc,
        }
        _finish(work, place, record)
    return Outcome(read_toolkit(place).values())


def _install(lock: Lock, request: LockRequest, work: Path, context: ApplyContext) -> None:
    from crossgrade.modules.uv import explain, index_environment, install_lock

    lock_file = work / "lock.txt"
    lock_file.write_text(lock.text, encoding="utf-8")
    argv = install_lock(request.python, lock_file, request, target=work / "site", compile_bytecode=False)
    context.progress(f"installing {len(lock.dists)} wheels")
    completed = context.run(argv, environment=index_environment(context.host.environment), log_name="cuda_toolkit.log")
    if not completed.succeeded:
        raise TaskError(
            f"uv could not install the toolkit: {explain(completed.stderr) or completed.outcome()}",
            remedy=f"The whole output is in {context.log_directory / 'cuda_toolkit.log'}.",
        )


def _prove(home: Path, version: str, context: ApplyContext) -> bool:
    """Start nvcc where there is one: True. Raises TaskError when it does not start or is another version."""
    nvcc = home / "bin" / "nvcc"
    if not nvcc.is_file():
        return False
    completed = context.run([str(nvcc), "--version"], timeout=60.0)
    release = nvcc_release(completed.stdout)
    if not completed.succeeded or not version.startswith(f"{release}."):
        raise TaskError(
            f"the installed nvcc does not prove to be CUDA {version}: {completed.outcome()}, release {release!r}"
        )
    return True


def _finish(work: Path, place: Path, record: Mapping[str, JSON]) -> None:
    from crossgrade.modules.durable import sync_filesystem

    write_json(work / RECORD, dict(record))
    sync_filesystem(work)
    remove_path(place)  # one without a record, which nobody can have used
    work.rename(place)
    sync_directory(place.parent)


def undo(record: Mapping[str, JSON], context: ApplyContext) -> str:  # noqa: ARG001 (the contract's shape)
    work, place = Path(str(record["work"])), Path(str(record["place"]))
    gone = remove_path(work)
    if place.is_dir() and not (place / RECORD).is_file():
        gone = remove_path(place) or gone
    return "removed the half-made toolkit" if gone else ""


MODULE = Module(
    name="cuda_toolkit",
    arguments=Arguments,
    effect="changes",
    inspect=inspect,
    plan=plan,
    apply=apply,
    undo=undo,
    summary="A CUDA toolkit, from PyPI into the store or as it is on the machine.",
)
