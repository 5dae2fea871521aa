"""flashinfer_jit: compile FlashInfer's JIT modules before the maintenance window, into the candidate's own cache.

The modules lie where the server's FlashInfer will look for them, and ninja finds nothing to do there. The work is done
by the candidate's Python with the generation's environment (`flashinfer_child`); what it left is proved here
(`flashinfer_proof`) and put on record beside the cache (`flashinfer_cache`). The generation's manifest is of its venv
only: no file in there is touched.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from crossgrade.errors import TaskError
from crossgrade.jsontype import JSON
from crossgrade.modules.contract import ApplyContext, Change, Difference, HostView, Module, Outcome, Plan, Unchanged
from crossgrade.modules.extension_build import memory_bytes, toolkit_identity
from crossgrade.modules.files import absolute
from crossgrade.modules.flashinfer_cache import Place, Record, counted, names_in, parse_architecture, place_of
from crossgrade.modules.gate import Candidate, find_candidate, program_environment, refuse_unfinished
from crossgrade.playbook.arguments import argument
from crossgrade.store.generation import Generation
from crossgrade.store.layout import Store, generation_environment, remove_path

ARCHITECTURES = "FLASHINFER_CUDA_ARCH_LIST"
_BASE = "FLASHINFER_WORKSPACE_BASE"
_DIST = "flashinfer-python"


@dataclass(frozen=True)
class Arguments:
    """Builds what is not there yet; a second run compiles nothing."""

    required_one_of: ClassVar[Sequence[Sequence[str]]] = (("modules", "from_cache", "all"),)
    mutually_exclusive: ClassVar[Sequence[Sequence[str]]] = (("modules", "from_cache", "all"),)

    generation: int = argument(doc="The candidate, as python_env returns it. It must not be active.")
    modules: tuple[str, ...] | None = argument(
        doc="FlashInfer's names of the modules: norm, page, rope, sampling, batch_prefill_with_kv_cache_… An unknown "
        "one fails the task before anything is built.",
        default=None,
    )
    from_cache: str | None = argument(
        doc="The cache of the server that runs now, `~/.cache/flashinfer` of its user: the modules that are compiled "
        "there. A name that the new FlashInfer does not have is reported and left to the server.",
        default=None,
    )
    all: bool | None = argument(doc="All modules that FlashInfer lists for these architectures: hours.", default=None)
    architectures: tuple[str, ...] = argument(
        doc='What to compile for, with the letter: "12.0f". By default FLASHINFER_CUDA_ARCH_LIST of the generation.',
        default=(),
    )
    cuda_home: str | None = argument(
        doc="The toolkit, as cuda_toolkit returns it. By default the CUDA_HOME of the generation, which it must be "
        "equal to where there is one.",
        default=None,
    )
    jobs: int | None = argument(
        doc="Compiler processes at once. By default one for each core, as far as there is memory for all of them.",
        default=None,
    )
    timeout: float = argument(doc="Seconds that all of it may take.", default=14400.0)


@dataclass(frozen=True)
class State:
    """`wanted` are the names asked for, None for all; `left` those that are not there, None when nobody can say yet.

    `stale` says that what the cache holds was compiled with another toolkit, by our own record.
    """

    candidate: Candidate
    place: Place
    record: Record
    wanted: tuple[str, ...] | None
    left: tuple[str, ...] | None
    architectures: tuple[str, ...]
    cuda_home: str
    toolkit: str
    jobs: int
    version: str
    active: bool
    stale: bool


# ---- inspect


def inspect(arguments: Arguments, host: HostView) -> State:
    candidate = find_candidate(arguments.generation, None, host)
    generation = candidate.generation
    assert generation is not None  # noqa: S101 - found by its number
    version = generation.contents.get("dists", {}).get(_DIST)
    if version is None:
        raise TaskError(
            f"{candidate.title} has no dist {_DIST}", remedy="Take flashinfer_jit out, or require flashinfer-python."
        )
    architectures = _architectures(arguments.architectures, generation)
    cuda_home = _cuda_home(arguments.cuda_home, generation, host)
    toolkit = toolkit_identity(cuda_home, host)
    place = place_of(_base(generation, host.store), str(version), architectures)
    record = place.record()
    stale = bool(record.toolkit) and record.toolkit != toolkit
    wanted = _wanted(arguments, host)
    return State(
        candidate,
        place,
        record,
        wanted,
        (Record() if stale else record).left(wanted),
        architectures,
        cuda_home,
        toolkit,
        arguments.jobs or default_jobs(os.cpu_count() or 1, memory_bytes()),
        str(version),
        host.active() == generation.number,
        stale,
    )


def _wanted(arguments: Arguments, host: HostView) -> tuple[str, ...] | None:
    if arguments.modules is not None:
        if not arguments.modules:
            raise TaskError("`modules` is empty", remedy="Name modules, or use `from_cache` or `all`.")
        return tuple(dict.fromkeys(arguments.modules))
    if arguments.from_cache is not None:
        return names_in(absolute(arguments.from_cache, host))
    if not arguments.all:
        raise TaskError("nothing to build is named", remedy="Give `modules`, `from_cache`, or `all: true`.")
    return None


def _architectures(given: Sequence[str], generation: Generation) -> tuple[str, ...]:
    """Those asked for, or the generation's. Raises TaskError when there are none, or the server would use others."""
    told = tuple(generation.environment.get(ARCHITECTURES, "").split())
    chosen = tuple(dict.fromkeys(given)) or told
    if not chosen:
        raise TaskError("no architecture is named", remedy='architectures: ["12.0f"] for RTX PRO 6000.')
    pairs = sorted(parse_architecture(one) for one in chosen)
    if told and sorted(parse_architecture(one) for one in told) != pairs:
        raise TaskError(
            f"generation {generation.number} runs with {ARCHITECTURES}={' '.join(told)}: its server would not look for "
            f"modules for {' '.join(chosen)}",
            remedy="Let both say the same, or leave `architectures` out here.",
        )
    return chosen


def _cuda_home(given: str | None, generation: Generation, host: HostView) -> str:
    """The toolkit's folder. Raises TaskError when none is known, or the generation's server has another."""
    own = generation.environment.get("CUDA_HOME", "")
    chosen = str(absolute(given, host)) if given else own
    if not chosen:
        raise TaskError(
            f"no toolkit is named, and generation {generation.number} has no CUDA_HOME",
            remedy="Give `toolkit` to python_env, whose generation then has its CUDA_HOME; or `cuda_home` here.",
        )
    if own and Path(own) != Path(chosen):
        raise TaskError(
            f"generation {generation.number} runs with CUDA_HOME={own}: what {chosen} compiles would be compiled again",
            remedy="Leave `cuda_home` out.",
        )
    return chosen


def _base(generation: Generation, store: Store) -> Path:
    """The folder that FlashInfer is given. Raises TaskError when it is none of the generation's own."""
    base = Path(generation_environment(store, generation)[_BASE])
    if not base.is_relative_to(store.folder(generation.number)):
        raise TaskError(
            f"{_BASE} of generation {generation.number} is {base}, a cache that others may share",
            remedy=f"Take {_BASE} out of the generation's `environment`.",
        )
    return base


def default_jobs(cores: int, memory: int) -> int:
    """One job for each core, as far as the memory (bytes) is enough for all of them."""
    from crossgrade.knowledge import table

    a_job = next(row["bytes"] for row in table("build_memory") if row["of"] == "job")
    return max(1, min(cores, memory // int(str(a_job))))


# ---- plan


def plan(arguments: Arguments, state: State) -> Plan:  # noqa: ARG001 (the contract's shape)
    if state.left == ():
        names = state.record.listed or () if state.wanted is None else state.wanted
        return Unchanged(f"{counted(len(names))} there{_without(state.record, names)}", _values(state, state.record))
    if state.active:
        raise TaskError(
            f"{state.candidate.title} is active, and a running server's cache is not written to",
            remedy="Its server compiles on first use what it lacks. Build modules into a candidate, before `activate`.",
        )
    left = state.left
    what = counted(len(left)) if left is not None else "all modules that it lists"
    jobs = f"{state.jobs} job{'s' if state.jobs > 1 else ''}"
    why = " (those there are of another toolkit)" if state.stale else ""
    return Change(
        f"build {what} of FlashInfer {state.version} for {', '.join(state.architectures)} with {jobs}{why}",
        tuple(
            Difference(f"FlashInfer module {name}", "", f"for {' '.join(state.architectures)}") for name in left or ()
        ),
        _values(state, state.record),
        values_known=False,
        payload={"state": state},
    )


def _values(state: State, record: Record) -> dict[str, JSON]:
    asked = record.listed or () if state.wanted is None else state.wanted
    built = [record.names.get(name) or name for name in asked]
    return {
        "cache": str(state.place.cached_ops),
        "modules": [name for name in dict.fromkeys(built) if name in record.modules],
        "unknown": [name for name in asked if name in record.names and record.names[name] is None],
    }


def _without(record: Record, asked: Sequence[str]) -> str:
    unknown = [name for name in asked if name in record.names and record.names[name] is None]
    return f"; FlashInfer has no {', '.join(unknown)}" if unknown else ""


# ---- apply


def apply(arguments: Arguments, change: Change, context: ApplyContext) -> Outcome:
    from crossgrade.modules.flashinfer_proof import build, prove

    state: State = change.payload["state"]
    refuse_unfinished(state.candidate)
    place = state.place
    work = context.store.temporary / f"flashinfer-{state.candidate.number}"
    with context.step(
        f"build FlashInfer modules in {place.cached_ops}",
        {"work": str(work), "folder": str(place.folder)},
        by_hand=[f"rm -r {work}"],
    ):
        remove_path(work)
        work.mkdir(mode=0o700)
        if state.stale:
            remove_path(place.folder)
        place.folder.mkdir(parents=True, mode=0o700, exist_ok=True)
        remove_path(place.answers)
        environment = build_environment(state, context.host)
        built = build(
            state, environment, work, arguments.timeout, strict=arguments.modules is not None, context=context
        )
        record = prove(state, built, work, context)
        place.write(replace(record, toolkit=state.toolkit, cuda_home=state.cuda_home))
        built.raise_failure(context.log_directory / built.log_name)
        remove_path(place.answers)  # after a failure `undo` reads them
        remove_path(work)
    return Outcome(_values(state, place.record()), message=built.message(record))


def build_environment(state: State, host: HostView) -> dict[str, str]:
    """The whole environment of the build: the server's, and how much may be compiled at once.

    What FlashInfer writes into its commands is taken from the generation only, for the server gets it from there.
    """
    from crossgrade.knowledge import table

    generation = state.candidate.generation
    own = generation.environment if generation is not None else {}
    extra = {ARCHITECTURES: " ".join(state.architectures), "CUDA_HOME": state.cuda_home}
    environment = program_environment(state.candidate, host, extra)
    for row in table("flashinfer_commands"):
        if str(row["variable"]) not in own:
            environment.pop(str(row["variable"]), None)
    # one of FlashInfer's generators starts `nvcc` by its name, which may be another one of the machine
    environment["PATH"] = os.pathsep.join([f"{state.cuda_home}/bin", environment["PATH"]])
    environment["MAX_JOBS"] = str(state.jobs)
    return environment


def undo(record: Mapping[str, JSON], context: ApplyContext) -> str:  # noqa: ARG001 (the contract's shape)
    """Remove what is half made. Whole modules stay, as built wheels do: they fit this generation and no other."""
    remove_path(Path(str(record["work"])))
    place = Place(Path(str(record["folder"])))
    said = place.said()
    whole = {one["name"] for one in said if one.get("kind") == "module" and one.get("state") != "failed"}
    begun = {name for one in said if one.get("kind") == "found" for name in one["names"].values()}
    half = begun - whole - set(place.record().modules)
    gone = [name for name in sorted(half) if remove_path(place.cached_ops / name)]
    remove_path(place.answers)
    return f"removed {counted(len(gone))} of FlashInfer, not finished" if gone else ""


MODULE = Module(
    name="flashinfer_jit",
    arguments=Arguments,
    effect="changes",
    inspect=inspect,
    plan=plan,
    apply=apply,
    undo=undo,
    summary="FlashInfer's JIT modules, compiled into the candidate's own cache before it serves.",
)
