"""From the data of a playbook file to plays, blocks and tasks. It notes every problem and goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crossgrade.playbook import misplaced
from crossgrade.playbook.argument_types import shown
from crossgrade.playbook.build_task import ModuleCatalogue, TaskReader
from crossgrade.playbook.conduct import (
    ModuleDefaults,
    read_choice,
    read_conduct,
    read_module_defaults,
    read_prompts,
    read_sizes,
)
from crossgrade.playbook.imports import Imports
from crossgrade.playbook.library import Library
from crossgrade.playbook.model import (
    Block,
    Condition,
    Conduct,
    Environment,
    Play,
    Playbook,
    Step,
    Task,
    Templated,
    VariableSpots,
    walk,
)
from crossgrade.playbook.playbook_import import import_playbook_key, imported_plays
from crossgrade.playbook.positions import PlaybookErrors, Source, Spot
from crossgrade.playbook.recovery import lines_named
from crossgrade.playbook.schema import KEYWORDS, On
from crossgrade.playbook.statements import STATEMENTS, with_statements
from crossgrade.playbook.suggest import did_you_mean
from crossgrade.playbook.values import Reader

if TYPE_CHECKING:
    from crossgrade.playbook.roles import Role
    from crossgrade.playbook.variables import Layer

BLOCK_SECTIONS = ("block", "rescue", "always")


@dataclass(frozen=True)
class Inherited:
    """What a play or block hands down to what is inside it."""

    when: tuple[Condition, ...] = ()
    tags: tuple[str, ...] = ()
    environment: tuple[Environment, ...] = ()
    notify: tuple[str, ...] = ()
    vars: Mapping[str, Any] | None = None
    vars_spots: tuple[Spot, ...] = ()
    flags: Mapping[str, Templated] | None = None
    role: Role | None = None
    parameters: tuple[Layer, ...] = ()  # of the dynamic includes around
    trail: tuple[Path, ...] = ()  # the files that were included up to here, the outermost first
    chain: tuple[str, ...] = ()  # the files and roles that are being imported
    depth: int = 0  # of dynamic includes
    place: On = "task"  # of a dynamic include: what the tasks that it brings are
    conduct: Conduct = field(default_factory=Conduct)
    module_defaults: ModuleDefaults = field(default_factory=dict)


FLAGS = ("any_errors_fatal", "ignore_errors", "no_log", "check_mode", "diff")


def build_playbook(
    source: Source,
    file: Path,
    modules: ModuleCatalogue,
    variables: Mapping[str, Any] | None = None,
    *,
    keep_sealed: bool = False,
) -> Playbook:
    """The playbook in `source`. Raises PlaybookErrors with every problem that can be seen without running.

    `variables` are those of `-e`: names of what is imported may need them. `keep_sealed` is that of `load_playbook`.
    """
    library = Library(modules, variables or {}, keep_sealed=keep_sealed)
    reader = Reader()
    builder = Builder(reader, library, file.parent, (str(file),))
    plays = builder.plays(Spot(source), source.root.value)
    playbook = Playbook(file, plays, library)
    if reader.problems:
        from crossgrade.playbook.check import check_templates

        named = lines_named(reader.problems)
        wrong = [
            one for one in check_templates(playbook) if one.place and (one.place.file, one.place.line) not in named
        ]
        raise PlaybookErrors([*reader.problems, *wrong])
    return playbook


class Builder:
    """Builds the plays of one file. `directory` is that of the playbook, `chain` the playbooks that import it."""

    def __init__(self, reader: Reader, library: Library, directory: Path, chain: tuple[str, ...] = ()) -> None:
        self.reader = reader
        self.library = library
        self.directory = directory
        self.chain = chain
        self.tasks = TaskReader(reader, with_statements(library.modules))
        self.imports = Imports(self)
        self.play_vars: Mapping[str, Any] = {}

    def static_templar(self, inner: Inherited) -> Any:
        """What expands names that must be known before the run."""
        from crossgrade.playbook.templating import Templar
        from crossgrade.playbook.variables import Precedence, Scope

        scope = Scope().with_layer(Precedence.PLAY_VARS, self.play_vars)
        scope = scope.with_layer(Precedence.BLOCK_AND_TASK_VARS, inner.vars or {})
        return Templar(scope.with_layer(Precedence.EXTRA_VARS, self.library.variables), directory=self.directory)

    def plays(self, spot: Spot, value: Any, uid: str = "") -> tuple[Play, ...]:
        if not isinstance(value, list) or not value:
            got = "an empty file" if value in (None, []) else shown(value)
            remedy = (
                "Write `- ` in front of the first key, and indent the others below it."
                if isinstance(value, dict)
                else ""
            )
            self.reader.note(spot, f"expected a list of plays (`- hosts: …`), got {got}", remedy)
            return ()
        plays: list[Play] = []
        for at, item in enumerate(value):
            own = f"{uid}play{at}"
            key = import_playbook_key(item)
            if key is not None:
                plays += imported_plays(self, spot.at(at), item, key, own)
            else:
                play = self.play(spot.at(at), item, own)
                plays += [] if play is None else [play]
        return tuple(plays)

    def play(self, spot: Spot, value: Any, uid: str) -> Play | None:
        note = self.reader.note
        if not isinstance(value, dict):
            self.reader.expected(spot, "a play (`hosts: …`)", value)
            return None
        if "hosts" not in value and self.tasks.looks_like_task(value):
            message = "this is a task, where a play was expected"
            if not any(problem.message == message for problem in self.reader.problems):  # of a list of tasks: once
                remedy = "Tasks stand below `tasks:` in a play: `- hosts: localhost`, `  tasks:`, `    - …`."
                note(spot, message, remedy)
            return None
        self.check_keywords(spot, value, "play")
        if "hosts" not in value:
            note(spot, "the play has no `hosts`", "For this machine: `hosts: localhost`.")
        read = Keywords(self.reader, spot, value)
        flags: dict[str, Any] = {name: read.boolean(name) for name in FLAGS}
        conduct = read_conduct(self.reader, spot, value)
        inherited = Inherited(
            tags=read.tags(),
            environment=read.environment(),
            flags=flags,
            vars={},
            vars_spots=(),
            conduct=replace(conduct, connection=None),
            module_defaults=read_module_defaults(
                self.reader, spot.at("module_defaults"), value.get("module_defaults"), {}
            ),
        )
        self.play_vars = self.reader.variables(spot.at("vars"), value.get("vars"))
        self.imports = Imports(self)
        of_roles = self.imports.play_roles(spot.at("roles"), value.get("roles"), inherited, uid)
        before = tuple(self.imports.handlers)
        self.imports.handlers.clear()
        sections: dict[str, Any] = {
            name: self.steps(spot.at(name), value.get(name), inherited, f"{uid}/{name}", "task")
            for name in ("pre_tasks", "tasks", "post_tasks")
        }
        sections["tasks"] = (*of_roles, *sections["tasks"])
        handlers = self.steps(spot.at("handlers"), value.get("handlers"), inherited, f"{uid}/handlers", "handler")
        connection = read_choice(self.reader, spot, "connection", value)
        read_choice(self.reader, spot, "strategy", value, "All hosts do a task before any does the next one.")
        for ignored in ("collections", "gather_subset"):  # what is there is there: they choose nothing
            read.texts(ignored)
        self.reader.number(spot.at("gather_timeout"), value.get("gather_timeout"))
        hosts = self.reader.texts(spot.at("hosts"), value.get("hosts"), split=False)
        if "hosts" in value and not hosts:
            note(spot.at("hosts"), "`hosts` is empty", "For this machine: `hosts: localhost`.", key=True)
        return Play(
            uid=uid,
            name=read.text("name"),
            hosts=hosts,
            spot=spot,
            vars=self.play_vars,
            vars_files=self.reader.alternatives(spot.at("vars_files"), value.get("vars_files")),
            gather_facts=read.boolean("gather_facts"),
            handlers=(*before, *walk(handlers), *self.imports.handlers),
            environment=inherited.environment,
            tags=inherited.tags,
            connection=connection,
            force_handlers=read.boolean("force_handlers"),
            roles=tuple(self.imports.roles),
            directory=self.directory,
            conduct=replace(conduct, connection=None),
            serial=read_sizes(self.reader, spot.at("serial"), value.get("serial")),
            max_fail_percentage=self.reader.number(spot.at("max_fail_percentage"), value.get("max_fail_percentage")),
            order=read_choice(self.reader, spot, "order", value),
            prompts=read_prompts(self.reader, spot.at("vars_prompt"), value.get("vars_prompt")),
            remote_user=read.text("remote_user") or None,
            port=self.reader.number(spot.at("port"), value.get("port")),
            **flags,
            **sections,
        )

    def check_keywords(self, spot: Spot, value: Mapping[Any, Any], place: On) -> None:
        """Note each key that is no keyword of a play or block, or not one yet."""
        keywords = KEYWORDS[place]
        for key in value:
            known = keywords.get(key) if isinstance(key, str) else None
            here = spot.at(key)
            if known is None:
                self.unknown_key(here, key, place)
            elif not known.supported:
                self.reader.note(here, known.refusal(), known.instead, key=True)

    def unknown_key(self, here: Spot, key: Any, place: On) -> None:
        elsewhere = [other for other in KEYWORDS if isinstance(key, str) and key in KEYWORDS[other]]
        if elsewhere:
            remedy = f"`{key}` is a keyword of a {' or '.join(elsewhere)}: check the indentation."
        elif isinstance(key, str) and self.tasks.short_name(key) in self.tasks.catalogue.names:
            remedy = f"`{key}` is a module: it belongs into a task of its own."
        else:
            remedy = misplaced.odd_space(str(key)) or did_you_mean(str(key), KEYWORDS[place])
        self.reader.note(here, f"a {place} has no keyword `{key}`", remedy, key=True)

    def steps(self, spot: Spot, value: Any, inherited: Inherited, uid: str, place: On) -> tuple[Step, ...]:
        if value is None:
            return ()
        if not isinstance(value, list):
            hint = "Each task starts with `- `." if isinstance(value, dict) else ""
            self.reader.expected(spot, "a list of tasks", value, hint)
            return ()
        found: list[Step] = []
        for at, item in enumerate(value):
            step = self.step(spot.at(at), item, inherited, f"{uid}/{at}", place)
            if step is not None:
                found.append(step)
        return tuple(found)

    def step(self, spot: Spot, value: Any, inherited: Inherited, uid: str, place: On) -> Step | None:
        if not isinstance(value, dict):
            self.reader.expected(spot, "a task (`module: arguments`)", value)
            return None
        if any(section in value for section in BLOCK_SECTIONS):
            return self.block(spot, value, inherited, uid, place)
        task = self.tasks.task(spot, value, uid, place, inherited.module_defaults)
        if task is None:
            return None
        handed = _hand_down(task, inherited)
        return self.imports.step(task, inherited, handed, place) if task.module in STATEMENTS else handed

    def block(self, spot: Spot, value: Mapping[str, Any], inherited: Inherited, uid: str, place: On) -> Block:
        """A block; among the handlers it only hands its keywords down to the handlers in it, each with its own name."""
        self.check_keywords(spot, value, "block")
        for section in ("rescue", "always") if place == "handler" else ():
            if section in value:
                message = f"`{section}` would never run: a block among the handlers only holds handlers"
                remedy = (
                    "`meta: flush_handlers` in a block of tasks with `rescue` lets it take up what handlers fail in."
                )
                self.reader.note(spot.at(section), message, remedy, key=True)
        if "block" not in value:
            section = next(name for name in BLOCK_SECTIONS if name in value)
            self.reader.note(
                spot.at(section),
                f"`{section}` without `block`",
                f"Put the tasks that may fail below `block:`; `{section}:` stands in the same column, without a `- `.",
                key=True,
            )
        inner = self.nested(spot, value, inherited)
        inside: On = "handler" if place == "handler" else "task"
        sections: dict[str, Any] = {
            name: self.steps(spot.at(name), value.get(name), inner, f"{uid}/{name}", inside) for name in BLOCK_SECTIONS
        }
        return Block(uid, self.reader.text(spot.at("name"), value.get("name")), spot, **sections)

    def nested(self, spot: Spot, value: Mapping[str, Any], inherited: Inherited) -> Inherited:
        """What a block with these keywords hands down."""
        read = Keywords(self.reader, spot, value)
        read.texts("collections")
        own_flags = {name: read.boolean(name) for name in FLAGS}
        handed_down = inherited.flags or {}
        own_vars = self.reader.variables(spot.at("vars"), value.get("vars"))
        return replace(
            inherited,
            when=inherited.when + read.conditions("when"),
            tags=_united(inherited.tags, read.tags()),
            environment=inherited.environment + read.environment(),
            notify=read.texts("notify") or inherited.notify,  # the nearest, as in Ansible
            vars={**(inherited.vars or {}), **own_vars},
            vars_spots=((spot.at("vars"),) if own_vars else ()) + inherited.vars_spots,
            flags={name: handed_down.get(name) if flag is None else flag for name, flag in own_flags.items()},
            conduct=read_conduct(self.reader, spot, value).under(inherited.conduct),
            module_defaults=read_module_defaults(
                self.reader, spot.at("module_defaults"), value.get("module_defaults"), inherited.module_defaults
            ),
        )

    def inside(self, handed: Task, inherited: Inherited) -> Inherited:
        """What a static import hands down: all that it has itself."""
        spot, value = handed.spot.at("module_defaults"), handed.spot.node.value
        given = value.get("module_defaults") if isinstance(value, dict) else None
        return replace(
            inherited,
            when=handed.when,
            tags=handed.tags,
            environment=handed.environment,
            notify=handed.notify,
            vars=handed.vars,
            vars_spots=handed.vars_spots.mappings if handed.vars_spots else (),
            flags={**(inherited.flags or {}), **{name: getattr(handed, name) for name in FLAGS}},
            conduct=handed.conduct,
            module_defaults=read_module_defaults(Reader(), spot, given, inherited.module_defaults),
        )


def _united(outer: tuple[str, ...], inner: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(outer + inner))


def _hand_down(task: Task, inherited: Inherited) -> Task:
    flags = inherited.flags or {}
    own_flags: dict[str, Any] = {name: flags.get(name) for name in FLAGS if getattr(task, name) is None}
    spots = task.vars_spots.mappings if task.vars_spots else ()
    return replace(
        task,
        when=inherited.when + task.when,
        tags=_united(inherited.tags, task.tags),
        environment=inherited.environment + task.environment,
        notify=task.notify or inherited.notify,
        vars={**(inherited.vars or {}), **task.vars},
        vars_spots=VariableSpots(spots + inherited.vars_spots) if spots or inherited.vars_spots else None,
        role=inherited.role,
        parameters=inherited.parameters,
        conduct=task.conduct.under(inherited.conduct),
        **own_flags,
    )


class Keywords:
    """Reads the keywords of one play or block by name."""

    def __init__(self, reader: Reader, spot: Spot, value: Mapping[str, Any]) -> None:
        self._reader = reader
        self._spot = spot
        self._value = value

    def _read(self, name: str, read: Callable[[Spot, Any], Any]) -> Any:
        return read(self._spot.at(name), self._value.get(name))

    def text(self, name: str) -> str:
        return str(self._read(name, self._reader.text))

    def boolean(self, name: str) -> Templated:
        found: Templated = self._read(name, self._reader.boolean)
        return found

    def texts(self, name: str) -> tuple[str, ...]:
        return self._reader.texts(self._spot.at(name), self._value.get(name))

    def conditions(self, name: str) -> tuple[Condition, ...]:
        if name not in self._value:
            return ()
        return self._reader.conditions(self._spot.at(name), self._value[name])

    def tags(self) -> tuple[str, ...]:
        return self._reader.texts(self._spot.at("tags"), self._value.get("tags"), split=True)

    def environment(self) -> tuple[Environment, ...]:
        return self._reader.environment(self._spot.at("environment"), self._value.get("environment"))
