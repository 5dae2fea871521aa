"""Runs ansible-core's own modules, each in a fork: `python ask_ansible_modules.py TASKS.json RESULTS.json`.

The tasks are pairs of a module's name and its arguments. What ansible-playbook adds for a task (200 ms, and for some
modules an action on the controller) is left out, so that hundreds can be compared in a moment.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any


def _run(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    module = importlib.import_module(f"ansible.modules.{name}")
    basic = importlib.import_module("ansible.module_utils.basic")
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if child == 0:
            try:
                os.dup2(output.fileno(), 1)
                told = {"_ansible_diff": True, "_ansible_remote_tmp": tempfile.gettempdir(), **arguments}
                basic._ANSIBLE_ARGS = json.dumps({"ANSIBLE_MODULE_ARGS": told}).encode()  # type: ignore[attr-defined]
                basic._ANSIBLE_PROFILE = "legacy"  # type: ignore[attr-defined]
                try:
                    module.main()
                except SystemExit:
                    pass
                except BaseException as error:  # noqa: BLE001 - any error of a module is its failure
                    sys.stdout.write(json.dumps({"failed": True, "msg": repr(error)}))
                sys.stdout.flush()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        output.seek(0)
        text = output.read().decode()
    found: dict[str, Any] = json.loads(text.strip().splitlines()[-1])
    return found


def main(tasks: str, results: str) -> None:
    found = [_run(name, arguments) for name, arguments in json.loads(Path(tasks).read_text(encoding="utf-8"))]
    Path(results).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
