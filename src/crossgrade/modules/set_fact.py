"""set_fact: give values to variables, for the tasks that come later."""

from __future__ import annotations

import keyword
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from crossgrade.errors import TaskError
from crossgrade.modules.contract import ApplyContext, Change, HostView, Module, Outcome, Plan
from crossgrade.playbook.arguments import argument


@dataclass(frozen=True)
class Arguments:
    """Sets variables of this host for the rest of the run."""

    facts: Mapping[str, Any] = argument(doc="Each other key is the name of a variable.", rest=True)
    cacheable: bool = argument(doc="Accepted for Ansible's sake: facts are not kept between runs.", default=False)


def inspect(arguments: Arguments, host: HostView) -> None:  # noqa: ARG001 (the contract's shape)
    if not arguments.facts:
        raise TaskError("set_fact needs at least one variable", remedy="For example: set_fact: {port: 8080}")
    for name in arguments.facts:
        if not (name.isidentifier() and name.isascii()) or keyword.iskeyword(name):
            raise TaskError(
                f"{name!r} cannot be the name of a variable",
                remedy="Names have letters, digits and underscores and begin with no digit.",
            )


def plan(arguments: Arguments, state: None) -> Plan:  # noqa: ARG001 (the contract's shape)
    return Change("set " + ", ".join(arguments.facts), values={"ansible_facts": dict(arguments.facts)})


def apply(arguments: Arguments, change: Change, context: ApplyContext) -> Outcome:  # noqa: ARG001 (the contract's shape)
    return Outcome(change.values, facts=dict(arguments.facts))


MODULE = Module(
    name="set_fact",
    arguments=Arguments,
    effect="reads",
    inspect=inspect,
    plan=plan,
    apply=apply,
    summary="Give values to variables.",
)
