"""Running crossgrade as a user does: the installed program, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]
PROGRAM = Path(sys.executable).parent / "crossgrade"
REHEARSAL = CHECKOUT / "playbooks" / "rehearsal.yml"


@dataclass(frozen=True)
class Answer:
    """What a command said. `events` are the JSON lines of stdout, when it was asked for them."""

    code: int
    stdout: str
    stderr: str

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stdout.splitlines()]

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == kind]

    @property
    def ended(self) -> dict[str, Any]:
        return self.of_kind("run_ended")[-1]

    @property
    def recap(self) -> dict[str, Any]:
        return self.of_kind("recap")[-1]

    def result(self, name: str) -> dict[str, Any]:
        """The result of the task with this name."""
        return next(event for event in self.of_kind("task_result") if event["name"] == name)


def crossgrade(
    *arguments: str | Path, cwd: Path | None = None, environment: Mapping[str, str] | None = None, timeout: float = 500
) -> Answer:
    """Run the program without a terminal. The time limit is in seconds."""
    argv: Sequence[str] = [str(PROGRAM), *map(str, arguments)]
    completed = subprocess.run(
        argv,
        cwd=cwd,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        start_new_session=True,  # a fault test kills the whole process group
    )
    return Answer(completed.returncode, completed.stdout, completed.stderr)


def snapshot(root: Path) -> dict[str, tuple[int, int, int, str]]:
    """Every entry below root with mode, size, mtime and link target: equal means that nothing was touched."""
    found = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        target = str(path.readlink()) if path.is_symlink() else ""
        found[str(path.relative_to(root))] = (status.st_mode, status.st_size, status.st_mtime_ns, target)
    return found


def processes_below(folder: Path) -> list[str]:
    """Command lines of processes that were started from this folder or name it."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if str(folder) in line:
                found.append(f"{entry.name}: {line}")
    return found
