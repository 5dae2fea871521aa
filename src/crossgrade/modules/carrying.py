"""Carrying local changes into a candidate: what becomes of each file is judged before anything is built.

`judge_change` says it from the wheels; `write_patches` writes the merged files into the candidate while it is
assembled, before its manifest. The RECORDs of the candidate stay as its wheels have them, so that the next upgrade
finds the same changes again.
"""

from __future__ import annotations

import base64
import hashlib
import os
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from crossgrade.errors import CrossgradeError, NotForeseenError, TaskError
from crossgrade.inspect.dists import site_packages
from crossgrade.inspect.local_changes import LocalChange
from crossgrade.inspect.three_way import FileVerdict, Merge, judge, judge_without_original
from crossgrade.modules.contract import ApplyContext, Difference, Laying, Lock
from crossgrade.modules.locks import lock_entries
from crossgrade.modules.merging import WheelFiles, git_merge, read_from_wheel
from crossgrade.modules.wheels import WheelSource
from crossgrade.store.scratch import scratch


@dataclass(frozen=True)
class Judged:
    """A local change, the file as its old wheel had it (None: not, or not known), and what becomes of it.

    `pending` is True where the new file is only known once its wheel is built. `theirs` is the new version's file.
    """

    change: LocalChange
    verdict: FileVerdict
    original: bytes | None = None
    theirs: bytes | None = None
    pending: bool = False


@dataclass(frozen=True)
class Patches:
    """What is carried into a candidate. `digest` stands for the changes that were found."""

    digest: str
    judged: tuple[Judged, ...]


@dataclass(frozen=True)
class NewFiles:
    """The files of the new versions, from the wheels that were built here and from those of the lock."""

    lock: Lock
    wheels: Sequence[WheelSource]
    locked: WheelFiles

    def read(self, dist: str, path: str) -> bytes | None:
        """None where the new version has no such file. Raises LookupError for one to be built, TaskError, OSError."""
        for wheel in self.wheels:
            if wheel.name == dist:
                if wheel.file is None:
                    raise LookupError(f"{dist} is built by this run")
                return read_from_wheel(wheel.file, path)
        entry = next((one for one in lock_entries(self.lock.text) if one.dist.name == dist), None)
        if entry is None:
            return None
        place, problem = self.locked.place(entry.text)
        if place is None:
            raise TaskError(problem)
        return read_file(place / path)


def read_file(path: Path) -> bytes | None:
    """None for a file that is not there. Raises OSError."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None


def judge_change(change: LocalChange, originals: WheelFiles, source: str, theirs: NewFiles, merge: Merge) -> Judged:
    """What becomes of one change. What cannot be told is `unknown`, with the reason."""
    if change.kind != "deleted" and change.content is None:
        return Judged(change, FileVerdict("conflict", "it is no text and cannot be merged"))
    try:
        new = theirs.read(change.dist, change.path)
    except LookupError as error:
        original, problem = original_of(change, originals, source)
        outcome = FileVerdict("unknown", problem or str(error))
        return Judged(change, outcome, original, pending=not problem)
    except (CrossgradeError, OSError, zipfile.BadZipFile) as error:
        return Judged(change, FileVerdict("unknown", f"the new version's file: {error}"))
    if change.kind == "added":
        return Judged(change, judge(None, change.content, new, merge), None, new)
    if new is not None and change.recorded and recorded_digest(new, change.recorded) == change.recorded:
        return Judged(change, judge(new, change.content, new, merge), new, new)
    settled = judge_without_original(change.content, new, was_there=True)
    if settled is not None:
        return Judged(change, settled, None, new)
    original, problem = original_of(change, originals, source)
    if problem:
        return Judged(change, FileVerdict("unknown", problem), None, new)
    return Judged(change, judge(original, change.content, new, merge), original, new)


def original_of(change: LocalChange, originals: WheelFiles, source: str) -> tuple[bytes | None, str]:
    """The file as the wheel of its version has it, by RECORD's own hash; else why it could not be had."""
    if change.kind == "added":
        return None, ""
    place, problem = originals.place(source)
    if place is None:
        return None, f"the original is not to be had: {problem}"
    try:
        content = read_file(place / change.path)
    except OSError as error:
        return None, f"the original cannot be read: {error.strerror}"
    if content is None or recorded_digest(content, change.recorded) != change.recorded:
        return None, f"the wheel of {change.dist} {change.version} that was found is not the one that was installed"
    return content, ""


def recorded_digest(content: bytes, recorded: str) -> str:
    """The hash of `content` in the algorithm and form of `recorded` (``sha256=…``)."""
    algorithm = recorded.partition("=")[0]
    try:
        digest = hashlib.new(algorithm.lower(), content, usedforsecurity=False).digest()
    except (ValueError, TypeError):
        return ""
    return f"{algorithm}={base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"


def require_applicable(judged: Iterable[Judged]) -> None:
    """Raises TaskError that names every change which does not apply, with its hunks."""
    parts: list[str] = []
    for one in judged:
        if one.pending or one.verdict.outcome in ("applies", "contained"):
            continue
        parts.append(f"    {one.change.dist} {one.change.version}: {one.change.path}: {one.verdict.detail}")
        parts += ["".join(f"        {line}\n" for line in hunk.splitlines()).rstrip("\n") for hunk in one.verdict.hunks]
    if parts:
        raise TaskError(
            "these local changes do not apply to the new versions:\n" + "\n".join(parts),
            remedy="Bring the environment's files into a form that applies, or let `ignore_patches` name what may go. "
            "`crossgrade patches VENV --save FOLDER` keeps them as patches.",
        )


# ---- into the candidate


def write_patches(patches: Patches, venv: Path, merge: Merge) -> list[Path]:
    """Write the merged files into a venv that holds the new versions; returns the Python files among them.

    A file that is not the one that was judged (its wheel was only built now) is merged anew. Each file is replaced by a
    rename, never written in place: it may be a link into uv's cache. Raises TaskError for what does not apply, and
    StoreError or OSError.
    """
    site = site_packages(venv)
    now: list[tuple[Judged, FileVerdict]] = []
    for one in patches.judged:
        theirs = read_file(site / one.change.path)
        if not one.pending and theirs == one.theirs:
            verdict = one.verdict
        elif one.original is None and one.change.kind != "added":
            verdict = FileVerdict("unknown", "the file that was installed is not the one that was judged")
        else:
            verdict = judge(one.original, one.change.content, theirs, merge)
        now.append((one, verdict))
    require_applicable(Judged(one.change, verdict, one.original) for one, verdict in now)
    written: list[Path] = []
    for one, verdict in now:
        if verdict.outcome == "applies":
            _replace(site / one.change.path, verdict.result, venv)
            written += (
                [site / one.change.path] if one.change.path.endswith(".py") and verdict.result is not None else []
            )
    return written


def _replace(path: Path, content: bytes | None, venv: Path) -> None:
    if not path.parent.resolve().is_relative_to(venv.resolve()):
        raise TaskError(f"{path} leads out of the venv: what lies there is not the candidate's to change")
    path.parent.mkdir(parents=True, exist_ok=True)
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
        compiled.unlink()
    if content is None:
        path.unlink(missing_ok=True)
        return
    work = path.with_name(f".{path.name}.crossgrade")
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o644
    descriptor = os.open(work, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    work.chmod(mode)
    work.rename(path)


def carry(patches: Patches, venv: Path, context: ApplyContext) -> None:
    """Write them into the candidate and compile what was written, as uv has compiled the rest. Raises TaskError."""
    if not patches.judged:
        return
    context.progress("carrying local changes into the new versions")
    with scratch() as folder:
        written = write_patches(patches, venv, git_merge(folder, context.host.run, context.host.environment))
    if written:  # the exit code does not count: what does not compile is found at its import, as it was before
        argv = [str(venv / "bin" / "python"), "-I", "-m", "compileall", "-q", *map(str, written)]
        context.run(argv, timeout=600.0, log_name="python_env.log")


def lay_out(patches: Patches, venv: Path, laying: Laying) -> tuple[str, ...]:
    """The same for a deep plan; what only the run can merge is returned in words. Raises NotForeseenError."""
    known = tuple(one for one in patches.judged if not one.pending)
    try:
        with scratch() as folder:
            merge = git_merge(folder, laying.host.run, laying.host.environment)
            write_patches(Patches(patches.digest, known), venv, merge)
    except TaskError as error:
        raise NotForeseenError(str(error)) from error
    dists = dict.fromkeys(one.change.dist for one in patches.judged if one.pending)
    return tuple(f"local changes of {dist} are merged when it is built" for dist in dists)


def differences(patches: Patches) -> tuple[Difference, ...]:
    """Each file that is carried: the new version's text, and what it becomes."""
    return tuple(_difference(one) for one in patches.judged)


def _difference(one: Judged) -> Difference:
    subject = f"local change of {one.change.dist}: {one.change.path}"
    if one.pending:
        return Difference(subject, "", f"merged when {one.change.dist} is built")
    if one.verdict.outcome != "applies":
        return Difference(subject, "", one.verdict.detail)
    return Difference(subject, _text(one.theirs), _text(one.verdict.result))


def _text(content: bytes | None) -> str:
    return "" if content is None else content.decode("utf-8", "replace")
