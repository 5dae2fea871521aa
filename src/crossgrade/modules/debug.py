"""debug: show a message or the value of an expression."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from crossgrade.modules.contract import ApplyContext, Change, HostView, Module, Outcome, Plan, Skipped
from crossgrade.playbook.arguments import argument

NOT_DEFINED = "VARIABLE IS NOT DEFINED!"


@dataclass(frozen=True)
class Arguments:
    """Shows something, and changes nothing."""

    msg: Any = argument(doc="What to show.", default=None)
    var: str | None = argument(doc="An expression, without braces, whose value is shown.", default=None)
    verbosity: int = argument(doc="Show it from this many `-v` on.", default=0)
    mutually_exclusive: ClassVar[tuple[tuple[str, ...], ...]] = (("msg", "var"),)


@dataclass(frozen=True)
class State:
    """What is shown, by its name; None when nothing is."""

    values: Mapping[str, Any] | None


def inspect(arguments: Arguments, host: HostView) -> State:
    if arguments.verbosity > getattr(host, "verbosity", 0):
        return State(None)
    if arguments.var is None:
        return State({"msg": "Hello world!" if arguments.msg is None else arguments.msg})
    return State({arguments.var: value_or_notice(arguments.var, host)})


def value_or_notice(expression: str, host: HostView) -> Any:
    from crossgrade.playbook.templating import UndefinedVariableError  # a template is met

    try:
        return value_of(expression, host)
    except UndefinedVariableError:
        return NOT_DEFINED


def value_of(expression: str, host: HostView) -> Any:
    """The value of an expression with the variables of the task, as far as JSON can hold it."""
    return json.loads(host.template("{{ (" + expression + ") | to_json }}", "an expression"))


def plan(arguments: Arguments, state: State) -> Plan:
    if state.values is None:
        threshold = {"skipped_reason": "Verbosity threshold not met."}
        return Skipped(f"shown with -{'v' * arguments.verbosity}", threshold)
    return Change("show", values=state.values)


def apply(arguments: Arguments, change: Change, context: ApplyContext) -> Outcome:  # noqa: ARG001 (the contract's shape)
    message = change.values.get("msg")
    return Outcome(change.values, message=message if isinstance(message, str) else "")


MODULE = Module(
    name="debug",
    arguments=Arguments,
    effect="reads",
    inspect=inspect,
    plan=plan,
    apply=apply,
    summary="Show a message or a value.",
)
