"""A small real host for tests of single modules: real files, a real store, a journal in memory.

    host = ModuleHost(tmp_path)
    outcome = run_module(MODULE, Arguments(...), host)      # inspect, plan, apply, second look, as the engine does
    undo_all(MODULE, host)                                   # the journaled steps, last one first

A plan is `plan_module(MODULE, Arguments(...), host.planning())`: it lays the predictions of earlier calls
over the disk and adds its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crossgrade.engine.view import any_below
from crossgrade.gates.verdict import Verdict
from crossgrade.jsontype import JSON
from crossgrade.modules.contract import (
    ApplyContext,
    Change,
    HostView,
    Lock,
    LockRequest,
    Module,
    Offers,
    Outcome,
    Plan,
    Unchanged,
)
from crossgrade.playbook.arguments import parse_arguments
from crossgrade.process import Completed, run_process
from crossgrade.store.generation import Generation
from crossgrade.store.layout import Store


@dataclass
class Step:
    """One journaled step. `done` is False when its body was left by an exception."""

    intent: str
    undo: Mapping[str, JSON]
    by_hand: tuple[str, ...]
    done: bool = False


@dataclass
class ModuleHost:
    """A `HostView` and an `ApplyContext` in one, below one directory.

    The playbook's directory is `directory`/playbook, the store `directory`/store, both made at once.
    `variables` is what templates and conditions see.
    """

    directory: Path
    variables: dict[str, Any] = field(default_factory=dict)
    check_mode: bool = False
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    run_id: str = "test-run"
    predictions: dict[tuple[str, str], JSON] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    activations: list[tuple[int | None, int | None]] = field(default_factory=list)
    locks: dict[LockRequest, Lock] = field(default_factory=dict)
    pins: dict[str, str] = field(default_factory=dict)
    verbosity: int = 0
    confirm_within: int | None = None
    deep: bool = False

    def __post_init__(self) -> None:
        self.playbook_directory.mkdir(exist_ok=True)
        self.store.create()
        self.log_directory.mkdir(parents=True, exist_ok=True)

    def planning(self) -> ModuleHost:
        """The same machine, seen by a plan."""
        return ModuleHost(self.directory, self.variables, True, self.environment, self.run_id)

    # ---- HostView

    @property
    def store(self) -> Store:
        return Store(self.directory / "store")

    @property
    def playbook_directory(self) -> Path:
        return self.directory / "playbook"

    @property
    def search_directories(self) -> Sequence[Path]:
        return (self.playbook_directory,)

    def read_variables(self, file: Path) -> Mapping[str, Any]:
        from crossgrade.playbook.loader import load_variables

        return load_variables(file).values

    def predicted(self, kind: str, key: str) -> JSON:
        return self.predictions.get((kind, key))

    def predicts_below(self, directory: Path) -> bool:
        return any_below(directory, self.predictions)

    def generations(self) -> Sequence[Generation]:
        predicted = (value for (kind, _), value in self.predictions.items() if kind == "generation")
        known = [
            *self.store.generations(),
            *(Generation.from_json(v) for v in predicted if isinstance(v, dict)),
        ]
        return sorted({one.number: one for one in known}.values(), key=lambda one: one.number)

    def active(self) -> int | None:
        predicted = self.predictions.get(("active", "active"))
        return predicted if isinstance(predicted, int) else self.store.active()

    def verdict(self, generation: int, key: str) -> Verdict | None:
        return self.store.verdict(generation, key)

    def installed_bytes(self, request: LockRequest, lock: Lock) -> int:  # noqa: ARG002 - a disk without end
        return 0

    def offers(self, request: LockRequest, lock: Lock) -> Offers:  # noqa: ARG002 - no index is asked
        return Offers()

    def resolve(self, request: LockRequest) -> Lock:
        """The lock that the test laid ready under this request."""
        return self.locks[request]

    def pinned(self, name: str, find: Callable[[], str]) -> str:
        if name not in self.pins:
            self.pins[name] = find()
        return self.pins[name]

    def template(self, text: str, name: str, marks: Mapping[str, Any] | None = None) -> str:
        from crossgrade.playbook.templating import Templar

        return Templar(self._scope()).render_text(text, name, marks)

    def evaluate(self, expression: str) -> bool:
        from crossgrade.playbook.templating import Templar

        return Templar(self._scope()).evaluate_condition(expression)

    def _scope(self) -> Any:
        from crossgrade.playbook.variables import Precedence, Scope

        return Scope().with_layer(Precedence.PLAY_VARS, self.variables)

    # ---- ApplyContext

    @property
    def host(self) -> HostView:
        return self

    @property
    def log_directory(self) -> Path:
        return self.store.run_folder(self.run_id)

    @contextmanager
    def step(self, intent: str, undo: Mapping[str, JSON], *, by_hand: Sequence[str] = ()) -> Iterator[None]:
        step = Step(intent, undo, tuple(by_hand))
        self.steps.append(step)
        yield
        step.done = True

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
        return run_process(
            argv,
            env={**self.environment, **(environment or {})},
            cwd=cwd,
            timeout=timeout,
            input=input_text,
            on_line=self.messages.append if shown is None else lambda line: self.messages.append(shown(line)),
            log=self.log_directory / log_name if log_name else None,
        )

    def progress(self, message: str) -> None:
        self.messages.append(message)

    def record_verdict(self, generation: int, key: str, verdict: Verdict) -> None:
        self.store.write_verdict(generation, key, verdict)

    def record_activation(self, previous: int | None, active: int | None) -> None:
        self.activations.append((previous, active))


def arguments_for(module: Module[Any, Any], arguments: Mapping[str, Any] | object) -> Any:
    """The module's arguments from a mapping as a playbook has it; anything else is taken as it is."""
    return parse_arguments(module.arguments, arguments) if isinstance(arguments, Mapping) else arguments


def plan_module(module: Module[Any, Any], arguments: Mapping[str, Any] | object, host: ModuleHost) -> Plan:
    """Inspect and plan; in a plan the predictions are kept for the next call."""
    parsed = arguments_for(module, arguments)
    planned = module.plan(parsed, module.inspect(parsed, host))
    if host.check_mode and isinstance(planned, Change):
        host.predictions.update({(one.kind, one.key): one.value for one in planned.predicts})
    return planned


def run_module(module: Module[Any, Any], arguments: Mapping[str, Any] | object, host: ModuleHost) -> Outcome:
    """What the engine does in a real run. The outcome of a module that had nothing to do has changed=False.

    Fails the test when a module that proves itself finds work left after its apply.
    """
    parsed = arguments_for(module, arguments)
    planned = module.plan(parsed, module.inspect(parsed, host))
    if not isinstance(planned, Change):
        return Outcome(planned.values, changed=False, message=planned.summary)
    outcome = module.apply(parsed, planned, host)
    if module.proves_itself and module.effect == "changes" and not outcome.failed:
        left = module.plan(parsed, module.inspect(parsed, host))
        assert isinstance(left, Unchanged), f"{module.name}: work is left after apply: {left.summary}"
    return outcome


def undo_all(module: Module[Any, Any], host: ModuleHost) -> list[str]:
    """Undo the journaled steps, last one first; returns what the module said of each."""
    return [module.undo(step.undo, host) for step in reversed(host.steps)]


def snapshot(root: Path) -> dict[str, tuple[Any, ...]]:
    """Everything below a directory, for comparing: type and mode, owner, mtime of files, content or target."""
    found: dict[str, tuple[Any, ...]] = {}
    for folder, folders, names in os.walk(root):
        for path in (Path(folder) / name for name in (*folders, *names)):
            status = path.lstat()
            content: bytes | str = b""
            if path.is_symlink():
                content = os.readlink(path)  # noqa: PTH115 - as it was written
            elif path.is_file():
                content = path.read_bytes()
            times = () if path.is_dir() else (status.st_mtime_ns, status.st_nlink)
            key = str(path.relative_to(root))
            found[key] = (status.st_mode, status.st_uid, status.st_gid, *times, content)
    return found


def _fits_the_contract(host: ModuleHost) -> tuple[HostView, ApplyContext]:
    """For the type checker: the host is both."""
    return host, host
