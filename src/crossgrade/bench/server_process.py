"""Start an inference server on a free port, wait until it is healthy, and stop it without a trace.

What a server does meanwhile is looked after too: whether it ended by itself, whether processes of it did, whether it
hangs (then its stacks are kept), and whether the GPUs' memory is given back after its end.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from crossgrade.bench.gpu_release import AskGpus, GpuWatch
from crossgrade.bench.last_words import without_requests
from crossgrade.bench.listening import get, holds_socket, listening_sockets
from crossgrade.bench.stacks import Stacks, dump_stacks, find_pyspy, kernel_view
from crossgrade.bench.stalls import StallError
from crossgrade.bench.workers import Losses, Worker, look_at, losses
from crossgrade.errors import TaskError
from crossgrade.process import RunningProcess, describe_returncode, start_process

PORT_ATTEMPTS = 3  # how often another port is tried when somebody else took the one chosen
FIRST_PAUSE_SECONDS = 0.02  # between two questions for health; doubled up to the largest
LARGEST_PAUSE_SECONDS = 0.25
ANSWER_SECONDS = 10.0  # how long one answer about health may take: /health_generate makes a token
END_SECONDS = 5.0  # how long the rest of a server whose program has ended may take to be stopped
LAST_WORDS = 20  # lines of the log that an error carries
LINES_LOOKED_AT = 2000  # lines of the log that they are chosen from
PORT_TAKEN = ("address already in use", "cannot listen")  # what servers say about a port clash, in lower case
NO_SUCH_PATH = ("404", "405", "501")  # the server is there and knows no such question: the next path is asked


class ServerError(TaskError):
    """A server did not do what it should: `what` says in one line what. `last_words` are the last lines of its log.

    `stacks` says what its processes were doing, None where nobody looked.
    """

    def __init__(self, message: str, log: Path, last_words: tuple[str, ...], stacks: Stacks | None = None) -> None:
        words = "\n    ".join(last_words)
        super().__init__(
            f"{message}; its last words:\n    {words}" if words else f"{message}; it said nothing",
            remedy=f"the whole log: {log}" + (f"; {stacks}" if stacks else ""),
        )
        self.what = message
        self.log = log
        self.last_words = last_words
        self.stacks = stacks


class ServerStartError(ServerError):
    """A server did not become healthy."""


class ServerEndedError(ServerError):
    """A server ended by itself while it was in use."""


class ServerStalledError(ServerError):
    """A server made no token for too long while requests were under way."""


@dataclass(frozen=True)
class ServerSpec:
    """How to start a server.

    In `command`, `{host}` and `{port}` are replaced in each argument; no shell is involved. `environment` is
    the whole environment. One of `health_paths` must answer 200 once the server can serve: they are asked in turn, the
    next one where the server has no such path. `stall_timeout` is for whoever puts a load on it (`run_load`).
    `stack_folders` are looked through for py-spy, before PATH. `gpus` asks
    the driver what is in use: when it is given, the memory must be back `gpu_timeout` after the server's end. Times are
    seconds.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    cwd: Path | None = None
    health_paths: tuple[str, ...] = ("/health",)
    start_timeout: float = 600.0
    stop_grace: float = 10.0
    stall_timeout: float | None = None
    host: str = "127.0.0.1"
    stack_folders: tuple[Path, ...] = ()
    gpus: AskGpus | None = None
    gpu_timeout: float = 60.0

    def arguments(self, port: int) -> tuple[str, ...]:
        return tuple(word.replace("{host}", self.host).replace("{port}", str(port)) for word in self.command)


@dataclass(frozen=True)
class RunningServer:
    """A healthy server. `start_seconds` is from its start until its first 200 on `health_path`.

    `workers` are the processes that it had then. `gpu_watch.note` says, after its end, what became of the GPU memory.
    """

    base_url: str
    pid: int
    start_seconds: float
    process: RunningProcess
    health_path: str = ""
    workers: Mapping[int, Worker] = field(default_factory=dict)
    gpu_watch: GpuWatch = field(default_factory=lambda: GpuWatch(None))

    @property
    def alive(self) -> bool:
        """Whether its program is there; it may still hang."""
        return Path(f"/proc/{self.pid}").exists()

    def losses(self) -> Losses:
        """Which of its processes have ended since it became healthy, the server itself left out."""
        return losses(self.workers, look_at(pid for pid in self.process.members() if pid != self.pid))


class _PortTakenError(Exception):
    """Another process listens on the port that was free a moment ago; the text says how that showed."""


@contextlib.contextmanager
def launch(spec: ServerSpec, log: Path) -> Iterator[RunningServer]:
    """Run a server for the length of a block; its output is appended to `log`.

    At the end of the block it gets SIGTERM, `stop_grace` seconds, SIGKILL; after that none of its processes
    is left. Raises ServerStartError when it ends or stays unhealthy for `start_timeout` seconds, ServerEndedError when
    it ends by itself during the block, ServerStalledError for a StallError of the block, GpuMemoryHeldError when the
    block went well and memory is not given back, StartError when its program cannot be started, and LeftBehindError
    when it cannot be killed.
    """
    watch = GpuWatch(spec.gpus, spec.gpu_timeout)
    watch.begin()
    for attempt in range(1, PORT_ATTEMPTS + 1):
        port = free_port(spec.host)
        with contextlib.ExitStack() as stack:
            process = start_process(spec.arguments(port), env=spec.environment, cwd=spec.cwd, log=log)
            stack.callback(process.terminate, spec.stop_grace)
            try:
                path = wait_until_healthy(spec, port, process)
            except _PortTakenError as error:
                if attempt < PORT_ATTEMPTS:
                    continue
                raise ServerStartError(
                    f"{error}, on each of {PORT_ATTEMPTS} ports tried", log, last_words(process, spec)
                ) from None
            server = RunningServer(
                base_url=f"http://{spec.host}:{port}",
                pid=process.pid,
                start_seconds=time.monotonic() - process.started_at,
                process=process,
                health_path=path,
                workers=look_at(pid for pid in process.members() if pid != process.pid),
                gpu_watch=watch,
            )
            try:
                yield server
            except StallError as stall:
                raise _stalled(spec, process, port, stall) from stall
            except Exception as error:
                raise_if_ended(spec, process, port, error)
                raise
            raise_if_ended(spec, process, port, None)
            watch.running(process.members())
        watch.wait(kernel_view)
        return


def raise_if_ended(spec: ServerSpec, process: RunningProcess, port: int, cause: Exception | None) -> None:
    """Raises ServerEndedError for a server whose program is no longer there.

    One that listens no more is given `END_SECONDS` to end: the kernel closes the connections of a dying process, which
    is how its clients learn of it, before the process is gone.
    """
    program, deadline = Path(f"/proc/{process.pid}"), time.monotonic() + END_SECONDS
    while program.exists():
        if listening_sockets(port) or time.monotonic() > deadline:
            return
        time.sleep(FIRST_PAUSE_SECONDS)
    seconds = time.monotonic() - process.started_at
    returncode = process.wait(END_SECONDS)  # what is left of it is being stopped
    how = "" if returncode is None else f"{describe_returncode(returncode)}, "
    raise ServerEndedError(
        f"the server ended by itself while it was in use ({how}{seconds:.1f} s after its start)",
        process.log,
        last_words(process, spec),
    ) from cause


def _stalled(spec: ServerSpec, process: RunningProcess, port: int, stall: StallError) -> ServerError:
    """The error for a server that hangs, with what it was doing; for one that has ended, that."""
    try:
        raise_if_ended(spec, process, port, stall)
    except ServerEndedError as ended:
        return ended
    stacks = keep_stacks(spec, process)
    return ServerStalledError(f"the server hangs: {stall.message}", process.log, last_words(process, spec), stacks)


def keep_stacks(spec: ServerSpec, process: RunningProcess) -> Stacks:
    """Write what the server's processes are doing to a file beside its log."""
    number, stacks = 1, process.log.with_suffix(".stacks.txt")
    while stacks.exists():
        number += 1
        stacks = process.log.with_suffix(f".stacks-{number}.txt")
    program = find_pyspy(spec.environment, *spec.stack_folders)
    return dump_stacks(process.members(), stacks, program, spec.environment)


def free_port(host: str) -> int:
    """A TCP port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until_healthy(spec: ServerSpec, port: int, process: RunningProcess) -> str:
    """Ask for health until it is 200 and the answer came from this very server. Returns the path that said so."""
    deadline = process.started_at + spec.start_timeout
    pause = FIRST_PAUSE_SECONDS
    path, answer = spec.health_paths[0], "none"
    while True:
        returncode = process.wait(pause)
        words = last_words(process, spec)
        complaints = [line for line in words if any(sign in line.lower() for sign in PORT_TAKEN)]
        if returncode is not None:
            if complaints:
                raise _PortTakenError("the server found its port taken")
            seconds = time.monotonic() - process.started_at
            raise ServerStartError(
                f"the server ended while starting ({describe_returncode(returncode)}, after {seconds:.1f} s)",
                process.log,
                words,
            )
        # SGLang goes on for two minutes after it could not bind: its warm-up asks whoever has the port.
        if any(str(port) in line for line in complaints) and listened_to_by_others(process, port):
            raise _PortTakenError("the server found its port taken")
        left = deadline - time.monotonic()
        if left <= 0:
            raise ServerStartError(
                f"the server was not healthy within {spec.start_timeout:g} s (last answer of {path}: {answer})",
                process.log,
                words,
                keep_stacks(spec, process),
            )
        # Little patience at first: a server that found its port taken by a silent program has ended meanwhile.
        patience = max(1.0, min(ANSWER_SECONDS, time.monotonic() - process.started_at))
        path, answer = ask_for_health(spec.host, port, spec.health_paths, min(patience, left))
        if answer == "200":
            if not listens(process.members(), port):
                raise _PortTakenError("a process that is not the server answers on its port")
            return path
        pause = min(2 * pause, LARGEST_PAUSE_SECONDS)


def last_words(process: RunningProcess, spec: ServerSpec) -> tuple[str, ...]:
    """The last lines of its log that are not about our own questions for health."""
    lines = list(process.tail(LINES_LOOKED_AT))
    for path in spec.health_paths:
        lines = without_requests(lines, path)
    return tuple(lines[-LAST_WORDS:])


def ask_for_health(host: str, port: int, paths: Sequence[str], timeout: float) -> tuple[str, str]:
    """The first path that the server knows, and its status code, or in words why there is none.

    Where it knows none of them, the answer is that of the last. `timeout` is seconds for each.
    """
    path, answer = "", "none"
    for path in paths:
        try:
            answer = get(host, port, path, timeout)
        except TimeoutError:
            answer = f"none within {timeout:.1f} s"
        if answer not in NO_SUCH_PATH:
            break
    return path, answer


def listened_to_by_others(process: RunningProcess, port: int) -> bool:
    """Whether somebody listens on the TCP port, and none of the server's processes does."""
    return bool(listening_sockets(port)) and not listens(process.members(), port)


def listens(pids: tuple[int, ...], port: int) -> bool:
    """Whether one of these processes listens on the TCP port."""
    inodes = listening_sockets(port)
    return any(holds_socket(pid, inodes) for pid in pids)
