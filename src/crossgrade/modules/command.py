"""command: run a program. There is no shell, so no pipes, redirections or globs."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import ClassVar

from crossgrade.errors import TaskError
from crossgrade.modules.contract import ApplyContext, Change, HostView, Module, Outcome, Plan
from crossgrade.modules.files import expand
from crossgrade.modules.program_run import SHOWN, State, apply_run, find_place, plan_run
from crossgrade.playbook.arguments import argument

__all__ = ["MODULE", "SHOWN", "Arguments", "apply", "inspect", "plan"]


@dataclass(frozen=True)
class Arguments:
    """Runs a program, without a shell. What it leaves running when it ends is stopped."""

    cmd: str | None = argument(
        doc="The program and its arguments, split at spaces as a shell does (quotes count).",
        default=None,
        free_form=True,
    )
    argv: tuple[str, ...] = argument(doc="The same as a list, which needs no quotes.", default=())
    chdir: str | None = argument(doc="The directory to run it in; else that of the playbook.", default=None)
    creates: str | None = argument(doc="Where this exists (a path or glob), there is nothing to do.", default=None)
    removes: str | None = argument(doc="Where this does not exist, there is nothing to do.", default=None)
    stdin: str | None = argument(doc="What the program reads on its standard input.", default=None)
    stdin_add_newline: bool = argument(doc="End `stdin` with a newline.", default=True)
    strip_empty_ends: bool = argument(doc="Drop empty lines at the end of its output.", default=True)
    expand_argument_vars: bool = argument(doc="Expand `$NAME` and `~` in the arguments.", default=True)
    executable: str | None = argument(
        doc="Accepted for Ansible's sake and not used: `shell` is the module with a shell.", default=None
    )
    mutually_exclusive: ClassVar[tuple[tuple[str, ...], ...]] = (("cmd", "argv"),)
    required_one_of: ClassVar[tuple[tuple[str, ...], ...]] = (("cmd", "argv"),)


def inspect(arguments: Arguments, host: HostView) -> State:
    command = _split(arguments)
    place = find_place(arguments.chdir, arguments.creates, arguments.removes, host)
    argv = command
    if arguments.expand_argument_vars:
        argv = tuple(expand(part, host.environment) for part in command)
    return State(command, argv, shlex.join(command), place)


def _split(arguments: Arguments) -> tuple[str, ...]:
    if arguments.argv:
        return arguments.argv
    try:
        parts = shlex.split(arguments.cmd or "")
    except ValueError as error:
        raise TaskError(
            f"the command cannot be split into arguments: {error}",
            remedy="Mind the quotes, or give the arguments as a list in `argv`.",
        ) from error
    if not parts:
        raise TaskError("the command is empty")
    return tuple(parts)


def plan(arguments: Arguments, state: State) -> Plan:  # noqa: ARG001 (the contract's shape)
    return plan_run(state)


def apply(arguments: Arguments, change: Change, context: ApplyContext) -> Outcome:
    return apply_run(
        change,
        context,
        stdin=arguments.stdin,
        add_newline=arguments.stdin_add_newline,
        strip_empty_ends=arguments.strip_empty_ends,
    )


MODULE = Module(
    name="command",
    arguments=Arguments,
    effect="changes",
    inspect=inspect,
    plan=plan,
    apply=apply,
    proves_itself=False,
    summary="Run a program, without a shell.",
)
