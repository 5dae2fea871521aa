"""Hundreds of expressions of each kind, worked out by real ansible-core and by crossgrade: values, types and errors.

The expressions lie in `expression_lists/*.yml`, with the differences that are on purpose.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.conformance.expressions import VARIABLES
from tests.conformance.test_expressions import same

from crossgrade.playbook.templating import Templar, TemplateError
from crossgrade.playbook.variables import OMIT, Precedence, Scope

FOLDER = Path(__file__).parent / "expression_lists"
ERROR = "an error"
ENVIRONMENT = {**os.environ, "CONFORMANCE": "from the environment", "LC_ALL": "C.UTF-8"}


def answers_of_ansible(directory: Path, asked: dict[str, Any]) -> dict[str, list[Any]]:
    questions, answers = directory / "questions.yml", directory / "answers.json"
    questions.write_text(yaml.safe_dump(asked, sort_keys=False, allow_unicode=True), encoding="utf-8")
    program = Path(__file__).parents[1] / "support" / "ask_ansible.py"
    run = subprocess.run(
        [sys.executable, str(program), str(questions), str(answers)],
        env={**ENVIRONMENT, "ANSIBLE_HOME": str(directory / "home")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    found = json.loads(answers.read_text(encoding="utf-8"))
    return {kind: [answer.get("value", ERROR) for answer in several] for kind, several in found.items()}


def our_answer(work: Callable[[Any], Any], question: Any) -> Any:
    try:
        value = work(question)
    except TemplateError:
        return ERROR
    return ERROR if value is OMIT else json.loads(json.dumps(value, default=str))


@pytest.mark.parametrize("kind", sorted(path.stem for path in FOLDER.glob("*.yml")))
def test_expressions_of_one_kind(kind: str, tmp_path: Path) -> None:
    asked = yaml.safe_load((FOLDER / f"{kind}.yml").read_text(encoding="utf-8"))
    for name, text in asked["files"].items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    variables = {**VARIABLES, **asked["variables"]}
    nothing: dict[str, list[Any]] = {"short_forms": [], "inventories": [], "arguments": []}
    questions = {"variables": variables, "values": asked["values"], "conditions": asked["conditions"], **nothing}
    theirs = answers_of_ansible(tmp_path, questions)
    scope = Scope().with_layer(Precedence.MAGIC, {"ansible_check_mode": False}, templated=False)
    templar = Templar(scope.with_layer(Precedence.PLAY_VARS, variables), directory=tmp_path, environment=ENVIRONMENT)
    pairs = [
        (f"{before}{question}", their_answer, our_answer(work, question))
        for key, before, work in (
            ("values", "", templar.template),
            ("conditions", "when: ", templar.evaluate_condition),
        )
        for question, their_answer in zip(asked[key], theirs[key], strict=True)
    ]
    differences = asked["differences"]
    wrong = [
        f"{text!r}: Ansible {their_answer!r}, crossgrade {ours!r}"
        for text, their_answer, ours in pairs
        if not same(their_answer, ours) and text not in differences
    ]
    assert not wrong, "\n".join(wrong)
    stale = set(differences) - {text for text, their_answer, ours in pairs if not same(their_answer, ours)}
    assert not stale, f"listed as different on purpose, but the same: {stale}"
