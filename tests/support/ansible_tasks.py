"""Runs tasks with real ansible-core, many in one process, so that crossgrade's modules can be compared with it.

    results = run_with_ansible([{"copy": {"content": "x", "dest": "/tmp/x"}}], tmp_path)
    results = run_ansible_modules([("lineinfile", {"path": "/tmp/x", "line": "y"})], tmp_path)

The first is `ansible-playbook` (a quarter of a second for a task), the second the modules alone (some ms). Each task
runs on this machine whatever became of the one before; its result is the value that `register` sees.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ANSIBLE = Path(sys.executable).parent / "ansible-playbook"
MODULES = Path(__file__).parent / "ask_ansible_modules.py"


def run_with_ansible(tasks: Sequence[Mapping[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """The result of each task, in their order. `folder` holds the playbook, and so `files/` and `templates/`."""
    results = folder / "results.json"
    names = [f"result_{number}" for number in range(len(tasks))]
    noted = [{**task, "register": name, "ignore_errors": True} for task, name in zip(tasks, names, strict=True)]
    written = {"copy": {"content": "{{ [" + ", ".join(names) + "] | to_json }}", "dest": str(results)}, "no_log": True}
    play = {"hosts": "localhost", "gather_facts": False, "tasks": [*noted, written]}
    playbook = folder / "playbook.yml"
    playbook.write_text(json.dumps([play]), encoding="utf-8")
    home = folder / "ansible-home"
    home.mkdir(exist_ok=True)
    completed = subprocess.run(
        [
            *(str(ANSIBLE), "-i", "localhost,", "-c", "local", "--diff", str(playbook)),
            *("-e", f"ansible_python_interpreter={sys.executable}"),
        ],
        env={
            **os.environ,
            "ANSIBLE_HOME": str(home),
            "ANSIBLE_LOCALHOST_WARNING": "false",
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_PIPELINING": "1",
            "LC_ALL": "C.UTF-8",
        },
        cwd=folder,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return _read(results)


def run_ansible_modules(tasks: Sequence[tuple[str, Mapping[str, Any]]], folder: Path) -> list[dict[str, Any]]:
    """The result of each module, in their order."""
    asked, results = folder / "tasks.json", folder / "results.json"
    asked.write_text(json.dumps(tasks), encoding="utf-8")
    subprocess.run(
        [sys.executable, str(MODULES), str(asked), str(results)],
        env={**os.environ, "LC_ALL": "C.UTF-8"},
        cwd=folder,
        check=True,
    )
    return _read(results)


def _read(results: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(results.read_text(encoding="utf-8"))
    return found
