"""What each keyword is for, in a sentence, and where crossgrade means something else by it than Ansible, and why.

Kept apart from the keyword table: only `schema`, `doc` and `docs/language.md` read it.
"""

from __future__ import annotations

DESCRIPTIONS: dict[str, str] = {
    "action": "The module and its arguments, in one keyword.",
    "always": "Tasks that run after the block, whether it failed or not.",
    "any_errors_fatal": "A failure on one host ends the play on all of them.",
    "args": "More arguments for the module, such as `chdir` beside a `command` that is a text.",
    "async": "Seconds that a task may go on by itself.",
    "become": "Run as another user.",
    "become_exe": "The program that changes the user.",
    "become_flags": "Its options.",
    "become_method": "How to become another user: sudo, su.",
    "become_user": "The user to become.",
    "block": "Tasks that share keywords, and that `rescue` and `always` belong to.",
    "changed_when": "Conditions that say whether the task has changed something, instead of the module.",
    "check_mode": "True: never do it, only say what would be done. False: do it in a plan too.",
    "collections": "Where modules are looked for.",
    "connection": "How the hosts are reached: `local`, `ssh` or `smart`.",
    "debugger": "When a debugger is started.",
    "delay": "Seconds between attempts of `until`.",
    "delegate_facts": "Facts belong to the host that the task is delegated to.",
    "delegate_to": "The host on which the task runs instead.",
    "diff": "Show before and after of what this task changes.",
    "environment": "Environment variables for the programs that tasks start.",
    "fact_path": "A folder of custom facts.",
    "failed_when": "Conditions that say whether the task has failed, instead of the module.",
    "force_handlers": "Run the handlers that were notified even when the play has failed.",
    "gather_facts": "Look at the machine first: system, driver, GPUs, toolkits, compilers.",
    "gather_subset": "Which facts to gather.",
    "gather_timeout": "Seconds that gathering facts may take.",
    "handlers": "Tasks that run once, at the end of a section, when a changed task has notified them.",
    "hosts": "The hosts that the play is for: names, groups and patterns. For this machine: `localhost`.",
    "ignore_errors": "Go on when the task fails.",
    "ignore_unreachable": "Go on when the host cannot be reached.",
    "listen": "More names under which this handler can be notified.",
    "local_action": "A task on this machine.",
    "loop": "Do the task once for each item of a list.",
    "loop_control": "How a loop runs: `loop_var`, `index_var`, `label`, `pause`, `extended`.",
    "max_fail_percentage": "The share of hosts that may fail before the play ends.",
    "module_defaults": "Arguments for all tasks of a module.",
    "name": "What it is for, in words. The plan, the report and `rollback` show it.",
    "no_log": "Show no arguments and no results: something in them is secret.",
    "notify": "Handlers to run when the task has changed something.",
    "order": "The order of the hosts.",
    "poll": "Seconds between looks at an `async` task.",
    "port": "The port of the connection.",
    "post_tasks": "Tasks that run after `tasks` and their handlers.",
    "pre_tasks": "Tasks that run first.",
    "register": "A variable that gets the task's result.",
    "remote_user": "The user of the connection.",
    "rescue": "Tasks that run when one of the block has failed; then the play goes on.",
    "retries": "How often `until` is tried again.",
    "roles": "Roles to run before `tasks`.",
    "run_once": "Run on one host only.",
    "serial": "How many hosts at a time.",
    "strategy": "How hosts go through the tasks.",
    "tags": "Names by which `--tags` and `--skip-tags` choose tasks.",
    "tasks": "The tasks of the play, in their order.",
    "throttle": "How many hosts run the task at a time.",
    "timeout": "Seconds that the task may take.",
    "until": "Conditions: the task is tried again until they are true.",
    "validate_argspec": "Check the arguments of the play.",
    "vars": "Variables.",
    "vars_files": "Files of variables, relative to the playbook.",
    "vars_prompt": "Variables to ask for.",
    "when": "Conditions without `{{ }}`; the task is skipped when one is false.",
}

DIFFERENT: dict[str, str] = {
    "become": "without a password; modules that write files themselves are refused: they work as the user that "
    "crossgrade runs as, so that what they change can be taken back",
    "become_method": "sudo only",
    "collections": "only names of ansible.builtin mean something",
    "connection": "on a block or task `local` only: a host has one connection",
    "gather_facts": "without it, facts are gathered when a play first needs one, and no task is counted; "
    "`ansible_facts.crossgrade` holds driver, GPUs, toolkits and compilers",
    "gather_timeout": "accepted: nothing that is gathered waits",
    "hosts": "a pattern that matches nothing is an error, lest a misspelt group leave out a play; a group may be empty",
    "order": "`shuffle` gives the same order each time: a plan says what the run will do",
    "strategy": "`linear` only: a plan foresees one order",
    "vars_prompt": "without `encrypt` and its like: no hashes of passwords are made",
    "check_mode": "a plan predicts what the run does, and a task that it already sees fail keeps the run from starting",
    "with_flattened": "there without the collection community.general",
    "register": "in a plan, what only the run knows is `may change`, never an error and never a silent skip",
}
"""Keywords that are not quite Ansible's, and why."""

ROLE_KEYWORDS: frozenset[str] = frozenset(
    (
        *("any_errors_fatal", "become", "become_exe", "become_flags", "become_method", "become_user", "check_mode"),
        *("collections", "connection", "debugger", "delegate_facts", "delegate_to", "diff", "environment"),
        *(
            "ignore_errors",
            "ignore_unreachable",
            "module_defaults",
            "name",
            "no_log",
            "port",
            "remote_user",
            "run_once",
        ),
        *("tags", "throttle", "timeout", "vars", "when"),
    )
)
"""What may stand beside a role's name in `roles` and in its dependencies: the role's tasks are then a block."""


def description(name: str) -> str:
    """A sentence on a keyword; for `with_…`, that it is a loop. "" for one that is not known."""
    if name.startswith("with_"):
        return f"A loop over what the lookup `{name.removeprefix('with_')}` gives."
    return DESCRIPTIONS.get(name, "")
