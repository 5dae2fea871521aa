"""The keywords of the language, as data: where each is allowed, what it holds, whether it works here yet.

Names and places are those of ansible-core 2.19. The loader, the JSON schema and `docs/language.md` are made
from this table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

On = Literal["play", "block", "task", "handler"]
Kind = Literal[
    "text",  # a scalar
    "name",  # a variable's name
    "bool",  # true, false, or a template
    "number",  # a number, or a template
    "mapping",
    "variables",  # a mapping from variables' names
    "environment",
    "texts",  # a text or a list of texts
    "tags",  # like texts; a text is split at commas
    "conditions",  # an expression or a list of them
    "steps",  # a list of tasks and blocks
    "loop",  # a list, or a template
    "loop_control",
    "arguments",
    "any",
]


@dataclass(frozen=True)
class Keyword:
    """One keyword. With `supported` false, Ansible has it and crossgrade does not have it yet."""

    name: str
    on: frozenset[On]
    kind: Kind = "any"
    supported: bool = True
    instead: str = ""
    choices: tuple[str, ...] = ()


_LETTERS: dict[str, On] = {"p": "play", "b": "block", "t": "task", "h": "handler"}


def _keyword(name: str, places: str, kind: Kind, choices: tuple[str, ...] = ()) -> Keyword:
    return Keyword(name, frozenset(_LETTERS[letter] for letter in places), kind, choices=choices)


def _later(names: str, places: str, instead: str = "") -> list[Keyword]:
    on = frozenset(_LETTERS[letter] for letter in places)
    return [Keyword(name, on, supported=False, instead=instead) for name in names.split()]


_BECOME = "crossgrade runs as the user that started it: start it as the user that owns the environment."
_HOST = "Tasks run on the host of the play: give the hosts in `hosts`."

_ALL = [
    _keyword("name", "pbth", "text"),
    _keyword("hosts", "p", "texts"),
    _keyword("vars", "pbth", "variables"),
    _keyword("vars_files", "p", "texts"),
    _keyword("gather_facts", "p", "bool"),
    _keyword("roles", "p", "any"),
    _keyword("pre_tasks", "p", "steps"),
    _keyword("tasks", "p", "steps"),
    _keyword("post_tasks", "p", "steps"),
    _keyword("handlers", "p", "steps"),
    _keyword("force_handlers", "p", "bool"),
    _keyword("connection", "p", "text", choices=("local", "ssh", "smart")),
    _keyword("environment", "pbth", "environment"),
    _keyword("tags", "pbth", "tags"),
    _keyword("when", "bth", "conditions"),
    _keyword("any_errors_fatal", "pbth", "bool"),
    _keyword("ignore_errors", "pbth", "bool"),
    _keyword("no_log", "pbth", "bool"),
    _keyword("check_mode", "pbth", "bool"),
    _keyword("diff", "pbth", "bool"),
    _keyword("notify", "bth", "texts"),
    _keyword("block", "b", "steps"),
    _keyword("rescue", "b", "steps"),
    _keyword("always", "b", "steps"),
    _keyword("args", "th", "arguments"),
    _keyword("register", "th", "name"),
    _keyword("loop", "th", "loop"),
    _keyword("loop_control", "th", "loop_control"),
    _keyword("until", "th", "conditions"),
    _keyword("retries", "th", "number"),
    _keyword("delay", "th", "number"),
    _keyword("changed_when", "th", "conditions"),
    _keyword("failed_when", "th", "conditions"),
    _keyword("listen", "h", "texts"),
    *_later("become become_user become_method become_flags become_exe", "pbth", _BECOME),
    *_later("delegate_to delegate_facts run_once", "bth", _HOST),
    *_later("remote_user port", "pbth", "Give `ansible_user` and `ansible_port` in the inventory."),
    *_later("connection", "bth"),
    *_later("timeout", "pbth", "Modules that can take long have a `timeout` argument of their own."),
    *_later("ignore_unreachable throttle debugger module_defaults collections", "pbth"),
    *_later("run_once order strategy serial max_fail_percentage fact_path", "p"),
    *_later("gather_subset gather_timeout validate_argspec vars_prompt", "p"),
    *_later("async poll", "th", "Tasks run to their end; `server` is the module for what runs beside."),
    *_later("action local_action", "th", "Write the module's name as the key: `copy: …`."),
    *_later("with_items with_list with_flattened", "th", "Write `loop`, which takes the same list."),
    *_later("with_dict", "th", 'Write `loop: "{{ the_dict | dict2items }}"`.'),
    *_later("with_sequence", "th", 'Write `loop: "{{ range(1, 4) | list }}"`.'),
    *_later("with_nested with_cartesian with_together with_subelements with_indexed_items", "th"),
    *_later("with_fileglob with_file with_lines with_first_found with_random_choice with_env", "th"),
]

KEYWORDS: dict[On, dict[str, Keyword]] = {
    place: {keyword.name: keyword for keyword in _ALL if place in keyword.on} for place in _LETTERS.values()
}

LOOP_CONTROL: dict[str, Kind] = {
    "loop_var": "name",
    "index_var": "name",
    "label": "any",
    "pause": "number",
    "extended": "bool",
    "extended_allitems": "bool",
    "break_when": "conditions",
}
LOOP_CONTROL_LATER = frozenset(("extended_allitems", "break_when"))

PREFIXES = ("ansible.builtin.", "ansible.legacy.", "crossgrade.builtin.")
"""In front of a module's name these say only where it comes from."""

MODULES_LATER: dict[str, str] = {
    "meta": "",
    "shell": "`command` with `argv: [sh, -c, …]` runs a shell.",
    "script": "Use `command`.",
    "lineinfile": "Use `template` or `copy` for the whole file.",
    "blockinfile": "Use `template` or `copy` for the whole file.",
    "replace": "Use `template` or `copy` for the whole file.",
    "get_url": "Use `command` with curl.",
    "pause": "Use `wait_for` with `timeout`.",
    "pip": "`python_env` builds a whole environment from a lock with hashes.",
    "package": "Install system packages before, with Ansible or by hand.",
    "apt": "Install system packages before, with Ansible or by hand.",
    "dnf": "Install system packages before, with Ansible or by hand.",
    "systemd": "Use `command` with systemctl, or `server`.",
    "systemd_service": "Use `command` with systemctl, or `server`.",
    "service": "Use `command` with systemctl, or `server`.",
    "git": "Use `command` with git.",
    "unarchive": "Use `command` with tar.",
    "tempfile": "Use `file` with `state: directory`.",
    "find": "",
    "slurp": "Use `lookup('file', …)`.",
    "ping": "",
    "setup": "Facts are gathered by the play; `crossgrade facts` shows them.",
    "group_by": "",
    "add_host": "Write the host into the inventory.",
    "raw": "Use `command`.",
    "user": "",
    "group": "",
    "cron": "",
    "mount": "",
    "reboot": "",
    "hostname": "",
    "sysctl": "",
}
"""Modules of Ansible that are not here yet, and what to do until they are."""
