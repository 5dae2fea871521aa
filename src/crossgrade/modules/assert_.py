"""assert: go on only when conditions hold."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from crossgrade.errors import TaskError
from crossgrade.modules.contract import ApplyContext, Change, HostView, Module, Outcome, Plan
from crossgrade.modules.debug import value_of
from crossgrade.playbook.arguments import argument

_WHOLE_TEMPLATE = re.compile(r"\{\{((?:(?!\{\{|\}\}).)*)\}\}", re.DOTALL)


@dataclass(frozen=True)
class Arguments:
    """Fails the task unless every condition is true."""

    that: Any = argument(doc="A condition, or a list of them, written as in `when`.", raw=True)
    fail_msg: Any = argument(doc="What to say when one is false.", default="Assertion failed", aliases=("msg",))
    success_msg: Any = argument(doc="What to say when all are true.", default="All assertions passed")
    quiet: bool = argument(doc="Say less.", default=False)


@dataclass(frozen=True)
class State:
    """The first condition that does not hold, or None."""

    broken: str | None


def inspect(arguments: Arguments, host: HostView) -> State:
    for condition in _conditions(arguments.that, host):
        holds = condition if isinstance(condition, bool) else host.evaluate(str(condition))
        if not holds:
            return State(str(condition))
    return State(None)


def _conditions(that: Any, host: HostView) -> list[Any]:
    if isinstance(that, list | tuple):
        return list(that)
    if not isinstance(that, str | bool):
        raise TaskError(f"`that` must be a condition or a list of conditions, not {that!r}")
    whole = _WHOLE_TEMPLATE.fullmatch(that.strip()) if isinstance(that, str) else None
    if whole:  # the conditions themselves stand in a variable
        value = value_of(whole[1], host)
        if isinstance(value, list):
            return value
    return [that]


def plan(arguments: Arguments, state: State) -> Plan:
    if state.broken is None:
        return Change("all conditions hold", values={"msg": arguments.success_msg})
    return Change(
        "a condition does not hold",
        values={"msg": arguments.fail_msg, "assertion": state.broken, "evaluated_to": False},
    )


def apply(arguments: Arguments, change: Change, context: ApplyContext) -> Outcome:  # noqa: ARG001 (the contract's shape)
    broken = change.values.get("assertion")
    text = change.values["msg"]
    message = "\n".join(map(str, text)) if isinstance(text, list | tuple) else str(text)
    if broken is None:
        return Outcome(change.values, message="" if arguments.quiet else message)
    return Outcome(change.values, failed=True, message=f"{message} (this is false: {broken})")


MODULE = Module(
    name="assert",
    arguments=Arguments,
    effect="reads",
    inspect=inspect,
    plan=plan,
    apply=apply,
    summary="Go on only when conditions hold.",
)
