"""`run_process` and `start_process` with real programs, real daemons and real kills."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from crossgrade.errors import ExitCode
from crossgrade.process import Completed, StartError, run_process, start_process

ENVIRONMENT = dict(os.environ)

# A child, a grandchild in a session of its own that ignores SIGTERM, and a daemon whose parent is gone. Each
# is a `sleep` whose argument is the test's own number of seconds, by which it is found in /proc.
FAMILY = """
import os, signal, subprocess, sys, time
seconds = sys.argv[1]
stubborn = "import signal as s, sys, time; s.signal(s.SIGTERM, s.SIG_IGN); time.sleep(float(sys.argv[1]))"
subprocess.Popen([sys.executable, "-c", stubborn, seconds], start_new_session=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execvp("sleep", ["sleep", seconds])
    os._exit(0)
os.wait()
time.sleep(0.2)
print("family complete", flush=True)
if len(sys.argv) > 2:
    sys.exit(int(sys.argv[2]))
time.sleep(float(seconds))
"""

PARENT = """
import os, sys
from pathlib import Path
from crossgrade.process import run_process, start_process
kind, script, seconds, log = sys.argv[1:]
argv = [sys.executable, "-c", script, seconds]
if kind == "run":
    run_process(argv, env=dict(os.environ), log=Path(log))
else:
    with start_process(argv, env=dict(os.environ), log=Path(log)) as server:
        server.wait(None)
"""


def unique_seconds() -> str:
    """A number of seconds that no other process on the machine sleeps for."""
    return f"1234.{os.getpid()}{time.monotonic_ns()}"


def with_argument(argument: str) -> list[int]:
    """Process ids of the live processes that have this argument."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                arguments = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if argument.encode() in arguments:
                found.append(int(entry.name))
    return found


def eventually(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def python(code: str, *arguments: str, **options: object) -> Completed:
    return run_process([sys.executable, "-c", code, *arguments], env=ENVIRONMENT, **options)  # type: ignore[arg-type]  # passed through


def test_output_return_code_and_input() -> None:
    code = "import sys; t = sys.stdin.read(); print(t.upper()); print('oops', file=sys.stderr); sys.exit(3)"
    completed = python(code, input="grün " * 100_000)
    assert completed.returncode == 3
    assert completed.stdout == "GRÜN " * 100_000 + "\n"
    assert completed.stderr == "oops\n"
    assert completed.outcome() == "exit code 3"
    assert not completed.succeeded
    assert completed.seconds > 0


def test_without_input_standard_input_is_empty() -> None:
    assert python("import sys; print(repr(sys.stdin.read()))").stdout == "''\n"


def test_a_program_that_does_not_read_its_input() -> None:
    assert python("pass", input="x" * 1_000_000).returncode == 0


def test_environment_and_directory_are_exactly_those_given(tmp_path: Path) -> None:
    completed = run_process(["/usr/bin/env"], env={"ONLY": "this=one\nhere", "LD_LIBRARY_PATH": "/x"})
    assert completed.stdout == "ONLY=this=one\nhere\nLD_LIBRARY_PATH=/x\n"
    assert run_process(["pwd"], env={"PATH": "/usr/bin:/bin"}, cwd=tmp_path).stdout == f"{tmp_path}\n"
    assert run_process(["pwd"], env={"PATH": "/usr/bin:/bin"}).stdout == f"{Path.cwd()}\n"


def test_the_path_is_the_one_of_the_environment_given(tmp_path: Path) -> None:
    program = tmp_path / "greet"
    program.write_text("#!/bin/sh\necho hello\n")
    program.chmod(0o755)
    assert run_process(["greet"], env={"PATH": str(tmp_path)}).stdout == "hello\n"


def test_bytes_that_are_no_text_are_replaced_and_split_characters_are_not() -> None:
    code = (
        "import os, time\n"
        "for part in (b'a\\xff', b'\\xc3', b'\\xbc\\r\\n', b'last'):\n"
        "    os.write(1, part); time.sleep(0.05)"
    )
    lines: list[str] = []
    completed = python(code, on_line=lines.append)
    assert completed.stdout == "a\ufffdü\r\nlast"
    assert lines == ["a\ufffdü", "last"]


def test_lines_of_both_streams_arrive_while_the_program_runs() -> None:
    code = (
        "import sys, time\n"
        "print('one', flush=True); time.sleep(0.3)\n"
        "print('two', file=sys.stderr, flush=True); time.sleep(0.3)"
    )
    arrived: list[tuple[str, float]] = []
    completed = python(code, on_line=lambda line: arrived.append((line, time.monotonic())))
    end = time.monotonic()
    assert [line for line, _ in arrived] == ["one", "two"]
    assert end - arrived[0][1] > 0.5
    assert (completed.stdout, completed.stderr) == ("one\n", "two\n")


def test_much_output_on_both_streams_neither_blocks_nor_is_lost(tmp_path: Path) -> None:
    code = (
        "import sys\nfor i in range(20000):\n    sys.stdout.write('o' * 50 + '\\n'); sys.stderr.write('e' * 50 + '\\n')"
    )
    log = tmp_path / "log"
    log.write_text("before\n")
    completed = python(code, log=log)
    assert completed.stdout == ("o" * 50 + "\n") * 20000
    assert completed.stderr == ("e" * 50 + "\n") * 20000
    written = log.read_text()
    assert written.startswith("before\n")
    assert len(written) == 7 + 2 * 51 * 20000


def test_an_environment_larger_than_a_pipe() -> None:
    big = {f"V{i}": "x" * 1000 for i in range(300)}
    assert len(run_process(["/usr/bin/env"], env=big).stdout) > 300_000


def test_the_time_limit_stops_the_whole_family() -> None:
    seconds = unique_seconds()
    started = time.monotonic()
    completed = python(FAMILY, seconds, timeout=1.5, grace=0.3)
    assert completed.timed_out
    assert completed.stdout == "family complete\n"
    assert completed.outcome().startswith("stopped after 2 s")
    assert time.monotonic() - started < 5
    assert with_argument(seconds) == []


def test_a_program_that_minds_sigterm_ends_in_its_own_way() -> None:
    code = (
        "import signal, sys, time\n"
        "def end(*_):\n"
        "    print('tidied', flush=True); sys.exit(7)\n"
        "signal.signal(signal.SIGTERM, end); print('ready', flush=True); time.sleep(60)"
    )
    completed = python(code, timeout=1.0)
    assert completed.timed_out
    assert completed.returncode == 7
    assert completed.stdout == "ready\ntidied\n"


def test_what_a_program_leaves_behind_is_stopped() -> None:
    seconds = unique_seconds()
    completed = python(FAMILY, seconds, "5")
    assert completed.returncode == 5
    assert completed.leftovers == 2
    assert with_argument(seconds) == []


def test_an_exception_in_the_listener_stops_the_program() -> None:
    seconds = unique_seconds()

    def refuse(line: str) -> None:
        raise ValueError(line)

    with pytest.raises(ValueError, match="family complete"):
        python(FAMILY, seconds, on_line=refuse, grace=0.2)
    assert with_argument(seconds) == []


def test_ctrl_c_stops_the_program() -> None:
    seconds = unique_seconds()
    main = threading.main_thread().ident
    assert main is not None
    timer = threading.Timer(0.8, signal.pthread_kill, (main, signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        python(FAMILY, seconds, grace=0.2)
    timer.join()
    assert with_argument(seconds) == []


@pytest.mark.parametrize("kind", ["run", "start"])
def test_kill_9_of_crossgrade_leaves_no_descendant(kind: str, tmp_path: Path) -> None:
    seconds = unique_seconds()
    log = tmp_path / "log"
    parent = subprocess.Popen([sys.executable, "-c", PARENT, kind, FAMILY, seconds, str(log)])
    try:
        assert eventually(lambda: log.exists() and "family complete" in log.read_text())
        family = with_argument(seconds)
        assert len(family) == 4  # the parent itself, the child, the stubborn grandchild, the daemon
    finally:
        parent.kill()
        parent.wait()
    assert eventually(lambda: with_argument(seconds) == [], 5.0)


def test_kill_9_of_the_supervisor_leaves_no_child(tmp_path: Path) -> None:
    seconds = unique_seconds()
    with start_process(["sleep", seconds], env=ENVIRONMENT, log=tmp_path / "log") as running:
        status = Path(f"/proc/{running.pid}/stat").read_text()
        os.kill(int(status.rpartition(")")[2].split()[1]), signal.SIGKILL)
        assert running.wait(5.0) == -signal.SIGKILL
    assert eventually(lambda: with_argument(seconds) == [])


def test_a_fatal_signal_is_named() -> None:
    completed = python("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert completed.returncode == -signal.SIGSEGV
    assert completed.outcome() == "killed by SIGSEGV"


def test_the_program_has_default_signal_actions_and_no_descriptor_of_ours(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w") as lock:
        os.set_inheritable(lock.fileno(), True)
        completed = run_process(["sh", "-c", "ls -l /proc/$$/fd; grep SigIgn /proc/$$/status"], env=ENVIRONMENT)
    assert str(tmp_path) not in completed.stdout
    descriptors = [line for line in completed.stdout.splitlines() if "->" in line]
    assert len([line for line in descriptors if "pipe:" in line]) == 2
    assert "SigIgn:\t0000000000000000" in completed.stdout


@pytest.mark.parametrize("argv", [["no-such-program-here"], ["/etc/passwd"], ["nul\0"], []])
def test_a_program_that_cannot_be_started(argv: list[str]) -> None:
    with pytest.raises(StartError, match="cannot start") as caught:
        run_process(argv, env=ENVIRONMENT)
    assert caught.value.exit_code == ExitCode.FAILED


def test_a_directory_that_does_not_exist_is_named() -> None:
    with pytest.raises(StartError, match="in /no/such/directory"):
        run_process(["true"], env=ENVIRONMENT, cwd=Path("/no/such/directory"))


def test_a_running_process(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = "import time\nfor i in range(50): print(i, flush=True)\ntime.sleep(60)"
    with start_process([sys.executable, "-c", code], env=ENVIRONMENT, log=log) as running:
        assert running.poll() is None
        assert eventually(lambda: running.tail(2) == ("48", "49"))
        assert running.pid in running.members()
        assert running.terminate(grace=2.0) == -signal.SIGTERM
        assert running.terminate() == -signal.SIGTERM
        assert running.members() == ()
    assert not Path(f"/proc/{running.pid}").exists()


def test_a_running_process_that_ends_by_itself(tmp_path: Path) -> None:
    with start_process(["sh", "-c", "exit 4"], env=ENVIRONMENT, log=tmp_path / "log") as running:
        assert running.wait(10.0) == 4
        assert running.poll() == 4


def test_leaving_the_block_stops_the_whole_family(tmp_path: Path) -> None:
    seconds = unique_seconds()
    log = tmp_path / "log"
    with start_process([sys.executable, "-c", FAMILY, seconds], env=ENVIRONMENT, log=log) as running:
        assert eventually(lambda: running.tail() == ("family complete",))
        assert len(with_argument(seconds)) == 3
        running.terminate(grace=0.2)
    assert with_argument(seconds) == []
