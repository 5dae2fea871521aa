"""What a task sees because of where it stands: the variables of its role and its includes, and the search path."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from crossgrade.playbook.library import unique
from crossgrade.playbook.model import Block, Step, Task
from crossgrade.playbook.roles import Role, with_layers
from crossgrade.playbook.variables import Precedence, Scope


def scope_of(task: Task, scope: Scope, playbook_directory: Path) -> Scope:
    """The play's scope, with the variables of the task's role, blocks and includes, its own, and its search path."""
    scope = scope.looking_in(directories_of(task, playbook_directory))
    if task.role is not None:
        scope = with_layers(scope, task.role.own_layers())
        scope = scope.with_layer(Precedence.MAGIC, task.role.magic(), templated=False)
    if task.vars:
        scope = scope.with_layer(Precedence.BLOCK_AND_TASK_VARS, task.vars, spot=task.vars_spots)
    return with_layers(scope, iter(task.parameters)) if task.parameters else scope


def facts_set_by(task: Task) -> list[str]:
    """The variables that a task of `set_fact` sets."""
    return [name for name in task.arguments if name != "cacheable"] if task.module == "set_fact" else []


def names_that_are_set(steps: Sequence[Step]) -> Iterator[str]:
    """The variables that these steps register or set as facts, whichever of them run."""
    for step in steps:
        if isinstance(step, Block):
            yield from names_that_are_set((*step.block, *step.rescue, *step.always))
        else:
            yield from facts_set_by(step)
            if step.register:
                yield step.register


def directories_of(task: Task, playbook_directory: Path) -> tuple[Path, ...]:
    """Where the task's files and templates are looked for: its role, the file that it stands in, the playbook."""
    roles = task.role.chain if task.role else ()
    beside = Path(task.spot.source.file).parent
    return tuple(unique((*(role.path for role in roles), beside, playbook_directory)))


def role_variables(roles: Sequence[Role]) -> dict[str, Any]:
    """The variables that name the roles of a play."""
    dependencies = [each for role in roles for each in role.all_dependencies()]
    return {
        "ansible_play_role_names": [role.name for role in roles],
        "ansible_dependent_role_names": list(dict.fromkeys(role.name for role in dependencies)),
        "ansible_role_names": list(dict.fromkeys(role.name for role in (*dependencies, *roles))),
        "role_names": [role.name for role in roles],
    }
