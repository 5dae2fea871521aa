"""What a task module is, and what the engine hands to it.

A module is one file that reads top to bottom: `Arguments`, `inspect`, `plan`, `apply`, `undo`, and at the
end `MODULE`, which ties them together. `inspect` only reads, `plan` is pure, `apply` makes the change
through an `ApplyContext` that journals each effect before it happens, `undo` takes one journaled effect
back and may be called twice or on an effect that never happened.

Check mode, diff, retries, loops, tags, timing and events are the engine's, once for all modules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar

from crossgrade.jsontype import JSON

if TYPE_CHECKING:
    from crossgrade.gates.verdict import Verdict
    from crossgrade.playbook.inventory_made import Made
    from crossgrade.process import Completed
    from crossgrade.store.generation import Generation
    from crossgrade.store.layout import Store

ArgumentsT = TypeVar("ArgumentsT")
StateT = TypeVar("StateT")

# reads: changes nothing, so it runs in check mode too (stat, assert, debug)
# checks: changes nothing on the machine but takes time or needs the candidate (gates, uri): listed in a plan, not run
# changes: may change the machine
Effect = Literal["reads", "checks", "changes"]


@dataclass(frozen=True)
class Difference:
    """One thing as it is and as it will be; `--diff` shows it. Text with newlines is shown as a unified diff.

    `why` says in a few words what makes the difference, where that is not plain; "" else.
    """

    subject: str
    before: str
    after: str
    why: str = ""


@dataclass(frozen=True)
class PlanWarning:
    """Something that a plan does not refuse and a person should know before it is carried out.

    `name` is one of `knowledge/resolution_warnings.yml`, `subject` what it is about (a dist).
    """

    name: str
    subject: str
    message: str
    remedy: str


@dataclass(frozen=True)
class Prediction:
    """Something that will be so once the change is made, for the modules that come later in a plan.

    `kind` is one of `path`, `generation`, `active`, `toolkit`, `wheel`; `key` names the thing (an absolute
    path, a number, a digest), `value` says what it will be.
    """

    kind: Literal["path", "generation", "active", "toolkit", "wheel"]
    key: str
    value: JSON


@dataclass(frozen=True)
class Space:
    """Room that a change will take: an estimate in bytes, the place it is taken at, and what for."""

    path: Path
    bytes: int
    what: str


@dataclass(frozen=True)
class Change:
    """What a module would do. `values` is the result that `register` sees; in a plan, as predicted.

    With `values_known=False` the result is only known after the run (the output of a command): in a plan,
    whatever depends on it is shown as `may change`. `venv` is the virtual environment that the change makes.
    `uncertain` is for a plan in which only the run shows whether anything is to be changed: it is shown as `may change`
    itself, and what it predicts counts all the same.
    `in_check_mode` is what a task with `check_mode: true` comes to, where that is no change.
    """

    summary: str
    differences: tuple[Difference, ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict)
    values_known: bool = True
    predicts: tuple[Prediction, ...] = ()
    payload: Mapping[str, Any] = field(default_factory=dict)
    space: tuple[Space, ...] = ()
    venv: Path | None = None
    warnings: tuple[PlanWarning, ...] = ()
    uncertain: bool = False
    in_check_mode: Skipped | None = None


@dataclass(frozen=True)
class Unchanged:
    """The machine is already as asked. `summary` says why, in a few words."""

    summary: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Skipped:
    """The module has nothing to do with this state (`command` with `creates`): shown as Ansible's `skipping`."""

    summary: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)


Plan = Change | Unchanged | Skipped


@dataclass(frozen=True)
class Outcome:
    """What came of an apply.

    `changed=None` means: as the module's effect says (`changes` → True, else False). A gate gives its
    `verdict`; anything but `passed` fails the task unless the gate's own `on_not_run` says `warn`.
    `facts` are variables as data (`set_fact`); `included` are variables of a file, whose templates are expanded;
    `gathered` are facts of the machine by Ansible's names without `ansible_`. `made` is a host or a group that this run
    knows from now on: the engine finds out whether it is new, and so whether the task has changed anything.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    changed: bool | None = None
    failed: bool = False
    message: str = ""
    differences: tuple[Difference, ...] = ()
    verdict: Verdict | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    included: Mapping[str, Any] = field(default_factory=dict)
    gathered: Mapping[str, Any] = field(default_factory=dict)
    made: Made | None = None


@dataclass(frozen=True)
class LockRequest:
    """What a resolution depends on. Its digest is the key under which the resolved lock is kept.

    `requirements` are requirement strings, `python` the interpreter that the environment is for,
    `exclude_newer` an RFC 3339 time or "". `hashes` are those of which a dist's files must have one: normalized name
    and hashes as in `--hash`. `credentials` are what was taken out of the addresses: the address of an index, or the
    name of the variable that stands for it in a requirement, and `user:password`. They are no part of the digest, so
    that a new password asks for the same lock.
    """

    requirements: tuple[str, ...]
    python: str
    constraints: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    index_url: str = ""
    extra_index_urls: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    prerelease: str = "if-necessary-or-explicit"
    exclude_newer: str = ""
    hashes: tuple[tuple[str, tuple[str, ...]], ...] = ()
    credentials: tuple[tuple[str, str], ...] = field(default=(), compare=False, repr=False)

    def described(self) -> dict[str, JSON]:
        """All that the resolution depends on, without credentials."""
        value = {**asdict(self), "credentials": ()}
        return {name: item for name, item in value.items() if name not in ("hashes", "credentials") or item}


@dataclass(frozen=True)
class LockedDist:
    """One dist of a resolved lock: its normalized name and exact version; `git COMMIT` for a git repository."""

    name: str
    version: str


@dataclass(frozen=True)
class Lock:
    """A resolved lock: the text of a requirements file with hashes, and its dists in order of name.

    `remarks` are what the resolver warned about, in its own words.
    """

    text: str
    digest: str
    dists: tuple[LockedDist, ...]
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Offer:
    """What an index has of one dist: its version, the bytes of the largest wheel that fits here (0 where it does not
    say), the day when it was published (`2026-11-30`, "" where it does not say), and whether a wheel fits here at all.
    """

    version: str
    bytes: int = 0
    published: str = ""
    wheel: bool = True


@dataclass(frozen=True)
class Offers:
    """Normalized name → what the indexes have: of the locked versions, and of the newest ones. Empty where unknown."""

    locked: Mapping[str, Offer] = field(default_factory=dict)
    newest: Mapping[str, Offer] = field(default_factory=dict)


class HostView(Protocol):
    """What `inspect` may look at: the store and the machine as they are, with the plan's predictions laid over.

    In a real run there are no predictions. Everything here only reads.
    """

    @property
    def store(self) -> Store: ...
    @property
    def check_mode(self) -> bool: ...
    @property
    def deep(self) -> bool:
        """Whether this is a deep plan: people wait for what takes longer."""
        ...

    @property
    def playbook_directory(self) -> Path:
        """Relative paths of `copy`, `template` and source trees are looked up from here."""
        ...

    @property
    def search_directories(self) -> Sequence[Path]:
        """Where files and templates of the playbook are looked for: the task's role, its own file, the playbook."""
        ...

    def read_variables(self, file: Path) -> Mapping[str, Any]:
        """The variables of a YAML or JSON file, raw; a saved plan is tied to it. Raises PlaybookError."""
        ...

    @property
    def verbosity(self) -> int:
        """How many `-v` the user gave."""
        ...

    @property
    def confirm_within(self) -> int | None:
        """Seconds within which an activation must be confirmed (`--confirm-within`), None without a limit."""
        ...

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment of the task: the process's own, with the playbook's `environment` laid over."""
        ...

    def predicted(self, kind: str, key: str) -> JSON:
        """The predicted value, or None when nothing is predicted."""
        ...

    def predicts_below(self, directory: Path) -> bool:
        """Whether earlier tasks of the plan will make, change or remove anything in this directory or below it."""
        ...

    def generations(self) -> Sequence[Generation]:
        """All generations by number, predicted ones included."""
        ...

    def active(self) -> int | None:
        """The number of the active generation; None before anything was adopted."""
        ...

    def verdict(self, generation: int, key: str) -> Verdict | None:
        """The verdict that is on record for this generation under this key, or None."""
        ...

    def resolve(self, request: LockRequest) -> Lock:
        """The lock for a request, resolved once per plan with uv; a saved plan brings its own.

        Raises TaskError with the resolver's explanation when there is no solution.
        """
        ...

    def offers(self, request: LockRequest, lock: Lock) -> Offers:
        """What the indexes have of the dists of a lock; only a plan asks, in a run there is nothing in it."""
        ...

    def pinned(self, name: str, find: Callable[[], str]) -> str:
        """What `name` (a branch of a repository, say) stands for: found once per plan, and kept by its run."""
        ...

    def installed_bytes(self, request: LockRequest, lock: Lock) -> int:
        """About how many bytes the dists of a lock take when they are installed; 0 when nobody can say."""
        ...

    def run(
        self, argv: Sequence[str], *, environment: Mapping[str, str] | None = None, timeout: float = 60.0
    ) -> Completed:
        """Run a program that only reads. The time limit is in seconds."""
        ...

    def template(self, text: str, name: str, marks: Mapping[str, Any] | None = None) -> str:
        """Render a template file's text with the variables of the task. `name` is for error messages.

        `marks` are options of Jinja for this text, such as its `variable_start_string`.
        """
        ...

    def evaluate(self, expression: str) -> bool:
        """Evaluate a condition with the variables of the task, as `when` does."""
        ...


class ApplyContext(Protocol):
    """What `apply` and `undo` may do beside reading: journaled effects, programs, progress."""

    @property
    def store(self) -> Store: ...
    @property
    def host(self) -> HostView: ...
    @property
    def run_id(self) -> str: ...
    @property
    def log_directory(self) -> Path:
        """The run's folder for logs, inside the store."""
        ...

    def step(
        self, intent: str, undo: Mapping[str, JSON], *, by_hand: Sequence[str] = ()
    ) -> AbstractContextManager[None]:
        """Commit the intent and its undo to the journal, let the body make the effect, then commit completion.

        `undo` is handed to the module's `undo` as it is, also after a kill. `by_hand` holds the commands that
        a person would type to do the same, for when the undo itself fails.
        """
        ...

    def run(
        self,
        argv: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        timeout: float | None = None,
        input_text: str | None = None,
        log_name: str = "",
        shown: Callable[[str], str] | None = None,
    ) -> Completed:
        """Run a program whose output goes to the live progress line and to a log file of the run.

        `environment` is laid over the task's environment. `shown` says what the progress line shows for a line of
        output. A non-zero exit is not an error here: look at it.
        """
        ...

    def progress(self, message: str) -> None: ...

    def record_verdict(self, generation: int, key: str, verdict: Verdict) -> None: ...

    def record_activation(self, previous: int | None, active: int | None) -> None:
        """Tell the journal that the active link was turned; call it after the rename."""
        ...


class Sight(Protocol):
    """What a gate that only reads files looks through: at environments as they are or, in a deep plan, will be.

    There an environment that a run would make lies in a temporary folder. Nothing is executed from it.
    """

    @property
    def host(self) -> HostView: ...

    def venv(self, path: Path, generation: Generation | None) -> Path:
        """Where the files of the venv at `path` lie. Raises NotForeseenError, or TaskError for what may not be used."""
        ...

    def require_certain(self, venv: Path) -> None:
        """Raises NotForeseenError when only the run decides whose native files lie in a laid-out venv."""
        ...

    def now(self, path: str) -> str:
        """Where something lies that will be at `path` (a folder of LD_LIBRARY_PATH). Raises NotForeseenError."""
        ...

    def progress(self, message: str) -> None: ...


class Laying(Protocol):
    """What a module may do beside reading while it lays out an environment for a deep plan."""

    @property
    def host(self) -> HostView: ...

    def progress(self, message: str) -> None: ...

    def fetching(self, message: str) -> None:
        """Tell people what is about to be downloaded."""
        ...

    def require(self, space: Sequence[Space]) -> None:
        """Raises NotForeseenError when a filesystem has less room than that."""
        ...


Inspect = Callable[[ArgumentsT, HostView], StateT]
Planner = Callable[[ArgumentsT, StateT], Plan]
Apply = Callable[[ArgumentsT, Change, ApplyContext], Outcome]
Foresee = Callable[[ArgumentsT, Sight], Outcome]
LayOut = Callable[[Change, Path, Laying], "tuple[str, ...]"]
Undo = Callable[[Mapping[str, JSON], ApplyContext], str]
Complete = Callable[[Mapping[str, JSON], ApplyContext], "str | None"]


def nothing_to_undo(record: Mapping[str, JSON], context: ApplyContext) -> str:  # noqa: ARG001 (the contract's shape)
    """The undo of a module without effects."""
    return ""


def nothing_to_complete(record: Mapping[str, JSON], context: ApplyContext) -> str | None:  # noqa: ARG001 (the contract's shape)
    """For a module whose effect has no commit point of its own: a step that was not recorded as done is undone."""
    return None


@dataclass(frozen=True)
class Module(Generic[ArgumentsT, StateT]):
    """A task module. `undo` returns what it took back, in a few words; "" when there was nothing to take back.

    `complete` is asked by recovery, before `undo`, about a step that was intended and not recorded as done. When it
    finds the effect past its commit point it makes it whole and says so in a few words; None means: undo it.

    `proves_itself=False` is for modules whose change cannot be seen afterwards (`command`, `uri`): after all
    others, inspect and plan are run again and must find nothing left to do.

    Two are for deep plans (`plan --deep`). `foresee` is of a gate that only reads files: what it would say, which is
    kept nowhere. `lay_out` is of a module whose change makes a venv (`Change.venv`): it lays its files out at another
    place, and returns in words what is missing there because only the run makes it. Raises NotForeseenError.
    """

    name: str
    arguments: type[ArgumentsT]
    effect: Effect
    inspect: Inspect[ArgumentsT, StateT]
    plan: Planner[ArgumentsT, StateT]
    apply: Apply[ArgumentsT]
    undo: Undo = nothing_to_undo
    complete: Complete = nothing_to_complete
    proves_itself: bool = True
    summary: str = ""
    foresee: Foresee[ArgumentsT] | None = None
    lay_out: LayOut | None = None
