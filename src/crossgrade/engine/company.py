"""The hosts of a run as a task may reach them: what is known of each, and whether a task can be done there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from crossgrade.engine.becoming import Becoming
from crossgrade.engine.memory import HostMemory, Memory
from crossgrade.engine.roster import CONTROLLER, Roster
from crossgrade.errors import TaskError
from crossgrade.playbook.inventory import LOCALHOSTS
from crossgrade.playbook.markers import DependsOnUnknown
from crossgrade.playbook.model import Task
from crossgrade.playbook.templating import Templar


@dataclass(frozen=True)
class Company:
    """What the walks of a run share. The engine runs on one machine: all hosts that it can do tasks on are that one."""

    memory: Memory = field(default_factory=Memory)
    roster: Roster = field(default_factory=Roster)
    extra_vars: Mapping[str, Any] = field(default_factory=dict)
    becoming: Becoming = field(default_factory=lambda: Becoming({}))

    def delegate(self, task: Task, templar: Templar, host: str, connection: str | None) -> HostMemory | None:
        """The host that the task is done on where that is another one; `connection` is the play's.

        Raises TaskError for one out of reach.
        """
        if task.conduct.delegate_to is None:
            return None
        name = str(templar.template(task.conduct.delegate_to, task.spot_of("delegate_to"))).strip()
        if name == host:
            return None
        if not name or name == "omit":
            return None
        reason = self._out_of_reach(name, connection)
        if reason:
            raise TaskError(
                f"delegate_to: {name} cannot be reached from here: {reason}",
                remedy="A task runs on the machine that crossgrade runs on: give that host a play of its own.",
            )
        return self.memory.of(name)

    def _out_of_reach(self, name: str, of_play: str | None) -> str:
        controller = self.extra_vars.get(CONTROLLER)
        if controller:
            return f"the engine runs on the host itself, and the command was given on {controller}"
        known = self.roster.inventory.host(name)
        if known is None and name not in LOCALHOSTS and self.roster.doubt:
            raise DependsOnUnknown(self.roster.doubt)
        if known is None:
            return "" if name in LOCALHOSTS else "no host of the inventory has this name"
        own = known.connection if known.setting("ansible_connection") else of_play or known.connection
        connection = self.extra_vars.get("ansible_connection") or own
        return "" if connection == "local" else f"its connection is {connection}"
