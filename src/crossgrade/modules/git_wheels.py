"""Wheels of the dists that a lock pins to a commit of a git repository: built once, kept in the store by commit.

A commit has no hash of a file, so that `--require-hashes` could not install it. So the wheel is built first, and is
then installed as any wheel that was built here. The whole history is fetched, for version numbers that are counted from
a tag (setuptools-scm); blobs only of the commit, where the server can leave out the others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from crossgrade.errors import StoreError, TaskError
from crossgrade.jsontype import JSON
from crossgrade.modules import uv
from crossgrade.modules.contract import ApplyContext, Lock
from crossgrade.modules.filling import Recipe
from crossgrade.modules.locks import GitPin, lock_entries
from crossgrade.modules.wheels import BuiltWheel, WheelSource, name_and_version, sha256_of, write_record
from crossgrade.store.atomic import sync_directory
from crossgrade.store.layout import Store, remove_path

if TYPE_CHECKING:
    from crossgrade.process import Completed

SCHEMA = 1
LOG = "git-{name}-{commit}.log"


def git_wheels(lock: Lock, python_abi: str, store: Store) -> tuple[WheelSource, ...]:
    """One for each dist that the lock pins to a commit; without a file where it is still to be built."""
    found = []
    for entry in lock_entries(lock.text):
        if entry.git is None:
            continue
        key = wheel_key(entry.git, python_abi)
        record = _read(store.wheel_folder(key))
        if record is None:
            found.append(WheelSource(key, key, None, entry.dist.name, entry.dist.version, git=entry.git))
        else:
            file = store.wheel_folder(key) / record.file
            found.append(WheelSource(key, key, file, record.name, record.version, record.sha256, entry.git))
    return tuple(found)


def wheel_key(pin: GitPin, python_abi: str) -> str:
    """What such a wheel is kept under: repository, commit, folder and the ABI that it is for."""
    inputs = {"schema": SCHEMA, **asdict(pin), "python": python_abi}
    return sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:32]


def _read(folder: Path) -> BuiltWheel | None:
    try:
        return BuiltWheel.read(folder)
    except StoreError:
        return None


def with_git_wheels(recipe: Recipe, context: ApplyContext) -> Recipe:
    """The recipe with every wheel from git built. Raises TaskError when one cannot be."""
    wheels = tuple(
        _built(wheel, recipe, context) if wheel.git is not None and wheel.file is None else wheel
        for wheel in recipe.wheels
    )
    return replace(recipe, wheels=wheels)


def _built(wheel: WheelSource, recipe: Recipe, context: ApplyContext) -> WheelSource:
    assert wheel.git is not None  # noqa: S101 - the caller looked
    folder, work = context.store.wheel_folder(wheel.key), context.store.temporary / f"git-{wheel.key}"
    record: dict[str, JSON] = {"git": str(work), "folder": str(folder)}
    with context.step(f"build {wheel.name} from {wheel.git.url}", record, by_hand=[f"rm -r {work}"]):
        remove_path(work)
        out, source, finished = work / "out", work / "source", work / "finished"
        for place in (work, out, finished):
            place.mkdir(mode=0o700)
        log_name = LOG.format(name=wheel.name, commit=wheel.git.commit[:8])
        _check_out(wheel, source, log_name, context)
        context.progress(f"building {wheel.name} from {wheel.git.url} at {wheel.git.commit[:12]}")
        environment = uv.uv_environment(context.host.environment, recipe.request)
        place = source / wheel.git.subdirectory
        argv = [uv.uv_program(), "build", "--wheel", "--python", recipe.python, "--out-dir", str(out), str(place)]
        argv += [*uv.index_options(recipe.request)]
        _must(wheel, context, argv, log_name, environment)
        files = sorted(out.glob("*.whl"))
        if len(files) != 1:
            raise TaskError(f"the build of {wheel.name} left {len(files)} wheels, not one")
        name, version = name_and_version(files[0])
        if name != wheel.name:
            raise TaskError(f"{wheel.git.url} builds {name}, not {wheel.name}")
        kept = finished / files[0].name
        files[0].rename(kept)
        log = str(context.log_directory / log_name)
        inputs = {"git": asdict(wheel.git)}
        digest = sha256_of(kept)
        write_record(
            finished, BuiltWheel(wheel.key, kept.name, name, version, digest, kept.stat().st_size, log, inputs)
        )
        remove_path(folder)
        finished.rename(folder)
        sync_directory(folder.parent)
        remove_path(work)
    return replace(wheel, file=folder / kept.name, version=version, sha256=digest)


def _check_out(wheel: WheelSource, source: Path, log_name: str, context: ApplyContext) -> None:
    assert wheel.git is not None  # noqa: S101 - the caller looked
    context.progress(f"fetching {wheel.git.url}")
    quiet = {"GIT_TERMINAL_PROMPT": "0", "GIT_LFS_SKIP_SMUDGE": "1"}  # nobody is there to answer a prompt
    inside = ["git", "-C", str(source), "-c", "advice.detachedHead=false"]
    clone = ["git", "clone", "--quiet", "--no-checkout", "--filter=blob:none", wheel.git.url, str(source)]
    _must(wheel, context, clone, log_name, quiet)
    there = context.run([*inside, "cat-file", "-e", f"{wheel.git.commit}^{{commit}}"], environment=quiet)
    if not there.succeeded:  # a commit that no branch holds, such as that of a pull request
        _must(wheel, context, [*inside, "fetch", "--quiet", "origin", wheel.git.commit], log_name, quiet)
    _must(wheel, context, [*inside, "checkout", "--quiet", wheel.git.commit], log_name, quiet)
    modules = [*inside, "submodule", "--quiet", "update", "--init", "--recursive"]
    _must(wheel, context, modules, log_name, quiet)


def _must(
    wheel: WheelSource, context: ApplyContext, argv: Sequence[str], log_name: str, environment: Mapping[str, str]
) -> Completed:
    completed = uv.persistently(
        lambda: context.run(argv, environment=environment, log_name=log_name), announce=context.progress
    )
    if not completed.succeeded:
        said = "\n".join((completed.stdout + completed.stderr).rstrip().splitlines()[-12:])
        raise TaskError(
            f"{wheel.name} could not be built from git ({completed.outcome()}):\n{said}",
            remedy=f"The whole output is in {context.log_directory / log_name}.",
        )
    return completed


def undo(record: Mapping[str, JSON]) -> str:
    """Remove a half-made build; a wheel that is whole stays for the next run."""
    folder = Path(str(record["folder"]))
    gone = remove_path(Path(str(record["git"])))
    if _read(folder) is None:
        gone = remove_path(folder) or gone
    return "removed the half-made build" if gone else ""
