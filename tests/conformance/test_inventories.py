"""Inventories, variables of groups and hosts, patterns and limits: what real ansible-core makes of them, we make."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.inventories import CASES, Case, random_case

from crossgrade.errors import CrossgradeError
from crossgrade.playbook.inventory import Inventory, load_inventory

ASK = Path(__file__).parents[1] / "support" / "ask_inventory.py"
RANDOM = 60
ANY_ORDER = ("order", "YAML", "INI")
Question = dict[str, Any]


def _write(case: Case, folder: Path) -> Question:
    for name, text in case.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    (folder / case.playbook).mkdir(parents=True, exist_ok=True)
    return {
        "sources": [source if "," in source else str(folder / source) for source in case.sources],
        "folder": str(folder / case.playbook),
        "patterns": case.patterns,
        "limits": case.limits,
    }


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Question, Any]]:
    """Every question and Ansible's answer, from one process."""
    folder = tmp_path_factory.mktemp("inventories")
    cases = {**CASES, **{f"random {seed}": random_case(seed) for seed in range(RANDOM)}}
    questions = {name: _write(case, folder / str(at)) for at, (name, case) in enumerate(cases.items())}
    (folder / "questions").write_text(json.dumps(list(questions.values())), encoding="utf-8")
    argv = [sys.executable, str(ASK), str(folder / "questions"), str(folder / "answers")]
    subprocess.run(argv, check=True, capture_output=True, env={**os.environ, "PYTHONHASHSEED": "0"})
    answers = json.loads((folder / "answers").read_text(encoding="utf-8"))
    return {name: (question, answer) for (name, question), answer in zip(questions.items(), answers, strict=True)}


def _ours(question: Question) -> dict[str, Any]:
    inventory = load_inventory(question["sources"], Path(question["folder"]))
    variables = {host.name: inventory.scope(host).flatten() for host in inventory.hosts}
    return {
        "hosts": [host.name for host in inventory.hosts],
        "groups": {name: list(members) for name, members in inventory.groups.items()},
        "names": {host.name: sorted(host.groups) for host in inventory.hosts},
        "variables": json.loads(json.dumps(variables)),
        "patterns": {json.dumps(pattern): _names(inventory, pattern) for pattern in question["patterns"]},
        "limits": {limit: _names(inventory, "all", limit) for limit in question["limits"]},
    }


def _names(inventory: Inventory, pattern: str | list[str], limit: str | None = None) -> list[str]:
    """A pattern that means nothing is a warning there and an error here, on purpose: it is a mistake of spelling."""
    try:
        return [host.name for host in inventory.select(pattern, limit)]
    except CrossgradeError as error:
        assert "no host or group matches" in str(error)  # noqa: PT017 - and nothing else
        return []


@pytest.mark.parametrize("name", [*CASES, *(f"random {seed}" for seed in range(RANDOM))])
def test_as_ansible_reads_it(asked: dict[str, tuple[Question, Any]], name: str) -> None:
    question, answer = asked[name]
    assert answer["hosts"], "Ansible itself could not read this"
    for values in answer["variables"].values():
        values.pop("ansible_config_file", None)
    ours = _ours(question)
    by_chance = name in ANY_ORDER or name.startswith("random ")
    for part in ours:
        assert _unordered(ours[part], by_chance) == _unordered(answer[part], by_chance), part


def _unordered(found: Any, by_chance: bool) -> Any:
    """Ansible holds the groups of one level in a set: between them its order changes from run to run, ours does not."""
    if not by_chance or (isinstance(found, dict) and any(isinstance(value, dict) for value in found.values())):
        return found
    return sorted(found) if isinstance(found, list) else {name: sorted(names) for name, names in found.items()}
