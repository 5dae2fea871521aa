"""Answers questions with real ansible-core: `python ask_ansible.py QUESTIONS.yml ANSWERS.json`.

The questions hold `variables`, `values`, `conditions` and `arguments`; each answer is what Ansible's own
templating engine or argument validator gives, or `error: …`.
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

    found = {
        "values": [_answer(partial(templar.template, value)) for value in asked["values"]],
        "conditions": [_answer(partial(templar.evaluate_conditional, one)) for one in asked["conditions"]],
        "arguments": [_answer(partial(check_argument, spec, value)) for spec, value in asked["arguments"]],
    }
    Path(answers).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
