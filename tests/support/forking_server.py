"""Runs many command lines from one warm process: `python forking_server.py ansible|crossgrade`.

Importing ansible-core costs more than a small playbook takes. So one process imports it once and forks for each
playbook; the child has its own working directory, environment, output files and exit code, as a new process would.

A request is one JSON line on stdin (`argv`, `cwd`, `environment`, `output`: a path that gets stdout, and stderr in
`output`.err, and `timeout` in seconds); the answer is one JSON line with the exit code, which is None after the time
limit. Requests run at once, in any number, and answers carry the request's `id`.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pkgutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

_ANSIBLE = (
    *("ansible.cli.playbook", "ansible.executor.playbook_executor", "ansible.executor.task_queue_manager"),
    *("ansible.executor.module_common", "ansible.plugins.connection.local", "ansible.plugins.shell.sh"),
    *("ansible.plugins.strategy.linear", "ansible.plugins.callback", "ansible.inventory.manager"),
    *("ansible.module_utils.basic", "ansible.playbook.role", "ansible.playbook.role_include"),
    *("ansible.plugins.filter.core", "ansible.plugins.filter.mathstuff", "ansible.plugins.test.core"),
    *("ansible.plugins.action.command", "ansible.plugins.action.copy", "ansible.plugins.action.template"),
)


def _all_modules_of(package: str) -> list[str]:
    found = importlib.import_module(package)
    return [one.name for one in pkgutil.walk_packages(found.__path__, f"{package}.")]


def _load(which: str) -> Callable[[Sequence[str]], object]:
    """Import everything that a run needs, and return the program's own entry point."""
    if which == "ansible":
        for name in _ANSIBLE:
            importlib.import_module(name)
        main: Any = importlib.import_module("ansible.cli.playbook").main
        return lambda argv: main(["ansible-playbook", *argv])
    for name in _all_modules_of("crossgrade"):
        if not name.endswith("__main__"):
            importlib.import_module(name)
    ours: Any = importlib.import_module("crossgrade.cli").main
    return lambda argv: ours(["crossgrade", *argv])


def _in_child(main: Callable[[Sequence[str]], object], request: dict[str, Any]) -> int:
    """What the forked child does; returns its exit code."""
    os.setsid()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    for descriptor, path in ((1, request["output"]), (2, request["output"] + ".err")):
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(opened, descriptor)
        os.close(opened)
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    try:
        sys.argv = ["ansible-playbook", *request["argv"]]
        main(request["argv"])
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # noqa: BLE001 - a new process would print it and exit with 1
        traceback.print_exc()
        return 1
    return 0


def _wait(pid: int, timeout: float) -> int | None:
    limit = time.monotonic() + timeout
    pause = 0.002
    while time.monotonic() < limit:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(pause)
        pause = min(0.02, pause * 1.3)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def serve(which: str) -> None:
    main = _load(which)
    answers = threading.Lock()

    def answer(request: dict[str, Any], pid: int) -> None:
        code = _wait(pid, request["timeout"])
        with answers:
            sys.stdout.write(json.dumps({"id": request["id"], "code": code}) + "\n")
            sys.stdout.flush()

    for line in sys.stdin:
        request = json.loads(line)
        with answers:  # a child must not be forked while another thread holds stdout
            pid = os.fork()
        if pid == 0:
            code = 1
            try:
                code = _in_child(main, request)
            finally:
                with contextlib.suppress(OSError, ValueError):
                    sys.stdout.flush()
                    sys.stderr.flush()
                os._exit(code)  # nothing of the server's own may run at the child's end
        threading.Thread(target=answer, args=(request, pid), daemon=True).start()


if __name__ == "__main__":
    serve(sys.argv[1])
