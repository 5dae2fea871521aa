"""meta: what a playbook tells the run itself. The engine does it; there is nothing to inspect on the machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from crossgrade.errors import TaskError
from crossgrade.modules.contract import ApplyContext, Change, HostView, Module, Outcome, Plan, Unchanged
from crossgrade.playbook.arguments import argument

Action = Literal[
    "flush_handlers",
    "end_play",
    "end_batch",
    "end_host",
    "noop",
    "clear_facts",
    "clear_host_errors",
    "refresh_inventory",
    "reset_connection",
]


@dataclass(frozen=True)
class Arguments:
    """Tells the run what to do, and does nothing on the machine.

    `refresh_inventory` and `reset_connection` do nothing: an inventory is read once, so that a plan stays true, and
    the engine runs on the machine itself, where there is no connection.
    """

    action: Action = argument(doc="What to do.", free_form=True)


def inspect(arguments: Arguments, host: HostView) -> None:  # noqa: ARG001 (the contract's shape)
    raise TaskError(f"`meta: {arguments.action}` is for the engine")


def plan(arguments: Arguments, state: None) -> Plan:  # noqa: ARG001 (the contract's shape)
    return Unchanged()


def apply(arguments: Arguments, change: Change, context: ApplyContext) -> Outcome:  # noqa: ARG001
    return Outcome()


MODULE = Module(
    name="meta",
    arguments=Arguments,
    effect="reads",
    inspect=inspect,
    plan=plan,
    apply=apply,
    summary="Tell the run what to do next.",
)
