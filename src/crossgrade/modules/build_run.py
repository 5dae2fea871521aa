"""Carrying a build out: source, environment, the command with its variables, the checks of the wheel, its place."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossgrade.errors import StoreError, TaskError
from crossgrade.jsontype import JSON
from crossgrade.modules import build_environment, build_reach, build_source, sdist_source
from crossgrade.modules.architecture_lists import spelled
from crossgrade.modules.build_environment import BuildEnvironment, build_system
from crossgrade.modules.build_progress import Estimate
from crossgrade.modules.building import A, BuildArguments, Project, State, require_rust
from crossgrade.modules.contract import ApplyContext, Change, HostView, Outcome
from crossgrade.modules.files import absolute
from crossgrade.modules.git_source import git_environment
from crossgrade.modules.source_tree import copy_tree
from crossgrade.modules.wheels import BuiltWheel, metadata_of, name_and_version, sha256_of, write_record
from crossgrade.store.atomic import sync_directory
from crossgrade.store.layout import read_record, remove_path

TAIL_LINES = 20
_COMPILERS = ("cc", "c++", "gcc", "g++")


@dataclass(frozen=True)
class Work:
    """The folders of one build: `out` for its wheel, `project` with the source, `checkouts` for CMake, by name."""

    folder: Path
    out: Path
    project: Path
    checkouts: Mapping[str, Path]


def apply(project: Project[A], arguments: A, change: Change, context: ApplyContext) -> Outcome:
    state: State = change.payload["state"]
    values = dict(change.values)
    if state.environment is not None and not state.environment.ready:
        _make_environment(state.environment, context)
    work = context.store.temporary / f"wheel-{state.key}"
    with context.step(
        f"build {state.project} in {state.folder}",
        {"work": str(work), "folder": str(state.folder)},
        by_hand=[f"rm -r {work}"],
    ):
        places = _prepare(arguments, state, work, context)
        if moved := build_source.moved_to(state.source, context.host):
            assert state.source.git is not None  # noqa: S101 - only a branch of one moves
            values["moved_to"] = moved
            said = f"{state.source.git.revision} has moved to {moved[:12]} since the plan"
            context.progress(f"{said}; building {state.source.commit[:12]} as planned")
        log_name = f"build-{state.project}-{state.key[:8]}.log"
        context.progress(f"building {state.project}")
        completed = context.run(
            build_argv(project.command(arguments), state, places.project, places.out),
            environment=build_environment_variables(project, arguments, state, places, context.host.environment),
            cwd=places.project,
            log_name=log_name,
            shown=Estimate().shown,
        )
        log = context.log_directory / log_name
        if not completed.succeeded:
            raise build_error(state.project, completed.outcome(), completed.stdout + completed.stderr, log)
        wheel = _only_wheel(places.out, places.project / "dist", log)
        _check(wheel, arguments, state, places.project)
        _keep(wheel, work / "finished", state, log)
    message = f"{said}; {state.source.commit[:12]} was built, as planned" if moved else ""
    return Outcome(values, message=message)


def _make_environment(environment: BuildEnvironment, context: ApplyContext) -> None:
    with context.step(
        f"make the build environment {environment.venv}",
        {"folder": str(environment.venv), "record": build_environment.RECORD},
        by_hand=[f"rm -r {environment.venv}"],
    ):
        build_environment.make(environment, context)


def _prepare(arguments: BuildArguments, state: State, work: Path, context: ApplyContext) -> Work:
    """Bring everything that the build reads, and see that it can begin. Raises TaskError."""
    remove_path(work)
    for folder in (work, work / "out", work / "finished", work / "checkouts"):
        folder.mkdir(mode=0o700)
    project = build_source.provide(state.source, work / "source", work, context)
    checkouts = {}
    for name, given in arguments.cmake_sources.items():
        checkouts[name] = work / "checkouts" / name
        copy_tree(absolute(given, context.host), checkouts[name])
    _require_possible(arguments, state, project, context.host)
    return Work(work, work / "out", project, checkouts)


def _require_possible(arguments: BuildArguments, state: State, project: Path, host: HostView) -> None:
    """What the plan could not know of a source that was not here yet. Raises TaskError."""
    pyproject = build_source.text_of(project / "pyproject.toml")
    requires = build_system(pyproject)[0] if pyproject is not None else ()
    if state.environment is not None:
        # whoever names other versions in the playbook means them
        lacking = build_environment.unmet(requires, state.environment, any_version=bool(arguments.build_requirements))
        if lacking:
            raise TaskError(
                f"the build environment lacks what {state.source.shown} asks for: {', '.join(lacking)}",
                remedy=f"build_requirements: [{', '.join(map(repr, requires))}]",
            )
        require_rust(requires, state.variables, {**host.environment, **arguments.environment})
    wanted = [
        each
        for name in build_source.cmake_files_in(project)
        for each in build_reach.declared_in(build_source.text_of(project / name) or "")
    ]
    build_reach.require_answers(wanted, arguments.cmake_sources, arguments.mirrors, host)


def build_argv(command: Sequence[str], state: State, source: Path, out: Path) -> list[str]:
    """The command with its places filled in."""
    from crossgrade.modules.uv import uv_program

    python = state.environment.python if state.environment else state.python
    if not command:
        isolated = [] if state.environment is None else ["--no-build-isolation"]
        return [uv_program(), "build", "--wheel", *isolated, "--python", python, "--out-dir", str(out), str(source)]
    places = {"{python}": python, "{source}": str(source), "{out}": str(out), "{jobs}": str(state.jobs)}
    filled = list(command)
    for place, value in places.items():
        filled = [part.replace(place, value) for part in filled]
    return filled


def build_environment_variables(
    project: Project[A], arguments: A, state: State, work: Work, around: Mapping[str, str]
) -> dict[str, str]:
    """The variables of the build, over those of the task; the playbook's own come last and win."""
    from crossgrade.modules.uv import index_environment

    jobs, threads = str(state.jobs), str(arguments.nvcc_threads)
    variables = {
        **index_environment(around),
        **git_environment(around, {start: str(to) for start, to in arguments.mirrors.items()}),
        "MAX_JOBS": jobs,
        "CMAKE_BUILD_PARALLEL_LEVEL": jobs,
        "CARGO_BUILD_JOBS": jobs,
        "NVCC_THREADS": threads,
        "FLASHINFER_NVCC_THREADS": threads,
        **spelled(arguments.architectures),
        **_compiler_cache(state, work),
        **_of_environment(state, work),
        **_stated_version(state, work.project),
        **project.untracked(arguments),
        **state.variables,
    }
    search = [str(work.folder / "compilers")] if (work.folder / "compilers").is_dir() else []
    search += [str(state.environment.venv / "bin")] if state.environment else []
    if state.cuda_home:
        variables["CUDA_HOME"] = variables["CUDA_PATH"] = state.cuda_home
        search.append(f"{state.cuda_home}/bin")
    if search:
        variables["PATH"] = os.pathsep.join([*search, around.get("PATH", os.defpath)])
    options = [*project.cmake_options(arguments)]
    options += [f"-D{build_reach.Fetched(name, '').option}={place}" for name, place in work.checkouts.items()]
    given = arguments.environment.get("CMAKE_ARGS", around.get("CMAKE_ARGS", ""))
    if options:  # the playbook's own are last, so they win
        variables["CMAKE_ARGS"] = " ".join([*options, *([given] if given else [])])
    own = {name: value for name, value in arguments.environment.items() if not (options and name == "CMAKE_ARGS")}
    return {**variables, **own}


def _compiler_cache(state: State, work: Work) -> dict[str, str]:
    """CMake takes a launcher; elsewhere ccache poses as the compiler (its manual, run modes), and sccache cannot."""
    if not state.cache:
        return {}
    found = {f"CMAKE_{language}_COMPILER_LAUNCHER": state.cache for language in ("C", "CXX", "CUDA")}
    if (
        Path(state.cache).name == "ccache"
    ):  # each build lies in a folder of its own, which must not make a miss of a hit
        found |= {"CCACHE_BASEDIR": str(work.folder), "CCACHE_NOHASHDIR": "true"}
    if (work.project / "CMakeLists.txt").is_file():
        return found
    if state.cuda_home:
        found["PYTORCH_NVCC"] = f"{state.cache} {state.cuda_home}/bin/nvcc"  # torch.utils.cpp_extension
    if Path(state.cache).name == "ccache":
        folder = work.folder / "compilers"
        folder.mkdir()
        for name in _COMPILERS:
            if shutil.which(name):
                (folder / name).symlink_to(state.cache)
    return found


def _of_environment(state: State, work: Work) -> dict[str, str]:
    """Variables of a build in its own venv: nothing else is installed, and no cache of the user is written to."""
    if state.environment is None:
        return {}
    from crossgrade.inspect.dists import site_packages
    from crossgrade.knowledge import table

    caches = work.folder / "caches"
    found = {str(row["variable"]): str(caches / str(row["folder"])) for row in table("caches")}
    found["VIRTUAL_ENV"] = str(state.environment.venv)
    if state.environment.torch:
        constraint = work.folder / "constraints.txt"
        constraint.write_text(f"torch=={state.environment.torch}\n", encoding="utf-8")
        found |= dict.fromkeys(("PIP_CONSTRAINT", "UV_CONSTRAINT", "UV_BUILD_CONSTRAINT"), str(constraint))
        # find_package(Torch), as torch.utils.cmake_prefix_path says
        found["CMAKE_PREFIX_PATH"] = str(site_packages(state.environment.venv) / "torch" / "share" / "cmake")
    return found


def _stated_version(state: State, project: Path) -> dict[str, str]:
    """A source distribution states its version; setuptools-scm, without git there, would fall back to 0.0."""
    if state.source.sdist is None:
        return {}
    name, version = sdist_source.stated_version(project)
    suffix = name.upper().replace("-", "_").replace(".", "_")
    return {f"SETUPTOOLS_SCM_PRETEND_VERSION_FOR_{suffix}": version} if name and version else {}


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


# ---- the wheel


def _check(wheel: Path, arguments: BuildArguments, state: State, project: Path) -> None:
    """The wheel's own words: its version is the source's, and it asks for the torch that it was built against."""
    name, version = name_and_version(wheel)
    if state.source.sdist is not None:
        _, stated = sdist_source.stated_version(project)
        if stated and stated != version:
            raise TaskError(
                f"{wheel.name} calls itself {version}, and its source distribution {stated}",
                remedy="Its build could not find out its version: set the variable that it reads in `environment`.",
            )
    if version.startswith("0.0.0") and state.source.git is not None:
        raise TaskError(
            f"{wheel.name} calls itself {version}: the build did not find its version in git",
            remedy="Give `version`, or SETUPTOOLS_SCM_PRETEND_VERSION in `environment`.",
        )
    torch = state.environment.torch if state.environment else ""
    torch = torch or build_environment.torch_requirement(arguments.torch).partition("==")[2]
    if torch and not arguments.allow_other_torch:
        require_torch(metadata_of(wheel), torch, wheel.name)
    if state.environment is not None and state.environment.torch:
        _require_untouched(state.environment, name)


def require_torch(metadata: Mapping[str, Sequence[str]], torch: str, wheel: str) -> None:
    """Raises TaskError when the wheel's metadata asks for another torch than this version. Pure."""
    from packaging.requirements import InvalidRequirement, Requirement

    for text in metadata.get("Requires-Dist", ()):
        try:
            wanted = Requirement(text)
        except InvalidRequirement:
            continue
        if wanted.name.lower() != "torch" or (wanted.marker and not wanted.marker.evaluate({"extra": ""})):
            continue
        if not wanted.specifier.contains(torch, prereleases=True):
            raise TaskError(
                f"{wheel} asks for {text}, and was built for torch {torch}",
                remedy="Build a version of it that is made for this torch, or say `allow_other_torch: true`.",
            )


def _require_untouched(environment: BuildEnvironment, name: str) -> None:
    from crossgrade.inspect.dists import site_packages

    site = site_packages(environment.venv)
    if not (site / f"torch-{environment.torch}.dist-info").is_dir():
        remove_path(environment.venv / build_environment.RECORD)  # so that it is made anew
        raise TaskError(f"the build of {name} replaced torch {environment.torch} in its environment: not to be trusted")


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
    folder = Path(str(record["folder"]))
    gone = remove_path(Path(str(record["work"]))) if "work" in record else False
    if not _is_complete(folder, str(record.get("record", ""))):
        gone = remove_path(folder) or gone
    return "removed the half-made build" if gone else ""


def _is_complete(folder: Path, record: str) -> bool:
    try:
        if record:
            return (folder / record).is_file() and bool(read_record(folder / record))
        return BuiltWheel.read(folder) is not None
    except StoreError:
        return False
