"""Answers questions with real ansible-core: `python ask_ansible.py QUESTIONS.yml ANSWERS.json`.

The questions hold `variables`, `values`, `conditions`, `arguments` and so on; each answer is what
Ansible's own templating engine, argument validator, inventory and so on give, or `error: …`.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any


def _answer(work: Callable[[], Any]) -> Any:
    try:
        value = work()
        return {"value": json.loads(json.dumps(value, default=str))}
    except Exception as error:  # noqa: BLE001 - any error of Ansible's is an answer
        return {"error": f"{type(error).__name__}: {error}"}


def main(questions: str, answers: str) -> None:
    loader = importlib.import_module("ansible.parsing.dataloader").DataLoader()
    loader.set_basedir(str(Path(questions).parent))
    asked = loader.load_from_file(questions, trusted_as_template=True)
    importlib.import_module("ansible.plugins.loader").init_plugin_loader()
    templar = importlib.import_module("ansible.template").Templar(loader=loader, variables=asked["variables"])
    validator = importlib.import_module("ansible.module_utils.common.arg_spec").ArgumentSpecValidator

    def check_argument(spec: dict[str, Any], value: Any) -> Any:
        result = validator({"x": spec}).validate({"x": value})
        if result.error_messages:
            raise ValueError("; ".join(result.error_messages))
        return result.validated_parameters["x"]

    parse_kv = importlib.import_module("ansible.parsing.splitter").parse_kv
    manager = importlib.import_module("ansible.inventory.manager").InventoryManager
    variable_manager = importlib.import_module("ansible.vars.manager").VariableManager

    def read_inventory(sources: list[str], patterns: list[str]) -> Any:
        inventory = manager(loader=loader, sources=sources)
        variables = variable_manager(loader=loader, inventory=inventory)
        hosts = inventory.get_hosts("all")
        return {
            "patterns": [sorted(host.name for host in inventory.get_hosts(pattern)) for pattern in patterns],
            "variables": {host.name: variables.get_vars(host=host, include_hostvars=False) for host in hosts},
        }

    found = {
        "values": [_answer(partial(templar.template, value)) for value in asked["values"]],
        "conditions": [_answer(partial(templar.evaluate_conditional, one)) for one in asked["conditions"]],
        "short_forms": [_answer(partial(parse_kv, text, check_raw=raw)) for text, raw in asked["short_forms"]],
        "inventories": [_answer(partial(read_inventory, *one)) for one in asked["inventories"]],
        "arguments": [_answer(partial(check_argument, spec, value)) for spec, value in asked["arguments"]],
    }
    Path(answers).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
