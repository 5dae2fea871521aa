"""`restore`: a generation from an archive, under the next number, whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from crossgrade.engine.events import Events, Listener
from crossgrade.engine.interrupt import interruptible, undisturbed
from crossgrade.engine.journal import Journal
from crossgrade.engine.opening import opened_journal
from crossgrade.engine.recovery import empty_temporary, refuse_while_interrupted
from crossgrade.engine.request import Request
from crossgrade.engine.returning import finish_overdue
from crossgrade.engine.run_id import new_run_id
from crossgrade.errors import CrossgradeError, ExitCode, StoreError
from crossgrade.jsontype import JSON
from crossgrade.modules.durable import sync_filesystem
from crossgrade.store.archive_reading import Unpacked, unpack
from crossgrade.store.atomic import replace_link, sync_directory
from crossgrade.store.generation import Generation, GenerationState
from crossgrade.store.layout import Store, remove_path
from crossgrade.store.lock import hold
from crossgrade.store.manifest import build_manifest, write_manifest
from crossgrade.store.relocation import relocate


@dataclass(frozen=True)
class Restored:
    """What came of it: the new generation, and the files and bytes that were checked."""

    generation: Generation
    files: int
    bytes: int


def restore(request: Request, archive: Path, progress: Callable[[str], None], *, link: Path | None = None) -> Restored:
    """Unpack, check, relocate and take in. With `link`, a store without an active link gets one there.

    Raises ArchiveError when the archive is not as it was written, CrossgradeError when a run was interrupted; then, and
    for every other failure, nothing is left of it.
    """
    store = request.store
    if not archive.is_file():
        raise StoreError(f"there is no archive at {archive}")
    if link is not None and Path(os.path.realpath(link.parent)).is_relative_to(store.root):
        raise CrossgradeError(f"{link} lies inside the store {store.root}", remedy="Name a place beside it.")
    store.create()
    with (
        hold(store.lock_path, "crossgrade restore"),
        interruptible(),
        opened_journal(store, create=True) as journal,
    ):
        with undisturbed():
            finish_overdue(request, journal, Events("localhost", (_told(progress),)))
        refuse_while_interrupted(journal, "restore waits until it is settled")
        empty_temporary(store)
        if link is not None:
            _check_link(store, link)
        run_id = new_run_id()
        work = store.temporary / f"restore-{run_id}"
        work.mkdir(mode=0o700)
        try:
            unpacked = unpack(archive, work, progress)
            journal.begin_run(run_id, "restore", {**request.to_journal(), "archive": str(archive)})
            try:
                generation = _take_in(store, journal, run_id, work, unpacked, archive, progress)
            except BaseException as error:
                journal.begin_rollback(run_id)
                _undo(store, journal, run_id)
                journal.end_run(run_id, "rolled back", int(ExitCode.FAILED), str(error))
                raise
            if link is not None:
                store.set_active_link(link)
                replace_link(link, store.venv(generation.number))
                journal.record_activation(run_id, None, generation.number)
            journal.end_run(run_id, "done", 0, f"generation {generation.number} from {archive.name}")
        finally:
            remove_path(work)
    return Restored(generation, unpacked.files, unpacked.bytes)


def _told(progress: Callable[[str], None]) -> Listener:
    return lambda event: progress(str(event.data.get("message", event.kind)))


def _check_link(store: Store, link: Path) -> None:
    if store.active_link is not None:
        raise CrossgradeError(
            f"this store has an active link already: {store.active_link}",
            remedy="Leave --link out, and activate the restored generation with `crossgrade rollback --to N`.",
        )
    if os.path.lexists(link):
        raise CrossgradeError(f"{link} is there already: it is not replaced", remedy="Move it away first.")
    if not link.parent.is_dir():
        raise CrossgradeError(f"there is no directory {link.parent}", remedy="Make it first.")


def _take_in(
    store: Store,
    journal: Journal,
    run_id: str,
    work: Path,
    unpacked: Unpacked,
    archive: Path,
    progress: Callable[[str], None],
) -> Generation:
    record, number = unpacked.record, store.next_number()
    venv = store.venv(number)
    relocate(work / "venv", [Path(place) for place in record.places], venv)
    unpacked.seal_entries(work / "venv")
    progress(f"recording every file of generation {number}")
    manifest = build_manifest(work / "venv")
    generation = replace(
        record.generation,
        number=number,
        origin="restored",
        state="building",
        run_id=run_id,
        manifest="",
        environment=_moved(record.generation.environment, record.store, str(store.root)),
        contents={**_without_place(record.generation.contents), "archive": archive.name, "archived": record.manifest},
    )
    undo: dict[str, JSON] = {"generation": number, "run": run_id}
    by_hand = [f"rm -r {store.folder(number)}"]
    # python_env undoes and completes it: what is left half made of a generation is the same, wherever it came from
    ordinal = journal.intend(run_id, "restore", "restore", "python_env", f"restore generation {number}", undo, by_hand)
    for digest in record.toolkits:
        if not (store.toolkit(digest) / "toolkit.json").exists():
            remove_path(store.toolkit(digest))
            (work / "toolkits" / digest).rename(store.toolkit(digest))
    sync_directory(store.root / "toolkits")
    store.write_generation(generation)
    (work / "venv").rename(venv)
    unpacked.seal_root(venv)
    if (work / "extras").is_dir():
        for path in (work / "extras").iterdir():
            path.rename(store.folder(number) / path.name)
    write_manifest(store.manifest_path(number), manifest)
    sync_filesystem(store.folder(number))
    # what a gate rejected stays rejected
    state: GenerationState = "rejected" if record.generation.state == "rejected" else "ready"
    done = generation.with_state(state, manifest=manifest.digest)
    store.write_generation(done)
    journal.complete(run_id, ordinal, "python_env", "restore")
    return done


def _without_place(contents: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in contents.items() if name != "adopted_from"}


def _moved(environment: Mapping[str, str], old: str, new: str) -> dict[str, str]:
    """Variables that name the store that the archive came from name this one."""
    return {name: value.replace(f"{old}/", f"{new}/") for name, value in environment.items()}


def _undo(store: Store, journal: Journal, run_id: str) -> None:
    for step in journal.steps(run_id):
        number = int(str(step.undo["generation"]))
        if store.folder(number).exists() and store.generation(number).run_id == run_id:
            store.remove_generation(number)
        journal.mark_undone(run_id, step.ordinal)
