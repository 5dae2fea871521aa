"""server: does the candidate's server start, become healthy and answer? It is stopped again in any case."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from crossgrade.errors import CrossgradeError, TaskError
from crossgrade.gates.verdict import Verdict
from crossgrade.modules import gate
from crossgrade.modules.contract import ApplyContext, Change, HostView, Module, Outcome, Plan
from crossgrade.playbook.arguments import argument, parse_arguments

if TYPE_CHECKING:
    from crossgrade.bench.gpu_release import GpuUse
    from crossgrade.bench.one_request import Answer
    from crossgrade.bench.server_process import RunningServer, ServerSpec
    from crossgrade.gates.server import Observed

GATE = "server"
KindT = TypeVar("KindT")

PLACEHOLDERS = ("python", "venv", "host", "port")
STILL_HEALTHY_SECONDS = 30.0  # how long a server that was healthy may take to say so again


@dataclass(frozen=True)
class ServerArguments:
    """How a server is started; the module `benchmark` takes the same under `server`."""

    command: tuple[str, ...] = argument(
        doc="The program and its arguments, without a shell. `{python}`, `{venv}`, `{host}` and `{port}` are filled "
        "in.",
        default=(),
    )
    unit: str = argument(
        doc="Instead of `command`, the systemd service that starts the working server: its command line and variables "
        "are read from its files. The unit itself is neither started nor changed.",
        default="",
    )
    user_unit: bool = argument(doc="Whether that is a service of the user's own systemd.", default=False)
    health: tuple[str, ...] = argument(
        doc="The path that answers 200 once the server can serve. Of several, the first that the server knows counts.",
        default=("/health_generate", "/health", "/v1/models"),
    )
    start_timeout: float = argument(doc="Seconds until it must be healthy.", default=600.0)
    stop_grace: float = argument(doc="Seconds between SIGTERM and SIGKILL when it is stopped.", default=10.0)
    stall_timeout: float = argument(
        doc="Seconds without a token, while requests are under way, after which it counts as hanging: its stacks are "
        "kept (by py-spy, where that is in its environment or on PATH), and it is stopped.",
        default=300.0,
    )
    gpu_release_timeout: float = argument(
        doc="Seconds after its end within which the GPUs must have their memory back.", default=60.0
    )
    needs_gpu: bool = argument(
        doc="Whether it serves from NVIDIA GPUs: on a machine without their driver it is not started, and the verdict "
        "is `not run`.",
        default=False,
    )
    environment: Mapping[str, Any] = argument(
        doc="Environment variables, laid over those of the task, of the generation, and of the unit.",
        default_factory=dict,
    )


ArgumentsT = TypeVar("ArgumentsT", bound=ServerArguments)


@dataclass(frozen=True)
class Arguments(ServerArguments):
    """Starts a server on a free port, waits for health, sends a request if asked to, and stops it."""

    required_one_of: ClassVar[Sequence[Sequence[str]]] = (("generation", "path"),)
    mutually_exclusive: ClassVar[Sequence[Sequence[str]]] = (("generation", "path"), ("command", "unit"))

    generation: int | None = argument(doc="The generation to start it from, as python_env returns it.", default=None)
    path: Path | None = argument(
        doc="A venv that is no generation, to start it from. The verdict is not kept.", default=None
    )
    request: Mapping[str, Any] = argument(
        doc="One request to the healthy server: `path`, `body` (sent as JSON by POST; without one it is a "
        "GET), `expect_status` (200), `timeout` in seconds (60). The text that a request to a model brings is looked "
        "at, too.",
        default_factory=dict,
    )
    state: Literal["checked"] = argument(
        doc="What is asked for: `checked` starts it, looks, and stops it.", default="checked"
    )
    on_not_run: gate.OnNotRun = argument(doc="What a verdict of `not run` does to the run.", default="fail")


@dataclass(frozen=True)
class Request:
    """The one request of the check. `body` None means GET. `timeout` is seconds."""

    path: str = argument(doc="Where the request goes, such as /v1/completions.")
    body: Any = argument(doc="Sent as JSON by POST; without one it is a GET.", default=None)
    expect_status: int = argument(doc="The status that it must have.", default=200)
    timeout: float = argument(doc="Seconds until the whole answer must be there.", default=60.0)


def inspect(arguments: Arguments, host: HostView) -> gate.GateState:
    candidate = gate.find_candidate(arguments.generation, arguments.path, host)
    request = read_request(arguments.request)
    asked = [request.path, request.body, request.expect_status] if request else None
    matters = {**what_starts(from_unit(arguments)), "request": asked}
    state = gate.gate_state(GATE, candidate, host, matters)
    return gate.unless_not_run_for_another_reason(state, gate.lacking_gpu(arguments.needs_gpu))


def plan(arguments: Arguments, state: gate.GateState) -> Plan:
    what = "start, ask and stop the server of" if arguments.request else "start and stop the server of"
    planned = gate.plan_gate(state, what, arguments.on_not_run)
    obstacle = gate.lacking_gpu(arguments.needs_gpu)
    if obstacle and isinstance(planned, Change):
        return replace(planned, summary=f"{planned.summary}: it will not run, {obstacle}")
    return planned


def apply(arguments: Arguments, change: Change, context: ApplyContext) -> Outcome:  # noqa: ARG001 (the contract's shape)
    from crossgrade.gates.server import Asked, judge_server

    state = inspect(arguments, context.host)
    gate.refuse_unfinished(state.candidate)
    if obstacle := gate.lacking_gpu(arguments.needs_gpu):
        return gate.conclude(Verdict(GATE, "not run", obstacle), state, arguments.on_not_run, context)
    spec = server_spec(state.candidate, context.host, from_unit(arguments), cwd=context.log_directory)
    request = read_request(arguments.request)
    asked = None
    if request is not None:
        stream = isinstance(request.body, Mapping) and bool(request.body.get("stream"))
        asked = Asked(request.path, request.expect_status, stream)
    context.progress(f"starting the server of {state.candidate.title}")
    verdict = judge_server(observe(spec, request, arguments.stall_timeout, state.candidate, context), asked)
    return gate.conclude(verdict, state, arguments.on_not_run, context)


def observe(
    spec: ServerSpec, request: Request | None, silence: float, candidate: gate.Candidate, context: ApplyContext
) -> Observed:
    """Start the server, ask it, stop it. Nothing of it is left, however this ends, by SIGKILL too."""
    from crossgrade.bench.gpu_release import GpuMemoryHeldError
    from crossgrade.bench.server_process import ServerError, launch
    from crossgrade.gates.server import Observed
    from crossgrade.process import StartError

    log = fresh_log(context.log_directory, "server")
    try:
        with launch(spec, log) as server:
            context.progress(f"healthy after {server.start_seconds:.1f} s")
            told = keep_server_info(server.base_url, candidate.number, context)
            seen = replace(look_at(server, spec, request, silence), server_info=told)
    except ServerError as error:
        return Observed(
            problem=error.what,
            last_words=error.last_words,
            log=str(error.log),
            stacks=str(error.stacks or ""),
        )
    except (StartError, GpuMemoryHeldError) as error:
        return Observed(problem=error.message, log=str(log))
    return replace(seen, gpu_memory=server.gpu_watch.note, log=str(log))


def look_at(server: RunningServer, spec: ServerSpec, request: Request | None, silence: float) -> Observed:
    """What a healthy server does: its answer, whether it stays healthy, and what it is doing when it does not."""
    from crossgrade.bench.server_process import ask_for_health, keep_stacks, last_words
    from crossgrade.gates.server import Observed

    seen = Observed(start_seconds=server.start_seconds, health_path=server.health_path)
    if request is None:
        return seen
    answer = ask(server, request, silence)
    port = int(server.base_url.rpartition(":")[2])
    health = ask_for_health(spec.host, port, (server.health_path,), min(silence, STILL_HEALTHY_SECONDS))[1]
    hangs = answer.late or health != "200"
    return replace(
        seen,
        answer=answer,
        unhealthy="" if health == "200" else health,
        stacks=str(keep_stacks(spec, server.process)) if hangs and server.alive else "",
        ended_workers=server.losses().words(),
        last_words=last_words(server.process, spec) if answer.status is None or hangs else (),
    )


def ask(server: RunningServer, request: Request, silence: float = 300.0) -> Answer:
    """Send the request. An answer that does not come is an answer too: its status is None."""
    from crossgrade.bench import one_request

    return one_request.ask(server.base_url, request.path, request.body, request.timeout, silence)


def keep_server_info(base_url: str, generation: int | None, context: ApplyContext) -> str:
    """Put what the server says of itself beside the generation, for `crossgrade diff`; in words what came of it."""
    from crossgrade.bench.server_info import ask_for_info

    info, told = ask_for_info(base_url)
    if info is not None and generation is not None:
        context.store.write_server_info(generation, info)
    return told


def server_spec(candidate: gate.Candidate, host: HostView, arguments: ServerArguments, cwd: Path) -> ServerSpec:
    """How to start this server from this candidate. `{host}` and `{port}` are filled in at each start."""
    from crossgrade.bench.server_process import ServerSpec

    check_command(arguments.command)
    return ServerSpec(
        command=tuple(
            word.replace("{python}", str(candidate.python)).replace("{venv}", str(candidate.venv))
            for word in arguments.command
        ),
        environment=gate.program_environment(
            candidate, host, gate.text_map(arguments.environment, "server: environment")
        ),
        cwd=cwd,
        health_paths=arguments.health,
        start_timeout=arguments.start_timeout,
        stop_grace=arguments.stop_grace,
        stall_timeout=arguments.stall_timeout,
        stack_folders=(candidate.venv / "bin", Path(sys.prefix, "bin")),
        gpus=gpus_in_use if arguments.needs_gpu else None,
        gpu_timeout=arguments.gpu_release_timeout,
    )


def gpus_in_use() -> Sequence[GpuUse] | str:
    """What the driver says of the GPUs' memory and processes, or why it says nothing."""
    from crossgrade.bench.gpu_release import GpuUse
    from crossgrade.facts.gpu_reading import ask_nvml
    from crossgrade.inspect.query import run_query

    found = ask_nvml(os.environ, run_query)
    if not found.gpus:
        return found.unknown.get("gpus", "the driver names no GPU")
    return [
        GpuUse(gpu.index, gpu.memory_used_bytes, frozenset(process.pid for process in gpu.processes or ()))
        for gpu in found.gpus
    ]


def from_unit(arguments: ArgumentsT) -> ArgumentsT:
    """The arguments with the command and the variables of the unit, where one is named. Raises TaskError."""
    if not arguments.unit:
        return arguments
    from crossgrade.modules.unit_start import read_unit

    command, variables = read_unit(arguments.unit, user=arguments.user_unit)
    return replace(arguments, unit="", command=command, environment={**variables, **arguments.environment})


def read_server(values: Mapping[str, Any], what: str) -> ServerArguments:
    """How a server is started, from the mapping in another module's arguments. Raises TaskError."""
    return from_unit(read_mapping(ServerArguments, values, what))


def what_starts(arguments: ServerArguments) -> dict[str, Any]:
    """The part of the arguments that decides which server runs. Raises TaskError for what cannot be started.

    Time limits are no part of it: a failed verdict is never final, and a passed one does not depend on them.
    """
    check_command(arguments.command)
    if not arguments.health or not all(path.startswith("/") for path in arguments.health):
        raise TaskError(f"server: health: a path begins with a slash, not {', '.join(arguments.health) or 'nothing'}")
    return {
        "command": list(arguments.command),
        "environment": gate.text_map(arguments.environment, "server: environment"),
        "health": list(arguments.health),
    }


def check_command(command: Sequence[str]) -> None:
    """Raises TaskError for an empty command, one without a port, and a placeholder that does not exist."""
    if not command:
        raise TaskError(
            "the server's command is empty", remedy='command: ["{python}", "-m", "…"], or the `unit` that starts it'
        )
    for word in command:
        found = re.fullmatch(r"\{(\w+)\}", word)
        if found and found[1] not in PLACEHOLDERS:
            known = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
            raise TaskError(f"the server's command has {word}, which is not one of {known}")
    if not any("{port}" in word for word in command):
        raise TaskError(
            "the server's command does not say where {port} goes",
            remedy="It is started on a free port, beside the working server: add `--port`, `{port}`.",
        )


def read_request(values: Mapping[str, Any]) -> Request | None:
    """The request from a playbook. Raises TaskError for what it does not know."""
    if not values:
        return None
    request = read_mapping(Request, values, "server: request")
    if not request.path.startswith("/"):
        raise TaskError(f"server: request: path must begin with a slash, not {request.path!r}")
    return request


def read_mapping(kind: type[KindT], values: Mapping[str, Any], what: str) -> KindT:
    """A mapping inside a module's arguments, checked as arguments are. Raises TaskError."""
    try:
        return parse_arguments(kind, values)
    except CrossgradeError as error:
        raise TaskError(f"{what}: {error.message}", remedy=error.remedy) from error


def fresh_log(directory: Path, name: str, suffix: str = ".log") -> Path:
    """A log file that is not there yet: the last words of an earlier server must not look like this one's."""
    directory.mkdir(parents=True, exist_ok=True)
    number = 1
    while (path := directory / (f"{name}{suffix}" if number == 1 else f"{name}-{number}{suffix}")).exists():
        number += 1
    return path


MODULE = Module(
    name="server",
    arguments=Arguments,
    effect="checks",
    inspect=inspect,
    plan=plan,
    apply=apply,
    summary="Gate: the server starts, becomes healthy and answers.",
)
