"""Start an inference server on a free port, wait until it is healthy, and stop it without a trace."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from crossgrade.bench.last_words import without_requests
from crossgrade.bench.listening import get, holds_socket, listening_sockets
from crossgrade.errors import TaskError
from crossgrade.process import RunningProcess, describe_returncode, start_process

PORT_ATTEMPTS = 3  # how often another port is tried when somebody else took the one chosen
FIRST_PAUSE_SECONDS = 0.02  # between two questions for health; doubled up to the largest
LARGEST_PAUSE_SECONDS = 0.25
ANSWER_SECONDS = 10.0  # how long one answer about health may take: /health_generate makes a token
LAST_WORDS = 20  # lines of the log that an error carries
LINES_LOOKED_AT = 2000  # lines of the log that they are chosen from
PORT_TAKEN = ("address already in use", "cannot listen")  # what servers say about a port clash, in lower case


class ServerStartError(TaskError):
    """A server did not become healthy. `last_words` are the last lines of its log."""

    def __init__(self, message: str, log: Path, last_words: tuple[str, ...]) -> None:
        words = "\n    ".join(last_words)
        super().__init__(
            f"{message}; its last words:\n    {words}" if words else f"{message}; it said nothing",
            remedy=f"the whole log: {log}",
        )
        self.log = log
        self.last_words = last_words


@dataclass(frozen=True)
class ServerSpec:
    """How to start a server.

    In `command`, `{host}` and `{port}` are replaced in each argument; no shell is involved. `environment` is
    the whole environment. `health_path` must answer 200 once the server can serve. Times are seconds.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    cwd: Path | None = None
    health_path: str = "/health"
    start_timeout: float = 600.0
    stop_grace: float = 10.0
    host: str = "127.0.0.1"

    def arguments(self, port: int) -> tuple[str, ...]:
        return tuple(word.replace("{host}", self.host).replace("{port}", str(port)) for word in self.command)


@dataclass(frozen=True)
class RunningServer:
    """A healthy server. `start_seconds` is from its start until its first 200 on the health path."""

    base_url: str
    pid: int
    start_seconds: float
    process: RunningProcess


class _PortTakenError(Exception):
    """Another process listens on the port that was free a moment ago; the text says how that showed."""


@contextlib.contextmanager
def launch(spec: ServerSpec, log: Path) -> Iterator[RunningServer]:
    """Run a server for the length of a block; its output is appended to `log`.

    At the end of the block it gets SIGTERM, `stop_grace` seconds, SIGKILL; after that none of its processes
    is left. Raises ServerStartError when it ends or stays unhealthy for `start_timeout` seconds, StartError
    when its program cannot be started, and LeftBehindError when it cannot be killed.
    """
    for attempt in range(1, PORT_ATTEMPTS + 1):
        port = free_port(spec.host)
        with contextlib.ExitStack() as stack:
            process = start_process(spec.arguments(port), env=spec.environment, cwd=spec.cwd, log=log)
            stack.callback(process.terminate, spec.stop_grace)
            try:
                wait_until_healthy(spec, port, process)
            except _PortTakenError as error:
                if attempt < PORT_ATTEMPTS:
                    continue
                raise ServerStartError(
                    f"{error}, on each of {PORT_ATTEMPTS} ports tried", log, last_words(process, spec)
                ) from None
            yield RunningServer(
                base_url=f"http://{spec.host}:{port}",
                pid=process.pid,
                start_seconds=time.monotonic() - process.started_at,
                process=process,
            )
            return


def free_port(host: str) -> int:
    """A TCP port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until_healthy(spec: ServerSpec, port: int, process: RunningProcess) -> None:
    """Ask for health until it is 200 and the answer came from this very server."""
    deadline = process.started_at + spec.start_timeout
    pause = FIRST_PAUSE_SECONDS
    answer = "none"
    while True:
        returncode = process.wait(pause)
        words = last_words(process, spec)
        if returncode is not None:
            if any(sign in line.lower() for line in words for sign in PORT_TAKEN):
                raise _PortTakenError("the server found its port taken")
            seconds = time.monotonic() - process.started_at
            raise ServerStartError(
                f"the server ended while starting ({describe_returncode(returncode)}, after {seconds:.1f} s)",
                process.log,
                words,
            )
        left = deadline - time.monotonic()
        if left <= 0:
            raise ServerStartError(
                f"the server was not healthy within {spec.start_timeout:g} s "
                f"(last answer of {spec.health_path}: {answer})",
                process.log,
                words,
            )
        # Little patience at first: a server that found its port taken by a silent program has ended meanwhile.
        patience = max(1.0, min(ANSWER_SECONDS, time.monotonic() - process.started_at))
        answer = ask_for_health(spec, port, min(patience, left))
        if answer == "200":
            if not listens(process.members(), port):
                raise _PortTakenError("a process that is not the server answers on its port")
            return
        pause = min(2 * pause, LARGEST_PAUSE_SECONDS)


def last_words(process: RunningProcess, spec: ServerSpec) -> tuple[str, ...]:
    """The last lines of its log that are not about our own questions for health."""
    return tuple(without_requests(process.tail(LINES_LOOKED_AT), spec.health_path)[-LAST_WORDS:])


def ask_for_health(spec: ServerSpec, port: int, timeout: float) -> str:
    """The status code, or in words why there is none."""
    try:
        return get(spec.host, port, spec.health_path, timeout)
    except TimeoutError:
        return f"none within {timeout:.1f} s"


def listens(pids: tuple[int, ...], port: int) -> bool:
    """Whether one of these processes listens on the TCP port."""
    inodes = listening_sockets(port)
    return any(holds_socket(pid, inodes) for pid in pids)
