"""server: does the candidate's server start, become healthy and answer? It is stopped again in any case."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from crossgrade.bench.last_words import telling_line
from crossgrade.errors import CrossgradeError, TaskError
from crossgrade.gates.verdict import Finding, Verdict
from crossgrade.jsontype import JSON
from crossgrade.modules import gate
from crossgrade.modules.contract import ApplyContext, Change, HostView, Module, Outcome, Plan
from crossgrade.playbook.arguments import argument, parse_arguments

if TYPE_CHECKING:
    from crossgrade.bench.server_process import RunningServer, ServerSpec

GATE = "server"
KindT = TypeVar("KindT")

PLACEHOLDERS = ("python", "venv", "host", "port")
ANSWER_CHARACTERS = 500  # how much of an answer that was not expected is kept as evidence


@dataclass(frozen=True)
class ServerArguments:
    """How a server is started; the module `benchmark` takes the same under `server`."""

    command: tuple[str, ...] = argument(
        doc="The program and its arguments, without a shell. `{python}`, `{venv}`, `{host}` and `{port}` are filled in."
    )
    health: str = argument(doc="The path that answers 200 once the server can serve.", default="/health")
    start_timeout: float = argument(doc="Seconds until it must be healthy.", default=600.0)
    stop_grace: float = argument(doc="Seconds between SIGTERM and SIGKILL when it is stopped.", default=10.0)
    needs_gpu: bool = argument(
        doc="Whether it serves from NVIDIA GPUs: on a machine without their driver it is not started, and the verdict "
        "is `not run`.",
        default=False,
    )
    environment: Mapping[str, Any] = argument(
        doc="Environment variables, laid over those of the task and of the generation.", default_factory=dict
    )


@dataclass(frozen=True)
class Arguments(ServerArguments):
    """Starts a server on a free port, waits for health, sends a request if asked to, and stops it."""

    required_one_of: ClassVar[Sequence[Sequence[str]]] = (("generation", "path"),)
    mutually_exclusive: ClassVar[Sequence[Sequence[str]]] = (("generation", "path"),)

    generation: int | None = argument(doc="The generation to start it from, as python_env returns it.", default=None)
    path: Path | None = argument(
        doc="A venv that is no generation, to start it from. The verdict is not kept.", default=None
    )
    request: Mapping[str, Any] = argument(
        doc="One request to the healthy server: `path`, `body` (sent as JSON by POST; without one it is a "
        "GET), `expect_status` (200), `timeout` in seconds (60).",
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


@dataclass(frozen=True)
class Answer:
    """What came back: a status (None: no answer came), the body or why there is none, and seconds."""

    status: int | None
    text: str
    seconds: float


@dataclass(frozen=True)
class Observed:
    """What one start of the server showed. `problem` is why it did not become healthy, "" when it did."""

    start_seconds: float = 0.0
    answer: Answer | None = None
    problem: str = ""
    last_words: tuple[str, ...] = ()
    log: str = ""


def inspect(arguments: Arguments, host: HostView) -> gate.GateState:
    candidate = gate.find_candidate(arguments.generation, arguments.path, host)
    request = read_request(arguments.request)
    asked = [request.path, request.body, request.expect_status] if request else None
    matters = {**what_starts(arguments), "request": asked}
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
    state = inspect(arguments, context.host)
    gate.refuse_unfinished(state.candidate)
    if obstacle := gate.lacking_gpu(arguments.needs_gpu):
        return gate.conclude(Verdict(GATE, "not run", obstacle), state, arguments.on_not_run, context)
    spec = server_spec(state.candidate, context.host, arguments, cwd=context.log_directory)
    request = read_request(arguments.request)
    context.progress(f"starting the server of {state.candidate.title}")
    verdict = judge_server(observe(spec, request, context), request)
    return gate.conclude(verdict, state, arguments.on_not_run, context)


def observe(spec: ServerSpec, request: Request | None, context: ApplyContext) -> Observed:
    """Start the server, ask it, stop it. Nothing of it is left, however this ends, by SIGKILL too."""
    from crossgrade.bench.server_process import ServerStartError, last_words, launch
    from crossgrade.process import StartError

    log = fresh_log(context.log_directory, "server")
    try:
        with launch(spec, log) as server:
            context.progress(f"healthy after {server.start_seconds:.1f} s")
            answer = ask(server, request) if request else None
            words = last_words(server.process, spec) if answer and answer.status is None else ()
            seconds = server.start_seconds
    except ServerStartError as error:
        return Observed(
            problem=error.message.partition("; its last words:")[0],
            last_words=error.last_words,
            log=str(error.log),
        )
    except StartError as error:
        return Observed(problem=error.message, log=str(log))
    return Observed(start_seconds=seconds, answer=answer, last_words=words, log=str(log))


def ask(server: RunningServer, request: Request) -> Answer:
    """Send the request. An answer that does not come is an answer too: its status is None."""
    import http.client
    import json
    from urllib.parse import urlsplit

    address = urlsplit(server.base_url)
    connection = http.client.HTTPConnection(str(address.hostname), int(address.port or 80), timeout=request.timeout)
    body = None if request.body is None else json.dumps(request.body).encode()
    headers = {"Connection": "close", **({"Content-Type": "application/json"} if body else {})}
    started = time.monotonic()
    status: int | None = None
    try:
        connection.request("POST" if body else "GET", request.path, body=body, headers=headers)
        response = connection.getresponse()
        text = response.read().decode("utf-8", "replace")
        status = response.status
    except TimeoutError:
        text = f"no answer within {request.timeout:g} s"
    except (OSError, http.client.HTTPException) as error:
        text = str(error) or type(error).__name__
    finally:
        connection.close()
    return Answer(status, text, time.monotonic() - started)


def judge_server(observed: Observed, request: Request | None) -> Verdict:
    """Passed when the server became healthy and the request, if any, had the status that was expected."""
    evidence: dict[str, JSON] = {"log": observed.log, "last_words": list(observed.last_words)}
    if observed.problem:
        last = telling_line(observed.last_words)
        reason = f"{observed.problem}: {last}" if last else f"{observed.problem}; it said nothing"
        return Verdict(GATE, "failed", reason, (Finding("failure", "start", observed.problem, evidence),))
    figures: dict[str, JSON] = {"start_seconds": round(observed.start_seconds, 3)}
    reason = f"healthy after {observed.start_seconds:.1f} s"
    answer = observed.answer
    if request is None or answer is None:
        return Verdict(GATE, "passed", reason, (), figures)
    figures |= {"status": answer.status, "answer_seconds": round(answer.seconds, 3)}
    got = f"status {answer.status}" if answer.status is not None else answer.text
    reason += f"; {request.path} answered {got} after {answer.seconds:.1f} s"
    if answer.status == request.expect_status:
        return Verdict(GATE, "passed", reason, (), figures)
    if answer.status is not None:
        evidence["answer"] = answer.text[:ANSWER_CHARACTERS]
    message = f"{got} instead of status {request.expect_status}"
    reason = f"{request.path}: {message}"
    return Verdict(GATE, "failed", reason, (Finding("failure", request.path, message, evidence),), figures)


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
        health_path=arguments.health,
        start_timeout=arguments.start_timeout,
        stop_grace=arguments.stop_grace,
    )


def what_starts(arguments: ServerArguments) -> dict[str, Any]:
    """The part of the arguments that decides which server runs. Raises TaskError for what cannot be started.

    Time limits are no part of it: a failed verdict is never final, and a passed one does not depend on them.
    """
    check_command(arguments.command)
    return {
        "command": list(arguments.command),
        "environment": gate.text_map(arguments.environment, "server: environment"),
        "health": arguments.health,
    }


def check_command(command: Sequence[str]) -> None:
    """Raises TaskError for an empty command, one without a port, and a placeholder that does not exist."""
    if not command:
        raise TaskError("the server's command is empty", remedy='command: ["{python}", "-m", "…"]')
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
