"""setup (gather_facts): what this machine is, under Ansible's names and with crossgrade's own facts beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from crossgrade.errors import TaskError
from crossgrade.modules.contract import ApplyContext, Change, HostView, Module, Outcome, Plan
from crossgrade.playbook.arguments import argument

OWN = "crossgrade"
PREFIX = "ansible_"
# docs.ansible.com, module setup: names of smaller collections, and the one of ours that has them
_WITHIN = {
    "distribution": "min", "platform": "min", "python": "min", "user": "min", "env": "min", "date_time": "min",
    "dns": "min", "cmdline": "min", "service_mgr": "min", "pkg_mgr": "min", "local": "min", "selinux": "min",
    "fips": "min", "processor": "hardware", "mounts": "hardware", "loadavg": "hardware", "devices": "hardware",
    "interfaces": "network",
}  # fmt: skip
_NOT_HERE = ("virtual", "ohai", "facter")


@dataclass(frozen=True)
class Arguments:
    """Reads the basics of this machine; they become `ansible_facts` and `ansible_…` for the tasks that come later."""

    filter: tuple[str, ...] = argument(
        doc="Globs of the facts to return (`ansible_mem*`, or without `ansible_`).", default=()
    )
    gather_subset: tuple[str, ...] = argument(
        doc="What to look at: all, min, hardware, network, crossgrade (driver, GPUs, toolkits, compilers); with `!` in "
        "front, what not.",
        default=("all",),
    )
    gather_timeout: int = argument(doc="Accepted for Ansible's sake: nothing here waits.", default=10)
    fact_path: str = argument(
        doc="Accepted for Ansible's sake: facts of files are not read, `ansible_local` is empty.",
        default="/etc/ansible/facts.d",
    )


def inspect(arguments: Arguments, host: HostView) -> Mapping[str, Any]:
    return gather(arguments.gather_subset, host.environment, host.store.root)


def gather(subset: tuple[str, ...], environment: Mapping[str, str], root: Path) -> Mapping[str, Any]:
    """The facts by name, without `ansible_`; `root` is the store's. Raises TaskError for a subset that nobody knows."""
    from crossgrade.facts.ansible_names import SUBSETS

    chosen = chosen_subsets(subset, (*SUBSETS, OWN))
    facts: dict[str, Any] = {}
    for name, look in SUBSETS.items():
        if name in chosen:
            facts.update(look(environment))
    if OWN in chosen:
        from crossgrade.inspect.machine import collect_facts

        facts[OWN] = collect_facts(root=root, environment=environment).to_json()
    return {**facts, "gather_subset": list(subset), "module_setup": True}


def chosen_subsets(subset: tuple[str, ...], known: tuple[str, ...]) -> set[str]:
    """`!all` leaves `min`, `!min` leaves even that out; names alone add to `min`. Raises TaskError."""
    wanted: set[str] = set()
    unwanted: set[str] = set()
    for each in subset or ("all",):
        without = each.startswith("!")
        name = each.lstrip("!").strip()
        if name not in ("all", *known, *_WITHIN, *_NOT_HERE):
            raise TaskError(f"there are no facts {name!r}", remedy=f"`gather_subset` knows all, {', '.join(known)}.")
        of_all = set(known) - {"min"} if without else set(known)
        names = of_all if name == "all" else {_WITHIN.get(name, name)}
        (unwanted if without else wanted).update(names)
    if not wanted:
        wanted = set(known)
    named = {each for each in subset if not each.startswith("!")} - {"all"}
    kept = {_WITHIN.get(name, name) for name in named}  # what is named stands against a `!all`
    return ({*wanted, "min"} - (unwanted - kept)) & set(known)


def plan(arguments: Arguments, state: Mapping[str, Any]) -> Plan:
    names = {name if name in (OWN, "gather_subset", "module_setup") else PREFIX + name: name for name in state}
    if arguments.filter:
        names = {shown: name for shown, name in names.items() if _matches(shown, arguments.filter)}
    values = {shown: state[name] for shown, name in names.items()}
    kept = {name: state[name] for name in names.values()}
    return Change("read the facts", values={"ansible_facts": values}, payload={"facts": kept})


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(
        fnmatchcase(name, pattern) or (not pattern.startswith(PREFIX) and fnmatchcase(name, PREFIX + pattern))
        for pattern in patterns
        if pattern
    )


def apply(arguments: Arguments, change: Change, context: ApplyContext) -> Outcome:  # noqa: ARG001 (the contract's shape)
    return Outcome(change.values, gathered=change.payload["facts"])


MODULE = Module(
    name="setup",
    arguments=Arguments,
    effect="reads",
    inspect=inspect,
    plan=plan,
    apply=apply,
    summary="The basic facts of this machine.",
)
