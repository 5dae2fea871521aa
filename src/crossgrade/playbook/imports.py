"""Static imports, roles and what a dynamic include brings in: the tasks of other files, built where they belong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crossgrade.errors import CrossgradeError, PlaybookError
from crossgrade.playbook.argument_types import ConversionError, to_bool
from crossgrade.playbook.library import MAX_DEPTH, at_home, first_file, is_folder, unique, with_endings
from crossgrade.playbook.loader import Variables
from crossgrade.playbook.model import Block, Step, Task, walk
from crossgrade.playbook.positions import PlaybookErrors, PlaybookProblem, Spot
from crossgrade.playbook.roles import From, Role, RoleFiles, looked_in, role_places
from crossgrade.playbook.schema import KEYWORDS, On
from crossgrade.playbook.statements import DYNAMIC, NOT_ON_IMPORT, ON_INCLUDE
from crossgrade.playbook.values import is_template_text

if TYPE_CHECKING:
    from crossgrade.playbook.build import Builder, Inherited


@dataclass(frozen=True)
class Call:
    """One use of a role, its names expanded. `spot` is where it is named.

    With `given` and `parameters` as in `Role`. `callers` are the roles whose task calls it, the nearest first;
    `parents` those that it belongs to. `key` tells uses of one role apart that do not do the same.
    """

    name: str
    spot: Spot
    files: From = field(default_factory=From)
    given: Variables | None = None
    parameters: Variables | None = None
    parents: tuple[Role, ...] = ()
    callers: tuple[Role, ...] = ()
    allow_duplicates: bool | None = None
    public: bool = True
    key: str = ""


@dataclass(frozen=True)
class BuiltRole:
    """A role with its dependencies, as steps of the play."""

    role: Role
    steps: tuple[Step, ...]
    handlers: tuple[Task, ...]


@dataclass(frozen=True)
class Included:
    """What a dynamic include brings in. All tasks of the play see the variables of `roles` from then on."""

    steps: tuple[Step, ...]
    handlers: tuple[Task, ...]
    roles: tuple[Role, ...]


def task_file_places(name: str, inherited: Inherited, playbook_directory: Path, place: On) -> list[Path]:
    """Where an included or imported file of tasks may be: in the role, beside the including files, in the playbook."""
    folder = "handlers" if place == "handler" else "tasks"
    beside = [file.parent for file in reversed(inherited.trail)]
    if inherited.role is None:
        folders = [*beside, playbook_directory]
    else:
        role = inherited.role.path
        folders = [role / folder, role, *beside, playbook_directory / folder, playbook_directory]
    return unique(each / at_home(name) for each in folders)


class Imports:
    """Builds what statements and `roles` bring in. It notes problems with the builder's reader."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self.reader = builder.reader
        self.roles: list[Role] = []
        self.handlers: list[Task] = []

    # ---- statements among the tasks

    def step(self, task: Task, inherited: Inherited, handed: Task, place: On) -> Step | None:
        """A statement as a step. `handed` is the task with what is around it handed down."""
        self._check_keywords(task, place)
        if place == "handler" and task.module.endswith("_role"):
            remedy = "Write `include_tasks`, or let the role bring its own handlers."
            self.reader.note(task.spot, f"`{task.module}` cannot stand among the handlers", remedy)
            return None
        if task.module in DYNAMIC:
            return self._dynamic(task, inherited, handed, place)
        inner = self.builder.inside(handed, inherited)
        if task.module == "import_tasks":
            return self._import_tasks(task, inner, place)
        name = self.static_name(
            task.spot_of("arguments"), task.arguments.get("name", task.arguments.get("role")), inner
        )
        call = (
            None if name is None else self._call_of(task, {**task.arguments, "name": name}, inherited.role, static=True)
        )
        built = None if call is None else self.role(call, inner, handed.uid)
        if built is None:
            return None
        self.roles += [built.role] if built.role.public else []
        self.handlers += built.handlers
        return Block(handed.uid, handed.display_name, task.spot, block=built.steps)

    def _check_keywords(self, task: Task, place: On) -> None:
        entries = task.spot.node.entries or {}
        keywords = KEYWORDS[place]
        for key in entries:
            if not isinstance(key, str) or key not in keywords or not keywords[key].supported:
                continue  # the module's own name, or noted already
            if task.module in DYNAMIC and key not in ON_INCLUDE:
                remedy = f"Write it below `apply`, for the tasks inside: `apply: {{{key}: …}}`."
                self.reader.note(task.spot.at(key), f"`{task.module}` cannot have `{key}`", remedy, key=True)
            elif task.module not in DYNAMIC and key in NOT_ON_IMPORT:
                other = task.module.replace("import", "include")
                remedy = f"`{other}` is a task of its own, and can have `loop` and `register`."
                self.reader.note(task.spot.at(key), f"`{task.module}` cannot have `{key}`", remedy, key=True)

    def _dynamic(self, task: Task, inherited: Inherited, handed: Task, place: On) -> Task:
        handed_down = inherited
        apply = task.arguments.get("apply")
        if isinstance(apply, Mapping) and apply:
            spot = task.spot_of("arguments", "apply")
            self.builder.check_keywords(spot, apply, "block")
            handed_down = self.builder.nested(spot, apply, inherited)
        if task.no_log is not None:  # what is hidden outside is hidden inside, unlike in Ansible
            handed_down = replace(handed_down, flags={**(handed_down.flags or {}), "no_log": task.no_log})
        return replace(handed, inherited=replace(handed_down, place=place))

    def _import_tasks(self, task: Task, inner: Inherited, place: On) -> Step | None:
        spot = task.spot_of("arguments", "file") if "file" in _entries(task) else task.spot_of("arguments")
        name = self.static_name(spot, task.arguments.get("file"), inner)
        if name is None:
            return None
        places = task_file_places(name, inner, self.builder.directory, place)
        file = first_file(places)
        if file is None:
            self.reader.note(spot, f"there is no file of tasks `{name}`", looked_in(places))
            return None
        if str(file) in inner.chain:
            self.reader.note(spot, f"`{name}` imports itself: {_circle(inner.chain, str(file))}", _ENDLESS)
            return None
        steps = self.file_steps(file, replace(inner, chain=(*inner.chain, str(file))), task.uid, place)
        return Block(task.uid, task.display_name, task.spot, block=steps)

    def file_steps(self, file: Path, inner: Inherited, uid: str, place: On) -> tuple[Step, ...]:
        """The tasks of a file. Problems are noted, an unreadable file too."""
        root = self._read(file)
        if root is None:
            return ()
        inner = replace(inner, trail=(*inner.trail, file))
        return self.builder.steps(root, root.node.value, inner, f"{uid}/file", place)

    def _read(self, file: Path) -> Spot | None:
        try:
            return Spot(self.builder.library.source(file))
        except PlaybookErrors as errors:
            self.reader.problems += errors.errors
        except PlaybookError as error:
            self.reader.problems.append(as_problem(error))
        return None

    def static_name(self, spot: Spot, value: Any, inner: Inherited) -> str | None:
        """The name of a file or role that must be known before the run; None where it is not (noted)."""
        if not isinstance(value, str) or not value.strip():
            if value is not None:
                self.reader.expected(spot, "a name", value)
            return None
        if not is_template_text(value):
            return value
        try:
            return str(self.builder.static_templar(inner).template(value, spot))
        except CrossgradeError as error:
            remedy = "Only play variables and -e are known before the run; an `include_…` may use all variables."
            self.reader.note(spot, f"the name must be known before the run: {error.message}", remedy)
            return None

    # ---- roles

    def play_roles(self, spot: Spot, value: Any, inherited: Inherited, uid: str) -> tuple[Step, ...]:
        """The tasks of a play's `roles`, whose handlers and variables are kept."""
        if value is None:
            return ()
        if not isinstance(value, list):
            self.reader.expected(spot, "a list of roles", value)
            return ()
        steps: list[Step] = []
        for at, item in enumerate(value):
            built = self._role_entry(spot.at(at), item, inherited, f"{uid}/roles/{at}", ())
            if built is not None:
                self.roles.append(built.role)
                self.handlers += built.handlers
                steps += built.steps
        return tuple(steps)

    def _role_entry(
        self, spot: Spot, item: Any, inherited: Inherited, uid: str, parents: tuple[Role, ...]
    ) -> BuiltRole | None:
        """One entry of `roles` or `dependencies`: a name, or a mapping with keywords and parameters."""
        entry: Mapping[str, Any] = {"role": item} if isinstance(item, str) else self.reader.mapping(spot, item)
        named = next((key for key in _NAMES if key in entry), None)
        if named is None:
            if isinstance(item, dict):
                self.reader.note(spot, "the role has no name", "Write `- role: NAME`.")
            return None
        keywords = {key: value for key, value in entry.items() if key in KEYWORDS["block"] and key not in _SECTIONS}
        extra = {
            key: value for key, value in entry.items() if key not in keywords and key not in ("role", "name", "src")
        }
        self.builder.check_keywords(spot, {key: value for key, value in keywords.items() if key != named}, "block")
        given = {key: value for key, value in keywords.items() if key not in ("vars", named)}
        inner = self.builder.nested(spot, given, inherited)
        own = self.reader.variables(spot.at("vars"), entry.get("vars"))
        name_spot = spot.at(named) if isinstance(item, dict) else spot
        name = self.static_name(name_spot, entry[named], inner)
        if name is None:
            return None
        call = Call(
            name,
            name_spot,
            given=Variables(own, spot.at("vars")) if own else None,
            parameters=Variables(self.reader.variables(spot, extra), spot) if extra else None,
            parents=parents,
            key=repr((own, extra, entry.get("when"), entry.get("tags"))),
        )
        return self.role(call, inner, uid)

    def _call_of(self, task: Task, arguments: Mapping[str, Any], calling: Role | None, *, static: bool) -> Call | None:
        spot = task.spot_of("arguments", "name")
        files = {
            kind: str(arguments[f"{kind}_from"]).removesuffix(".yml")
            for kind in ("tasks", "handlers", "vars", "defaults")
            if arguments.get(f"{kind}_from")
        }
        try:
            public = arguments.get("public")
            public = static if public is None else to_bool(public)
            duplicates = to_bool(arguments.get("allow_duplicates", True))
        except ConversionError as error:
            self.reader.note(task.spot_of("arguments"), str(error))
            return None
        own = {name: task.vars[name] for name in task.spot.at("vars").node.value or ()} if _has(task, "vars") else {}
        return Call(
            str(arguments.get("name", arguments.get("role"))),
            spot,
            From(**files),
            given=Variables(own, task.spot.at("vars")) if own else None,
            parents=(*calling.parents, calling) if calling else (),
            callers=(calling, *calling.callers) if calling else (),
            allow_duplicates=duplicates,
            public=public,
            key=repr((own, "called")),
        )

    def role(self, call: Call, inner: Inherited, uid: str) -> BuiltRole | None:
        """The role with its dependencies before it. None where it is not there (noted)."""
        places = role_places(call.name, self.builder.directory, call.parents[-1] if call.parents else None)
        path = next((place for place in places if is_folder(place)), None)
        if path is None:
            self.reader.note(call.spot, f"there is no role `{call.name}`", looked_in(places))
            return None
        key = f"{path} {call.files.tasks}"
        if key in inner.chain:
            self.reader.note(call.spot, f"the role needs itself: {_circle(inner.chain, key)}", _ENDLESS)
            return None
        try:
            return self._build(call, path, replace(inner, chain=(*inner.chain, key)), uid)
        except PlaybookErrors as errors:
            self.reader.problems += errors.errors
        except PlaybookError as error:
            self.reader.problems.append(as_problem(error))
        return None

    def _build(self, call: Call, path: Path, inner: Inherited, uid: str) -> BuiltRole:
        files = RoleFiles(self.builder.library, path, self.reader)
        meta_spot, meta = files.meta() or (call.spot, {})
        role = Role(
            name=path.name if call.name.startswith(("/", "~")) else call.name,
            path=path,
            defaults=files.variables("defaults", call.files.defaults, call.spot),
            vars=files.variables("vars", call.files.vars, call.spot),
            given=call.given,
            parameters=call.parameters,
            parents=call.parents,
            callers=call.callers,
            public=call.public,
            allow_duplicates=self._duplicates(call, meta_spot, meta),
            identity=repr((str(path), call.files, call.key)),
        )
        steps: list[Step] = []
        handlers: list[Task] = []
        dependencies: list[Role] = []
        given = meta.get("dependencies") or []
        for at, item in enumerate(given if isinstance(given, list) else []):
            spot = meta_spot.at("dependencies", at)
            built = self._role_entry(spot, item, replace(inner, role=role), f"{uid}/needs/{at}", (*call.parents, role))
            if built is not None:
                dependencies.append(built.role)
                steps += built.steps
                handlers += built.handlers
        if not isinstance(given, list):
            self.reader.expected(meta_spot.at("dependencies"), "a list of roles", given)
        role = replace(role, dependencies=tuple(dependencies))
        inner = replace(inner, role=role, trail=())
        own = self._part(files, "tasks", call, inner, uid, "task")
        steps.append(Block(f"{uid}/tasks", role.name, call.spot, block=own, role=role))
        handlers += walk(self._part(files, "handlers", call, inner, uid, "handler"))
        return BuiltRole(role, tuple(steps), tuple(handlers))

    def _duplicates(self, call: Call, spot: Spot, meta: Mapping[str, Any]) -> bool:
        if call.allow_duplicates is not None:
            return call.allow_duplicates
        return bool(self.reader.boolean(spot.at("allow_duplicates"), meta.get("allow_duplicates")))

    def _part(
        self, files: RoleFiles, folder: str, call: Call, inner: Inherited, uid: str, place: On
    ) -> tuple[Step, ...]:
        name = getattr(call.files, folder)
        file = files.main(folder, name)
        if file is None:
            if name != "main":
                remedy = looked_in(with_endings(files.path / folder / name))
                self.reader.note(call.spot, f"the role has no {folder}/{name}", remedy)
            return ()
        root = self._read(file)
        return () if root is None else self.builder.steps(root, root.node.value, inner, f"{uid}/{folder}", place)

    # ---- what a run includes

    def included_tasks(self, file: Path, task: Task, inherited: Inherited, uid: str) -> Included:
        """The tasks of a file that a run includes. Raises PlaybookErrors."""
        inner = self._deeper(task, inherited, str(file))
        steps = self.file_steps(file, inner, uid, inherited.place)
        self._raise()
        return Included(steps, tuple(self.handlers), tuple(self.roles))

    def included_role(self, task: Task, arguments: Mapping[str, Any], inherited: Inherited, uid: str) -> Included:
        """The role that a run includes; `arguments` are expanded. Raises PlaybookErrors."""
        call = self._call_of(task, arguments, inherited.role, static=False)
        built = None if call is None else self.role(call, self._deeper(task, inherited, ""), uid)
        self._raise()
        assert built is not None  # noqa: S101 - where there is none, a problem was noted
        roles = ([built.role] if built.role.public else []) + self.roles
        return Included(built.steps, (*built.handlers, *self.handlers), tuple(roles))

    def _deeper(self, task: Task, inherited: Inherited, name: str) -> Inherited:
        if inherited.depth >= MAX_DEPTH:
            self.reader.note(
                task.spot_of("arguments"),
                f"includes are nested more than {MAX_DEPTH} deep: does this file include itself without end?",
                "An include of its own file needs a `when` that becomes false.",
            )
            self._raise()
        return replace(inherited, depth=inherited.depth + 1, chain=(name,) if name else ())

    def _raise(self) -> None:
        if self.reader.problems:
            raise PlaybookErrors(self.reader.problems)


_SECTIONS = ("block", "rescue", "always")
_NAMES = ("role", "name", "src")
_ENDLESS = "An import is carried out before the run, and cannot end: use an `include_…` with a `when`."


def _entries(task: Task) -> Mapping[Any, Any]:
    return task.spot_of("arguments").node.entries or {}


def _has(task: Task, keyword: str) -> bool:
    return keyword in (task.spot.node.entries or {})


def _circle(chain: tuple[str, ...], last: str) -> str:
    return " → ".join([*chain[chain.index(last) :], last])


def as_problem(error: PlaybookError) -> PlaybookProblem:
    return PlaybookProblem(error.message, remedy=error.remedy, place=error.place)
