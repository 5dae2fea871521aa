"""The `crossgrade` program and the invoke collection that `tasks.py` re-exports; no logic.

Both are the same collection: `invoke plan` and `crossgrade plan` run the same function with the same options.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from invoke.collection import Collection
from invoke.context import Context
from invoke.exceptions import Exit, ParseError, UnknownFileType
from invoke.parser import Parser
from invoke.parser.argument import Argument
from invoke.program import Program
from invoke.tasks import Task

from crossgrade import __version__
from crossgrade.errors import ExitCode

_SHORT = {
    "check": "C",
    "diff": "D",
    "extra_vars": "e",
    "inventory": "i",
    "limit": "l",
    "out": "o",
    "tags": "t",
    "verbose": "v",
    "yes": "y",
}
_HELP = {
    "playbook": "The playbook to use (default: playbooks/rehearsal.yml).",
    "inventory": "Inventory file, or host names with commas. May be given several times.",
    "extra_vars": "Extra variables: k=v, JSON, or @FILE. May be given several times.",
    "limit": "Limit the run to these hosts or groups.",
    "tags": "Only tasks with these tags (commas, or several times).",
    "skip_tags": "No tasks with these tags.",
    "root": "Folder of the store (default: .crossgrade/PLAYBOOK, or crossgrade_root of the playbook).",
    "check": "Change nothing, only say what would be changed: the same as `plan`.",
    "diff": "Show before and after of what changes.",
    "verbose": "More output; -vv and -vvv for still more.",
    "json": "One JSON event per line on stdout; text for people goes to stderr.",
    "yes": "Do not ask before changing things.",
    "list_tasks": "List the tasks that would be looked at, and stop.",
    "syntax_check": "Check the playbook, and stop.",
    "out": "Save the plan to this file, for `upgrade --plan FILE`.",
    "plan": "Carry out this saved plan; refused when the facts that it was made from have changed.",
    "detailed_exitcode": "Exit with 0 when there is nothing to do, 2 when there are changes, 1 for an error.",
    "resume": "Finish the run that was interrupted.",
    "to": "The generation to go to (default: the one before the active one).",
    "keep": "How many of the newest generations to keep beside the active one, its predecessor and the backup.",
    "generation": "The generation to verify (default: the active one).",
    "full": "Read every byte again, also of files whose size and times are as recorded.",
    "slow": "Also the tests that download much or take long.",
    "faults": "Also the long part of the fault injection.",
    "fix": "Mend what can be mended by itself.",
}


class CommandTask(Task[Callable[..., None]]):
    """A task whose short options are stated, not made up from first letters."""

    def get_arguments(self, ignore_unknown_help: bool | None = None) -> list[Argument]:
        self.help = {name: _HELP[name] for name in self.argspec(self.body).parameters if name in _HELP}
        return list(super().get_arguments(ignore_unknown_help))

    def arg_opts(self, name: str, default: Any, taken_names: set[str]) -> dict[str, Any]:
        options: dict[str, Any] = super().arg_opts(name, default, taken_names)
        if name in _SHORT:
            options["names"].append(_SHORT[name])
        if name in ("to", "keep", "generation"):
            options["kind"] = str  # checked by the command, whose message is better than invoke's traceback
        return options


def _command(name: str) -> Callable[[Callable[..., None]], CommandTask]:
    """Make an invoke task of a function whose body calls a command and leaves with its exit code."""

    def make(body: Callable[..., None]) -> CommandTask:
        return CommandTask(
            body,
            name=name,
            auto_shortflags=False,
            iterable=["inventory", "extra_vars", "tags", "skip_tags"],
            incrementable=["verbose"],
        )

    return make


def _leave(code: int) -> None:
    if code:
        raise Exit(code=int(code))


@_command("plan")
def plan(
    context: Context,
    playbook: str = "",
    inventory: list[str] | None = None,
    extra_vars: list[str] | None = None,
    limit: str = "",
    tags: list[str] | None = None,
    skip_tags: list[str] | None = None,
    root: str = "",
    out: str = "",
    detailed_exitcode: bool = False,
    diff: bool = False,
    list_tasks: bool = False,
    syntax_check: bool = False,
    json: bool = False,
    verbose: int = 0,
) -> None:
    """Say exactly what `upgrade` would do. Changes nothing."""
    from crossgrade.commands.upgrading import plan_command

    _leave(plan_command(vars_of(locals())))


@_command("upgrade")
def upgrade(
    context: Context,
    playbook: str = "",
    inventory: list[str] | None = None,
    extra_vars: list[str] | None = None,
    limit: str = "",
    tags: list[str] | None = None,
    skip_tags: list[str] | None = None,
    root: str = "",
    plan: str = "",
    resume: bool = False,
    check: bool = False,
    diff: bool = False,
    list_tasks: bool = False,
    syntax_check: bool = False,
    detailed_exitcode: bool = False,
    json: bool = False,
    yes: bool = False,
    verbose: int = 0,
) -> None:
    """Carry the playbook out as one transaction; roll back when a task or gate fails."""
    from crossgrade.commands.upgrading import upgrade_command

    _leave(upgrade_command(vars_of(locals())))


@_command("rollback")
def rollback(
    context: Context,
    to: str = "",
    playbook: str = "",
    extra_vars: list[str] | None = None,
    root: str = "",
    json: bool = False,
    verbose: int = 0,
) -> None:
    """Return to the earlier generation by one rename, or undo an interrupted run."""
    from crossgrade.commands.returning import rollback_command

    _leave(rollback_command(vars_of(locals())))


@_command("status")
def status(
    context: Context,
    playbook: str = "",
    extra_vars: list[str] | None = None,
    root: str = "",
    json: bool = False,
) -> None:
    """Show the active generation, all generations, and whether a run was interrupted or is under way."""
    from crossgrade.commands.state import status_command

    _leave(status_command(vars_of(locals())))


@_command("history")
def history(
    context: Context,
    playbook: str = "",
    extra_vars: list[str] | None = None,
    root: str = "",
    json: bool = False,
) -> None:
    """Show all runs and every turn of the active link."""
    from crossgrade.commands.state import history_command

    _leave(history_command(vars_of(locals())))


@_command("verify")
def verify(
    context: Context,
    generation: str = "",
    full: bool = False,
    playbook: str = "",
    extra_vars: list[str] | None = None,
    root: str = "",
    json: bool = False,
) -> None:
    """Compare a generation with its manifest, file by file."""
    from crossgrade.commands.state import verify_command

    _leave(verify_command(vars_of(locals())))


@_command("facts")
def facts(
    context: Context,
    playbook: str = "",
    extra_vars: list[str] | None = None,
    root: str = "",
    json: bool = False,
) -> None:
    """Show what crossgrade sees of this machine."""
    from crossgrade.commands.state import facts_command

    _leave(facts_command(vars_of(locals())))


@_command("gc")
def gc(
    context: Context,
    keep: str = "2",
    playbook: str = "",
    extra_vars: list[str] | None = None,
    root: str = "",
    json: bool = False,
) -> None:
    """Remove generations that nobody needs any more, and toolkits and wheels that only they used."""
    from crossgrade.commands.returning import gc_command

    _leave(gc_command(vars_of(locals())))


@_command("test")
def test(context: Context, slow: bool = False, faults: bool = False) -> None:  # noqa: ARG001, PT028 - a command, and invoke hands it a context
    """Run the tests (in a checkout)."""
    from crossgrade.commands.development import test_command

    _leave(test_command(slow=slow, faults=faults))


@_command("lint")
def lint(context: Context, fix: bool = False) -> None:  # noqa: ARG001 - invoke hands it a context
    """Run ruff, mypy --strict and import-linter (in a checkout)."""
    from crossgrade.commands.development import lint_command

    _leave(lint_command(fix=fix))


@_command("bench")
def bench(context: Context, playbook: str = "", root: str = "") -> None:  # noqa: ARG001 - invoke hands it a context
    """Measure plan, rollback and start-up on this machine, beside peers."""
    from crossgrade.commands.benchmarking import bench_command

    _leave(bench_command(playbook=playbook, root=root))


@_command("docs")
def docs(context: Context) -> None:  # noqa: ARG001 - invoke hands it a context
    """Write docs/modules.md from the modules themselves (in a checkout)."""
    from crossgrade.commands.documentation import docs_command

    _leave(docs_command())


def vars_of(values: dict[str, Any]) -> dict[str, Any]:
    """The options of a command as a mapping, without invoke's context."""
    return {name: value for name, value in values.items() if name != "context"}


def make_collection() -> Collection:
    """All commands, for `tasks.py` and for the program."""
    return Collection(plan, upgrade, rollback, status, history, verify, facts, gc, test, lint, bench, docs)


class CrossgradeProgram(Program):
    """invoke's program with our exit code for wrong options."""

    def parse_core(self, argv: list[str] | None) -> None:
        self._as_wrong_options(super().parse_core, argv)

    def parse_tasks(self) -> None:
        self._as_wrong_options(super().parse_tasks)

    def update_config(self, merge: bool = True) -> None:
        try:
            super().update_config(merge)
        except (UnknownFileType, OSError) as error:  # `-f` is invoke's own option: a configuration file
            message = f"-f wants a configuration file of invoke: {error}"
            raise Exit(message, code=int(ExitCode.WRONG_OPTIONS)) from error

    def execute(self) -> None:
        if not self.tasks:  # nothing was asked for: help, as `git` and `uv` do, and that is a wrong use
            self.print_help()
            raise Exit(code=int(ExitCode.WRONG_OPTIONS))
        super().execute()

    def _as_wrong_options(self, call: Any, *arguments: Any) -> None:
        try:
            call(*arguments)
        except ParseError as error:
            raise Exit(wrong_options_message(error), code=int(ExitCode.WRONG_OPTIONS)) from error


def wrong_options_message(error: ParseError) -> str:
    """invoke's words for a wrong option, with where to look the right ones up."""
    context = getattr(error, "context", None)
    name = getattr(context, "name", None)
    return f"{error}\n  `crossgrade {f'{name} ' if name else ''}--help` lists the options."


def check_options(argv: list[str]) -> None:
    """For `tasks.py`: leave with our exit code when invoke itself would leave with 1 for a wrong option.

    invoke gives a tasks file no say in its exit codes, so the same parser is asked first.
    """
    program = Program()
    try:
        initial = program.initial_context
        unparsed = Parser(initial=initial, ignore_unknown=True).parse_argv(argv).unparsed
        Parser(initial=initial, contexts=make_collection().to_contexts()).parse_argv(list(unparsed))
    except ParseError as error:
        print(wrong_options_message(error), file=sys.stderr)  # noqa: T201 - the program's own error output
        raise SystemExit(int(ExitCode.WRONG_OPTIONS)) from error


def main() -> None:
    """The console script."""
    program = CrossgradeProgram(
        name="crossgrade", binary="crossgrade", version=__version__, namespace=make_collection()
    )
    try:
        program.run()
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output has gone (`crossgrade --help | head`): nothing is left to say, and Python
        # must not complain about it at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
