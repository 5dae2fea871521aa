"""The machine as modules see it: the store and the disk, with a plan's predictions laid over."""

from __future__ import annotations

import json
import os.path
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crossgrade.gates.verdict import Verdict
from crossgrade.jsontype import JSON
from crossgrade.modules.contract import Lock, LockedDist, LockRequest, Offers, Prediction, Space
from crossgrade.store.generation import Generation
from crossgrade.store.layout import Store

if TYPE_CHECKING:
    from crossgrade.engine.deep import Foresight
    from crossgrade.playbook.library import Library
    from crossgrade.process import Completed


MOST_PRINTED = 3  # outputs of failed programs that a task remembers


@dataclass
class Machine:
    """What all tasks of one walk share. `predictions` stays empty in a real run, `locks` fills on the way.

    `locks` maps the digest of a request to its lock. A saved plan brings its own, so that what was planned
    is what gets installed. `offers` is what the indexes said of a lock, by the digests of request and lock.
    `confirm_within` is seconds (`--confirm-within`), None without a limit. `space` is what the changes of a plan will
    take. `foresight` makes the plan a deep one. `watch` is told each task's module, arguments and view before it is
    planned.
    """

    store: Store
    playbook_directory: Path
    check_mode: bool
    locks: dict[str, Lock] = field(default_factory=dict)
    offers: dict[tuple[str, str], Offers] = field(default_factory=dict)
    predictions: dict[tuple[str, str], JSON] = field(default_factory=dict)
    confirm_within: int | None = None
    space: list[Space] = field(default_factory=list)
    foresight: Foresight | None = None
    watch: Callable[[str, Any, TaskView], None] | None = None
    library: Library | None = None

    def predict(self, predictions: Sequence[Prediction]) -> None:
        for prediction in predictions:
            self.predictions[prediction.kind, prediction.key] = prediction.value

    def path_foreseen(self, path: str) -> Mapping[str, JSON] | None:
        """What a plan has foreseen of this path, None where no task before has touched it."""
        value = self.predictions.get(("path", os.path.abspath(path)))  # noqa: PTH100 - a path as text
        return value if isinstance(value, Mapping) else None if value is None else {"exists": bool(value)}


def any_below(directory: Path, predictions: Mapping[tuple[str, str], JSON]) -> bool:
    """Whether a path that is predicted is this directory or lies below it."""
    places = {directory, directory.resolve()}
    return any(kind == "path" and Path(key).is_relative_to(place) for kind, key in predictions for place in places)


def request_digest(request: LockRequest) -> str:
    """The key of a lock request: sha256 of its fields, in hex."""
    return sha256(json.dumps(request.described(), sort_keys=True).encode()).hexdigest()


def lock_to_json(lock: Lock) -> dict[str, JSON]:
    return {
        "text": lock.text,
        "digest": lock.digest,
        "dists": [[dist.name, dist.version] for dist in lock.dists],
        "remarks": list(lock.remarks),
    }


def lock_from_json(value: Mapping[str, Any]) -> Lock:
    """Raises KeyError or ValueError when the value is not one of ours."""
    dists = tuple(LockedDist(str(name), str(version)) for name, version in value["dists"])
    return Lock(str(value["text"]), str(value["digest"]), dists, tuple(map(str, value.get("remarks", ()))))


@dataclass(frozen=True)
class TaskView:
    """A `HostView` for one task: the shared machine, with the task's environment and variables.

    `printed` gathers what programs that failed had printed: whoever tells people of a failed task looks into it.
    """

    machine: Machine
    environment: Mapping[str, str]
    render: Callable[[str, str, Mapping[str, Any] | None], str]
    judge: Callable[[str], bool]
    verbosity: int = 0
    on_line: Callable[[str], None] | None = None
    printed: list[str] = field(default_factory=list)
    directories: tuple[Path, ...] = ()
    become: tuple[str, ...] = ()
    base_environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def store(self) -> Store:
        return self.machine.store

    @property
    def check_mode(self) -> bool:
        return self.machine.check_mode

    @property
    def deep(self) -> bool:
        return self.machine.foresight is not None

    @property
    def playbook_directory(self) -> Path:
        return self.directories[-1] if self.directories else self.machine.playbook_directory

    @property
    def search_directories(self) -> tuple[Path, ...]:
        return self.directories or (self.machine.playbook_directory,)

    def read_variables(self, file: Path) -> Mapping[str, Any]:
        from crossgrade.playbook.loader import load_variables

        library = self.machine.library
        return (library.variables_in(file) if library else load_variables(file)).values

    @property
    def confirm_within(self) -> int | None:
        return self.machine.confirm_within

    def predicted(self, kind: str, key: str) -> JSON:
        return self.machine.predictions.get((kind, key))

    def predicts_below(self, directory: Path) -> bool:
        return any_below(directory, self.machine.predictions)

    def generations(self) -> Sequence[Generation]:
        known = {generation.number: generation for generation in self.store.generations()}
        for (kind, _), value in self.machine.predictions.items():
            if kind == "generation" and isinstance(value, dict):
                generation = Generation.from_json(value)
                known[generation.number] = generation
        return [known[number] for number in sorted(known)]

    def active(self) -> int | None:
        predicted = self.machine.predictions.get(("active", "active"))
        return predicted if isinstance(predicted, int) else self.store.active()

    def verdict(self, generation: int, key: str) -> Verdict | None:
        return self.store.verdict(generation, key)

    def resolve(self, request: LockRequest) -> Lock:
        digest = request_digest(request)
        if digest not in self.machine.locks:
            from crossgrade.modules.uv import resolve_lock

            self.machine.locks[digest] = resolve_lock(request, self.run, self.environment)
        return self.machine.locks[digest]

    def pinned(self, name: str, find: Callable[[], str]) -> str:
        """Kept among the locks, as a lock without dists: a saved plan brings it along with them."""
        key = f"pinned {name}"
        if key not in self.machine.locks:
            value = find()
            self.machine.locks[key] = Lock(value, sha256(value.encode()).hexdigest(), ())
        return self.machine.locks[key].text

    def installed_bytes(self, request: LockRequest, lock: Lock) -> int:
        if not self.check_mode or not lock.dists:
            return 0  # only a plan asks, and asking takes a moment
        from crossgrade.modules.offers import locked_offers, unpacked_bytes

        known = self.machine.offers.get((request_digest(request), lock.digest))
        return unpacked_bytes(known.locked if known else locked_offers(request, lock, self.run, self.environment))

    def offers(self, request: LockRequest, lock: Lock) -> Offers:
        if not self.check_mode or not lock.dists:
            return Offers()
        key = request_digest(request), lock.digest
        if key not in self.machine.offers:
            from crossgrade.modules.offers import all_offers

            self.machine.offers[key] = all_offers(request, lock, self.run, self.environment)
        return self.machine.offers[key]

    def run(
        self, argv: Sequence[str], *, environment: Mapping[str, str] | None = None, timeout: float = 60.0
    ) -> Completed:
        from crossgrade.process import run_process

        merged = {**self.environment, **(environment or {})}
        completed = run_process(self.command_line(argv, merged), env=merged, cwd=None, timeout=timeout)
        self.remember_failure(completed)
        return completed

    def command_line(self, argv: Sequence[str], environment: Mapping[str, str]) -> Sequence[str]:
        """As it is started: by sudo for a task that becomes another user."""
        if not self.become:
            return argv
        from crossgrade.engine.becoming import with_environment

        return with_environment(self.become, argv, environment, self.base_environment)

    def remember_failure(self, completed: Completed) -> None:
        """Keep what a program that failed has printed, with how it ended; of several the last ones."""
        if not completed.succeeded:
            said = f"{completed.stdout}\n{completed.stderr}\n{completed.outcome()}\n"
            self.printed[:] = [*self.printed[1 - MOST_PRINTED :], said]

    def template(self, text: str, name: str, marks: Mapping[str, Any] | None = None) -> str:
        return self.render(text, name, marks)

    def evaluate(self, expression: str) -> bool:
        return self.judge(expression)
