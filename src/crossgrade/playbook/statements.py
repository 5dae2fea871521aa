"""The statements that bring in more tasks, by the names and arguments that Ansible has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from crossgrade.playbook.arguments import argument
from crossgrade.playbook.build_task import ModuleCatalogue


@dataclass(frozen=True)
class ImportTasks:
    """Puts the tasks of a file here, before the run."""

    file: str = argument(doc="The file, relative to this one, the role or the playbook.", free_form=True)


@dataclass(frozen=True)
class IncludeTasks:
    """Runs the tasks of a file when its turn comes."""

    file: str = argument(doc="The file, relative to this one, the role or the playbook.", free_form=True)
    apply: Mapping[str, Any] = argument(doc="Keywords for all its tasks.", default_factory=dict, raw=True)


@dataclass(frozen=True)
class ImportRole:
    """Puts a role here, before the run."""

    name: str = argument(doc="The role.", aliases=("role",))
    tasks_from: str = argument(doc="A file of its `tasks`.", default="main")
    handlers_from: str = argument(doc="A file of its `handlers`.", default="main")
    vars_from: str = argument(doc="A file of its `vars`.", default="main")
    defaults_from: str = argument(doc="A file of its `defaults`.", default="main")
    public: bool | None = argument(doc="Whether all tasks of the play see its variables.", default=None)
    allow_duplicates: bool = argument(doc="Whether it runs although it has run already.", default=True)
    rolespec_validate: bool = argument(doc="Accepted for Ansible's sake.", default=True)


@dataclass(frozen=True)
class IncludeRole(ImportRole):
    """Runs a role when its turn comes."""

    apply: Mapping[str, Any] = argument(doc="Keywords for all its tasks.", default_factory=dict, raw=True)


STATEMENTS: dict[str, type[Any]] = {
    "import_tasks": ImportTasks,
    "include_tasks": IncludeTasks,
    "import_role": ImportRole,
    "include_role": IncludeRole,
}
DYNAMIC = frozenset(("include_tasks", "include_role"))

ON_INCLUDE = frozenset(
    (
        *("args", "collections", "debugger", "ignore_errors", "listen", "loop", "loop_control", "name", "no_log"),
        *("register", "run_once", "tags", "timeout", "vars", "when"),
    )
)
"""The keywords of a dynamic include itself; the others go below `apply`."""

NOT_ON_IMPORT = frozenset(
    ("changed_when", "delay", "failed_when", "listen", "loop", "loop_control", "register", "retries", "until")
)
"""What a static import cannot have: it is no task of its own."""


def with_statements(modules: ModuleCatalogue) -> ModuleCatalogue:
    """The modules, and these statements, which are read like them."""

    def arguments_of(name: str) -> type[Any] | None:
        return STATEMENTS.get(name) or modules.arguments_of(name)

    return ModuleCatalogue(frozenset((*modules.names, *STATEMENTS)), arguments_of)
