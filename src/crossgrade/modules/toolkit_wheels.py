"""The method `wheels` of cuda_toolkit: PyPI's dist cuda-toolkit, into the store.

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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from crossgrade.errors import TaskError
from crossgrade.jsontype import JSON
from crossgrade.modules.contract import (
    ApplyContext,
    Difference,
    HostView,
    Lock,
    LockedDist,
    LockRequest,
    Space,
)
from crossgrade.modules.cuda_home import nvcc_release, unify
from crossgrade.modules.toolkit_proof import Proof, prove, wanted_proof
from crossgrade.modules.toolkits import LAYOUT, RECORD, Toolkit, Work, in_store, read_toolkit, record_of, release_of
from crossgrade.store.atomic import sync_directory, write_json
from crossgrade.store.layout import remove_path

if TYPE_CHECKING:
    from crossgrade.modules.cuda_toolkit import Arguments


@dataclass(frozen=True)
class Wheels:
    """The lock that is to be installed, the request that it answers, and where to."""

    lock: Lock
    request: LockRequest
    place: Path
    proof: Proof


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
    asked = {**request.described(), "python": "", "platform": os.uname().machine, "layout": LAYOUT}
    return sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()


def mixed_releases(dists: Sequence[LockedDist]) -> str:
    """Why these dists make no toolkit that compiles; empty where they do. Pure.

    The compiler, its back end, its headers and the runtime's headers must be of one release
    (`knowledge/toolkit_wheels.yml`): nvcc stops with `CUDA compiler and CUDA toolkit headers are incompatible`.
    """
    from crossgrade.knowledge import table

    names = {str(row["dist"]) for row in table("toolkit_wheels")}
    parts = [dist for dist in dists if dist.name in names]
    if not any(dist.name == "nvidia-cuda-nvcc" for dist in parts):
        return ""
    if len({release_of(dist.version) for dist in parts}) <= 1:
        return ""
    return ", ".join(f"{dist.name} {dist.version}" for dist in parts)


# ---- looking


def look(arguments: Arguments, host: HostView) -> Toolkit | Work:
    """Raises TaskError when the lock mixes releases, or cannot be resolved."""
    request = LockRequest((requirement(arguments),), base_python())
    found = in_store(host.store, request_digest(request))
    if found is not None:
        return found
    lock = host.resolve(request)
    if mix := mixed_releases(lock.dists):
        raise TaskError(
            f"the lock mixes CUDA releases: {mix}; its nvcc would stop with `CUDA compiler and CUDA toolkit headers "
            "are incompatible`",
            remedy="Look for constraints or overrides that hold one of them (UV_CONSTRAINT, UV_OVERRIDE, uv.toml); "
            f"{request.requirements[0]} alone asks for one release.",
        )
    digest = sha256(f"{LAYOUT} {lock.digest}".encode()).hexdigest()[:24]
    place = host.store.toolkit(digest)
    if (place / RECORD).is_file():
        return read_toolkit(place)
    toolkit = _foreseen(place, lock, digest)
    has_runtime = any(dist.name == "nvidia-cuda-runtime" for dist in lock.dists)
    proof = wanted_proof(arguments.prove_for, toolkit.version, toolkit.nvcc is not None, has_runtime)
    toolkit = replace(toolkit, proved=proof.architectures, not_proved=proof.reason)
    if host.predicted("toolkit", digest) is not None:
        return toolkit
    return Work(
        toolkit,
        f"install CUDA {toolkit.version or arguments.version} from {len(lock.dists)} wheels",
        tuple(Difference(dist.name, "", dist.version) for dist in lock.dists),
        (Space(place, host.installed_bytes(request, lock), f"CUDA {arguments.version}"),),
        Wheels(lock, request, place, proof),
    )


def _foreseen(place: Path, lock: Lock, digest: str) -> Toolkit:
    home = place / "cuda_home"
    # nvidia-cuda-nvcc-cu12 holds no nvcc, the dist of CUDA 13 without the suffix does
    nvcc = str(home / "bin" / "nvcc") if any(dist.name == "nvidia-cuda-nvcc" for dist in lock.dists) else None
    versions = {dist.name: dist.version for dist in lock.dists}
    return Toolkit(str(home), digest, versions.get("cuda-toolkit", ""), nvcc, versions)


# ---- installing


def install(work: Work, context: ApplyContext) -> Toolkit:
    """Raises TaskError; what was made until then is in the journal and is removed by `undo`."""
    toolkit, wheels = work.toolkit, work.details
    folder = context.store.temporary / f"toolkit-{toolkit.digest}"
    with context.step(
        f"install CUDA {toolkit.version} in {wheels.place}",
        {"work": str(folder), "place": str(wheels.place)},
        by_hand=[f"rm -r {folder}"],
    ):
        remove_path(folder)
        folder.mkdir(mode=0o711)
        _install(wheels.lock, wheels.request, folder, context)
        unify(folder / "site", folder / "cuda_home")
        _start(folder / "cuda_home", toolkit, context)
        if wheels.proof.architectures:
            context.progress("proving nvcc")
            prove(folder / "cuda_home", wheels.proof.architectures, context.host)
        finish(folder, wheels.place, record_of(toolkit, request_digest(wheels.request), wheels.lock.digest))
    return replace(read_toolkit(wheels.place), not_proved=wheels.proof.reason)


def _install(lock: Lock, request: LockRequest, work: Path, context: ApplyContext) -> None:
    from crossgrade.modules.uv import explain, install_lock, persistently, uv_environment

    lock_file = work / "lock.txt"
    lock_file.write_text(lock.text, encoding="utf-8")
    argv = install_lock(request.python, lock_file, request, target=work / "site", compile_bytecode=False)
    context.progress(f"installing {len(lock.dists)} wheels")
    environment = uv_environment(context.host.environment, request)
    completed = persistently(
        lambda: context.run(argv, environment=environment, log_name="cuda_toolkit.log"), context.progress
    )
    if not completed.succeeded:
        raise TaskError(
            f"uv could not install the toolkit: {explain(completed.stderr) or completed.outcome()}",
            remedy=f"The whole output is in {context.log_directory / 'cuda_toolkit.log'}.",
        )


def _start(home: Path, toolkit: Toolkit, context: ApplyContext) -> None:
    """Raises TaskError when nvcc does not start, is another version, or is there where none was foreseen."""
    nvcc = home / "bin" / "nvcc"
    if nvcc.is_file() != (toolkit.nvcc is not None):
        raise TaskError(f"the installed toolkit has {'an' if nvcc.is_file() else 'no'} nvcc, against its lock")
    if toolkit.nvcc is None:
        return
    completed = context.run([str(nvcc), "--version"], timeout=60.0)
    release = nvcc_release(completed.stdout)
    if not completed.succeeded or release_of(toolkit.version) != release:
        raise TaskError(
            f"the installed nvcc does not prove to be CUDA {toolkit.version}: {completed.outcome()}, "
            f"release {release!r}"
        )


def finish(work: Path, place: Path, record: Mapping[str, JSON]) -> None:
    """Give a toolkit its record and put it in its place by one rename."""
    from crossgrade.modules.durable import sync_filesystem

    write_json(work / RECORD, dict(record))
    sync_filesystem(work)
    remove_path(place)  # one without a record, which nobody can have used
    work.rename(place)
    sync_directory(place.parent)


def undo(record: Mapping[str, JSON]) -> str:
    """Remove what is half made; a complete toolkit is shared and stays."""
    work, place = Path(str(record["work"])), Path(str(record["place"]))
    gone = remove_path(work)
    if place.is_dir() and not (place / RECORD).is_file():
        gone = remove_path(place) or gone
    return "removed the half-made toolkit" if gone else ""
