"""One program under its supervisor: the control pipe to it and the status lines from it.

Used by `crossgrade.process` alone, which is what the rest of crossgrade calls.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from crossgrade import supervise
from crossgrade.errors import TaskError

KILL_SECONDS = 10.0  # how long a killed process may take to vanish (an uninterruptible sleep can hold it)


class StartError(TaskError):
    """A program could not be started: it is missing, not executable, or its working directory is missing."""


class LeftBehindError(TaskError):
    """Processes could not be killed; `pids` are those that were still there."""

    def __init__(self, program: str, pids: Sequence[int]) -> None:
        listed = " ".join(map(str, pids)) or "unknown"
        super().__init__(
            f"{program}: {KILL_SECONDS:.0f} s after SIGKILL there are still processes: {listed}",
            remedy="look at their state with `ps -o pid,stat,wchan,cmd`; D means that the kernel holds them",
        )
        self.pids = tuple(pids)


class SupervisedProgram:
    """A started program. `pid` is the program's own; `supervisor` holds its standard streams."""

    def __init__(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        cwd: Path | None,
        *,
        stdin: int,
        stdout: int | IO[bytes],
        stderr: int | IO[bytes],
    ) -> None:
        order = _encode_order(argv, environment, cwd)
        self.program = argv[0]
        self.started_at = time.monotonic()
        self.returncode: int | None = None
        self.leftovers = 0
        self._partial = b""
        self.pid = 0
        control_read, self._control = os.pipe()
        self.status, status_write = os.pipe()
        try:
            self.supervisor = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", "-c", supervise.LAUNCHER),
                    *(str(Path(supervise.__file__).parent), str(control_read), str(status_write)),
                ],
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                pass_fds=(control_read, status_write),
                start_new_session=True,
            )
        except BaseException:
            self._close_pipes()
            raise
        finally:
            os.close(control_read)
            os.close(status_write)
        try:
            with contextlib.suppress(BrokenPipeError):  # then the status says why
                _write_all(self._control, order)
            self._await_start(argv, cwd)
        except BaseException:
            for stream in (self.supervisor.stdin, self.supervisor.stdout, self.supervisor.stderr):
                if stream is not None:
                    stream.close()
            self.release()
            raise

    def _await_start(self, argv: Sequence[str], cwd: Path | None) -> None:
        while not self.pid:
            line = self._read_line()
            if line is None:
                raise StartError(f"cannot start {argv[0]}: its supervisor ended with no word")
            word, _, rest = line.partition(" ")
            if word == "failed":
                number = int(rest)
                where = f" (in {cwd})" if cwd and not cwd.is_dir() else ""
                raise StartError(
                    f"cannot start {argv[0]}{where}: {os.strerror(number)}",
                    remedy="check that the program is installed, executable, and on the PATH it is given",
                )
            self.pid = int(rest)

    def _read_line(self) -> str | None:
        """The next status line, waiting for it; None at end of file."""
        while b"\n" not in self._partial:
            part = os.read(self.status, 256)
            if not part:
                return None
            self._partial += part
        line, _, self._partial = self._partial.partition(b"\n")
        return line.decode()

    def read_status(self) -> None:
        """Take the line that says how the program ended. Call it when `status` is readable."""
        line = self._read_line()
        if line is not None:
            _, code, leftovers = line.split()
            self.returncode, self.leftovers = int(code), int(leftovers)
        else:
            # Somebody killed the supervisor. The kernel then killed the program (PR_SET_PDEATHSIG); what else
            # is in its session is killed here.
            self.returncode = -supervise.SIGKILL
            for pid in _session_members(self.pid):
                with contextlib.suppress(OSError):
                    os.kill(pid, supervise.SIGKILL)
        self.release()

    def wait(self, timeout: float | None) -> bool:
        """True when the program and all that it started are gone. Waits at most `timeout` seconds."""
        if self.returncode is None:
            with selectors.DefaultSelector() as selector:
                selector.register(self.status, selectors.EVENT_READ)
                if selector.select(timeout):
                    self.read_status()
        return self.returncode is not None

    def ended(self) -> int:
        """The return code of a program that has ended."""
        if self.returncode is None:
            raise LeftBehindError(self.program, self.members())
        return self.returncode

    def signal(self, letter: bytes) -> None:
        if self._control >= 0:
            with contextlib.suppress(BrokenPipeError):
                os.write(self._control, letter)

    def members(self) -> list[int]:
        return supervise.descendants(self.supervisor.pid)

    def release(self) -> None:
        """Close the pipes, by which the supervisor kills whatever is left, and reap it."""
        self._close_pipes()
        try:
            self.supervisor.wait(KILL_SECONDS)
        except subprocess.TimeoutExpired:
            raise LeftBehindError(self.program, self.members()) from None

    def _close_pipes(self) -> None:
        for descriptor in (self._control, self.status):
            if descriptor >= 0:
                os.close(descriptor)
        self._control = self.status = -1


def _encode_order(argv: Sequence[str], environment: Mapping[str, str], cwd: Path | None) -> bytes:
    entries = [f"{name}={value}" for name, value in environment.items()]
    words = [str(cwd or ""), str(len(argv)), *argv, *entries]
    if not argv or any("\0" in word for word in words) or any("=" in name for name in environment):
        raise StartError(f"cannot start {list(argv)!r}: a NUL, or a variable's name with '=', cannot be passed")
    body = b"\0".join(map(os.fsencode, words))
    return len(body).to_bytes(8, "big") + body


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _session_members(session: int) -> list[int]:
    """Process ids of a session, from /proc (proc(5): field 6 of stat)."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
            except OSError:
                continue
            if len(fields) > 3 and int(fields[3]) == session:
                found.append(int(entry.name))
    return found
