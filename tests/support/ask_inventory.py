"""Asks real ansible-core about inventories: `python ask_inventory.py QUESTIONS.json ANSWERS.json`.

A question is `{"sources": […], "folder": "…", "patterns": […], "limits": […]}`; the answer has the hosts in order, the
members of each group in order, each host's groups and variables, and the hosts that each pattern means, or `error`.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

MAGIC = {
    "ansible_facts",
    "ansible_playbook_python",
    "ansible_version",
    "environment",
    "group_names",
    "groups",
    "hostvars",
    "inventory_dir",
    "inventory_file",
    "inventory_hostname",
    "inventory_hostname_short",
    "omit",
    "playbook_dir",
    "vars",
}


def answer(question: dict[str, Any]) -> dict[str, Any]:
    loader = importlib.import_module("ansible.parsing.dataloader").DataLoader()
    loader.set_basedir(question["folder"])
    manager = importlib.import_module("ansible.inventory.manager").InventoryManager
    variable_manager = importlib.import_module("ansible.vars.manager").VariableManager
    inventory = manager(loader=loader, sources=question["sources"])
    variables = variable_manager(loader=loader, inventory=inventory)
    found: dict[str, Any] = {
        "hosts": [host.name for host in inventory.get_hosts("all")],
        "groups": {name: [host.name for host in group.get_hosts()] for name, group in inventory.groups.items()},
        "names": {},
        "variables": {},
        "patterns": {},
        "limits": {},
    }
    for host in inventory.get_hosts("all"):
        values = variables.get_vars(host=host, include_hostvars=False)
        found["names"][host.name] = list(values["group_names"])
        found["variables"][host.name] = {name: value for name, value in values.items() if name not in MAGIC}
    for pattern in question.get("patterns", ()):
        found["patterns"][json.dumps(pattern)] = _names(inventory, pattern)
    for limit in question.get("limits", ()):
        inventory.subset(limit)
        found["limits"][limit] = _names(inventory, "all")
        inventory.subset(None)
    return json.loads(json.dumps(found, default=str))  # type: ignore[no-any-return]  # a dict went in


def _names(inventory: Any, pattern: Any) -> list[str]:
    """What it says to a pattern that it refuses is not compared."""
    try:
        return [host.name for host in inventory.get_hosts(pattern)]
    except Exception:  # noqa: BLE001 - an error of Ansible's is an answer too
        return []


def main(questions: str, answers: str) -> None:
    importlib.import_module("ansible.plugins.loader").init_plugin_loader()
    found = [answer(question) for question in json.loads(Path(questions).read_text(encoding="utf-8"))]
    Path(answers).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
