"""group_by: put each host of the play into a group whose name comes from its variables."""

from __future__ import annotations

from dataclasses import dataclass

from crossgrade.errors import TaskError
from crossgrade.modules.contract import ApplyContext, Change, HostView, Module, Outcome, Plan
from crossgrade.playbook.arguments import argument
from crossgrade.playbook.inventory_made import MadeGroup


@dataclass(frozen=True)
class Arguments:
    """Puts the host into a group that this run knows from then on; no file is changed.

    Its variables (`group_vars/`), `groups` and `group_names` follow at once, and later plays may be for the group. A
    plan does the same. Spaces in names become dashes, as in Ansible.
    """

    key: str = argument(doc="The name of the group, as a rule with a template: `driver_{{ driver_branch }}`.")
    parents: tuple[str, ...] = argument(doc="The groups that it stands below.", default=("all",))


def inspect(arguments: Arguments, host: HostView) -> MadeGroup:  # noqa: ARG001 (the contract's shape)
    """Raises TaskError for names that are empty, and for a group below itself."""
    made = MadeGroup(arguments.key.replace(" ", "-"), tuple(parent.replace(" ", "-") for parent in arguments.parents))
    if not made.name or not all(made.parents):
        raise TaskError("group_by: the name of a group is empty")
    if made.name in made.parents:
        raise TaskError(f"group_by: the group {made.name!r} cannot be its own parent")
    return made


def plan(arguments: Arguments, state: MadeGroup) -> Plan:  # noqa: ARG001 (the contract's shape)
    values = {"add_group": state.name, "parent_groups": list(state.parents)}
    return Change(f"put the host into the group {state.name}", values=values, payload={"made": state})


def apply(arguments: Arguments, change: Change, context: ApplyContext) -> Outcome:  # noqa: ARG001 (the contract's shape)
    return Outcome(change.values, made=change.payload["made"])


MODULE = Module(
    name="group_by",
    arguments=Arguments,
    effect="reads",
    inspect=inspect,
    plan=plan,
    apply=apply,
    summary="Group the hosts of a play by their variables.",
)
