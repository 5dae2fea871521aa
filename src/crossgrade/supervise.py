"""The small program between crossgrade and each program that it starts: `python -I -S -c LAUNCHER … C S`.

It exists so that no process outlives a run, however the run ends. `PR_SET_PDEATHSIG` alone cannot do that: it
fires when the *thread* that forked ends, and it does not reach grandchildren (uv → python → nvcc → cicc).
So the supervisor

* holds the reading end of a pipe whose only writing end is in crossgrade: when crossgrade dies, by SIGKILL
  too, the kernel closes it, and the supervisor kills everything below itself;
* is a child subreaper (prctl(2)): descendants that lose their parent, daemons with a session of their own
  included, become its children, so it finds them all and sees when none is left;
* gives its own child `PR_SET_PDEATHSIG`, for the case that somebody kills the supervisor.

It cannot kill what runs as another user (`sudo`), nor what a service manager starts on request.

Descriptor C (control) brings the order first: eight bytes of length (big-endian), then NUL-separated working
directory (empty: inherited), number of arguments, the arguments, and `NAME=value` entries. After that single
letters: `T` sends SIGTERM to all descendants, `K` kills them; end of file means `K`.
Descriptor S (status) takes lines: `started PID` or `failed ERRNO`, then `exited CODE LEFTOVERS` once no
descendant remains (CODE is negative for a signal; LEFTOVERS counts the processes that outlived the program).

It imports no more than it must (`signal` and `subprocess` would double its start-up time), and nothing of
crossgrade.
"""

from __future__ import annotations

import ctypes
import os
import select
import sys
import time

SIGKILL, SIGPIPE, SIGTERM, SIGXFSZ = 9, 13, 15, 25  # signal(7); the same on x86-64 and on Arm
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # <linux/prctl.h>

# What runs this module by its cached bytecode: a script named on the command line is compiled at each start.
# The standard library comes first on the path, so that crossgrade's `inspect` does not hide the real one.
LAUNCHER = "import sys; sys.path.append(sys.argv[1]); import supervise; supervise.main()"

LEFTOVER_SECONDS = 1.0  # what processes that outlive the program get between SIGTERM and SIGKILL
IDLE_SECONDS = 1.0  # how often orphans are reaped while the program runs
BUSY_SECONDS = 0.01


def read_order(control: int) -> tuple[bytes, list[bytes], dict[bytes, bytes]] | None:
    """Working directory, arguments and environment; None when crossgrade went away before it sent them."""
    header = read_exactly(control, 8)
    body = read_exactly(control, int.from_bytes(header, "big")) if header else b""
    if not body:
        return None
    cwd, count, *rest = body.split(b"\0")
    arguments = rest[: int(count)]
    environment = dict(entry.split(b"=", 1) for entry in rest[int(count) :])
    return cwd, arguments, environment


def read_exactly(descriptor: int, size: int) -> bytes:
    parts = []
    while size:
        part = os.read(descriptor, min(size, 1 << 20))
        if not part:
            return b""
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def start(libc: ctypes.CDLL, cwd: bytes, arguments: list[bytes], environment: dict[bytes, bytes]) -> int:
    """Fork and exec; returns the process id. Raises OSError when the program cannot be started."""
    supervisor = os.getpid()
    failure_read, failure_write = os.pipe()  # closed by a successful exec
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            libc.prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)
            if os.getppid() != supervisor:
                os._exit(127)
            # Python ignores these two in itself, and ignored signals survive an exec.
            libc.signal(SIGPIPE, None)
            libc.signal(SIGXFSZ, None)
            if cwd:
                os.chdir(cwd)
            os.execvpe(arguments[0], arguments, environment)  # noqa: S606 - an argument list, without a shell
        except OSError as error:
            os.write(failure_write, b"%d" % (error.errno or 0))
        finally:
            os._exit(127)
    os.close(failure_write)
    failure = os.read(failure_read, 16)
    os.close(failure_read)
    if failure:
        os.waitpid(child, 0)
        raise OSError(int(failure), os.strerror(int(failure)))
    return child


def descendants(ancestor: int) -> list[int]:
    """Process ids of everything below `ancestor`, from /proc (proc(5): field 4 of stat is the parent)."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - pathlib costs as much start-up as all else here
        if name.isdecimal():
            try:
                descriptor = os.open(f"/proc/{name}/stat", os.O_RDONLY)
            except OSError:
                continue  # it ended meanwhile
            try:
                fields = os.read(descriptor, 1024).rpartition(b")")[2].split()
            except OSError:
                continue
            finally:
                os.close(descriptor)
            if len(fields) > 1:  # zombies too: other threads of theirs may still run
                children.setdefault(int(fields[1]), []).append(int(name))
    found: list[int] = []
    waiting = [ancestor]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def signal_all(number: int) -> int:
    """Send a signal to every descendant; returns how many there were."""
    below = descendants(os.getpid())
    for process in below:
        send(process, number)
    return len(below)


def send(process: int, number: int) -> None:
    try:
        os.kill(process, number)
    except OSError:
        return  # it ended meanwhile, or belongs to another user


def supervise(control: int, status: int, child: int) -> None:
    """Until no descendant is left: reap, obey `control`, and kill what outlives the program."""
    try:
        watched = [control, os.pidfd_open(child)]
        idle = IDLE_SECONDS
    except OSError:  # a kernel before 5.3, or a sandbox without pidfd_open
        watched = [control]
        idle = BUSY_SECONDS
    code: int | None = None
    leftovers = 0
    kill_at: float | None = None  # of time.monotonic()
    pause = BUSY_SECONDS
    while True:
        try:
            while True:
                process, wait_status = os.waitpid(-1, os.WNOHANG)
                if process == 0:
                    break
                if process == child:
                    code = os.waitstatus_to_exitcode(wait_status)
                    watched = watched[:1]
        except ChildProcessError:
            break  # nothing is left
        if code is not None and kill_at is None:
            leftovers = signal_all(SIGTERM)
            kill_at = time.monotonic() + LEFTOVER_SECONDS
        if kill_at is not None and time.monotonic() >= kill_at:
            signal_all(SIGKILL)
            pause = min(2 * pause, 0.5)  # a process in an uninterruptible sleep may take long
        ready = select.select(watched, [], [], idle if code is None and kill_at is None else pause)[0]
        if control in ready:
            letters = os.read(control, 64)
            if not letters or b"K" in letters:
                signal_all(SIGKILL)
                kill_at = 0.0
                if not letters:
                    watched = [descriptor for descriptor in watched if descriptor != control]
            elif b"T" in letters:
                signal_all(SIGTERM)
    tell(status, f"exited {code} {leftovers}")


def tell(status: int, line: str) -> None:
    try:
        os.write(status, line.encode() + b"\n")
    except BrokenPipeError:
        return  # crossgrade is gone; the work here was to leave nothing behind


def main() -> None:
    control, status = int(sys.argv[-2]), int(sys.argv[-1])
    os.set_inheritable(control, False)
    os.set_inheritable(status, False)
    order = read_order(control)
    if order is None:
        return
    libc = ctypes.CDLL(None)
    libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    libc.signal.restype = ctypes.c_void_p
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        child = start(libc, *order)
    except OSError as error:
        tell(status, f"failed {error.errno}")
        return
    # The program's standard streams end with the program, not with its supervisor.
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    tell(status, f"started {child}")
    supervise(control, status, child)
    os._exit(0)  # nothing is buffered; the interpreter's own end would take 4 ms more
