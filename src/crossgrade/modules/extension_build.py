"""extension_build: a wheel from a source tree, built against a CUDA toolkit for a list of architectures.

The wheel is kept in STORE/wheels/KEY. The key is made of everything that the build can see: the contents of
the source tree, the command, the variables, the architectures, the toolkit, the C++ compiler, the Python. It
holds no path of the checkout or the store, so both may move. Same key, same wheel: nothing is built twice.

The build works on a copy, so the source tree is never written to.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from crossgrade.errors import StoreError, TaskError
from crossgrade.jsontype import JSON
from crossgrade.modules.contract import (
    ApplyContext,
    Change,
    Difference,
    HostView,
    Module,
    Outcome,
    Plan,
    Prediction,
    Unchanged,
)
from crossgrade.modules.cuda_toolkit import RECORD as TOOLKIT_RECORD
from crossgrade.modules.cuda_toolkit import base_python
from crossgrade.modules.files import absolute
from crossgrade.modules.source_tree import copy_tree, digest_of_tree, project_name
from crossgrade.modules.wheels import BuiltWheel, name_and_version, sha256_of, write_record
from crossgrade.playbook.arguments import argument
from crossgrade.store.atomic import sync_directory
from crossgrade.store.layout import remove_path

# Part of every key: raise it when the same inputs are built in another way.
SCHEMA = 1
# The large attention and GEMM kernels take about 5 GB of memory for each compiler process.
BYTES_A_JOB = 4 << 30
TAIL_LINES = 20
# Variables of the surroundings that compilers and build tools listen to.
_HEARD = (
    "CC", "CXX", "CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS", "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS",
    "CUDAHOSTCXX", "CUDAFLAGS", "CMAKE_ARGS", "CMAKE_GENERATOR", "CMAKE_PREFIX_PATH", "SKBUILD_CMAKE_ARGS",
)  # fmt: skip


@dataclass(frozen=True)
class Arguments:
    """Builds once for each key; the same inputs find the wheel that is there."""

    source: str = argument(doc="The source tree: a directory with a pyproject.toml. It is copied, never written to.")
    cuda_home: str | None = argument(doc="The toolkit to build with, as cuda_toolkit returns it.", default=None)
    architectures: tuple[str, ...] = argument(
        doc='What to compile for, in PyTorch\'s spelling: "12.0", "12.0a", "9.0;12.0+PTX" as a list.', default=()
    )
    build_command: tuple[str, ...] = argument(
        doc="The command, as a list. {python}, {source}, {out} and {jobs} are filled in; it works in {source}. It "
        "must leave one wheel in {out} or in dist/. By default `uv build --wheel`.",
        default=(),
    )
    environment: Mapping[str, str] = argument(doc="Variables for the build.", default_factory=dict)
    jobs: int | None = argument(
        doc="Compiler processes at once (MAX_JOBS). By default one for each core, as far as there are 4 GiB of "
        "memory for each.",
        default=None,
    )
    python: str | None = argument(
        doc="The interpreter to build for. By default the one behind crossgrade's own venv.", default=None
    )


@dataclass(frozen=True)
class State:
    """What the build would see. `wheel` is the finished wheel of this key, if there is one."""

    key: str
    inputs: Mapping[str, JSON]
    source: Path
    cuda_home: str
    python: str
    jobs: int
    folder: Path
    project: str
    wheel: BuiltWheel | None
    predicted: bool


# ---- inspect


def inspect(arguments: Arguments, host: HostView) -> State:
    source = absolute(arguments.source, host)
    if not source.is_dir():
        raise TaskError(f"there is no source tree at {source}", remedy="Name a directory with a pyproject.toml.")
    cuda_home = str(absolute(arguments.cuda_home, host)) if arguments.cuda_home else ""
    environment = {**host.environment, **arguments.environment}
    inputs: dict[str, JSON] = {
        "schema": SCHEMA,
        "source": digest_of_tree(source),
        "command": list(arguments.build_command),
        "environment": dict(sorted(arguments.environment.items())),
        "surroundings": {name: environment[name] for name in _HEARD if environment.get(name)},
        "architectures": list(arguments.architectures),
        "toolkit": toolkit_identity(cuda_home, host),
        "compiler": compiler_identity(environment),
        "python": python_identity(arguments.python, host),
    }
    key = sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:32]
    folder = host.store.wheel_folder(key)
    return State(
        key,
        inputs,
        source,
        cuda_home,
        python_program(arguments.python, host),
        arguments.jobs or default_jobs(os.cpu_count() or 1, memory_bytes()),
        folder,
        project_name(source) or source.name,
        BuiltWheel.read(folder),
        host.predicted("wheel", key) is not None,
    )


def toolkit_identity(cuda_home: str, host: HostView) -> str:
    """What a toolkit is, wherever it lies: the digest of one of the store's, the version of any other.

    Raises TaskError when it is not there and no earlier task will make it.
    """
    if not cuda_home:
        return ""
    home = Path(cuda_home)
    if home.parent.parent == host.store.toolkit("any").parent:
        digest = home.parent.name
        if (home.parent / TOOLKIT_RECORD).is_file() or host.predicted("toolkit", digest) is not None:
            return digest
        raise TaskError(f"there is no toolkit {digest} in the store", remedy="Let cuda_toolkit make it first.")
    from crossgrade.inspect.toolkit import read_toolkit, require_matched

    found = read_toolkit(home, host.run)
    require_matched(found)
    return f"{found.name} {found.nvcc_version} {found.real_home}"


def compiler_identity(environment: Mapping[str, str]) -> str:
    """The version of the C++ compiler that builds take; "none" where there is none, which a pure build may not mind."""
    from crossgrade.inspect.host_compiler import compiler_version
    from crossgrade.inspect.query import run_query
    from crossgrade.process import StartError

    program = shutil.which(environment.get("CXX") or "g++", path=environment.get("PATH"))
    if program is None:
        return "none"
    try:
        return compiler_version(Path(program), run_query)
    except (StartError, ValueError):
        return "unknown"


def python_program(given: str | None, host: HostView) -> str:
    """The interpreter's path. Raises TaskError when there is none."""
    if given is None:
        return base_python()
    found = shutil.which(os.path.expanduser(given), path=host.environment.get("PATH"))  # noqa: PTH111 - may be a bare name
    if found is None:
        raise TaskError(f"there is no Python at {given}", remedy="Give the path of an interpreter, or leave it out.")
    return found


def python_identity(given: str | None, host: HostView) -> str:
    """Implementation, ABI and platform: what decides whether a wheel fits. Not the patch release."""
    if given is None:
        return _abi(sys.implementation.cache_tag, sysconfig.get_config_var("SOABI"), sysconfig.get_platform())
    from crossgrade.inspect.query import run_query

    question = (
        "import sys, sysconfig; "
        "print(sys.implementation.cache_tag, sysconfig.get_config_var('SOABI'), sysconfig.get_platform())"
    )
    program = python_program(given, host)
    answer = run_query([program, "-I", "-c", question])
    if not answer.succeeded:
        raise TaskError(f"{program} does not start: {answer.outcome()}")
    return _abi(*answer.stdout.split())


def _abi(*parts: str | None) -> str:
    return " ".join(str(part) for part in parts)


def memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def default_jobs(cores: int, memory: int) -> int:
    """One job for each core, as far as the memory (bytes) is enough for all of them."""
    return max(1, min(cores, memory // BYTES_A_JOB))


# ---- plan


def plan(arguments: Arguments, state: State) -> Plan:
    values = {"wheel": str(state.folder), "key": state.key}
    if state.wheel is not None or state.predicted:
        return Unchanged(f"{state.project} is built already", values)
    targets = f" for {', '.join(arguments.architectures)}" if arguments.architectures else ""
    return Change(
        f"build {state.project}{targets} with {state.jobs} job{'s' if state.jobs > 1 else ''}",
        (Difference(f"wheel of {state.project}", "", f"built from {state.source}"),),
        values,
        predicts=(Prediction("wheel", state.key, {"name": state.project}),),
        payload={"state": state},
    )


# ---- apply


def apply(arguments: Arguments, change: Change, context: ApplyContext) -> Outcome:
    state: State = change.payload["state"]
    work = context.store.temporary / f"wheel-{state.key}"
    log_name = f"build-{state.project}-{state.key[:8]}.log"
    with context.step(
        f"build {state.project} in {state.folder}",
        {"work": str(work), "folder": str(state.folder)},
        by_hand=[f"rm -r {work}"],
    ):
        remove_path(work)
        out = work / "out"
        finished = work / "finished"
        for folder in (work, out, finished):
            folder.mkdir(mode=0o700)
        source = work / "source"
        copy_tree(state.source, source)
        if digest_of_tree(source) != state.inputs["source"]:
            raise TaskError(f"{state.source} was changed while it was copied", remedy="Run again.")
        context.progress(f"building {state.project}")
        completed = context.run(
            build_argv(arguments.build_command, state, source, out),
            environment=build_environment(arguments, state, context.host.environment),
            cwd=source,
            log_name=log_name,
        )
        log = context.log_directory / log_name
        if not completed.succeeded:
            raise build_error(state.project, completed.outcome(), completed.stdout + completed.stderr, log)
        wheel = _only_wheel(out, source / "dist", log)
        _keep(wheel, finished, state, log)
    return Outcome(change.values)


def build_argv(command: Sequence[str], state: State, source: Path, out: Path) -> list[str]:
    """The command with its places filled in."""
    from crossgrade.modules.uv import uv_program

    if not command:
        return [uv_program(), "build", "--wheel", "--python", state.python, "--out-dir", str(out), str(source)]
    places = {"{python}": state.python, "{source}": str(source), "{out}": str(out), "{jobs}": str(state.jobs)}
    filled = list(command)
    for place, value in places.items():
        filled = [part.replace(place, value) for part in filled]
    return filled


def build_environment(arguments: Arguments, state: State, around: Mapping[str, str]) -> dict[str, str]:
    """The variables of the build, over those of the task; the playbook's own come last and win."""
    from crossgrade.modules.uv import index_environment

    environment = {**index_environment(around), "MAX_JOBS": str(state.jobs)}
    if state.cuda_home:
        environment["CUDA_HOME"] = state.cuda_home
        environment["PATH"] = f"{state.cuda_home}/bin:{around.get('PATH', os.defpath)}"
    if arguments.architectures:
        joined = ";".join(arguments.architectures)
        environment["CROSSGRADE_CUDA_ARCHITECTURES"] = joined
        environment["TORCH_CUDA_ARCH_LIST"] = joined
        environment["FLASHINFER_CUDA_ARCH_LIST"] = " ".join(arguments.architectures)
    return {**environment, **arguments.environment}


def build_error(project: str, outcome: str, output: str, log: Path) -> TaskError:
    """The last lines of a failed build. What is known of its cause, `engine.explained` adds."""
    tail = "\n".join(output.rstrip().splitlines()[-TAIL_LINES:])
    remedy = f"The whole output is in {log}."
    return TaskError(f"the build of {project} failed ({outcome}):\n{tail}", remedy=remedy)


def _only_wheel(out: Path, dist: Path, log: Path) -> Path:
    wheels = sorted(out.glob("*.whl")) or sorted(dist.glob("*.whl"))
    if len(wheels) != 1:
        found = ", ".join(wheel.name for wheel in wheels) or "none"
        raise TaskError(
            f"the build was to leave one wheel and left {found}",
            remedy=f"Let build_command write one wheel into {{out}}. The whole output is in {log}.",
        )
    return wheels[0]


def _keep(wheel: Path, finished: Path, state: State, log: Path) -> None:
    """Put the wheel and its record in place by one rename."""
    from crossgrade.modules.durable import sync_filesystem

    name, version = name_and_version(wheel)
    kept = finished / wheel.name
    wheel.rename(kept)
    inputs: dict[str, Any] = dict(state.inputs)
    size = kept.stat().st_size
    write_record(finished, BuiltWheel(state.key, kept.name, name, version, sha256_of(kept), size, str(log), inputs))
    sync_filesystem(finished)
    remove_path(state.folder)  # one without a record
    finished.rename(state.folder)
    sync_directory(state.folder.parent)
    remove_path(finished.parent)


def undo(record: Mapping[str, JSON], context: ApplyContext) -> str:  # noqa: ARG001 (the contract's shape)
    work, folder = Path(str(record["work"])), Path(str(record["folder"]))
    gone = remove_path(work)
    try:
        complete = BuiltWheel.read(folder) is not None
    except StoreError:
        complete = False
    if not complete:
        gone = remove_path(folder) or gone
    return "removed the half-made build" if gone else ""


MODULE = Module(
    name="extension_build",
    arguments=Arguments,
    effect="changes",
    inspect=inspect,
    plan=plan,
    apply=apply,
    undo=undo,
    summary="Native code built from source against a CUDA toolkit.",
)
