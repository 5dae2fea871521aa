"""python_env with `base: clone`: the candidate begins as a copy of the active generation.

Dists that the requirements do not name stay as they are, local patches among them; what they name gets the
lock's version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from crossgrade.errors import TaskError
from crossgrade.modules.contract import ApplyContext, HostView
from crossgrade.store.clone import clone_tree
from crossgrade.store.layout import Store, places_of
from crossgrade.store.manifest import read_manifest
from crossgrade.store.relocation import relocate


@dataclass(frozen=True)
class Base:
    """The generation to copy. `manifest` is its digest, "" for one that an earlier task of the plan will make."""

    number: int
    manifest: str
    dists: Mapping[str, str]
    places: tuple[str, ...]


def find_base(host: HostView, python_version: str) -> Base:
    """The active generation. Raises TaskError when there is none, or when it runs another Python."""
    active = host.active()
    found = next((one for one in host.generations() if one.number == active), None)
    if found is None:
        raise TaskError(
            "there is no active generation that could be cloned", remedy="Let venv_backup adopt the environment first."
        )
    venv = host.store.venv(found.number)
    theirs = python_of(venv) if venv.is_dir() else ""
    if theirs and theirs.split(".")[:2] != python_version.split(".")[:2]:
        raise TaskError(
            f"generation {found.number} runs Python {theirs}, and Python {python_version} is asked for",
            remedy="A clone keeps its interpreter. Leave `python` out, or build with `base: fresh`.",
        )
    dists = {str(name): str(version) for name, version in found.contents.get("dists", {}).items()}
    return Base(found.number, found.manifest, dists, places_of(host.store, found))


def base_python(host: HostView) -> str | None:
    """The interpreter of the active generation; None when it is not there yet, in a plan."""
    active = host.active()
    python = None if active is None else host.store.venv(active) / "bin" / "python"
    return str(python) if python is not None and python.exists() else None


def python_of(venv: Path) -> str:
    """The version in pyvenv.cfg (`version` of venv, `version_info` of uv and virtualenv); "" when it says none."""
    for line in (venv / "pyvenv.cfg").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition("=")
        if name.strip() in ("version", "version_info"):
            return value.strip()
    return ""


def copy_base(base: Base, venv: Path, context: ApplyContext) -> None:
    """Make the clone and let it name its own place. Raises StoreError or OSError."""
    context.progress(f"cloning generation {base.number}")
    clone_tree(context.store.venv(base.number), venv, context.progress)
    relocate(venv, [Path(place) for place in base.places], venv)


def base_bytes(store: Store, base: Base | None) -> int:
    """The room that a copy takes, as if the filesystem shared nothing; 0 for one that is not there yet."""
    if base is None or not store.manifest_path(base.number).exists():
        return 0
    return read_manifest(store.manifest_path(base.number)).total_bytes
