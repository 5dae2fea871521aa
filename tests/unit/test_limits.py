"""docs/limits.md: each check that it names exists, and something here triggers it."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from crossgrade.failures.explaining import explain
from crossgrade.gates.preflight import _checks
from crossgrade.knowledge import table
from crossgrade.modules import NAMES
from crossgrade.store.generation import Generation
from crossgrade.store.layout import Store, generation_environment

ROOT = Path(__file__).resolve().parents[2]
TRIGGERS: dict[str, dict[str, dict[str, str]]] = yaml.safe_load((ROOT / "tests/data/limits.yml").read_text())
KINDS = {str(row["kind"]) for row in table("failures")}
WHEN = {"plan", "deep plan", "gate", "gate with a GPU", "afterwards"}
COMMANDS = {"inspect"}


def rows() -> list[tuple[str, str, str, str]]:
    """The cells of each row of the page's tables of failures."""
    found = []
    for line in (ROOT / "docs/limits.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.split(" | ")] if line.startswith("| ") else []
        if len(cells) == 4 and cells[0] != "| failure" and not cells[0].startswith("| ---"):
            found.append((cells[0][2:], cells[1], cells[2], cells[3].removesuffix("|").strip()))
    return found


def named(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def triggers_of(failure: str) -> dict[str, dict[str, str]]:
    fitting = [name for name in TRIGGERS if failure.startswith(name)]
    assert len(fitting) == 1, f"{failure!r} is that of {fitting or 'no entry'} of tests/data/limits.yml"
    return TRIGGERS[fitting[0]]


@cache
def functions_in(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def test_the_page_and_the_data_have_the_same_rows() -> None:
    failures = [row[0] for row in rows()]
    assert len(failures) > 40
    assert len(failures) == len(TRIGGERS)
    assert all(triggers_of(failure) for failure in failures)


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0][:40])
def test_each_row(row: tuple[str, str, str, str]) -> None:
    failure, seen_by, when, _ = row
    checks = named(seen_by)
    assert checks, "each failure has a check"
    assert len(checks) == len(set(checks))
    for check in checks:
        kind, _, name = check.partition(": ")
        if kind == "explain":
            assert name in KINDS, check
        elif kind == "preflight":
            assert name in _checks(), check
        else:
            assert not name, check
            assert check in NAMES or check in COMMANDS, check
    assert set(checks) == set(triggers_of(failure)), "the checks of the page and those of tests/data/limits.yml"
    times = when.split(", ")
    assert set(times) <= WHEN, when
    assert ("afterwards" in times) == any(check.startswith("explain: ") for check in checks)
    assert ("plan" in times) == any(
        check.startswith("preflight: ") or check in ("python_env", "environment_check") for check in checks
    )
    assert ("gate with a GPU" in times) == any(
        check in ("server", "accuracy", "benchmark", "nccl_check") for check in checks
    )


@pytest.mark.parametrize(
    ("failure", "check", "trigger"),
    [(failure, check, trigger) for failure, checks in TRIGGERS.items() for check, trigger in checks.items()],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)
def test_each_check_is_triggered(failure: str, check: str, trigger: dict[str, Any]) -> None:
    if check.startswith("explain: "):
        kinds = [found.kind for found in explain(trigger["output"])]
        assert kinds[:1] == [check.removeprefix("explain: ")], failure
        return
    place, _, name = trigger["test"].partition("::")
    assert name in functions_in(ROOT / place), trigger["test"]
    assert trigger.get("mentions", "") in (ROOT / place).read_text()


def test_each_preflight_check_that_is_named_has_a_test_of_its_own() -> None:
    text = (ROOT / "tests/unit/test_preflight.py").read_text()
    checks = {check.removeprefix("preflight: ") for row in rows() for check in named(row[1]) if "preflight: " in check}
    assert checks
    assert not {check for check in checks if f'"{check}"' not in text}


def test_a_generation_has_caches_of_its_own(tmp_path: Path) -> None:
    store = Store(tmp_path)
    environments = [
        generation_environment(store, Generation(number, "x", "built", "ready", "2026-12-01T00:00:00Z"))
        for number in (1, 2)
    ]
    for row in table("caches"):
        first, second = (environment[str(row["variable"])] for environment in environments)
        assert first != second, row
        assert first.startswith(str(store.folder(1)))
        assert second.startswith(str(store.folder(2)))
