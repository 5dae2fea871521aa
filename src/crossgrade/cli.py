"""The `crossgrade` program and the invoke collection that `tasks.py` re-exports; no logic.

Both are the same collection: `invoke plan` and `crossgrade plan` run the same function with the same options.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from invoke.collection import Collection
from invoke.exceptions import Exit, ParseError, UnknownFileType
from invoke.parser import Parser
from invoke.program import Program

from crossgrade import __version__
from crossgrade.commands import (
    bisect_tasks,
    checkout_tasks,
    experiment_tasks,
    inspect_tasks,
    language_tasks,
    run_tasks,
    store_tasks,
)
from crossgrade.engine.interrupt import leave_when_interrupted
from crossgrade.errors import ExitCode


def make_collection() -> Collection:
    """All commands, for `tasks.py` and for the program."""
    return Collection(
        *(run_tasks.plan, run_tasks.upgrade, run_tasks.rollback),
        *(run_tasks.confirm, run_tasks.return_unless_confirmed),
        *(store_tasks.status, store_tasks.history, store_tasks.verify, store_tasks.facts, store_tasks.gc),
        *(store_tasks.report, store_tasks.export, store_tasks.restore, store_tasks.diff),
        *(inspect_tasks.inspect, inspect_tasks.explain, inspect_tasks.init, inspect_tasks.patches),
        *(experiment_tasks.experiments, language_tasks.schema, language_tasks.doc, language_tasks.lint),
        *(store_tasks.pin, store_tasks.unpin, store_tasks.retire),
        bisect_tasks.bisect,
        *(checkout_tasks.test, checkout_tasks.bench, checkout_tasks.docs),
    )


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
            raise Exit(wrong_options_message(error, self.argv), code=int(ExitCode.WRONG_OPTIONS)) from error


def _is_second(option: str, word: str, argv: Sequence[str], said: str) -> bool:
    """Whether invoke means this: of an option that is given again it says that it has no idea what its value is."""
    return option.startswith("-") and argv.count(option) > 1 and said.startswith(f"No idea what {word!r} is")


def wrong_options_message(error: ParseError, argv: Sequence[str]) -> str:
    """invoke's words for a wrong option, with where to look the right ones up."""
    context = getattr(error, "context", None)
    name = getattr(context, "name", None)
    twice = next((option for option, word in pairwise(argv) if _is_second(option, word, argv, str(error))), "")
    said = f"{twice} is given twice" if twice else str(error)
    return f"{said}\n  `crossgrade {f'{name} ' if name else ''}--help` lists the options."


# invoke has positional arguments that must be given and options, but no positional argument that may be left out.
# For each such command the option that stands for it, and which words it may be. `inspect` and `explain` take any
# number of them.
_OPTIONAL_POSITIONAL: dict[str, tuple[str, Callable[[str], bool]]] = {
    "verify": ("--generation", str.isdecimal),
    "export": ("--generation", str.isdecimal),
    "report": ("--run", lambda word: not word.startswith("-")),
    "bench": ("--what", lambda word: word in ("store", "inspect", "load", "verdicts", "history", "compare")),
    "inspect": ("--path", lambda word: not word.startswith("-")),
    # an output may begin with a dash, an option holds no space
    "explain": ("--text", lambda word: word == "-" or not word.startswith("-") or " " in word),
    "init": ("--folder", lambda word: not word.startswith("-")),
    "patches": ("--venv", lambda word: not word.startswith("-")),
    "doc": ("--name", lambda word: not word.startswith("-")),
    "lint": ("--file", lambda word: not word.startswith("-") and ("." in word or "/" in word)),  # not `lint test`
}
_NONE: tuple[str, Callable[[str], bool]] = ("", lambda _: False)
# Commands whose first argument must be given: invoke would take `--help` for it.
_POSITIONAL = ("restore", "diff", "pin", "unpin", "retire")
_TAKES_VALUE = (
    *("--generation", "--level", "--to", "--root", "--playbook", "-e", "--extra-vars"),
    *("--vault-password-file", "--vault-id"),
    *(
        *("--what", "--of", "--metric", "--allowed-loss"),
        "--tree",
        "--gigabytes",
        "--path",
        "--for",
        "--against",
        "--compare",
        "--ignore",
        "--ignore-dist",
        "--preload",
        "--entry",
        "--driver",
        "--cuda-home",
        "--text",
        "--context",
        *("--folder", "--venv", "--cuda", "--port"),  # init
        "--save",
        *("--run", "--format", "--out"),  # report
        *("--name", "--type", "-t", "--kind", "--file", "--skip"),  # doc, schema, lint
    ),
)


def with_options(argv: Sequence[str]) -> list[str]:
    """The arguments as invoke can read them: `verify 2` as `verify --generation 2`, `pin --help` as `--help pin`."""
    for command, word in pairwise(argv):
        if command in _POSITIONAL and word in ("--help", "-h"):
            return ["--help", command]
    written: list[str] = []
    option, fits = _NONE
    for word in argv:
        is_value = bool(written) and written[-1] in _TAKES_VALUE
        if option and not is_value and fits(word):
            written.append(option)
            if option == "--what" and word in ("history", "compare"):
                written.append(word)
                option, fits = "--of", lambda word: not word.startswith("-")
                continue
        elif not is_value and not word.startswith("-"):
            option, fits = _OPTIONAL_POSITIONAL.get(word, _NONE)
        written.append(word)
    return written


def check_options(argv: list[str]) -> None:
    """For `tasks.py`: leave with our exit code when invoke itself would leave with 1 for a wrong option.

    invoke gives a tasks file no say in its exit codes, so the same parser is asked first. Nor can it read an
    optional positional argument: then our own program does the whole work.
    """
    leave_when_interrupted()
    if with_options(argv) != list(argv):
        main(["crossgrade", *argv])
        raise SystemExit(0)
    program = Program()
    try:
        initial = program.initial_context
        unparsed = Parser(initial=initial, ignore_unknown=True).parse_argv(argv).unparsed
        Parser(initial=initial, contexts=make_collection().to_contexts()).parse_argv(list(unparsed))
    except ParseError as error:
        print(wrong_options_message(error, argv), file=sys.stderr)  # noqa: T201 - the program's own error output
        raise SystemExit(int(ExitCode.WRONG_OPTIONS)) from error


def main(argv: Sequence[str] | None = None) -> None:
    """The console script. `argv` begins with the program's name."""
    leave_when_interrupted()
    name, *given = sys.argv if argv is None else argv
    program = CrossgradeProgram(
        name="crossgrade", binary="crossgrade", version=__version__, namespace=make_collection()
    )
    try:
        program.run([name, *with_options(given)])
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output has gone (`crossgrade --help | head`): nothing is left to say, and Python
        # must not complain about it at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
