"""Hosts and groups that a run makes by itself (`add_host`, `group_by`), laid over what the inventory says. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from crossgrade.playbook.inventory import Draft, Inventory, finished
from crossgrade.playbook.markers import unknown_in

MAKERS = ("add_host", "group_by")
"""The modules that make them."""


@dataclass(frozen=True)
class MadeHost:
    """A host that is added, or gets more variables and groups. Its variables are data."""

    name: str
    groups: tuple[str, ...] = ()
    variables: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class MadeGroup:
    """A group that gets the host of the task; it stands below its parents."""

    name: str
    parents: tuple[str, ...] = ("all",)


Made = MadeHost | MadeGroup


def with_made(inventory: Inventory, made: Made, host: str) -> Inventory:
    """The inventory with what a task on `host` has made; the same object when nothing of it is new.

    Raises PlaybookError for groups in a circle.
    """
    draft = _copy(inventory.draft)
    new = _add_host(draft, made) if isinstance(made, MadeHost) else _add_group(draft, made, host, inventory)
    return finished(draft, inventory.files) if new else inventory


def _copy(draft: Draft) -> Draft:
    groups = {
        name: replace(group, hosts=dict(group.hosts), children=dict(group.children))
        for name, group in draft.groups.items()
    }
    return Draft(groups, dict(draft.hosts), dict(draft.made), set(draft.added))


def _add_host(draft: Draft, made: MadeHost) -> bool:
    name = made.name
    new = name not in draft.hosts
    if new:
        draft.groups["all"].hosts[name] = None
        draft.added.add(name)
    own = draft.host(name)
    known = {**own, **draft.made.get(name, {})}
    if any(key not in known or not _same(known[key], value) for key, value in made.variables.items()):
        draft.made[name] = {**draft.made.get(name, {}), **made.variables}
        new = True
    for group in made.groups:
        new = new or group not in draft.groups or name not in draft.group(group).hosts
        draft.group(group).hosts[name] = None
    return new


def _add_group(draft: Draft, made: MadeGroup, host: str, inventory: Inventory) -> bool:
    new = made.name not in draft.groups
    draft.group(made.name)
    for parent in made.parents:
        new = new or parent not in draft.groups or not _is_below(draft, made.name, parent)
        draft.group(parent).children[made.name] = None
    if host not in inventory.groups.get(made.name, ()):
        draft.group(made.name).hosts[host] = None
        new = True
    return new


def _is_below(draft: Draft, group: str, parent: str) -> bool:
    """Whether the group stands below this parent itself; below `all` stand those that have no other."""
    others = (name for name in draft.groups if name != "all")
    alone = not any(group in draft.groups[name].children for name in others)
    return group in draft.groups[parent].children or (parent == "all" and alone)


def _same(one: Any, other: Any) -> bool:
    """Whether two values are the same; what only the run knows is the same as nothing."""
    return unknown_in(one) is None and unknown_in(other) is None and bool(one == other)
