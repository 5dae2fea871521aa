"""venv_backup: take the working venv into the store as a generation, with a manifest of every file.

The directory is moved, not copied, and a link to it takes its place in the same instant (`renameat2` with
RENAME_EXCHANGE), so it costs no space, and whatever runs from the old path goes on running. From then on the
path is the active link. The backup is the way back: undoing the run leaves a complete one in place.

With `archive`, a copy that does not depend on this disk is written as well: see `crossgrade restore`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from crossgrade.errors import StoreError, TaskError
from crossgrade.jsontype import JSON
from crossgrade.modules.contract import (
    ApplyContext,
    Change,
    Difference,
    HostView,
    Module,
    Outcome,
    Plan,
    Prediction,
    Space,
    Unchanged,
)
from crossgrade.modules.dists import versions
from crossgrade.modules.files import absolute, follow, prediction_for
from crossgrade.playbook.arguments import argument
from crossgrade.store.activation import adopt, finish_adoption, undo_adoption
from crossgrade.store.adoptable import check_adoptable
from crossgrade.store.archive import LEVELS, archive_name, check_folder, part_of
from crossgrade.store.generation import Generation
from crossgrade.store.layout import Store, remove_path
from crossgrade.store.manifest import build_manifest, quick_drift, read_manifest, write_manifest
from crossgrade.store.scanning import count_files


@dataclass(frozen=True)
class Arguments:
    """Done once for an environment; afterwards its path is a link to the active generation."""

    path: str = argument(doc="The venv that people and services use: the directory that holds bin/python.")
    archive: str | None = argument(
        doc="An existing directory, best on another disk, that gets an archive of the backup as well.", default=None
    )
    archive_level: int = argument(doc="How hard zstd tries for the archive: 1 is quick, 19 is small.", default=3)


@dataclass(frozen=True)
class State:
    """`active` when the path is the active link already. Otherwise what is to be adopted; sizes in bytes.

    `files` is None for a venv that an earlier task of the plan will make.
    """

    path: Path
    store: Store
    active: int | None
    number: int
    dists: Mapping[str, str]
    files: int | None = None
    size: int = 0
    unrecorded: bool = False  # adopted by a run whose journal is lost: whole, but without its manifest
    archive: Path | None = None  # the folder for an archive that is asked for and is not there
    to_archive: int = 0  # the generation that it is to hold
    archive_bytes: int = 0  # at most


# ---- inspect


def inspect(arguments: Arguments, host: HostView) -> State:
    state = _inspect(arguments, host)
    if arguments.archive is None:
        return state
    if arguments.archive_level not in LEVELS:
        raise TaskError(f"archive_level goes from {LEVELS[0]} to {LEVELS[-1]}, not {arguments.archive_level}")
    folder = absolute(arguments.archive, host)
    if follow(folder, host).kind not in ("directory", "unknown"):
        raise TaskError(f"there is no directory {folder} for the archive", remedy="Make it first.")
    check_folder(host.store, folder)
    if state.active is None:
        if folder.resolve().is_relative_to(state.path.resolve()):
            raise TaskError(f"{folder} lies inside {state.path}, of which the archive is to be a backup")
        return replace(state, archive=folder, to_archive=state.number, archive_bytes=state.size)
    backup = next((one for one in host.generations() if one.contents.get("adopted_from") == str(state.path)), None)
    if backup is None or (backup.manifest and _is_there(folder / archive_name(host.store, backup), backup)):
        return state
    manifest = host.store.manifest_path(backup.number)
    size = read_manifest(manifest).total_bytes if manifest.exists() else 0
    return replace(state, archive=folder, to_archive=backup.number, archive_bytes=size)


def _is_there(archive: Path, backup: Generation) -> bool:
    """Whether the archive of the backup is at its place. Raises TaskError when something else has its name."""
    if not archive.exists():
        return False
    from crossgrade.store.archive_reading import read_archive_record

    try:
        if read_archive_record(archive).manifest == backup.manifest:
            return True
        problem = "it is the archive of something else"
    except StoreError as error:
        problem = error.message
    raise TaskError(f"{archive} is not the archive of generation {backup.number}: {problem}", remedy=f"rm {archive}")


def _inspect(arguments: Arguments, host: HostView) -> State:
    path = absolute(arguments.path, host)
    if ".." in path.parts:  # the path is recorded, and becomes the active link: it must mean the same for everybody
        path = Path(os.path.realpath(path.parent)) / path.name
        if path.name == "..":
            raise TaskError(f"{arguments.path} is no name of a venv", remedy="End it with the venv's own name.")
    active, link = host.active(), host.store.active_link
    predicted = prediction_for(path, host) or {}
    if active is not None:
        if (link is not None and _same_entry(link, path)) or "generation" in predicted:
            known = next((each for each in host.generations() if each.number == active), None)
            unrecorded = known is not None and known.origin == "adopted" and known.state == "building"
            return State(path, host.store, active, active, {}, unrecorded=unrecorded)
        raise TaskError(
            f"this store has adopted {link} already, and {path} is to be adopted",
            remedy="One store serves one environment: give each its own --root.",
        )
    number = host.store.next_number()
    dists = predicted.get("dists")
    if isinstance(dists, dict):
        return State(path, host.store, None, number, {name: str(version) for name, version in dists.items()})
    check_adoptable(host.store, path)
    files, size = count_files(path) if host.check_mode else (None, 0)
    return State(path, host.store, None, number, versions(path), files, size)


def _same_entry(one: Path, other: Path) -> bool:
    """Whether two paths name the same directory entry, however the folders above are written."""
    return one.name == other.name and os.path.realpath(one.parent) == os.path.realpath(other.parent)


# ---- plan


def plan(arguments: Arguments, state: State) -> Plan:
    venv = state.store.venv(state.number)
    values = {"generation": state.number, "link": str(state.path)}
    archiving = f"archive generation {state.to_archive} to {arguments.archive}" if state.archive else ""
    # As much as what is archived: wheels hold much that does not become smaller.
    space = (Space(state.archive, state.archive_bytes, "the archive"),) if state.archive else ()
    if state.unrecorded:
        return Change(
            f"record every file of generation {state.number}, whose adoption was never recorded",
            (),
            values,
            payload={"state": state},
        )
    if state.active is not None:
        if archiving:
            return Change(archiving, (), values, payload={"state": state}, space=space)
        return Unchanged(f"{state.path} is the active link, at generation {state.number}", values)
    before = "a venv"
    if state.files is not None:
        before = f"a venv of {state.files:,} files, {state.size / 1e6:,.1f} MB"
    link: dict[str, JSON] = {
        "exists": True, "path": str(state.path), "isdir": False, "islnk": True, "isreg": False,
        "lnk_target": str(venv), "generation": state.number,
    }  # fmt: skip
    generation: dict[str, Any] = _generation(state, "").with_state("ready").to_json()
    return Change(
        f"adopt {state.path} as generation {state.number}" + (f", then {archiving}" if archiving else ""),
        (Difference(str(state.path), before, f"a link to {venv}, where it is moved"),),
        values,
        predicts=(
            Prediction("path", str(state.path), link),
            Prediction("generation", str(state.number), generation),
            Prediction("active", "active", state.number),
        ),
        payload={"state": state},
        space=space,
    )


def _generation(state: State, run_id: str) -> Generation:
    created = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    contents = {"dists": dict(state.dists), "adopted_from": str(state.path)}
    return Generation(state.number, "", "adopted", "building", created, run_id, {}, contents)


# ---- apply


def apply(arguments: Arguments, change: Change, context: ApplyContext) -> Outcome:
    state: State = change.payload["state"]
    parts = [_adopt(state, context)] if state.active is None else []
    parts += [_record(state, context)] if state.unrecorded else []
    if state.archive is not None:
        parts.append(_archive(state.to_archive, state.archive, arguments.archive_level, context))
    return Outcome(change.values, message="; ".join(parts))


def _archive(number: int, folder: Path, level: int, context: ApplyContext) -> str:
    from crossgrade.store.archive_writing import write_archive  # only those who ask for one need it

    store = context.store
    target = folder / archive_name(store, store.generation(number))
    with context.step(f"archive generation {number} to {target}", {"archive": str(target)}):
        size = write_archive(store, number, target, level=level, progress=context.progress)
    return f"{target}, {size / 1e6:,.1f} MB"


def _adopt(state: State, context: ApplyContext) -> str:
    store, path, number = context.store, state.path, state.number
    venv = store.venv(number)
    check_adoptable(store, path)
    generation = _generation(state, context.run_id)
    with context.step(
        f"adopt {path} as generation {number}",
        {"path": str(path), "generation": number, "run": context.run_id},
        by_hand=[f"rm {path}", f"mv {venv} {path}"],
    ):
        store.write_generation(generation)
        context.progress(f"recording every file of {path}")
        manifest = build_manifest(path)
        write_manifest(store.manifest_path(number), manifest)
        store.set_active_link(path)
        adopt(store, path, number)
        changed = quick_drift(manifest, venv)
        if changed:
            raise TaskError(
                f"{path} was changed while it was backed up: {changed[0]}",
                remedy="Find out what writes into it (an installation?), wait for its end, and run again.",
            )
        # in this order: what is not marked ready is put back after a kill, and then the journal is told so
        context.record_activation(None, number)
        store.write_generation(generation.with_state("ready", manifest=manifest.digest))
    return f"{manifest.file_count:,} files, {manifest.total_bytes / 1e6:,.1f} MB"


def _record(state: State, context: ApplyContext) -> str:
    store, number = context.store, state.number
    generation = replace(store.generation(number), run_id=context.run_id)
    undo_record: dict[str, JSON] = {"path": str(state.path), "generation": number, "run": "none: it stays adopted"}
    with context.step(f"record generation {number}", undo_record):
        context.progress(f"recording every file of {store.venv(number)}")
        manifest = build_manifest(store.venv(number))
        write_manifest(store.manifest_path(number), manifest)
        store.write_generation(generation.with_state("ready", manifest=manifest.digest))
        context.record_activation(None, number)
    return f"{manifest.file_count:,} files, {manifest.total_bytes / 1e6:,.1f} MB"


def undo(record: Mapping[str, JSON], context: ApplyContext) -> str:
    """Take back an adoption that was not completed. A complete one stays, and so does a complete archive."""
    if "archive" in record:
        unfinished = part_of(Path(str(record["archive"])))
        return "removed the unfinished archive" if remove_path(unfinished) else ""
    store, number = context.store, int(str(record["generation"]))
    path = Path(str(record["path"]))
    folder = store.folder(number)
    if not folder.exists():
        return ""
    if (folder / "generation.json").exists():
        generation = store.generation(number)
        if generation.run_id != record["run"] or generation.state != "building":
            return ""
    moved_back = undo_adoption(store, path, number)
    store.remove_generation(number)
    if moved_back:
        context.record_activation(number, None)
    return f"put {path} back where it was" if moved_back else "removed the unfinished backup"


def complete(record: Mapping[str, JSON], context: ApplyContext) -> str | None:
    """When the directory lies in the store and is what its manifest says, the rest of the adoption is made good."""
    if "archive" in record:
        return None
    store, number, path = context.store, int(str(record["generation"])), Path(str(record["path"]))
    if not (store.folder(number) / "generation.json").exists():
        return None
    generation = store.generation(number)
    if generation.run_id != record["run"] or not finish_adoption(store, path, number):
        return None
    if generation.state == "building":
        try:
            manifest = read_manifest(store.manifest_path(number))
        except StoreError:
            return None
        if quick_drift(manifest, store.venv(number)):
            return None
        store.write_generation(generation.with_state("ready", manifest=manifest.digest))
    context.record_activation(None, number)
    return f"generation {number} is adopted"


MODULE = Module(
    name="venv_backup",
    arguments=Arguments,
    effect="changes",
    inspect=inspect,
    plan=plan,
    apply=apply,
    undo=undo,
    complete=complete,
    summary="Take the working venv into the store as generation 1, with a manifest, and leave a link in its place.",
)
