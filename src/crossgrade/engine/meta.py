"""`meta`: what a playbook tells the run itself, in the middle of the tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from crossgrade.engine.results import TaskResult, may_change
from crossgrade.engine.turns import HostEnded, Turns
from crossgrade.errors import CrossgradeError
from crossgrade.playbook.model import Task
from crossgrade.playbook.templating import DependsOnUnknown, Templar

if TYPE_CHECKING:
    from crossgrade.engine.walk import Walk

_FOR_ALL = frozenset(("clear_facts", "clear_host_errors", "end_batch", "end_play", "refresh_inventory"))
_WITHOUT_WHEN = frozenset(("flush_handlers", "noop", "refresh_inventory", "reset_connection"))
"""Ansible does these whatever `when` says, and warns of it."""


def action_of(task: Task) -> str:
    return str(task.arguments.get("action", ""))


def does_for_all(task: Task) -> bool:
    """Whether the first host of a batch decides for all, its `when` too."""
    return action_of(task) in _FOR_ALL


@dataclass(frozen=True)
class Telling:
    """One `meta` task on its turn. It counts as no task, as in Ansible."""

    walk: Walk
    task: Task
    name: str

    def run(self, templar: Templar) -> Turns:
        """Do it. Raises HostEnded, and HostFailed where `when` cannot be judged."""
        action = action_of(self.task)
        if action not in _WITHOUT_WHEN and not self._wanted(templar):
            return
        hosts = (self.walk.memory, *self.walk.sharing)
        if action == "flush_handlers":
            yield from self.walk.run_handlers()
        elif action == "clear_facts":
            for memory in hosts:
                memory.gathered.clear()
        elif action == "clear_host_errors":
            for memory in self.walk.company.memory.hosts.values():
                memory.failure = None
        elif action in ("end_batch", "end_play"):
            self.walk.ending = action
            raise HostEnded
        elif action == "end_host":
            raise HostEnded

    def _wanted(self, templar: Templar) -> bool:
        task, walk = self.task, self.walk
        try:
            return templar.all_hold(task.when, task.spot_of("when"))
        except DependsOnUnknown as unknown:
            # the rest of the plan is what happens where it is not so
            walk.tell(
                task,
                self.name,
                templar,
                may_change(unknown.origin),
            )
            return False
        except CrossgradeError as error:
            result = TaskResult("failed", message=str(error), failed=True)
            walk.tell(task, self.name, templar, result)
            walk.memory.counts.count(result)
            walk.fail(task, self.name, templar, result)
            raise AssertionError from error  # `fail` raises
