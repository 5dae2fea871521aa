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
    "alternatives",  # like texts; each may be a list of which one is taken
    "tags",  # like texts; a text is split at commas
    "conditions",  # an expression or a list of them
    "steps",  # a list of tasks and blocks
    "loop",  # a list, or a template
    "loop_control",
    "arguments",
    "mappings",  # a mapping, or a list of them
    "sizes",  # a number or percentage, or a list of them
    "prompts",  # questions: a list of mappings with `name`
    "action",  # a module with its arguments, as text or as a mapping with `module`
    "any",
]


@dataclass(frozen=True)
class Keyword:
    """One keyword. With `supported` false, Ansible has it and crossgrade has not: not yet, or `never`."""

    name: str
    on: frozenset[On]
    kind: Kind = "any"
    supported: bool = True
    instead: str = ""
    choices: tuple[str, ...] = ()
    never: bool = False

    def refusal(self) -> str:
        """Why a playbook with it is not read; for one that is not supported."""
        when = "cannot be supported here" if self.never else "is not supported here yet"
        return f"Ansible keyword `{self.name}` {when}"


ORDERS = ("inventory", "reverse_inventory", "sorted", "reverse_sorted", "shuffle")
LOOPS = (
    *("items", "list", "dict", "flattened", "sequence", "nested", "cartesian", "together", "subelements"),
    *("indexed_items", "fileglob", "file", "lines", "first_found", "random_choice", "env"),
)
"""`with_NAME`: the lookup of this name gives the items."""

_LETTERS: dict[str, On] = {"p": "play", "b": "block", "t": "task", "h": "handler"}


def _keyword(name: str, places: str, kind: Kind, choices: tuple[str, ...] = ()) -> Keyword:
    return Keyword(name, frozenset(_LETTERS[letter] for letter in places), kind, choices=choices)


def _keywords(names: str, places: str, kind: Kind) -> list[Keyword]:
    return [_keyword(name, places, kind) for name in names.split()]


def _never(names: str, places: str, why: str) -> list[Keyword]:
    """Keywords for what cannot exist here, with the reason or the remedy."""
    on = frozenset(_LETTERS[letter] for letter in places)
    return [Keyword(name, on, supported=False, instead=why, never=True) for name in names.split()]


def _later(names: str, places: str, instead: str = "") -> list[Keyword]:
    on = frozenset(_LETTERS[letter] for letter in places)
    return [Keyword(name, on, supported=False, instead=instead) for name in names.split()]


_ONE_AFTER_THE_OTHER = "Tasks run to their end, one after the other; `server` is the module for what runs beside."
_CONNECTION = "A host has one connection: give it in the play or in the inventory."

_ALL = [
    _keyword("name", "pbth", "text"),
    _keyword("hosts", "p", "texts"),
    _keyword("vars", "pbth", "variables"),
    _keyword("vars_files", "p", "alternatives"),
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
    *_keywords("become run_once ignore_unreachable", "pbth", "bool"),
    *_keywords("become_user become_exe become_flags", "pbth", "text"),
    _keyword("become_method", "pbth", "text", choices=("sudo",)),
    *_keywords("timeout throttle", "pbth", "number"),
    _keyword("module_defaults", "pbth", "mappings"),
    _keyword("collections", "pbth", "texts"),
    _keyword("delegate_to", "bth", "text"),
    _keyword("delegate_facts", "bth", "bool"),
    _keyword("connection", "bth", "text", choices=("local",)),
    _keyword("serial", "p", "sizes"),
    *_keywords("max_fail_percentage gather_timeout", "p", "number"),
    _keyword("order", "p", "text", choices=ORDERS),
    _keyword("strategy", "p", "text", choices=("linear",)),
    _keyword("gather_subset", "p", "texts"),
    _keyword("vars_prompt", "p", "prompts"),
    *_keywords("remote_user", "p", "text"),
    *_keywords("port", "p", "number"),
    _keyword("action", "th", "action"),
    _keyword("local_action", "th", "action"),
    *(_keyword(f"with_{name}", "th", "any") for name in LOOPS),
    *_never("remote_user port", "bth", _CONNECTION),
    *_never("debugger", "pbth", "A run asks nobody in its middle; look with `crossgrade plan --diff` and `debug`."),
    *_never("async poll", "th", _ONE_AFTER_THE_OTHER),
    *_never("fact_path", "p", "Facts of your own are variables here: give them in `vars_files` or `host_vars`."),
    *_never("validate_argspec", "p", "Write an `assert` at the beginning of the play."),
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

PREFIXES = ("ansible.builtin.", "ansible.legacy.", "crossgrade.builtin.")
"""In front of a module's name these say only where it comes from."""

_BY_ANSIBLE = " Real Ansible has it: `ansible-playbook` before or after crossgrade, or from a `command` task."

MODULES_LATER: dict[str, str] = {
    "package": "Use `apt`." + _BY_ANSIBLE,
    "dnf": "`apt` is the package manager that is here." + _BY_ANSIBLE,
    "yum": "`apt` is the package manager that is here." + _BY_ANSIBLE,
    "apt_repository": "`cuda_toolkit` adds NVIDIA's (`repository:`); for others write the file with `copy`."
    + _BY_ANSIBLE,
    "apt_key": "Write the key with `copy` into /etc/apt/keyrings." + _BY_ANSIBLE,
    "dpkg_selections": "Use `command` with apt-mark." + _BY_ANSIBLE,
    "debconf": "Use `command` with debconf-set-selections." + _BY_ANSIBLE,
    "raw": "Use `command` or `shell`." + _BY_ANSIBLE,
    "expect": "Use `command` with `stdin`." + _BY_ANSIBLE,
    "user": "Use `command` with useradd and `creates`." + _BY_ANSIBLE,
    "group": "Use `command` with groupadd." + _BY_ANSIBLE,
    "cron": "Write a timer with `copy` and start it with `systemd_service`." + _BY_ANSIBLE,
    "mount": "Use `command` with mount." + _BY_ANSIBLE,
    "reboot": "A reboot ends the run that asks for it: reboot before or after." + _BY_ANSIBLE,
    "hostname": "Use `command` with hostnamectl." + _BY_ANSIBLE,
    "sysctl": "Write /etc/sysctl.d with `copy`, then `command: sysctl --system`." + _BY_ANSIBLE,
    "synchronize": "Use `copy` with a directory." + _BY_ANSIBLE,
    "fetch": "Use `copy` with `remote_src`: crossgrade runs on the machine itself." + _BY_ANSIBLE,
    "assemble": "Use `template`." + _BY_ANSIBLE,
    "known_hosts": "Use `copy` for the file." + _BY_ANSIBLE,
    "iptables": "Use `command` with nft or iptables." + _BY_ANSIBLE,
    "getent": "Use `command` with getent." + _BY_ANSIBLE,
    "mount_facts": "`setup` gives `ansible_mounts`." + _BY_ANSIBLE,
    "package_facts": "Use `command` with dpkg-query." + _BY_ANSIBLE,
    "service_facts": "Use `command` with systemctl." + _BY_ANSIBLE,
    "subversion": "Use `git`." + _BY_ANSIBLE,
    "async_status": "Tasks run to their end; `server` is the module for what runs beside." + _BY_ANSIBLE,
    "wait_for_connection": "crossgrade runs on the machine itself; after a reboot start it again." + _BY_ANSIBLE,
    "validate_argument_spec": "Use `assert`." + _BY_ANSIBLE,
    "docker_container": "`server` starts a process; containers stay with their own tools, through `command`."
    + _BY_ANSIBLE,
    "docker_image": "Use `command` with docker pull and a digest." + _BY_ANSIBLE,
    "docker_compose_v2": "Use `command` with docker compose." + _BY_ANSIBLE,
}
"""Modules of Ansible that are not here yet, and what to do until they are."""
