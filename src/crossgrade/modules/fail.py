"""fail: stop here, with a message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from crossgrade.modules.contract import ApplyContext, Change, HostView, Module, Outcome, Plan
from crossgrade.playbook.arguments import argument


@dataclass(frozen=True)
class Arguments:
    """Fails the task, usually under a `when`."""

    msg: Any = argument(doc="Why.", default="Failed as requested from task")


def inspect(arguments: Arguments, host: HostView) -> None:
    """There is nothing to look at."""


def plan(arguments: Arguments, state: None) -> Plan:  # noqa: ARG001 (the contract's shape)
    return Change("fail", values={"msg": arguments.msg})


def apply(arguments: Arguments, change: Change, context: ApplyContext) -> Outcome:  # noqa: ARG001 (the contract's shape)
    return Outcome(change.values, failed=True, message=str(arguments.msg))


MODULE = Module(
    name="fail",
    arguments=Arguments,
    effect="reads",
    inspect=inspect,
    plan=plan,
    apply=apply,
    summary="Stop with a message.",
)
