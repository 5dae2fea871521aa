"""ansible-playbook and crossgrade, as programs that answer a command line: in processes of their own, or warm.

Warm, each is forked from a process that has imported it already (`forking_server.py`), and so is the Python that
ansible-core runs its modules with (`warm_python.py`): a small playbook then takes a tenth of the time. What the two
programs do is the same; the tests that use them run a playbook in processes of its own as well.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Protocol

from tests.support.commands import PROGRAM, Answer
from tests.support.warm_python import write_client

HERE = Path(__file__).parent
SECONDS = 300.0  # for one command line
ANSIBLE = PROGRAM.with_name("ansible-playbook")


class Programs(Protocol):
    """Both programs. `python` is the one that ansible-core is to run its modules with."""

    python: Path

    def both(self, theirs: Asked, ours: Asked) -> tuple[Answer, Answer]:
        """What ansible-playbook answers to `theirs`, and crossgrade to `ours`."""


class Asked:
    """A command line without the program's name, the folder to run in, and the whole environment."""

    def __init__(self, argv: Sequence[str | Path], cwd: Path, environment: Mapping[str, str]) -> None:
        self.argv = [str(word) for word in argv]
        self.cwd = cwd
        self.environment = dict(environment)


class OwnProcesses:
    """Each command line starts the installed program, as a user does."""

    python = Path(sys.executable)

    def both(self, theirs: Asked, ours: Asked) -> tuple[Answer, Answer]:
        running = [
            subprocess.Popen(
                [str(program), *asked.argv],
                cwd=asked.cwd,
                env=asked.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for program, asked in ((ANSIBLE, theirs), (PROGRAM, ours))
        ]
        said = [process.communicate(timeout=SECONDS) for process in running]
        first, second = (Answer(process.returncode, *texts) for process, texts in zip(running, said, strict=True))
        return first, second


class _Server:
    """One `forking_server.py`, with the questions that wait for its answers."""

    def __init__(self, which: str, folder: Path, environment: Mapping[str, str], seconds: float) -> None:
        self._folder = folder
        self._seconds = seconds
        self._count = 0
        self._waiting: dict[int, Future[int | None]] = {}
        self._lock = threading.Lock()
        self._which = which
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "forking_server.py"), which],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=dict(environment),
            cwd=folder,
            text=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            self._waiting.pop(answer["id"]).set_result(answer["code"])
        for waiting in list(self._waiting.values()):
            waiting.set_exception(RuntimeError(f"the warm {self._which} has ended"))

    def ask(self, asked: Asked) -> tuple[Path, Future[int | None]]:
        """Start a command line; gives the file of its stdout (stderr: `.err`), and its exit code to be."""
        assert self._process.stdin is not None
        answer: Future[int | None] = Future()
        with self._lock:
            self._count += 1
            self._waiting[self._count] = answer
            output = self._folder / f"{self._which}-{self._count}"
            request = {"id": self._count, "argv": asked.argv, "cwd": str(asked.cwd), "environment": asked.environment}
            request |= {"output": str(output), "timeout": self._seconds}
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        return output, answer

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


class WarmPrograms:
    """Both programs, warm, inside `with`. `environment`: settings that ansible-core reads while it is imported.

    A command line may take `seconds`.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str], seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._folder = folder
        self._listens_at = folder / "python.socket"
        self.python = folder / "python"
        # Without it ansible-core writes each module to a file and starts two more shells for that.
        self._environment = {**environment, "ANSIBLE_PIPELINING": "1"}
        self._stack = ExitStack()

    def __enter__(self) -> WarmPrograms:
        python = subprocess.Popen(
            [sys.executable, str(HERE / "warm_python.py"), str(self._listens_at)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        write_client(self.python, self._listens_at)
        self._stack.callback(_end, python)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
        environment = {**kept, **self._environment}
        self._theirs = _Server("ansible", self._folder, environment, self._seconds)
        self._stack.callback(self._theirs.close)
        self._ours = _Server("crossgrade", self._folder, environment, self._seconds)
        self._stack.callback(self._ours.close)
        assert python.stdout is not None
        python.stdout.readline()  # it listens
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def both(self, theirs: Asked, ours: Asked) -> tuple[Answer, Answer]:
        theirs.environment |= self._environment
        waiting = [self._theirs.ask(theirs), self._ours.ask(ours)]
        first, second = (_answer(output, code.result(), self._seconds) for output, code in waiting)
        return first, second


def _answer(output: Path, code: int | None, seconds: float) -> Answer:
    said, errors = (Path(f"{output}{end}").read_text(encoding="utf-8", errors="replace") for end in ("", ".err"))
    assert code is not None, f"not at an end within {seconds:g} s: {said}"
    return Answer(code, said, errors)


def _end(python: subprocess.Popen[bytes]) -> None:
    assert python.stdin is not None
    assert python.stdout is not None
    python.stdin.close()
    python.wait(60)
    python.stdout.close()
