"""The playbooks of the differential suite, read from `playbooks/*.yml`.

A file is one case. Comments at its head say what it is about and how it is run:

    # about: which keyword or module, and what of it
    # options: --tags a -e x=1          given to both programs
    # files: tasks/one.yml              (none is needed for what follows in the file itself)

Further documents of the file (`--- # file: tasks/more.yml`) are the files beside the playbook. Inventories that are not
YAML lie in `playbooks/inventories`, which every case sees as `inventories/`.
"""

from __future__ import annotations

import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from tests.support.both_ways import Case

HERE = Path(__file__).parent
PLAYBOOKS = HERE / "playbooks"
_SPLIT = re.compile(r"^--- # file: (\S+)\n", re.MULTILINE)


def read_case(path: Path) -> Case:
    """The case in a file."""
    playbook, *rest = _SPLIT.split(path.read_text(encoding="utf-8"))
    head = dict(re.findall(r"^# (\w+): (.*)$", playbook, re.MULTILINE))
    files = dict(zip(rest[::2], rest[1::2], strict=True))
    return Case(path.stem, playbook, head.get("about", ""), tuple(shlex.split(head.get("options", ""))), files)


@cache
def all_cases() -> dict[str, Case]:
    """Every case by its name, in the order of the names."""
    inventories = {f"inventories/{one.name}": one.read_text() for one in (PLAYBOOKS / "inventories").iterdir()}
    cases = [read_case(path) for path in sorted(PLAYBOOKS.glob("*.yml"))]
    return {
        case.name: Case(case.name, case.playbook, case.about, case.options, {**inventories, **case.files})
        if any("inventories/" in option for option in case.options)
        else case
        for case in cases
    }


def table(name: str) -> dict[str, Any]:
    """One of the data tables beside this file."""
    found: dict[str, Any] = yaml.safe_load((HERE / name).read_text(encoding="utf-8")) or {}
    return found
