"""A playbook as data: what the loader makes and the engine walks.

Templates in it are not expanded. Keywords that Ansible hands down (from play to block to task) have been
handed down already, so that a task can be run without looking at what is around it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crossgrade.playbook.positions import Spot

if TYPE_CHECKING:
    from crossgrade.playbook.build import Inherited
    from crossgrade.playbook.library import Library
    from crossgrade.playbook.roles import Role
    from crossgrade.playbook.variables import Layer

Templated = bool | str | None
"""True or false, text with a template in it, or None where the playbook does not say."""

Condition = str | bool
Environment = str | Mapping[str, Any]
"""A mapping of environment variables, or a template that gives one."""


@dataclass(frozen=True)
class LoopControl:
    """`loop_control`. `pause` is in seconds and, like `label`, may hold a template."""

    loop_var: str = "item"
    index_var: str | None = None
    label: Any = None
    pause: Any = 0
    extended: Templated = False
    extended_allitems: Templated = True
    break_when: tuple[Condition, ...] = ()


@dataclass(frozen=True)
class Conduct:
    """How a task is carried out and where. What is None is not said here. `timeout` is in seconds."""

    become: Templated = None
    become_user: str | None = None
    become_method: str | None = None
    become_exe: str | None = None
    become_flags: str | None = None
    delegate_to: str | None = None
    delegate_facts: Templated = None
    run_once: Templated = None
    ignore_unreachable: Templated = None
    timeout: float | str | None = None
    throttle: float | str | None = None
    connection: str | None = None

    def under(self, outer: Conduct) -> Conduct:
        """These, and where they say nothing those of what is around."""
        own = {name: value for name, value in vars(self).items() if value is not None}
        return replace(outer, **own)


@dataclass(frozen=True)
class Prompt:
    """One question of `vars_prompt`: the answer is the variable `name`. A `private` one is not echoed."""

    name: str
    text: str
    default: Any = None
    private: bool = True
    confirm: bool = False


@dataclass(frozen=True)
class VariableSpots:
    """Where the variables of a task stand: its own `vars`, then those of the blocks around it."""

    mappings: tuple[Spot, ...]

    def at(self, *keys: Hashable) -> Spot:
        for spot in self.mappings:
            entries = spot.node.entries
            if keys and entries is not None and keys[0] in entries:
                return spot.at(*keys)
        return self.mappings[0]


class ArgumentSpots(Spot):
    """The arguments of a task: below the module's name, or below `args`."""

    def __init__(self, task: Spot, module: Spot) -> None:
        super().__init__(module.source, module.path)
        object.__setattr__(self, "_args", task.at("args"))

    def at(self, *keys: Hashable) -> Spot:
        args: Spot = self.__dict__["_args"]
        if keys and args.path and args.node.entries is not None and keys[0] in args.node.entries:
            return args.at(*keys)
        return super().at(*keys)


ACTIONS = ("action", "local_action")
"""Keywords that have the name of the module as their value."""


@dataclass(frozen=True)
class Task:
    """One task or handler. `uid` is the path to it in the playbook: `play0/tasks/3/block/1`.

    `arguments` are raw; `when` holds the conditions of the blocks around it first. Of `environment`, later
    ones win. `delay` and `pause` are seconds. `role` is the role that it stands in, `parameters` are the variables of
    the includes around it. A dynamic include has in `inherited` what it hands down. With `loop_with`, the lookup of
    this name makes the items of `loop`.
    """

    uid: str
    name: str
    module: str
    arguments: Mapping[str, Any]
    spot: Spot = field(repr=False)
    module_key: str = ""
    vars: Mapping[str, Any] = field(default_factory=dict)
    vars_spots: VariableSpots | None = field(default=None, repr=False, compare=False)
    when: tuple[Condition, ...] = ()
    changed_when: tuple[Condition, ...] = ()
    failed_when: tuple[Condition, ...] = ()
    until: tuple[Condition, ...] = ()
    retries: int | str | None = None
    delay: float | str | None = None
    loop: Any = None
    loop_with: str = ""
    loop_control: LoopControl = LoopControl()
    register: str | None = None
    environment: tuple[Environment, ...] = ()
    tags: tuple[str, ...] = ()
    notify: tuple[str, ...] = ()
    listen: tuple[str, ...] = ()
    ignore_errors: Templated = None
    no_log: Templated = None
    check_mode: Templated = None
    diff: Templated = None
    any_errors_fatal: Templated = None
    role: Role | None = field(default=None, repr=False, compare=False)
    parameters: tuple[Layer, ...] = field(default=(), repr=False, compare=False)
    inherited: Inherited | None = field(default=None, repr=False, compare=False)
    conduct: Conduct = Conduct()

    @property
    def display_name(self) -> str:
        """The name as written, or the module's name, as written too, where there is none."""
        return self.name or (self.module if self.module_key in ("", *ACTIONS) else self.module_key)

    def spot_of(self, *keys: Hashable) -> Spot:
        """Where a keyword stands: `("when",)`, or an argument: `("arguments", "src")`."""
        if not keys or keys[0] != "arguments":
            return self.spot.at(*keys)
        arguments = ArgumentSpots(self.spot, self.spot.at(self.module_key or self.module))
        return arguments.at(*keys[1:]) if len(keys) > 1 else arguments


@dataclass(frozen=True)
class Block:
    """`block`, `rescue` and `always`. Its other keywords are in its tasks already.

    With `role` it holds all tasks of this role.
    """

    uid: str
    name: str
    spot: Spot = field(repr=False)
    block: tuple[Step, ...] = ()
    rescue: tuple[Step, ...] = ()
    always: tuple[Step, ...] = ()
    role: Role | None = field(default=None, repr=False, compare=False)


Step = Task | Block


@dataclass(frozen=True)
class Play:
    """One play. `hosts` are patterns as in `--limit`; of each of `vars_files` the first path that is there is read.

    `directory` is that of the file that it stands in. `roles` are those whose variables all its tasks see.
    """

    uid: str
    name: str
    hosts: tuple[str, ...]
    spot: Spot = field(repr=False)
    vars: Mapping[str, Any] = field(default_factory=dict)
    vars_files: tuple[tuple[str, ...], ...] = ()
    gather_facts: Templated = None
    pre_tasks: tuple[Step, ...] = ()
    tasks: tuple[Step, ...] = ()
    post_tasks: tuple[Step, ...] = ()
    handlers: tuple[Task, ...] = ()
    environment: tuple[Environment, ...] = ()
    tags: tuple[str, ...] = ()
    connection: str | None = None
    any_errors_fatal: Templated = None
    ignore_errors: Templated = None
    no_log: Templated = None
    check_mode: Templated = None
    diff: Templated = None
    force_handlers: Templated = None
    roles: tuple[Role, ...] = ()
    directory: Path | None = None
    conduct: Conduct = Conduct()
    serial: tuple[int | str, ...] = ()
    max_fail_percentage: float | str | None = None
    order: str | None = None
    prompts: tuple[Prompt, ...] = ()
    remote_user: str | None = None
    port: float | str | None = None

    @property
    def display_name(self) -> str:
        return self.name or ", ".join(self.hosts)

    def sections(self) -> Iterator[tuple[str, tuple[Step, ...]]]:
        """The lists of tasks in the order in which they run; handlers run at the end of each."""
        yield "pre_tasks", self.pre_tasks
        yield "tasks", self.tasks
        yield "post_tasks", self.post_tasks

    def spot_of(self, *keys: Hashable) -> Spot:
        return self.spot.at(*keys)


@dataclass(frozen=True)
class Playbook:
    """A playbook file with all its plays. `library` reads what it includes."""

    file: Path
    plays: tuple[Play, ...]
    library: Library | None = field(default=None, repr=False, compare=False)

    @property
    def directory(self) -> Path:
        """Relative paths in the playbook are looked up from here."""
        return self.file.parent


def walk(steps: Iterable[Step]) -> Iterator[Task]:
    """All tasks, those inside blocks too, in the order of the text."""
    for step in steps:
        if isinstance(step, Block):
            yield from walk(step.block)
            yield from walk(step.rescue)
            yield from walk(step.always)
        else:
            yield step
