"""The builder that the modules for native code share: a wheel from a pinned source, kept by what went into it.

The wheel is kept in STORE/wheels/KEY. The key is made of everything that the build can see: the source's content, the
command, the variables, the architectures, the toolkit, the C++ compiler, the Python, and the lock of the build
environment, torch among it. It holds no path of the source or the store, so both may move. Same key, same wheel:
nothing is built twice. How many jobs ran and whether a compiler cache helped does not count.

`build_source.py` pins and brings the source, `build_environment.py` the venv, `build_run.py` builds.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from crossgrade.errors import TaskError
from crossgrade.jsontype import JSON
from crossgrade.modules import build_environment, build_inputs, build_reach
from crossgrade.modules.architecture_lists import respelled, spelled
from crossgrade.modules.build_environment import BuildEnvironment, build_system, name_of
from crossgrade.modules.build_source import Source, Wanted, cmake_files, find_source, reader, top_reader
from crossgrade.modules.contract import Change, Difference, HostView, LockRequest, Plan, Prediction, Unchanged
from crossgrade.modules.files import absolute
from crossgrade.modules.git_source import repository_at
from crossgrade.modules.source_tree import digest_of_tree
from crossgrade.modules.wheels import BuiltWheel
from crossgrade.playbook.arguments import argument

# Part of every key: raise it when the same inputs are built in another way.
SCHEMA = 2
_RUST = frozenset({"setuptools-rust", "maturin"})


@dataclass(frozen=True)
class BuildArguments:
    """What all builders take."""

    source: str | None = argument(
        doc="The source tree: a directory with a pyproject.toml. It is copied, never written to.", default=None
    )
    git: str | None = argument(doc="Instead of `source`: a git repository, by URL or path of a clone.", default=None)
    revision: str = argument(
        doc="A branch, tag or full commit of `git`. It is resolved when the plan is made, and that commit is built.",
        default="",
    )
    sdist: str | None = argument(
        doc="Instead of `source`: a source distribution, as `name==version` of the index, a URL or a file.",
        default=None,
    )
    sha256: str = argument(doc="The sha256 of `sdist`; a URL needs it, the index states its own.", default="")
    subdirectory: str | None = argument(doc="Where in the source the Python project lies.", default=None)
    submodules: bool = argument(doc="Fetch the submodules of `git`.", default=True)
    mirrors: Mapping[str, str] = argument(
        doc="Beginnings of git URLs and what to read instead, a URL or a path: for `git`, its submodules and what the "
        "build itself clones.",
        default_factory=dict,
    )
    cmake_sources: Mapping[str, str] = argument(
        doc="Checkouts on this machine for what CMake's FetchContent would clone, by its name: {repo-cutlass: PATH}.",
        default_factory=dict,
    )
    cuda_home: str | None = argument(doc="The toolkit to build with, as cuda_toolkit returns it.", default=None)
    architectures: tuple[str, ...] = argument(
        doc='What to compile for, in PyTorch\'s spelling: "12.0", "12.0a", "12.0f", "9.0+PTX" as a list. Each tool is '
        "told in its own.",
        default=(),
    )
    torch: str = argument(
        doc="The candidate's torch, `2.14.1` or `torch==2.14.1`: built against, and the wheel may ask for no other.",
        default="",
    )
    build_requirements: tuple[str, ...] = argument(
        doc="What the build environment holds beside torch. By default what the source's pyproject.toml asks for.",
        default=(),
    )
    constraints: tuple[str, ...] = argument(doc="Versions that must hold in the build environment.", default=())
    allow_other_torch: bool = argument(doc="Let the wheel ask for another torch than `torch`.", default=False)
    index_url: str = argument(doc="The package index, instead of PyPI.", default="")
    extra_index_urls: tuple[str, ...] = argument(doc="More package indexes; they come first.", default=())
    find_links: tuple[str, ...] = argument(doc="Folders or pages with more wheels.", default=())
    exclude_newer: str = argument(
        doc="Leave out what was published after this time (RFC 3339): so the build environment stays the same.",
        default="",
    )
    environment: Mapping[str, str] = argument(doc="Variables for the build.", default_factory=dict)
    jobs: int | None = argument(
        doc="Compiler processes at once (MAX_JOBS). By default one for each core, as far as there is memory for each: "
        "4 GiB, or what knowledge/build_memory.yml says of the project.",
        default=None,
    )
    nvcc_threads: int = argument(doc="Architectures that one nvcc compiles for at once.", default=1)
    compiler_cache: bool = argument(doc="Use ccache or sccache where one is on PATH.", default=True)
    python: str | None = argument(
        doc="The interpreter to build for. By default the one behind crossgrade's own venv.", default=None
    )
    mutually_exclusive: ClassVar[tuple[tuple[str, ...], ...]] = (("source", "git", "sdist"),)
    required_one_of: ClassVar[tuple[tuple[str, ...], ...]] = (("source", "git", "sdist"),)


A = TypeVar("A", bound=BuildArguments)


def _nothing(_: Any) -> Mapping[str, str]:
    return {}


def _no_command(_: Any) -> Sequence[str]:
    return ()


@dataclass(frozen=True)
class Project(Generic[A]):
    """What a module knows of the project that it builds.

    `name` is its row in the knowledge tables, "" for any project. `variables` decide what is built and are part of the
    key, `untracked` are not. `cmake_options` are of CMAKE_ARGS and not part of the key either.
    """

    name: str = ""
    own_environment: bool = False
    command: Callable[[A], Sequence[str]] = _no_command
    variables: Callable[[A], Mapping[str, str]] = _nothing
    untracked: Callable[[A], Mapping[str, str]] = _nothing
    cmake_options: Callable[[A], Sequence[str]] = _no_command

    def knowledge(self) -> Mapping[str, JSON]:
        from crossgrade.knowledge import table

        return next((row for row in table("build_projects") if row["project"] == self.name), {})


@dataclass(frozen=True)
class State:
    """What the build would see. `wheel` is the finished wheel of this key, if there is one.

    `cuda_home` is a real path, "" without a toolkit; `cache` the path of ccache or sccache, "" without; `variables` are
    the project's own; `environment` is None for a build that uv isolates.
    """

    key: str
    inputs: Mapping[str, JSON]
    source: Source
    cuda_home: str
    python: str
    jobs: int
    folder: Path
    project: str
    wheel: BuiltWheel | None
    predicted: bool
    environment: BuildEnvironment | None
    cache: str
    variables: Mapping[str, str]

    @property
    def is_built(self) -> bool:
        return self.wheel is not None or self.predicted


# ---- inspect


def inspect(project: Project[A], arguments: A, host: HostView) -> State:
    """Raises TaskError for what cannot be built, with all that the plan can know of it."""
    python = build_inputs.python_program(arguments.python, host)
    request = LockRequest(
        (), python, arguments.constraints, (), arguments.index_url, arguments.extra_index_urls, arguments.find_links,
        exclude_newer=arguments.exclude_newer,
    )  # fmt: skip
    source = find_source(_wanted(project, arguments), request, host)
    # nvcc finds its own parts from where it really lies, and so must the build: a link may be turned meanwhile
    cuda_home = str(absolute(arguments.cuda_home, host).resolve()) if arguments.cuda_home else ""
    abi = build_inputs.python_identity(arguments.python, host)
    requires, _ = _requirements(project, arguments, source, host)
    environment = _environment(project, arguments, requires, request, abi, host)
    around = {**host.environment, **arguments.environment}
    variables = dict(project.variables(arguments))
    inputs: dict[str, JSON] = {
        "schema": SCHEMA,
        **source.inputs(),
        "command": list(project.command(arguments)),
        "environment": dict(sorted(arguments.environment.items())),
        "surroundings": {name: around[name] for name in build_inputs.HEARD if around.get(name)},
        "variables": dict(sorted(variables.items())),
        "cmake sources": {name: digest_of_tree(_checkout(at, host)) for name, at in arguments.cmake_sources.items()},
        "architectures": list(arguments.architectures),
        "toolkit": build_inputs.toolkit_identity(cuda_home, host),
        "compiler": build_inputs.compiler_identity(around),
        "python": abi,
        # of a build without torch too: what the wheel asks for is held against it
        "torch": [arguments.torch, arguments.allow_other_torch] if arguments.torch else [],
        "build environment": environment.lock.digest if environment else "",
    }
    key = sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:32]
    folder = host.store.wheel_folder(key)
    state = State(
        key,
        inputs,
        source,
        cuda_home,
        python,
        arguments.jobs or _jobs(project, arguments),
        folder,
        project.name or source.name,
        BuiltWheel.read(folder),
        host.predicted("wheel", key) is not None,
        environment,
        _compiler_cache(around) if arguments.compiler_cache else "",
        variables,
    )
    spelled(arguments.architectures)  # says what is none
    if not state.is_built and host.check_mode:
        _require_possible(arguments, state, requires, host)
    return state


def _wanted(project: Project[A], arguments: A) -> Wanted:
    known = str(project.knowledge().get("subdirectory", ""))
    usual = "" if arguments.sdist or not known else known
    return Wanted(
        arguments.source or "",
        arguments.git or "",
        arguments.revision,
        arguments.sdist or "",
        arguments.sha256,
        usual if arguments.subdirectory is None else arguments.subdirectory,
        arguments.submodules,
        arguments.mirrors,
    )


def _checkout(path: str, host: HostView) -> Path:
    place = absolute(path, host)
    if not place.is_dir():
        raise TaskError(f"there is no checkout at {place}", remedy="`cmake_sources` names folders on this machine.")
    return place


def _jobs(project: Project[A], arguments: A) -> int:
    of_one = build_inputs.job_bytes(project.name) * max(1, arguments.nvcc_threads)
    return build_inputs.default_jobs(len(os.sched_getaffinity(0)), build_inputs.memory_bytes(), of_one)


def _compiler_cache(environment: Mapping[str, str]) -> str:
    import shutil

    found = (shutil.which(name, path=environment.get("PATH")) for name in ("ccache", "sccache"))
    return next((path for path in found if path), "")


def _requirements(project: Project[A], arguments: A, source: Source, host: HostView) -> tuple[tuple[str, ...], bool]:
    """The build requirements, and whether they are the source's own words."""
    if arguments.build_requirements:
        return arguments.build_requirements, False
    text = reader(source, host)("pyproject.toml")
    if text is not None:
        return build_system(text)[0], True
    known = project.knowledge().get("requires")
    return (tuple(map(str, known)) if isinstance(known, list) else ("setuptools>=61", "wheel")), False


def _environment(
    project: Project[A], arguments: A, requires: Sequence[str], request: LockRequest, abi: str, host: HostView
) -> BuildEnvironment | None:
    """None for a build that needs no torch and brings no requirements: uv isolates it, as ever."""
    if not (project.own_environment or arguments.torch or arguments.build_requirements):
        return None
    names = {name_of(each) for each in requires}
    torch = build_environment.torch_requirement(arguments.torch) if arguments.torch else ""
    wanted = list(requires)
    if "torch" in names or (torch and not project.own_environment):
        if not torch:
            raise TaskError("the build needs torch", remedy="Say which one the candidate has: torch: 2.14.1")
        wanted = [*(each for each in wanted if name_of(each) != "torch"), torch]
        # torch's own extension builder needs both (torch.utils.cpp_extension), whatever the project says
        wanted += [each for each in ("setuptools", "ninja") if each not in names]
    constraints = (*arguments.constraints, *([torch] if torch else []))
    from dataclasses import replace

    full = replace(request, requirements=tuple(wanted), constraints=constraints)
    return build_environment.find_environment(full, abi, host)


def _require_possible(arguments: BuildArguments, state: State, requires: Sequence[str], host: HostView) -> None:
    """What would fail only after the build has begun, as far as the source can be read now. Raises TaskError."""
    require_rust(requires, state.variables, {**host.environment, **arguments.environment})
    read, top = reader(state.source, host), top_reader(state.source, host)
    wanted = [each for name in cmake_files(state.source, host) for each in build_reach.declared_in(read(name) or "")]
    modules = top(".gitmodules") if state.source.git and arguments.submodules else None
    if modules:
        wanted += build_reach.submodules_in(modules)
    git = state.source.git
    if git is not None and repository_at(git, state.source.commit, host.store) is None:
        # which of its own clones have a checkout here is only known from the source
        wanted = [] if arguments.cmake_sources else _known_clones(state.project)
        wanted.append(build_reach.Fetched("", git.repository))
    build_reach.require_answers(wanted, arguments.cmake_sources, arguments.mirrors, host)


def _known_clones(project: str) -> list[build_reach.Fetched]:
    from crossgrade.knowledge import table

    rows = [row for row in table("build_projects") if row["project"] == project]
    return [
        build_reach.Fetched("", str(url))
        for row in rows
        for url in (row["clones"] if isinstance(row["clones"], list) else [])
    ]


def require_rust(requires: Sequence[str], variables: Mapping[str, str], environment: Mapping[str, str]) -> None:
    """Raises TaskError when the build compiles Rust and there is no cargo."""
    import shutil

    needed = _RUST & {name_of(each) for each in requires}
    if not needed or variables.get("SGLANG_BUILD_RUST_EXTS") == "none":
        return
    if shutil.which("cargo", path=environment.get("PATH")) is None:
        raise TaskError(
            f"the build compiles Rust ({', '.join(sorted(needed))}), and there is no cargo on PATH",
            remedy="Install Rust (https://rustup.rs); sglang does without it with `rust_extensions: [none]`.",
        )


# ---- plan


def plan(arguments: BuildArguments, state: State) -> Plan:
    values: dict[str, Any] = {"wheel": str(state.folder), "key": state.key}
    if state.source.commit:
        values["commit"] = state.source.commit
    if state.is_built:
        return Unchanged(f"{state.project} is built already", values)
    return Change(
        _summary(arguments, state),
        tuple(_differences(arguments, state)),
        values,
        predicts=(Prediction("wheel", state.key, {"name": state.project}),),
        payload={"state": state},
    )


def _summary(arguments: BuildArguments, state: State) -> str:
    exact = state.source.commit[:12] or state.source.version
    targets = f" for {', '.join(arguments.architectures)}" if arguments.architectures else ""
    means = f"{state.jobs} job{'s' if state.jobs > 1 else ''}{f' and {Path(state.cache).name}' if state.cache else ''}"
    return f"build {state.project}{f' {exact}' if exact else ''}{targets} with {means}"


def _differences(arguments: BuildArguments, state: State) -> list[Difference]:
    found = [Difference(f"wheel of {state.project}", "", f"built from {state.source.shown}")]
    if state.environment is not None and not state.environment.ready:
        torch = f"torch {state.environment.torch} and " if state.environment.torch else ""
        dists = len(state.environment.lock.dists) - bool(torch)
        found.append(Difference("build environment", "", f"{torch}{dists} dists"))
    if said := respelled(arguments.architectures):
        found.append(Difference("architectures", ", ".join(arguments.architectures), "; ".join(said)))
    return found
