"""What people are told about a module beside its arguments: results, check mode, diff, undo, and an example.

A guide is `guides/NAME.yml` beside this file, with the keys `returns` (name → what it is), `plan`, `diff`, `undo`
(a sentence each, where the usual one does not do) and `example` (tasks to copy). What follows from the module's own
declaration is not written down again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from crossgrade.modules.contract import Module, nothing_to_undo
from crossgrade.playbook.arguments import declared_arguments

ALWAYS = {
    "changed": "Whether something was changed.",
    "failed": "Whether the task has failed.",
    "skipped": "Whether there was nothing to do.",
}
OF_A_GATE = {
    "verdict": "`passed`, `failed` or `not run`.",
    "reason": "Why, in a sentence.",
    "findings": "What was found, each with its place and remedy.",
    "figures": "What was measured.",
}
_NO_DIFFERENCE = "Nothing is changed."


@dataclass(frozen=True)
class Guide:
    """A module for people. `returns` are the results that are its own, in the order of the guide."""

    plan: str
    diff: str
    undo: str
    returns: Mapping[str, str] = field(default_factory=dict)
    example: str = ""


def is_gate(module: Module[Any, Any]) -> bool:
    """Whether it gives a verdict: those modules have `on_not_run`."""
    return any(one.name == "on_not_run" for one in declared_arguments(module.arguments))


def guide_of(module: Module[Any, Any]) -> Guide:
    """The guide of a module. One without a file has what follows from its declaration, and no example."""
    written = _written(module.name)
    gate = is_gate(module)
    return Guide(
        plan=str(written.get("plan") or _plan(module)),
        diff=str(written.get("diff") or (_NO_DIFFERENCE if module.effect != "changes" else "Before and after.")),
        undo=str(written.get("undo") or _undo(module)),
        returns={**(OF_A_GATE if gate else {}), **(written.get("returns") or {})},
        example=str(written.get("example") or ""),
    )


def _written(name: str) -> Mapping[str, Any]:
    import yaml

    file = resources.files("crossgrade.modules").joinpath("guides").joinpath(f"{name}.yml")
    if not file.is_file():
        return {}
    found = yaml.load(file.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506  # one of the two safe loaders
    return found if isinstance(found, dict) else {}


def _plan(module: Module[Any, Any]) -> str:
    if module.effect == "reads":
        return "It only reads, so a plan runs it too."
    if module.effect == "checks":
        deep = ", and `plan --deep` says what it will say" if module.foresee is not None else ""
        return f"A plan lists it and does not run it{deep}."
    return "A plan says exactly what it would change, and what it would return."


def _undo(module: Module[Any, Any]) -> str:
    if module.effect != "changes":
        return "There is nothing to undo."
    if module.undo is nothing_to_undo:
        return "It cannot be undone."
    return "When the run fails later, what it has changed is taken back."
