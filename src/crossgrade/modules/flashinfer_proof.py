"""Running the build of FlashInfer modules, and proving what it left: the code in it, and that it loads."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crossgrade.errors import TaskError
from crossgrade.modules.contract import ApplyContext
from crossgrade.modules.driver_stub import links, make_stub
from crossgrade.modules.flashinfer_cache import BuiltModule, Record, counted

if TYPE_CHECKING:
    from crossgrade.modules.flashinfer_jit import State
    from crossgrade.process import Completed

LOG = "flashinfer_jit.log"
TAIL_LINES = 20
LOAD_SECONDS = 600.0


@dataclass(frozen=True)
class Built:
    """What the building process said, by the `kind` of its answers, and how it ended.

    `stub` is a folder with a stub of the driver's library; None beside a driver.
    """

    completed: Completed
    environment: Mapping[str, str]
    answers: tuple[Mapping[str, Any], ...]
    stub: Path | None
    log_name: str = LOG

    def of_kind(self, kind: str) -> list[Mapping[str, Any]]:
        return [answer for answer in self.answers if answer.get("kind") == kind]

    @property
    def modules(self) -> dict[str, Mapping[str, Any]]:
        """What was said of each module that is whole."""
        return {one["name"]: one for one in self.of_kind("module") if one["state"] != "failed"}

    def raise_failure(self, log: Path) -> None:
        """Raises TaskError when a module could not be built, with the end of the first one's output."""
        failed = [one for one in self.of_kind("module") if one["state"] == "failed"]
        remedy = f"The whole output is in {log}. Modules that were built are kept."
        if failed:
            names = ", ".join(one["name"] for one in failed)
            tail = "\n".join(str(failed[0]["error"]).rstrip().splitlines()[-TAIL_LINES:])
            raise TaskError(f"FlashInfer could not build {names}:\n{tail}", remedy=remedy)
        if not self.completed.succeeded:
            output = (self.completed.stdout + self.completed.stderr).rstrip().splitlines()
            tail = "\n".join(output[-TAIL_LINES:])
            raise TaskError(f"building FlashInfer modules failed ({self.completed.outcome()}):\n{tail}", remedy=remedy)

    def message(self, record: Record) -> str:
        """For people: what was done, and what FlashInfer does not know or calls otherwise. Pure."""
        compiled = sum(int(one["compiled"]) for one in self.modules.values())
        parts = [f"{counted(len(self.modules))}, {compiled} commands run"]
        for found in self.of_kind("found"):
            renamed = {asked: name for asked, name in found["names"].items() if asked != name}
            parts += [f"{asked} is {name} now" for asked, name in renamed.items()]
            if found["missing"]:
                parts.append(f"not in this FlashInfer, and left to the server: {', '.join(found['missing'])}")
            if found["errors"]:
                parts.append(f"not listed by FlashInfer: {', '.join(found['errors'])} failed, see the log")
        bare = [name for name in self.modules if name in record.modules and not record.modules[name].device_code]
        if bare:
            parts.append(f"without device code: {', '.join(bare)}")
        if self.stub is not None:
            parts.append("linked and loaded beside a stub of libcuda.so.1: there is no driver here")
        return "; ".join(parts)


def child(
    request: Mapping[str, Any],
    state: State,
    environment: Mapping[str, str],
    work: Path,
    seconds: float,
    context: ApplyContext,
) -> Completed:
    """Run the program of `flashinfer_child` with the candidate's Python."""
    text = resources.files("crossgrade.modules").joinpath("flashinfer_child.py").read_text(encoding="utf-8")
    cwd = work / "program"  # Python finds modules beside a program: nothing else is in this folder
    cwd.mkdir(exist_ok=True)
    program = cwd / "flashinfer_build.py"
    program.write_text(text, encoding="utf-8")
    # a module's own program gets the task's variables too: those that the server would not have are taken out here
    unset = [word for name in context.host.environment if name not in environment for word in ("-u", name)]
    return context.run(
        ["env", *unset, str(state.candidate.python), "-B", "-X", "faulthandler", str(program)],
        environment=environment,
        cwd=cwd,
        timeout=seconds,
        input_text=json.dumps({"answers": str(state.place.answers), **request}),
        log_name=LOG,
    )


def build(
    state: State, environment: Mapping[str, str], work: Path, timeout: float, *, strict: bool, context: ApplyContext
) -> Built:
    """Build what is left. Raises TaskError when FlashInfer would not find it there, or knows no module of that name.

    A module that fails is told in what is returned: others may have succeeded.
    """
    nvcc = Path(state.cuda_home, "bin", "nvcc")
    if not nvcc.exists():
        raise TaskError(f"there is no {nvcc}", remedy="Let cuda_toolkit install `nvcc`, `cudart`, `cccl` and `nvrtc`.")
    cxx = environment.get("CXX") or "c++"
    if shutil.which(cxx, path=environment["PATH"]) is None:
        raise TaskError(f"there is no C++ compiler {cxx}", remedy="Install g++, or name one as CXX in the environment.")
    stub = None
    if not links(cxx, Path(state.cuda_home), work, environment):
        stub = make_stub(cxx, Path(state.cuda_home), work, environment)
        paths = [str(stub), *filter(None, [environment.get("LIBRARY_PATH")])]
        environment = {**environment, "LIBRARY_PATH": ":".join(paths)}  # gcc's own; no part of FlashInfer's commands
    told = bool(state.candidate.generation and state.candidate.generation.environment.get("FLASHINFER_CUDA_ARCH_LIST"))
    request = {
        "names": None if state.left is None else list(state.left),
        "strict": strict,
        "same_as_gpu": not told,
        "jobs": state.jobs,
    }
    context.progress(f"building modules of FlashInfer {state.version}")
    completed = child(request, state, environment, work, timeout, context)
    built = Built(completed, environment, tuple(state.place.said()), stub)
    _require_place(state, built, told=told)
    missing = [name for found in built.of_kind("found") for name in found["missing"]]
    if strict and missing:
        told_by = f"FLASHINFER_CUDA_ARCH_LIST='{' '.join(state.architectures)}' {state.candidate.venv}/bin/flashinfer"
        raise TaskError(
            f"FlashInfer {state.version} has no module {', '.join(missing)}",
            remedy=f"`{told_by} list-modules` lists those that it has.",
        )
    return built


def _require_place(state: State, built: Built, *, told: bool) -> None:
    """Raises TaskError when the server's FlashInfer would look at another place than the one that was built into."""
    for place in built.of_kind("place"):
        picks = place["for_gpu"]
        of_gpu = [picks[one.rstrip("af")] for one in state.architectures]
        if not told and sorted(of_gpu) != sorted(state.architectures):
            raise TaskError(
                f"on such a GPU FlashInfer {place['version']} looks for modules for {' '.join(of_gpu)}, not for "
                f"{' '.join(state.architectures)}",
                remedy=f"Write architectures: {json.dumps(of_gpu)}, or give the generation an `environment` with "
                f'FLASHINFER_CUDA_ARCH_LIST: "{" ".join(state.architectures)}".',
            )
        if Path(place["jit"]) != state.place.cached_ops:
            raise TaskError(
                f"FlashInfer {place['version']} keeps its modules in {place['jit']}, not in {state.place.folder}"
            )


def prove(state: State, built: Built, work: Path, context: ApplyContext) -> Record:
    """The record of all that is whole. Raises TaskError when a library has no code for the GPUs, or does not load."""
    whole = built.modules
    proved = {name: read_library(Path(one["library"]), state.architectures) for name, one in whole.items()}
    _require_loading([one.library for one in proved.values()], state, built, work, context)
    before = Record() if state.stale else state.record
    names: dict[str, str | None] = {}
    for found in built.of_kind("found"):
        names |= {asked: name for asked, name in found["names"].items() if name in whole}
        names |= dict.fromkeys(found["missing"])
    listed = before.listed
    if state.wanted is None:
        listed = tuple(name for found in built.of_kind("found") for name in found["names"])
    return replace(before, names={**before.names, **names}, modules={**before.modules, **proved}, listed=listed or None)


def read_library(library: Path, architectures: Sequence[str]) -> BuiltModule:
    """One library with the device code in it. Raises TaskError when none of it runs as machine code on a GPU asked for.

    A library without any device code passes: some modules only call others.
    """
    from crossgrade.inspect.device_code import read_device_code
    from crossgrade.inspect.elf import parse_elf
    from crossgrade.inspect.elf_source import FileSource, UnreadableElfError
    from crossgrade.inspect.gpu_architecture import coverage, parse_compute_capability

    try:
        with FileSource(library) as source:
            code = read_device_code(source, parse_elf(source))
        status = library.stat()
    except (OSError, UnreadableElfError) as error:
        raise TaskError(f"FlashInfer's {library} is unreadable: {error}") from error
    if code is not None:
        for architecture in architectures:
            if coverage(code, parse_compute_capability(architecture)) != "native":
                raise TaskError(
                    f"{library.name} was to hold code for {architecture} and holds {', '.join(code.names)}",
                    remedy="This module is not for that GPU: leave it out.",
                )
    return BuiltModule(str(library), status.st_size, status.st_mtime_ns, code.names if code is not None else ())


def _require_loading(libraries: Sequence[str], state: State, built: Built, work: Path, context: ApplyContext) -> None:
    """Load all in one process of its own. Raises TaskError with the loader's words."""
    if not libraries:
        return
    environment = dict(built.environment)
    if built.stub is not None:
        paths = [*filter(None, [environment.get("LD_LIBRARY_PATH")]), str(built.stub)]
        environment["LD_LIBRARY_PATH"] = ":".join(paths)
    context.progress(f"loading {len(libraries)} FlashInfer modules")
    completed = child({"load": list(libraries)}, state, environment, work, LOAD_SECONDS, context)
    loaded = {one["library"]: str(one["error"]) for one in state.place.said() if one.get("kind") == "loaded"}
    for library in libraries:
        problem = loaded.get(library, f"the process ended before it ({completed.outcome()})")
        if problem:
            raise TaskError(
                f"FlashInfer's {library} does not load: {problem}",
                remedy=f"The whole output is in {context.log_directory / LOG}.",
            )
