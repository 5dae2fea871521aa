"""Deep plans: gates that only read files judge environments that do not exist yet.

The venv that a task would make is laid out in a temporary folder when the first gate asks for it; what the gate finds
there is told with the paths that the run would give it. Nothing below the store is written, and nothing is executed
from what was laid out.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crossgrade.engine.plan import Foreseen
from crossgrade.engine.space import IGNORE, missing_room
from crossgrade.engine.view import TaskView
from crossgrade.errors import CrossgradeError, NotForeseenError
from crossgrade.jsontype import JSON
from crossgrade.modules.contract import Change, Module, Outcome, Space
from crossgrade.store.generation import Generation

EXECUTES = "it has to run programs, and a plan runs none"


@dataclass
class _Environment:
    """A venv that a task would make. `lay` makes it at `place`; its answer, or why it could not, is kept."""

    place: Path
    lay: Callable[[Path], tuple[str, ...]]
    missing: tuple[str, ...] | None = None
    problem: str = ""


@dataclass
class Foresight:
    """What the tasks of one deep plan share. `folder` is empty and private; the caller removes it.

    `progress` and `announce` tell people what is done, and what is about to be downloaded.
    """

    folder: Path
    progress: Callable[[str], None]
    announce: Callable[[str], None]
    ignore_space: bool = False
    _environments: dict[Path, _Environment] = field(default_factory=dict)

    def look(self, module: Module[Any, Any], arguments: Any, change: Change, view: TaskView) -> Foreseen | None:
        """What the gate of this task would say; None when the task is none. Environments to come are remembered."""
        if change.venv is not None and module.lay_out is not None:
            self._expect(module, change, change.venv, view)
        if module.effect != "checks":
            return None
        if module.foresee is None:
            return Foreseen("not run", EXECUTES)
        sight = _Sight(self, view)
        try:
            outcome = module.foresee(arguments, sight)
            sight.require_whole()
        except NotForeseenError as error:
            return Foreseen("not run", sight.shown(str(error)))
        except CrossgradeError as error:
            return Foreseen("would fail", sight.shown(str(error)))
        except OSError as error:
            return Foreseen("not run", sight.shown(f"{error.strerror or error}: {error.filename or self.folder}"))
        return _foreseen(outcome, sight)

    def _expect(self, module: Module[Any, Any], change: Change, venv: Path, view: TaskView) -> None:
        lay_out = module.lay_out
        assert lay_out is not None  # noqa: S101 - the caller has looked
        place = self.folder / str(len(self._environments)) / venv.name
        self._environments[venv] = _Environment(place, lambda at: lay_out(change, at, _Laying(self, view)))

    def place_of(self, venv: Path) -> Path | None:
        """Where the files lie that will be at `venv`; None when no task makes it. Raises NotForeseenError."""
        found = self._environments.get(venv)
        if found is None:
            return None
        if found.missing is None and not found.problem:
            found.place.parent.mkdir(mode=0o700)
            try:
                found.missing = found.lay(found.place)
            except CrossgradeError as error:
                found.problem = str(error)
        if found.problem:
            raise NotForeseenError(found.problem)
        return found.place

    def missing(self, places: Collection[Path]) -> list[str]:
        """What the environments that lie at these places lack, because only the run makes it."""
        return [text for each in self._environments.values() if each.place in places for text in each.missing or ()]


@dataclass(frozen=True)
class _Laying:
    """A `Laying` for one task."""

    foresight: Foresight
    host: TaskView

    def progress(self, message: str) -> None:
        self.foresight.progress(message)

    def fetching(self, message: str) -> None:
        self.foresight.announce(message)

    def require(self, space: Sequence[Space]) -> None:
        lacking = "" if self.foresight.ignore_space else missing_room(space)
        if lacking:
            raise NotForeseenError(f"{lacking}; `-e {IGNORE}=true` goes on anyway")


@dataclass
class _Sight:
    """A `Sight` for one gate; it knows which environments the gate has looked at."""

    foresight: Foresight
    host: TaskView
    seen: dict[Path, Path] = field(default_factory=dict)

    def venv(self, path: Path, generation: Generation | None) -> Path:
        said = path = self._follow(path)
        adopted = generation.contents.get("adopted_from") if generation is not None else None
        if adopted and not path.is_dir():  # it is to be adopted, and lies where it was made
            path = Path(str(adopted))
        place = self.foresight.place_of(path)
        if place is not None:
            self.seen[said] = place
            return place
        if not path.is_dir():
            raise NotForeseenError(f"{path} is not there yet")
        if generation is not None and generation.state == "building":
            raise NotForeseenError(f"generation {generation.number} is still being built, or its build was interrupted")
        return path

    def require_certain(self, venv: Path) -> None:
        if venv not in self.seen.values():
            return
        from crossgrade.inspect.ownership import conflicts

        # uv installs many wheels at once: of two that write one file, it is chance which comes last
        contested = next(
            (each for each in conflicts(venv) if each.agree is False and ".so" in Path(each.path).name), None
        )
        if contested is not None:
            names = " and ".join(map(str, contested.dists))
            raise NotForeseenError(f"{names} write {contested.path}, and only the run decides whose bytes stay")

    def _follow(self, path: Path) -> Path:
        """The path that people use leads to another generation once a task of the plan has activated it."""
        active, link = self.host.predicted("active", "active"), self.host.predicted("path", str(path))
        is_link = path == self.host.store.active_link or (isinstance(link, dict) and "generation" in link)
        return self.host.store.venv(active) if is_link and isinstance(active, int) else path

    def now(self, path: str) -> str:
        for venv, place in self.seen.items():
            if path == str(venv) or path.startswith(f"{venv}/"):
                return f"{place}{path.removeprefix(str(venv))}"
        toolkits = self.host.store.toolkit("any").parent
        digest = path.removeprefix(f"{toolkits}/").partition("/")[0]
        if path.startswith(f"{toolkits}/") and self.host.predicted("toolkit", digest) is not None:
            raise NotForeseenError(f"the toolkit that {path} belongs to is installed by this run")
        return path

    def progress(self, message: str) -> None:
        self.foresight.progress(message)

    def shown(self, text: str) -> str:
        """With the paths that the run would give them."""
        for venv, place in self.seen.items():
            text = text.replace(str(place), str(venv))
        return text

    def require_whole(self) -> None:
        """Raises NotForeseenError when uv's cache lost files meanwhile: a link without its file says nothing."""
        for place in self.seen.values():
            for folder, _, names in os.walk(place):
                for name in names:
                    path = os.path.join(folder, name)  # noqa: PTH118 - strings, in bulk
                    if not os.path.exists(path) and os.readlink(path).startswith("/"):  # noqa: PTH110, PTH115
                        raise NotForeseenError(f"{os.readlink(path)} was removed from uv's cache meanwhile")  # noqa: PTH115


def _foreseen(outcome: Outcome, sight: _Sight) -> Foreseen:
    verdict = outcome.verdict
    data = _mapped(verdict.to_json(), sight.shown) if verdict is not None else None
    shown = data if isinstance(data, dict) else None
    reason = sight.shown(outcome.message)
    missing = sight.foresight.missing(sight.seen.values())
    if missing:
        return Foreseen("not run", f"{', '.join(missing)}; of what is there already: {reason}", shown)
    if outcome.failed:
        return Foreseen("would fail", reason, shown)
    if verdict is not None and verdict.outcome == "not run":
        return Foreseen("not run", reason.removeprefix("not run: "), shown)
    return Foreseen("would pass", reason, shown)


def _mapped(value: JSON, change: Callable[[str], str]) -> JSON:
    """The same data with every text in it changed, keys too."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(key): _mapped(content, change) for key, content in value.items()}
    return [_mapped(item, change) for item in value] if isinstance(value, list) else value
