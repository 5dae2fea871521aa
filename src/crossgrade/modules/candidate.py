"""python_env without `path`: the candidate, which is the next generation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from hashlib import sha256
from pathlib import Path
from typing import Any

from crossgrade.errors import StoreError, TaskError
from crossgrade.jsontype import JSON
from crossgrade.modules.base import Base, base_bytes, copy_base
from crossgrade.modules.carrying import Patches, carry, differences
from crossgrade.modules.contract import (
    ApplyContext,
    Change,
    HostView,
    Lock,
    LockRequest,
    Offers,
    Outcome,
    Plan,
    Prediction,
    Space,
    Unchanged,
)
from crossgrade.modules.dists import dist_differences, requested_dists, versions
from crossgrade.modules.durable import sync_filesystem
from crossgrade.modules.filling import Recipe, counted, fill_venv
from crossgrade.modules.git_wheels import git_wheels
from crossgrade.modules.local_patches import Looked, source_venv
from crossgrade.modules.locks import lock_entries
from crossgrade.modules.resolution_warnings import Resolution, count_changes, reasons, sources, warnings_of
from crossgrade.modules.wheels import WheelSource
from crossgrade.store.generation import Generation, GenerationState
from crossgrade.store.layout import Store
from crossgrade.store.manifest import build_manifest, compare, read_manifest, write_manifest

# Part of every identity: raise it when the same inputs make another environment.
SCHEMA = 1


@dataclass(frozen=True)
class Wanted:
    """What a generation is made of. `python_version` is full (`3.11.7`), `python_abi` says what wheels fit.

    `trial` says what it is tried for when nobody is to activate it: it is marked `rejected` as soon as it is built, so
    that `gc` may take it.
    """

    request: LockRequest
    wheels: tuple[WheelSource, ...]
    toolkit: str
    environment: Mapping[str, str]
    python_version: str
    python_abi: str
    base: Base | None = None
    local_patches: str = "refuse"
    ignore_patches: tuple[str, ...] = ()
    trial: str = ""

    def identity(self) -> str:
        """Digest of everything that was asked for; not of where the interpreter or the store lies."""
        asked = {
            "schema": SCHEMA,
            "request": {**self.request.described(), "python": ""},
            "python": [self.python_version, self.python_abi],
            "wheels": sorted(wheel.identity for wheel in self.wheels),
            "toolkit": self.toolkit,
            "environment": dict(sorted(self.environment.items())),
        }
        if self.base is not None:
            asked["base"] = "clone"
        if self.local_patches == "carry":  # which ones is in the record of the generation
            asked["local_patches"] = "carry"
        return sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class State:
    """`found` when a generation of this identity may be used again; else `lock` says what is to be built.

    `drift` says why a generation of this identity may not be used. `before` are the dists of the active one, and
    `requested` those of them that somebody asked for by name. `git` are the wheels of what the lock pins to a commit.
    """

    wanted: Wanted
    identity: str
    store: Store
    found: Generation | None
    drift: str = ""
    number: int = 0
    lock: Lock | None = None
    before: Mapping[str, str] | None = None
    bytes: int = 0
    patches: Patches | None = None
    git: tuple[WheelSource, ...] = ()
    offers: Offers = field(default_factory=Offers)
    requested: frozenset[str] = frozenset()

    @property
    def wheels(self) -> tuple[WheelSource, ...]:
        """All that is installed after the lock: those that were given, and those that are built from git."""
        return (*self.wanted.wheels, *self.git)


def inspect(wanted: Wanted, host: HostView) -> State:
    identity = wanted.identity()
    drift = ""
    lost = Looked(
        host,
        wanted.local_patches,
        wanted.ignore_patches,
        wanted.request,
        wanted.wheels,
        ".".join(wanted.python_version.split(".")[:2]),
        wanted.base.dists if wanted.base else None,
    )
    for generation in sorted(host.generations(), key=lambda one: one.number, reverse=True):
        if generation.identity != identity or generation.state == "building":
            continue
        if wanted.base is not None and not _of_this_base(generation, wanted.base):
            continue
        if wanted.local_patches == "carry" and not (
            generation.number == host.active() or generation.contents.get("local_patches", "") == lost.digest
        ):
            continue
        problem = "" if host.predicted("generation", str(generation.number)) else drift_of(host.store, generation)
        if not problem:
            if generation.number != host.active():
                lost.require_permission()
            return State(wanted, identity, host.store, generation)
        drift = drift or problem
    known = host.generations()
    number = max([host.store.next_number(), *(generation.number + 1 for generation in known)])
    active = next((generation for generation in known if generation.number == host.active()), None)
    before = dict(active.contents.get("dists", {})) if active else {}
    lost.require_permission()
    lock = host.resolve(wanted.request)
    git = git_wheels(lock, wanted.python_abi, host.store)
    lost.wheels = (*lost.wheels, *git)
    patches = lost.judged(lock)
    offers = host.offers(wanted.request, lock)
    gone = before.keys() - {dist.name for dist in lock.dists} - {wheel.name for wheel in wanted.wheels}
    asked = requested_dists(source_venv(host) or Path(), gone) if host.check_mode and not wanted.base else frozenset()
    size = host.installed_bytes(wanted.request, lock) + (base_bytes(host.store, wanted.base) if host.check_mode else 0)
    return State(wanted, identity, host.store, None, drift, number, lock, before, size, patches, git, offers, asked)


def _of_this_base(generation: Generation, base: Base) -> bool:
    """Whether it was cloned from this base, or is the base: then what is asked for has been laid over it already."""
    return generation.number == base.number or generation.contents.get("base") == base.manifest != ""


def drift_of(store: Store, generation: Generation) -> str:
    """In words, what is no longer as the generation's manifest says; "" when nothing is.

    Reads the manifest and asks the kernel for size and times of each file; only files that differ are read.
    """
    try:
        manifest = read_manifest(store.manifest_path(generation.number))
    except StoreError as error:
        return error.message
    if not store.venv(generation.number).is_dir():
        return f"the venv of generation {generation.number} is gone"
    difference = compare(manifest, store.venv(generation.number), full=False)
    for word, paths in (
        ("changed", difference.changed),
        ("missing", difference.missing),
        ("not from the build", difference.extra),
    ):
        if paths:
            more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
            return f"generation {generation.number} was modified: {paths[0]}{more} is {word}"
    return ""


# ---- plan


def plan(state: State) -> Plan:
    if state.found is not None:
        again = " (an earlier run rejected it)" if state.found.state == "rejected" else ""
        summary = f"generation {state.found.number} was built from the same inputs{again}"
        return Unchanged(summary, values_of(state.store, state.found.number, state.identity))
    assert state.lock is not None  # noqa: S101 - inspect gives one of the two
    link = state.store.active_link
    wanted = state.wanted
    recipe = Recipe(wanted.request.python, wanted.request, state.lock, state.wheels, link.name if link else "candidate")
    count = len(wanted.wheels)
    entries = tuple(lock_entries(state.lock.text))
    parts = [counted(len(state.lock.dists), "dist")]
    parts += [f"{counted(count, 'wheel')} built here"] if count else []
    parts.append(f"Python {wanted.python_version}")
    why = f" ({state.drift})" if state.drift else ""
    kept = wanted.base.dists if wanted.base else {}
    expected = {**kept, **recipe.expected_versions()}
    parts += [f"on a clone of generation {wanted.base.number}"] if wanted.base else []
    before = state.before or {}
    # a wheel that is built here tells its version only then: whether it is another is not foreseen, and not counted
    built = {wheel.name for wheel in wanted.wheels}
    counted_before, counted_after = (
        {name: version for name, version in dists.items() if name not in built} for dists in (before, expected)
    )
    parts += [str(count_changes(counted_before, counted_after))] if before else []
    parts += [sources(entries)] if entries else []
    carried = state.patches.judged if state.patches else ()
    parts += [f"{counted(len(carried), 'local change')} carried"] if carried else []
    generation = _generation(state, "", expected).with_state("ready")
    wherefore = {**reasons(entries), **{one.name: "a wheel that was built here" for one in wanted.wheels}}
    resolution = Resolution(wanted.request, state.lock, before, expected, state.offers, state.requested)
    return Change(
        f"build generation {state.number}: {', '.join(parts)}{why}",
        (
            *dist_differences(before, expected, wherefore, first=[entry.dist.name for entry in entries if entry.named]),
            *(differences(state.patches) if state.patches else ()),
        ),
        values_of(state.store, state.number, state.identity),
        predicts=(Prediction("generation", str(state.number), _as_json(generation)),),
        payload={"state": state, "recipe": recipe},
        space=(Space(state.store.venv(state.number), state.bytes, f"generation {state.number}"),),
        venv=state.store.venv(state.number),
        warnings=warnings_of(resolution),
    )


def values_of(store: Store, number: int, identity: str) -> dict[str, Any]:
    venv = store.venv(number)
    return {"generation": number, "path": str(venv), "python": str(venv / "bin" / "python"), "identity": identity}


def _as_json(generation: Generation) -> dict[str, JSON]:
    value: dict[str, JSON] = json.loads(json.dumps(generation.to_json()))
    return value


def _generation(state: State, run_id: str, dists: Mapping[str, str]) -> Generation:
    wanted = state.wanted
    environment = dict(wanted.environment)
    if wanted.toolkit and state.store.toolkit(wanted.toolkit).is_dir():
        environment.setdefault("CUDA_HOME", str(state.store.toolkit(wanted.toolkit) / "cuda_home"))
    contents = {
        "dists": dict(dists),
        "lock": state.lock.digest if state.lock else "",
        "wheels": [wheel.key for wheel in state.wheels if wheel.key],
        "toolkits": [wanted.toolkit] if wanted.toolkit else [],
        "python": wanted.python_version,
        **({"base": wanted.base.manifest} if wanted.base else {}),
        **({"local_patches": state.patches.digest} if state.patches and state.patches.digest else {}),
        **({"trial": wanted.trial} if wanted.trial else {}),
    }
    created = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    return Generation(state.number, state.identity, "built", "building", created, run_id, environment, contents)


# ---- apply


def apply(state: State, recipe: Recipe, change: Change, context: ApplyContext) -> Outcome:
    store, number = context.store, state.number
    folder, venv = store.folder(number), store.venv(number)
    if folder.exists():  # before the step, so that no undo can touch what somebody else put there
        raise TaskError(f"{folder} is there already, though the next generation was to be {number}")
    with context.step(
        f"build generation {number}", {"generation": number, "run": context.run_id}, by_hand=[f"rm -r {folder}"]
    ):
        store.write_generation(_generation(state, context.run_id, {}))
        _make_caches(folder)
        base = state.wanted.base
        if base is not None:
            copy_base(base, venv, context)
        warnings = fill_venv(recipe, venv, folder / "lock.txt", context, cloned=base is not None)
        if state.patches is not None:
            carry(state.patches, venv, context)
        context.progress(f"recording every file of generation {number}")
        manifest = build_manifest(venv)
        write_manifest(store.manifest_path(number), manifest)
        sync_filesystem(folder)
        done = _generation(state, context.run_id, versions(venv))
        state_then: GenerationState = "rejected" if state.wanted.trial else "ready"
        store.write_generation(done.with_state(state_then, manifest=manifest.digest))
    return Outcome(change.values, message="; ".join(warnings))


def _make_caches(folder: Path) -> None:
    from crossgrade.knowledge import table

    for row in table("caches"):
        (folder / "caches" / str(row["folder"])).mkdir(parents=True, mode=0o700, exist_ok=True)


def undo(record: Mapping[str, JSON], context: ApplyContext) -> str:
    """Remove what is half made; mark what is complete as rejected, so that people can look at it and `gc` take it."""
    store, number = context.store, int(str(record["generation"]))
    folder = store.folder(number)
    if not folder.exists() or store.active() == number:
        return ""
    if (folder / "generation.json").exists():
        generation = store.generation(number)
        if generation.run_id != record["run"]:
            return ""
        if generation.state != "building":
            if generation.state == "rejected":
                return ""
            store.write_generation(generation.with_state("rejected"))
            return f"marked generation {number} as rejected (kept for inspection)"
    store.remove_generation(number)
    return f"removed the unfinished generation {number}"


def complete(record: Mapping[str, JSON], context: ApplyContext) -> str | None:
    """A generation that is marked ready is durable and has its manifest: only the journal was not told."""
    store, number = context.store, int(str(record["generation"]))
    if not (store.folder(number) / "generation.json").exists():
        return None
    generation = store.generation(number)
    if generation.run_id != record["run"] or generation.state == "building":
        return None
    return f"generation {number} is built"
