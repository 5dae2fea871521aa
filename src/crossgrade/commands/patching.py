"""`patches`: what was changed by hand in a venv, as a list, as diffs, and saved as patches."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crossgrade.commands.common import guarded, named_venv, people, request_from
from crossgrade.engine.request import Request
from crossgrade.errors import CrossgradeError, ExitCode, WrongOptionsError
from crossgrade.facts.venv import Checkout, editable_checkouts, write_checkout_patch
from crossgrade.inspect.dists import installed_dists
from crossgrade.inspect.local_changes import LocalChange, LocalChanges, local_changes
from crossgrade.jsontype import JSON
from crossgrade.report.terminal import Terminal
from crossgrade.report.text import Line

if TYPE_CHECKING:
    from crossgrade.modules.merging import WheelFiles

Options = Mapping[str, Any]
SCHEMA = 1
_SHOWN_FILES = 10


@dataclass
class Patch:
    """What was changed in one dist. `text` is the patch; `problems` say per path why it is not in it.

    `text` is None while no original was asked for; `saved` is where it was written.
    """

    dist: str
    version: str
    changes: tuple[LocalChange, ...]
    text: bytes | None = None
    problems: dict[str, str] = field(default_factory=dict)
    saved: str = ""

    def to_json(self) -> dict[str, JSON]:
        files: list[JSON] = [{"path": one.path, "kind": one.kind, "text": one.is_text} for one in self.changes]
        patch = None if self.text is None else self.text.decode("utf-8", "replace")
        problems: dict[str, JSON] = dict(self.problems)
        return {
            "name": self.dist, "version": self.version, "files": files, "patch": patch, "problems": problems,
            "saved": self.saved,
        }  # fmt: skip


def patches_command(options: Options) -> int:
    """Exit code 0; 2 when something could not be read, or not be made a patch of where that was asked for."""
    return guarded(lambda: _patches(options, request_from(options, "patches")))


def _patches(options: Options, request: Request) -> int:
    venv = named_venv(options, request)
    if venv is None:
        raise WrongOptionsError("patches needs an environment", remedy="crossgrade patches VENV")
    found = local_changes(venv)
    patches = [Patch(name, version, found.of_dist(name)) for name, version in found.dists]
    from crossgrade.inspect.query import run_query

    checkouts = editable_checkouts(installed_dists(venv), os.environ, run_query)
    unsaved: dict[str, str] = {}
    if options["save"] or options["diff"]:
        _make_texts(venv, patches)
    if options["save"]:
        folder = Path(options["save"]).expanduser().absolute()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _save(folder, patches)
        unsaved = _save_checkouts(folder, checkouts)
    if options["json"]:
        sys.stdout.write(json.dumps(_json(venv, found, patches, checkouts, unsaved), indent=2) + "\n")
    else:
        terminal = Terminal(people(options))
        terminal.write(_lines(venv, found, patches, checkouts, unsaved, options))
    incomplete = bool(found.unknown or unsaved or any(patch.problems for patch in patches))
    return ExitCode.FAILED if incomplete else ExitCode.DONE


# ---- patches


def _make_texts(venv: Path, patches: list[Patch]) -> None:
    """Lay out the wheels that the dists came from, and compare with them."""
    from crossgrade.inspect.dists import site_packages
    from crossgrade.modules.merging import WheelFiles, requirement_of
    from crossgrade.process import Completed
    from crossgrade.store.scratch import scratch

    def run(argv: Any, *, environment: Mapping[str, str] | None = None, timeout: float = 60.0) -> Completed:
        from crossgrade.process import run_process

        return run_process(argv, env={**os.environ, **(environment or {})}, cwd=None, timeout=timeout)

    sources = {dist.name: requirement_of(dist) for dist in installed_dists(venv)}
    version = site_packages(venv).parent.name.removeprefix("python").rstrip("t")
    with scratch() as folder:
        originals = WheelFiles(folder, version, run, os.environ)
        for patch in patches:
            patch.text = b"".join(_diff(change, originals, sources[patch.dist], patch) for change in patch.changes)


def _diff(change: LocalChange, originals: WheelFiles, source: str, patch: Patch) -> bytes:
    from crossgrade.inspect.three_way import unified_diff
    from crossgrade.modules.carrying import original_of

    if not change.is_text:
        patch.problems[change.path] = "it is no source text"
        return b""
    original, problem = original_of(change, originals, source)
    if problem:
        patch.problems[change.path] = problem
        return b""
    return unified_diff(change.path, original, change.content)


def _save(folder: Path, patches: list[Patch]) -> None:
    for patch in patches:
        if patch.text:
            place = folder / f"{patch.dist}-{patch.version}.patch"
            if place.exists() and place.read_bytes() == patch.text:
                patch.saved = str(place)
                continue
            with _new_file(place) as descriptor:
                descriptor.write(patch.text)
            patch.saved = str(place)


def _new_file(place: Path) -> Any:
    """Open a file that only its owner may read. Raises CrossgradeError when something is there."""
    try:
        return os.fdopen(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")
    except FileExistsError as error:
        raise CrossgradeError(
            f"{place} is there, and what it holds is another patch", remedy="Name another folder with --save."
        ) from error


def _save_checkouts(folder: Path, checkouts: tuple[Checkout, ...]) -> dict[str, str]:
    """Dist → why its checkout is not, or not wholly, in a patch."""
    from crossgrade.inspect.query import run_query

    unsaved: dict[str, str] = {}
    for checkout in checkouts:
        if checkout.has_local_work is False:
            continue
        place = folder / f"{checkout.dist}-checkout.patch"
        _new_file(place).close()
        problem = write_checkout_patch(checkout, place, os.environ, run_query)
        if problem:
            place.unlink()
            unsaved[checkout.dist] = problem
        elif checkout.untracked:
            unsaved[checkout.dist] = f"{checkout.untracked} files that git does not know are not in {place}"
    return unsaved


# ---- telling


def _json(
    venv: Path,
    found: LocalChanges,
    patches: list[Patch],
    checkouts: tuple[Checkout, ...],
    unsaved: Mapping[str, str],
) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "venv": str(venv),
        "dists": [patch.to_json() for patch in patches],
        "checkouts": [
            {
                "dist": one.dist,
                "path": one.path,
                "commit": one.commit,
                "branch": one.branch,
                "changed": one.changed,
                "untracked": one.untracked,
                "ahead": one.ahead,
                "local_work": one.has_local_work,
                "problem": one.problem or unsaved.get(one.dist, ""),
            }
            for one in checkouts
        ],
        "unknown": dict(found.unknown),
    }


def _lines(
    venv: Path,
    found: LocalChanges,
    patches: list[Patch],
    checkouts: tuple[Checkout, ...],
    unsaved: Mapping[str, str],
    options: Options,
) -> Iterator[Line]:
    own = [one for one in checkouts if one.has_local_work is not False]
    if not (patches or own or found.unknown):
        yield Line(f"{venv}: every file is as its RECORD says", "ok")
        return
    for patch in patches:
        yield from _patch_lines(patch, every=options["verbose"] > 0, diff=options["diff"])
    for checkout in own:
        yield Line(f"{checkout.dist}: the checkout {checkout.path}: {checkout.told()}", "heading")
    yield from (Line(f"  not saved: {dist}: {why}", "warning") for dist, why in unsaved.items())
    yield from (Line(f"  not known: {what}: {why}", "warning") for what, why in found.unknown.items())


def _patch_lines(patch: Patch, *, every: bool, diff: bool) -> Iterator[Line]:
    kinds = Counter(change.kind for change in patch.changes)
    counts = ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items()))
    yield Line(f"{patch.dist} {patch.version}: {counts}", "heading")
    shown = patch.changes if every or diff else patch.changes[:_SHOWN_FILES]
    for change in shown:
        binary = "" if change.is_text else ", no source text"
        yield Line(f"  {change.kind}: {_escaped(change.path)}{binary}")
    if len(shown) < len(patch.changes):
        yield Line(f"  and {len(patch.changes) - len(shown)} more: -v shows them", "faint")
    if diff and patch.text:
        for line in patch.text.decode("utf-8", "replace").split("\n")[:-1]:
            yield Line(line, {"+": "ok", "-": "failed", "@": "check"}.get(line[:1], ""))
    for path, why in patch.problems.items():
        yield Line(f"  no patch: {_escaped(path)}: {why}", "warning")
    if patch.saved:
        yield Line(f"  saved: {patch.saved}", "ok")


def _escaped(path: str) -> str:
    return path.replace("\n", "\\n")
