"""shell: hand a text of the playbook to a shell, which runs it.

The text is the operator's own: it goes to the shell as one argument (`[executable, -c, text]`), and crossgrade adds
nothing to it. What a variable brings into the text is read by the shell all the same: `quote` is the filter for that.
"""

from __future__ import annotations

from dataclasses import dataclass

from crossgrade.errors import TaskError
from crossgrade.modules.contract import ApplyContext, Change, HostView, Module, Outcome, Plan
from crossgrade.modules.files import expand
from crossgrade.modules.program_run import State, apply_run, find_place, plan_run
from crossgrade.playbook.arguments import argument

USUAL = "/bin/sh"


@dataclass(frozen=True)
class Arguments:
    """Runs a text by a shell. What it leaves running when it ends is stopped, and nothing of it can be taken back."""

    cmd: str = argument(doc="What the shell runs. Variables in it want the filter `quote`.", free_form=True)
    executable: str | None = argument(doc="The shell; /bin/sh without it.", default=None)
    chdir: str | None = argument(doc="The directory to run it in; else that of the playbook.", default=None)
    creates: str | None = argument(doc="Where this exists (a path or glob), there is nothing to do.", default=None)
    removes: str | None = argument(doc="Where this does not exist, there is nothing to do.", default=None)
    stdin: str | None = argument(doc="What the shell's programs read on their standard input.", default=None)
    stdin_add_newline: bool = argument(doc="End `stdin` with a newline.", default=True)
    strip_empty_ends: bool = argument(doc="Drop empty lines at the end of the output.", default=True)


def inspect(arguments: Arguments, host: HostView) -> State:
    if not arguments.cmd.strip():
        raise TaskError("the command is empty")
    shell = expand(arguments.executable or USUAL, host.environment)
    place = find_place(arguments.chdir, arguments.creates, arguments.removes, host)
    return State(arguments.cmd, (shell, "-c", arguments.cmd), arguments.cmd, place)


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
    name="shell",
    arguments=Arguments,
    effect="changes",
    inspect=inspect,
    plan=plan,
    apply=apply,
    proves_itself=False,
    summary="Run a text by a shell: pipes, redirections, globs. It cannot be taken back.",
)
