"""add_host: let the later plays of this run know of one more host, or of more about one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from crossgrade.errors import TaskError
from crossgrade.modules.contract import ApplyContext, Change, HostView, Module, Outcome, Plan
from crossgrade.playbook.arguments import argument
from crossgrade.playbook.inventory_files import split_port
from crossgrade.playbook.inventory_made import MadeHost
from crossgrade.playbook.markers import unknown_in


@dataclass(frozen=True)
class Arguments:
    """Adds a host to what this run knows of the inventory; no file is changed.

    One host of the play does it for all. The later plays may be for the added host, which must be this machine under
    another name (`ansible_connection: local`): a run is one transaction on one machine. A plan adds it too, and so
    shows what the later plays will do there. `--limit` holds for it as well; `meta: refresh_inventory` keeps it.
    """

    name: str = argument(
        doc="The name; with `:PORT`, `ansible_ssh_port` is set too. A later play or `delegate_to` can be for the host "
        "where it is this machine (`ansible_connection: local`).",
        aliases=("host", "hostname"),
    )
    groups: tuple[str, ...] = argument(
        doc="The groups it is put into. They are made where they are not there.",
        default=(),
        aliases=("group", "groupname"),
    )
    variables: Mapping[str, Any] = argument(
        doc="Each other key is a variable of the host.", rest=True, may_be_unknown=True
    )


def inspect(arguments: Arguments, host: HostView) -> MadeHost:  # noqa: ARG001 (the contract's shape)
    """Raises TaskError for names that are empty."""
    name, port = split_port(arguments.name.strip())
    groups = tuple(dict.fromkeys(group.strip() for group in arguments.groups))
    if not name or not all(groups):
        raise TaskError("add_host: the name of a host or of a group is empty")
    variables = dict(arguments.variables)
    if port is not None:
        variables["ansible_ssh_port"] = port
    return MadeHost(name, groups, variables)


def plan(arguments: Arguments, state: MadeHost) -> Plan:  # noqa: ARG001 (the contract's shape)
    groups = f" in {', '.join(state.groups)}" if state.groups else ""
    values = {"host_name": state.name, "groups": list(state.groups), "host_vars": dict(state.variables)}
    known = unknown_in(state.variables) is None
    return Change(
        f"add the host {state.name}{groups}",
        values={"add_host": values},
        values_known=known,
        payload={"made": state},
    )


def apply(arguments: Arguments, change: Change, context: ApplyContext) -> Outcome:  # noqa: ARG001 (the contract's shape)
    return Outcome(change.values, made=change.payload["made"])


MODULE = Module(
    name="add_host",
    arguments=Arguments,
    effect="reads",
    inspect=inspect,
    plan=plan,
    apply=apply,
    summary="Add a host for the later plays of this run.",
)
