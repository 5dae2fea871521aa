"""The same templates, conditions, arguments and inventories, worked out by real ansible-core and by crossgrade."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from types import GenericAlias
from typing import Any, Literal

import pytest
import yaml
from tests.conformance.expressions import CONDITIONS, DIFFERENCES, VALUES, VARIABLES
from tests.conformance.inputs import ARGUMENTS, INVENTORY_FILES, PATTERNS, SHORT_FORMS

from crossgrade.errors import PlaybookError, WrongOptionsError
from crossgrade.playbook.arguments import argument, parse_arguments
from crossgrade.playbook.freeform import split_pairs
from crossgrade.playbook.inventory import load_inventory
from crossgrade.playbook.templating import Templar, TemplateError
from crossgrade.playbook.variables import OMIT, Precedence, Scope

ERROR = "an error"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("conformance")
    for name, text in INVENTORY_FILES.items():
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text(text, encoding="utf-8")
    (made / "some.txt").write_text("a line\n", encoding="utf-8")
    return made


def _sources(directory: Path) -> list[list[str]]:
    ini, yml = str(directory / "hosts.ini"), str(directory / "hosts.yml")
    return [[ini], [yml], [ini, yml], ["h1,h2:2222,"]]


@pytest.fixture(scope="module")
def ansible(directory: Path) -> dict[str, list[Any]]:
    """Ansible's answers, of one process."""
    questions, answers = directory / "questions.yml", directory / "answers.json"
    asked = {
        "variables": VARIABLES,
        "values": VALUES,
        "conditions": CONDITIONS,
        "arguments": ARGUMENTS,
        "short_forms": SHORT_FORMS,
        "inventories": [[sources, PATTERNS] for sources in _sources(directory)],
    }
    questions.write_text(yaml.safe_dump(asked, sort_keys=False, allow_unicode=True), encoding="utf-8")
    environment = {
        **os.environ,
        "ANSIBLE_HOME": str(directory / "home"),
        "CONFORMANCE": "from the environment",
        "LC_ALL": "C.UTF-8",
    }
    program = Path(__file__).parents[1] / "support" / "ask_ansible.py"
    run = subprocess.run(
        [sys.executable, str(program), str(questions), str(answers)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    found = json.loads(answers.read_text(encoding="utf-8"))
    return {kind: [answer.get("value", ERROR) for answer in several] for kind, several in found.items()}


@pytest.fixture(scope="module")
def templar(directory: Path) -> Templar:
    scope = Scope().with_layer(Precedence.PLAY_VARS, VARIABLES)
    environment = {**os.environ, "CONFORMANCE": "from the environment"}
    return Templar(scope, directory=directory, environment=environment)


def same(one: Any, other: Any) -> bool:
    """Equal in value and in type, all the way down."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and bool(one == other)


def _compare(pairs: list[tuple[str, Any, Any]]) -> None:
    wrong = [
        f"{text!r}: Ansible {theirs!r}, crossgrade {ours!r}"
        for text, theirs, ours in pairs
        if not same(theirs, ours) and text not in DIFFERENCES
    ]
    assert not wrong, "\n".join(wrong)
    stale = [text for text, theirs, ours in pairs if text in DIFFERENCES and same(theirs, ours)]
    assert not stale, f"listed as different on purpose, but the same: {stale}"


def test_values(ansible: dict[str, list[Any]], templar: Templar) -> None:
    pairs = []
    for at, value in enumerate(VALUES):
        try:
            ours = templar.template(value)
            ours = ERROR if ours is OMIT else json.loads(json.dumps(ours, default=str))
        except TemplateError:
            ours = ERROR
        pairs.append((str(value), ansible["values"][at], ours))
    _compare(pairs)


def test_conditions(ansible: dict[str, list[Any]], templar: Templar) -> None:
    pairs = []
    for at, condition in enumerate(CONDITIONS):
        ours: Any
        try:
            ours = templar.evaluate_condition(condition)
        except TemplateError:
            ours = ERROR
        pairs.append((f"when: {condition}", ansible["conditions"][at], ours))
    _compare(pairs)


TYPES: dict[str, Any] = {
    "str": str,
    "int": int,
    "float": float,
    "bool": bool,
    "path": Path,
    "list": list[Any],
    "dict": dict[str, Any],
    "raw": Any,
}


def _type_of(spec: dict[str, Any]) -> Any:
    """Our type for an argument that Ansible specifies so."""
    if "choices" in spec:
        return Literal[tuple(spec["choices"])]
    if spec["type"] == "list" and "elements" in spec:
        return GenericAlias(list, (TYPES[spec["elements"]],))
    return TYPES[spec["type"]]


def test_arguments(ansible: dict[str, list[Any]]) -> None:
    pairs = []
    for at, (spec, value) in enumerate(ARGUMENTS):
        made = dataclasses.make_dataclass("Arguments", [("x", _type_of(spec), argument(doc="x"))], frozen=True)
        ours: Any
        try:
            ours = json.loads(json.dumps(parse_arguments(made, {"x": value}).x, default=str))
        except PlaybookError:
            ours = ERROR
        pairs.append((f"{spec}: {value!r}", ansible["arguments"][at], ours))
    _compare(pairs)


# Ansible's `command` knows these; any other `word=word` belongs to the command.
COMMAND_ARGUMENTS = frozenset(
    ("creates", "removes", "chdir", "executable", "warn", "stdin", "stdin_add_newline", "strip_empty_ends")
)


def test_short_forms(ansible: dict[str, list[Any]]) -> None:
    pairs = []
    for at, (text, keeps_words) in enumerate(SHORT_FORMS):
        found, rest = split_pairs(text, COMMAND_ARGUMENTS if keeps_words else None)
        pairs.append((text, ansible["short_forms"][at], {**found, **({"_raw_params": rest} if rest else {})}))
    _compare(pairs)


# What Ansible adds to every host.
MAGIC = frozenset(
    (
        *("inventory_hostname", "inventory_hostname_short", "inventory_file", "inventory_dir", "group_names", "groups"),
        *("omit", "ansible_playbook_python", "ansible_version", "ansible_facts", "ansible_config_file", "playbook_dir"),
    )
)


def test_inventories(directory: Path, ansible: dict[str, list[Any]]) -> None:
    pairs: list[tuple[str, Any, Any]] = []
    for at, sources in enumerate(_sources(directory)):
        theirs = ansible["inventories"][at]
        inventory = load_inventory(sources, directory)
        for pattern, names in zip(PATTERNS, theirs["patterns"], strict=True):
            try:
                ours = sorted(host.name for host in inventory.select(pattern))
            except WrongOptionsError:
                ours = []  # Ansible warns
            pairs.append((f"{Path(sources[-1]).name} {pattern}", names, ours))
        for name, variables in theirs["variables"].items():
            host = inventory.host(name)
            assert host is not None
            known = {key: value for key, value in variables.items() if key not in MAGIC}
            own = inventory.scope(host).flatten()
            pairs.append((f"{Path(sources[-1]).name} variables of {name}", known, own))
    _compare(pairs)
