"""How a command is declared: an invoke task whose options, help and exit code are ours."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, Signature, signature
from typing import Any

from invoke.exceptions import Exit
from invoke.parser.argument import Argument
from invoke.tasks import Task

_SHORT = {
    "check": "C",
    "diff": "D",
    "extra_vars": "e",
    "inventory": "i",
    "limit": "l",
    "out": "o",
    "tags": "t",
    "type_": "t",
    "verbose": "v",
    "yes": "y",
}
_HELP = {
    "playbook": "The playbook to use (default: playbooks/rehearsal.yml).",
    "inventory": "Inventory file, or host names with commas. May be given several times.",
    "extra_vars": "Extra variables: k=v, JSON, or @FILE. May be given several times.",
    "limit": "Limit the run to these hosts or groups, or to those in a file (@FILE).",
    "vault_password_file": "A file with a vault password, or a program that prints it. May be given several times.",
    "vault_id": "A vault password with its label: LABEL@FILE or LABEL@prompt. May be given several times.",
    "ask_vault_pass": "Ask for a vault password at the terminal.",
    "tags": "Only tasks with these tags (commas, or several times).",
    "skip_tags": "No tasks with these tags.",
    "root": "Folder of the store (default: .crossgrade/PLAYBOOK, or crossgrade_root of the playbook).",
    "check": "Change nothing: for upgrade the same as `plan`, for restore only check the archive.",
    "deep": "Also judge the gates that only read files, on what the lock would install. May download wheels.",
    "force_handlers": "Run notified handlers on a host whose task has failed, too.",
    "diff": "Show before and after of what changes.",
    "verbose": "More output; -vv and -vvv for still more.",
    "json": "One JSON event per line on stdout; text for people goes to stderr.",
    "yes": "Do not ask before changing things.",
    "list_tasks": "List the tasks that would be looked at, and stop.",
    "syntax_check": "Check the playbook, and stop.",
    "out": "plan: save the plan to this file, for `upgrade --plan FILE`. report: write it to this file, - for stdout.",
    "run": "The run, by its id or the beginning of it (default: the newest). Also without --run.",
    "format_": "html (default), json, junit or prometheus.",
    "open_": "Show the page in a browser.",
    "plan": "Carry out this saved plan; refused when the facts that it was made from have changed.",
    "detailed_exitcode": "Exit with 0 when there is nothing to do, 2 when there are changes, 1 for an error.",
    "resume": "Finish the run that was interrupted.",
    "to": "The generation to go to (default: the one before the active one); for export, the directory or file; for "
    "bisect, the generation that is slower.",
    "from_": "The generation that was as fast as it should be.",
    "metric": "The figure that was lost, such as ttft_median. bench compare: figures to compare, with commas.",
    "allowed_loss": "The share of it that may be lost, such as 0.05 (default: the playbook's).",
    "load": "The benchmark's profile to measure under, by its name (default: the first that is judged by this metric).",
    "anew": "Forget what earlier calls have found.",
    "builds": "Stop after so many generations were built.",
    "confirm_within": "Go back by itself unless `crossgrade confirm` is called within this many seconds.",
    "detach": "Go on in a process of its own, without a terminal.",
    "keep": "How many of the newest generations to keep beside the active one, its predecessor and the backup.",
    "generation": "The generation (default: the active one).",
    "what": "`history`, `compare A B`; or what to measure: `store`, `inspect`, `load` (default: the commands).",
    "of": "bench history, bench compare: a generation, or a run (RUN for its new side, RUN:old). Also without --of.",
    "tree": "bench store: a venv, of which a copy is measured (default: one is made, once). bench inspect: the venv.",
    "gigabytes": "bench store: how large a venv to make, in 10^9 bytes (default: 1).",
    "full": "Read every byte again, also of files whose size and times are as recorded.",
    "slow": "Also the tests that download much or take long.",
    "faults": "The fault injection in full, and nothing else; with --slow, every test there is.",
    "archive": "The archive to restore from.",
    "one": "A generation.",
    "other": "Another one.",
    "force": "retire: also the backup, or the generation that `rollback` would go to. init: replace what is there. "
    "bench compare: also what is unlike.",
    "link": "Make this path the active link, in a store that has none.",
    "level": "How hard zstd tries: 1 is quick, 19 is small.",
    "path": "A venv, a folder, a wheel or a file. May be given several times, and without --path.",
    "for_": "The GPU's compute capability, such as sm_120 or 12.0.",
    "against": "The venv that files and wheels are to be loaded in.",
    "compare": "A venv that works: what does not load there either is only noted.",
    "ignore": "A glob of files whose faults are only noted. May be given several times.",
    "ignore_dist": "A glob of dists whose unmet requirements, shared files and other CUDA are only noted.",
    "preload": "What Python code loads first: a glob below site-packages. May be given several times.",
    "entry": "A module that the server starts with (default: those of SGLang and others). May be given several times.",
    "no_cache": "Read everything anew, also where nothing has changed since the last time.",
    "driver": "The NVIDIA driver to judge for, such as 580.95.05 (default: this machine's).",
    "cuda_home": "A CUDA toolkit to look at beside those in the venv, as CUDA_HOME names it.",
    "only": "Only these sections, with commas: system, gpus, toolkits, compilers, venv, holders, units.",
    "text": "The output, a file that holds it, or - for standard input. Also without --text.",
    "context": "What is known beside it: gpu=12.0, torch=2.11.0, torch_cuda=13.0, … May be given several times.",
    "venv": "The environment (default: the store's active one, else VIRTUAL_ENV; for init: the server's).",
    "folder": "init: where playbook.yml and inventory.yml go (default: here). experiments: where the tables go.",
    "dry_run": "Start nothing: say what would be tried (for experiments: what the environment's own sources allow).",
    "gpus": "Over how many GPUs the server spreads, such as 8 (default: not known).",
    "pcie": "The GPUs are joined by PCIe, not by NVLink.",
    "tables": "Start nothing: write the tables and the plan from what is on record.",
    "cuda": "The CUDA release to move to (default: 13.0).",
    "port": "The server that listens on this port, where several run.",
    "save": "Write a patch for each dist and each checkout into this folder; only you may read them.",
    "kind": "playbook (default), tasks, vars or inventory.",
    "name": "A name of the playbook language. May be given several times, and without --name.",
    "type_": "Which kind of name: module, keyword, filter, test, lookup or variable (default: whichever has it).",
    "list_": "All names of the kind that -t says (default: modules), each with a sentence.",
    "file": "A playbook to check for risks. May be given several times, and without --file.",
    "skip": "A rule not to check. May be given several times, or with commas.",
    "rules": "List the rules, and stop.",
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
        if name in (
            "to",
            "keep",
            "generation",
            "level",
            "one",
            "other",
            "confirm_within",
            "gigabytes",
            "driver",
            "port",
            "gpus",
            "from_",
            "builds",
            "allowed_loss",
        ):
            options["kind"] = str  # checked by the command, whose message is better than invoke's traceback
        return options


# Options that many commands share, in the shape in which invoke reads them: as parameters of a function.
def _store_options(
    playbook: str = "",
    extra_vars: list[str] | None = None,
    root: str = "",
    json: bool = False,
) -> None: ...


def _play_options(
    playbook: str = "",
    inventory: list[str] | None = None,
    extra_vars: list[str] | None = None,
    limit: str = "",
    tags: list[str] | None = None,
    skip_tags: list[str] | None = None,
    vault_password_file: list[str] | None = None,
    vault_id: list[str] | None = None,
    ask_vault_pass: bool = False,
    root: str = "",
    detailed_exitcode: bool = False,
    force_handlers: bool = False,
    diff: bool = False,
    list_tasks: bool = False,
    syntax_check: bool = False,
    json: bool = False,
    verbose: int = 0,
) -> None: ...


def _parameters(function: Callable[..., None]) -> tuple[Parameter, ...]:
    return tuple(signature(function).parameters.values())


STORE = _parameters(_store_options)  # what every command on a store has
PLAY = _parameters(_play_options)  # what `plan` and `upgrade` have


def command(name: str, shared: tuple[Parameter, ...] = ()) -> Callable[[Callable[..., None]], CommandTask]:
    """Make an invoke task of a function whose body calls a command and leaves with its exit code.

    Parameters without a default are positional arguments. With `shared`, the function ends in `**shared`, which gets
    those options beside its own.
    """

    def make(body: Callable[..., None]) -> CommandTask:
        if shared:
            own = [each for each in _parameters(body) if each.kind is not Parameter.VAR_KEYWORD]
            body.__signature__ = Signature([*own, *shared])  # type: ignore[attr-defined]  # what invoke asks for
        return CommandTask(
            body,
            name=name,
            auto_shortflags=False,
            iterable=[
                "inventory",
                "extra_vars",
                "tags",
                "skip_tags",
                "vault_password_file",
                "vault_id",
                "path",
                "ignore",
                "ignore_dist",
                "preload",
                "entry",
                "text",
                "context",
                "of",
                "name",
                "file",
                "skip",
            ],
            incrementable=["verbose"],
        )

    return make


def leave(code: int) -> None:
    """Leave the program with this exit code, unless it is 0."""
    if code:
        raise Exit(code=int(code))


def options_of(values: dict[str, Any]) -> dict[str, Any]:
    """The options of a command as a mapping, its own and the shared ones, without invoke's context."""
    own = {name: value for name, value in values.items() if name not in ("context", "shared")}
    return {**values.get("shared", {}), **own}
