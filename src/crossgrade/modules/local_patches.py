"""Local changes of the environment that a candidate takes the place of: what they are, and what is to become of them.

An upgrade that silently loses what people have patched is worse than one that is refused: that is the default. What
becomes of each file when it is carried is `crossgrade.modules.carrying`'s to say.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from hashlib import sha256
from pathlib import Path

from crossgrade.errors import TaskError
from crossgrade.facts.venv import Checkout, editable_checkouts
from crossgrade.inspect.dists import installed_dists, site_packages
from crossgrade.inspect.local_changes import LocalChanges, local_changes
from crossgrade.modules import uv
from crossgrade.modules.carrying import Judged, NewFiles, Patches, judge_change, require_applicable
from crossgrade.modules.contract import HostView, Lock, LockRequest
from crossgrade.modules.merging import WheelFiles, git_merge, requirement_of
from crossgrade.modules.wheels import WheelSource
from crossgrade.store.scratch import scratch

_SHOWN_FILES = 5


@dataclass(frozen=True)
class Lost:
    """What a new environment would lose: changed files, checkouts with work of their own, what could not be read."""

    venv: Path
    changes: LocalChanges
    checkouts: tuple[Checkout, ...]

    def without(self, dists: Collection[str]) -> Lost:
        """But for these dists, whose files stay."""
        changes = tuple(one for one in self.changes.changes if one.dist not in dists)
        unknown = {what: why for what, why in self.changes.unknown.items() if what.partition(" ")[0] not in dists}
        checkouts = tuple(one for one in self.checkouts if one.dist not in dists)
        return Lost(self.venv, LocalChanges(self.changes.site, changes, unknown), checkouts)

    @property
    def digest(self) -> str:
        """Of the changed files, by path and content; "" when there is none."""
        rows = [[one.path, one.kind, sha256(one.content or b"").hexdigest()] for one in self.changes.changes]
        return sha256(json.dumps(rows).encode()).hexdigest() if rows else ""

    @property
    def blocking(self) -> bool:
        """Whether work would be lost. A file that was removed and would be back is none."""
        return bool(
            self.checkouts or self.changes.unknown or any(one.kind != "deleted" for one in self.changes.changes)
        )


# ---- what would be lost


def find_lost(venv: Path, host: HostView, ignore: Sequence[str], rebuilt: Collection[str]) -> Lost:
    """The local changes of a venv, but those that a glob of `ignore` names.

    A glob is of a dist's name or of a path below site-packages. A checkout whose dist is `rebuilt` is not lost. A file
    that is gone counts where it is source text: what else is gone was hardly removed for a purpose. Raises
    UnreadableEnvironmentError.
    """
    found = local_changes(venv)

    def ignored(*names: str) -> bool:
        return any(fnmatchcase(name, glob) for name in names for glob in ignore)

    changes = tuple(
        one for one in found.changes if not ignored(one.dist, one.path) and (one.kind != "deleted" or one.is_text)
    )
    unknown = {what: why for what, why in found.unknown.items() if not ignored(what, what.partition(" ")[0])}
    checkouts = editable_checkouts(installed_dists(venv), host.environment, host.run)
    own = tuple(
        one
        for one in checkouts
        if one.has_local_work is not False and one.dist not in rebuilt and not ignored(one.dist)
    )
    return Lost(venv, LocalChanges(found.site, changes, unknown), own)


def refusal(lost: Lost) -> TaskError:
    """That nothing was said about what to do with local changes: each is named."""
    parts = [_files_of(lost.changes, name, version) for name, version in lost.changes.dists]
    parts += [_told(checkout) for checkout in lost.checkouts]
    parts += [f"{what}: {why}" for what, why in lost.changes.unknown.items()]
    return TaskError(
        f"{lost.venv} has local changes that the candidate would not have:\n"
        + "\n".join(f"    {part}" for part in parts),
        remedy="Say what shall become of them: `local_patches: carry` merges them into the new versions, `drop` builds "
        f"without them, `ignore_patches` names those that may go. `crossgrade patches {lost.venv} --save FOLDER` keeps "
        "them as patches.",
    )


def _files_of(changes: LocalChanges, name: str, version: str) -> str:
    files = [f"{one.path} ({one.kind})" for one in changes.of_dist(name)]
    more = f" and {len(files) - _SHOWN_FILES} more" if len(files) > _SHOWN_FILES else ""
    return f"{name} {version}: {', '.join(files[:_SHOWN_FILES])}{more}"


def _told(checkout: Checkout) -> str:
    return f"{checkout.dist}: the checkout {checkout.path}: {checkout.told()}"


def source_venv(host: HostView) -> Path | None:
    """The environment that a candidate takes the place of: the active one, where it is now; None when there is none."""
    active = host.active()
    if active is None:
        return None
    venv = host.store.venv(active)
    if venv.is_dir():
        return venv
    generation = next((one for one in host.generations() if one.number == active), None)
    adopted = Path(str(generation.contents.get("adopted_from") or "")) if generation is not None else Path()
    return adopted if adopted.is_absolute() and adopted.is_dir() else None


@dataclass
class Looked:
    """The look of one task at the environment that is replaced; taken when something asks, once.

    `kept` are the dists of a clone, name to version: those that neither the lock nor a wheel changes stay as they are.
    """

    host: HostView
    policy: str
    ignore: tuple[str, ...]
    request: LockRequest
    wheels: tuple[WheelSource, ...]
    python_version: str
    kept: Mapping[str, str] | None = None

    @cached_property
    def _found(self) -> Lost | None:
        venv = None if self.policy == "drop" else source_venv(self.host)
        rebuilt = [wheel.name for wheel in self.wheels]
        return None if venv is None else find_lost(venv, self.host, self.ignore, rebuilt)

    @property
    def digest(self) -> str:
        """Of all changed files, those that a clone keeps too; "" when there is none."""
        return self._found.digest if self._found is not None else ""

    def _lost(self) -> Lost | None:
        found = self._found
        if found is None or self.kept is None or not found.blocking:
            return found
        locked = {dist.name: dist.version for dist in self.host.resolve(self.request).dists}
        named = {wheel.name for wheel in self.wheels}
        kept = [
            name for name, version in self.kept.items() if name not in named and locked.get(name, version) == version
        ]
        return found.without(kept)

    def require_permission(self) -> None:
        """Raises TaskError that names what would be lost, where nobody has said what is to become of it."""
        lost = self._lost() if self.policy == "refuse" else None
        if lost is not None and lost.blocking:
            raise refusal(lost)

    def judged(self, lock: Lock) -> Patches | None:
        """What is carried; None where nothing is to be. Raises TaskError that names what does not apply."""
        lost = self._lost() if self.policy == "carry" else None
        if lost is None:
            return None
        judged = judge_changes(lost, self.request, self.python_version, lock, self.wheels, self.host)
        return Patches(self.digest, judged)


# ---- what becomes of it


def judge_changes(
    lost: Lost, request: LockRequest, python_version: str, lock: Lock, wheels: Sequence[WheelSource], host: HostView
) -> tuple[Judged, ...]:
    """Merge each change onto the file that the lock's wheels bring. Raises TaskError naming all that does not apply."""
    if lost.checkouts or lost.changes.unknown:
        parts = [*map(_told, lost.checkouts), *(f"{what}: {why}" for what, why in lost.changes.unknown.items())]
        raise TaskError(
            "these local changes cannot be carried into the candidate:\n" + "\n".join(f"    {part}" for part in parts),
            remedy="Let extension_build build a checkout and name its wheel in `wheels`; or let `ignore_patches` name "
            "what may go.",
        )
    if not lost.changes.changes:
        return ()
    with scratch() as folder:
        old, new = folder / "old", folder / "new"
        for place in (old, new):
            place.mkdir()
        surroundings = {**host.environment, **uv.uv_environment(host.environment, request)}
        version = site_packages(lost.venv).parent.name.removeprefix("python").rstrip("t")
        originals = WheelFiles(old, version, host.run, surroundings, uv.index_options(request))
        locked = WheelFiles(new, python_version, host.run, surroundings, uv.index_options(request))
        merge = git_merge(folder, host.run, host.environment)
        theirs = NewFiles(lock, wheels, locked)
        sources = {dist.name: requirement_of(dist) for dist in installed_dists(lost.venv)}
        judged = tuple(
            judge_change(change, originals, sources.get(change.dist, ""), theirs, merge)
            for change in lost.changes.changes
        )
    require_applicable(judged)
    return judged
