"""The one boundary to other programs.

Every program that crossgrade starts is started here, by an argument list and with exactly the environment
given, never through a shell. Between crossgrade and the program stands a small supervisor
(`crossgrade.supervise`, which says why), so that nothing outlives a run: when crossgrade ends, by SIGKILL
too, the program and all of its descendants are killed within moments, daemons among them. What a program
leaves running when it ends is stopped as well. Only what runs as another user, or what a service manager
starts on request, is out of reach. Starting through the supervisor costs about 20 ms.

The program gets a session and a process group of its own, so that Ctrl-C in the terminal reaches crossgrade
alone, which then stops the program in order: SIGTERM to all of its processes, a grace, SIGKILL. Its standard
input is empty unless `input` is given, and of crossgrade's descriptors it inherits none.

A process that crossgrade forks without an exec keeps a copy of the pipe by which the supervisor notices
crossgrade's end; so don't fork while a program runs.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import selectors
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import IO

from crossgrade.supervised import KILL_SECONDS, LeftBehindError, StartError, SupervisedProgram

__all__ = [
    "Completed",
    "LeftBehindError",
    "RunningProcess",
    "StartError",
    "describe_returncode",
    "run_process",
    "signal_name",
    "start_process",
]

GRACE_SECONDS = 5.0  # between SIGTERM and SIGKILL
DRAIN_SECONDS = 1.0  # how long output is awaited after the last process has ended
READ_BYTES = 1 << 16
TAIL_BYTES = 1 << 16


@dataclass(frozen=True)
class Completed:
    """A program that has ended.

    `returncode` is negative for a signal, as in `subprocess`. `seconds` counts from the call until the last
    of the program's processes was gone. `leftovers` counts processes that outlived the program
    and were stopped.
    """

    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str
    seconds: float
    timed_out: bool
    leftovers: int = 0

    @property
    def succeeded(self) -> bool:
        return self.returncode == 0 and not self.timed_out

    def outcome(self) -> str:
        """For people: `exit code 3`, `killed by SIGSEGV`, `stopped after 30 s (its time limit)`."""
        if self.timed_out:
            return f"stopped after {self.seconds:.0f} s (its time limit)"
        return describe_returncode(self.returncode)


def signal_name(returncode: int) -> str | None:
    """`SIGSEGV` for -11; None when the program was not ended by a signal."""
    import signal

    if returncode >= 0:
        return None
    try:
        return signal.Signals(-returncode).name
    except ValueError:
        return f"signal {-returncode}"


def describe_returncode(returncode: int) -> str:
    name = signal_name(returncode)
    return f"killed by {name}" if name else f"exit code {returncode}"


class _Output:
    """What one stream of a program said: all of it as text, line by line to a listener, and raw to a log."""

    def __init__(self, on_line: Callable[[str], None] | None, log: IO[bytes] | None) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._parts: list[str] = []
        self._line = ""
        self._on_line = on_line
        self._log = log

    def feed(self, data: bytes) -> None:
        """`data` as read; empty at end of file."""
        if self._log is not None and data:
            self._log.write(data)
        text = self._decoder.decode(data, final=not data)
        self._parts.append(text)
        if self._on_line is not None:
            *lines, self._line = (self._line + text).split("\n")
            if not data and self._line:
                lines.append(self._line)
                self._line = ""
            for line in lines:
                self._on_line(line.rstrip("\r"))

    @property
    def text(self) -> str:
        return "".join(self._parts)


def run_process(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path | None = None,
    timeout: float | None = None,
    input: str | None = None,  # noqa: A002 - the name that `subprocess.run` has for it
    on_line: Callable[[str], None] | None = None,
    log: Path | None = None,
    grace: float = GRACE_SECONDS,
) -> Completed:
    """Run a program to its end.

    `timeout` and `grace` are seconds: when `timeout` is over, the program gets SIGTERM and, `grace` later,
    SIGKILL, and `timed_out` is true in what is returned. `on_line` is called in this thread with every line
    of both streams as it arrives, without its line end. `log` gets both streams' bytes appended, as they
    came.
    Text is UTF-8; what is not is replaced by U+FFFD. An exception that arrives meanwhile (KeyboardInterrupt,
    one raised by `on_line` or by a signal handler) stops the program in the same way before it goes on.

    Raises StartError, LeftBehindError, and OSError when `log` cannot be written.
    """
    with contextlib.ExitStack() as stack:
        log_file = None if log is None else stack.enter_context(log.open("ab", buffering=0))
        child = SupervisedProgram(
            argv,
            env,
            cwd,
            stdin=subprocess.DEVNULL if input is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        stack.callback(child.release)
        outputs = _Output(on_line, log_file), _Output(on_line, log_file)
        pump = stack.enter_context(_Pump(child, outputs, (input or "").encode()))
        timed_out = False
        try:
            if not pump.run(timeout):
                timed_out = True
                _stop(child, grace, pump.run)
            pump.drain()
        except BaseException:
            pump.mute()
            _stop(child, grace, pump.run)
            raise
    return Completed(
        argv=tuple(argv),
        returncode=child.ended(),
        stdout=outputs[0].text,
        stderr=outputs[1].text,
        seconds=time.monotonic() - child.started_at,
        timed_out=timed_out,
        leftovers=child.leftovers,
    )


def _stop(child: SupervisedProgram, grace: float, wait: Callable[[float], bool]) -> None:
    """SIGTERM, `grace` seconds, SIGKILL; `wait` waits for the end of all processes."""
    child.signal(b"T")
    try:
        ended = wait(grace)
    except BaseException:  # a second Ctrl-C means at once
        child.signal(b"K")
        raise
    if not ended:
        child.signal(b"K")
        if not wait(KILL_SECONDS):
            raise LeftBehindError(child.program, child.members())


class _Pump:
    """Moves a program's output and input, and notices its end, without threads."""

    def __init__(self, child: SupervisedProgram, outputs: tuple[_Output, _Output], to_write: bytes) -> None:
        self._child = child
        self._to_write = to_write
        self._muted = False
        self._selector = selectors.DefaultSelector()
        self._open: set[IO[bytes]] = set()
        self._selector.register(child.status, selectors.EVENT_READ, self._read_status)
        supervisor = child.supervisor
        for stream, output in zip((supervisor.stdout, supervisor.stderr), outputs, strict=True):
            if stream is not None:
                self._add(stream, selectors.EVENT_READ, partial(self._read, stream, output))
        if supervisor.stdin is not None:
            self._add(supervisor.stdin, selectors.EVENT_WRITE, partial(self._write, supervisor.stdin))

    def __enter__(self) -> _Pump:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in list(self._open):
            self._remove(stream)
        self._selector.close()

    def _add(self, stream: IO[bytes], events: int, ready: Callable[[], None]) -> None:
        os.set_blocking(stream.fileno(), False)
        self._selector.register(stream, events, ready)
        self._open.add(stream)

    def _remove(self, stream: IO[bytes]) -> None:
        self._selector.unregister(stream)
        self._open.discard(stream)
        with contextlib.suppress(BrokenPipeError):
            stream.close()

    def mute(self) -> None:
        """Go on reading, so that the program can end, but pass nothing on."""
        self._muted = True

    def run(self, timeout: float | None) -> bool:
        """Until all of the program's processes are gone (True) or `timeout` seconds are over (False)."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._child.returncode is None:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            self._step(left)
        return True

    def drain(self) -> None:
        """Read what was written before the end."""
        deadline = time.monotonic() + DRAIN_SECONDS
        while self._open and time.monotonic() < deadline:
            self._step(deadline - time.monotonic())

    def _step(self, timeout: float | None) -> None:
        for key, _ in self._selector.select(timeout):
            key.data()

    def _read_status(self) -> None:
        self._selector.unregister(self._child.status)
        self._child.read_status()

    def _read(self, stream: IO[bytes], output: _Output) -> None:
        data = os.read(stream.fileno(), READ_BYTES)
        if not data:
            self._remove(stream)
        if not self._muted:
            output.feed(data)

    def _write(self, stream: IO[bytes]) -> None:
        try:
            self._to_write = self._to_write[os.write(stream.fileno(), self._to_write[:READ_BYTES]) :]
        except BrokenPipeError:
            self._to_write = b""  # the program does not want the rest
        if not self._to_write:
            self._remove(stream)


class RunningProcess:
    """A program that runs beside crossgrade, a server say, with its output in a log file.

    As a context manager it stops the program, and all that the program started, at the end of the block.
    Use it from one thread. `started_at` is of `time.monotonic()`.
    """

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str], cwd: Path | None, log: Path) -> None:
        self.argv = tuple(argv)
        self.log = log
        with log.open("ab") as file:
            self._log_start = file.seek(0, os.SEEK_END)
            self._child = SupervisedProgram(
                argv, environment, cwd, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
            )
        self.pid = self._child.pid
        self.started_at = self._child.started_at

    def __enter__(self) -> RunningProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.terminate()

    def poll(self) -> int | None:
        """The return code (negative for a signal) once nothing of the program is left, None before."""
        return self.wait(0.0)

    def wait(self, timeout: float | None) -> int | None:
        """Like `poll`, after waiting for the end for at most `timeout` seconds."""
        self._child.wait(timeout)
        return self._child.returncode

    def members(self) -> tuple[int, ...]:
        """Process ids of the program and of everything below it, at this moment."""
        return () if self.poll() is not None else tuple(self._child.members())

    def terminate(self, grace: float = GRACE_SECONDS) -> int:
        """SIGTERM to all of its processes, `grace` seconds, SIGKILL. Returns the return code.

        When it returns, none of them is left; raises LeftBehindError otherwise. Does nothing when the program
        has ended already.
        """
        if self.poll() is None:
            _stop(self._child, grace, self._child.wait)
        return self._child.ended()

    def tail(self, lines: int = 20) -> tuple[str, ...]:
        """The last lines that this program wrote to the log."""
        with self.log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(self._log_start, size - TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
        return tuple(text.splitlines()[-lines:]) if lines > 0 else ()


def start_process(argv: Sequence[str], *, env: Mapping[str, str], cwd: Path | None = None, log: Path) -> RunningProcess:
    """Start a program and go on; both of its streams are appended to `log`.

    Raises StartError, and OSError when `log` cannot be written.
    """
    return RunningProcess(argv, env, cwd, log)
