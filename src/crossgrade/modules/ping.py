"""ping: whether this machine answers at all, with a word of one's own."""

from __future__ import annotations

from dataclasses import dataclass

from crossgrade.errors import TaskError
from crossgrade.modules.contract import ApplyContext, Change, HostView, Module, Outcome, Plan
from crossgrade.playbook.arguments import argument

_CRASH = "crash"


@dataclass(frozen=True)
class Arguments:
    """Answers. Nothing is sent over a network: crossgrade runs on the machine itself."""

    data: str = argument(doc="The answer, in `ping`; `crash` makes the task fail.", default="pong")


def inspect(arguments: Arguments, host: HostView) -> None:  # noqa: ARG001 (the contract's shape)
    if arguments.data == _CRASH:
        raise TaskError("the playbook asked for a crash (`data: crash`)")


def plan(arguments: Arguments, state: None) -> Plan:  # noqa: ARG001 (the contract's shape)
    return Change("answer", values={"ping": arguments.data})


def apply(arguments: Arguments, change: Change, context: ApplyContext) -> Outcome:  # noqa: ARG001 (the contract's shape)
    return Outcome(change.values)


MODULE = Module(
    name="ping",
    arguments=Arguments,
    effect="reads",
    inspect=inspect,
    plan=plan,
    apply=apply,
    summary="Answer, so that one sees that tasks run.",
)
