"""An environment that does not exist yet, laid out in a temporary folder so that gates can read it.

uv itself lays the lock out, as it would in a run, but by symbolic links into its cache: the stack of a server, 75,000
files of 9.5 GB, in seconds and without a copy of it. Not by hard links: they would need one filesystem, and would
change the ctime of files that an adopted environment may share with the cache, and that its manifest has on record.

What would have to be built first is not: nothing is executed for a plan.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from crossgrade.errors import NotForeseenError
from crossgrade.modules import uv
from crossgrade.modules.base import Base
from crossgrade.modules.contract import Laying, Lock, LockRequest, Space
from crossgrade.modules.filling import Recipe, counted
from crossgrade.modules.locks import lock_of, lock_without
from crossgrade.modules.offers import locked_offers, unpacked_factor
from crossgrade.modules.wheels import WheelSource, verified
from crossgrade.places import shown_bytes

UV_SECONDS = 6 * 3600.0  # wheels of many gigabytes over a slow line
# What uv says with -v of each dist of a lock that its cache does not hold
_UNCACHED = re.compile(r"Identified uncached distribution: ([\w.-]+?)==")
_WOULD_DOWNLOAD = re.compile(r"^Would download (\d+) package", re.MULTILINE)


def lay_out_recipe(recipe: Recipe, base: Base | None, venv: Path, size: int, laying: Laying) -> tuple[str, ...]:
    """Lay out at `venv`, which is not there yet, what a run would make; it takes `size` bytes when it is installed.

    Returns in words what lacks, because only the run builds it. Raises NotForeseenError, and StoreError for a wheel
    that is not what was built.
    """
    laying.require([Space(venv, int(size * _links_factor()), "links to the wheels of a deep plan")])
    if base is None:
        _must(laying, uv.make_venv(recipe.python, venv, recipe.prompt), {}, "make a venv")
    else:
        _link_base(base, venv, laying)
    text = lock_without(recipe.lock.text, recipe.replaced())
    if text:
        _install_lock(lock_of(text), recipe, venv, laying)
    there = [verified(wheel) for wheel in recipe.wheels if wheel.file is not None]
    if there:
        argv = uv.install_wheels(
            recipe.python, there, reinstall=base is not None, compile_bytecode=False, link_mode="symlink"
        )
        _must(laying, [*argv, "--prefix", str(venv)], {}, "lay out the wheels")
    _copy_programs(venv)
    return tuple(f"{_name(wheel)} is built by this run" for wheel in recipe.wheels if wheel.file is None)


def _name(wheel: WheelSource) -> str:
    return wheel.name or f"the wheel {wheel.key[:8]}"


def _links_factor() -> float:
    from crossgrade.knowledge import table

    return float(str(next(row for row in table("space") if row["of"] == "links")["factor"]))


def _link_base(base: Base, venv: Path, laying: Laying) -> None:
    """The generation that is to be cloned, by links to its files.

    What uv may write in place is copied (scripts, and what it says about dists), so that nothing reaches the original:
    over a link of any other file it puts a new one, by a rename.
    """
    source = next((Path(each) for each in base.places if Path(each).is_dir()), None)
    if source is None:
        raise NotForeseenError(f"generation {base.number}, which is to be cloned, is not there yet")
    laying.progress(f"linking to the files of generation {base.number}")
    source = source.resolve()
    venv.mkdir(parents=True)
    _link_folder(str(source), str(venv), str(source))


def _link_folder(source: str, target: str, root: str) -> None:
    copied = source in (root, f"{root}/bin") or source.endswith(".dist-info")
    with os.scandir(source) as entries:
        for entry in entries:
            place = f"{target}/{entry.name}"
            if entry.is_symlink():
                aim = os.readlink(entry.path)  # noqa: PTH115 - as it was written
                led = os.path.normpath(os.path.join(source, aim))  # noqa: PTH118 - strings, in bulk
                os.symlink(aim if f"{led}/".startswith(f"{root}/") else led, place)  # noqa: PTH211
            elif entry.is_dir():
                os.mkdir(place)  # noqa: PTH102 - strings, in bulk
                _link_folder(entry.path, place, root)
            elif entry.is_file():
                shutil.copy2(entry.path, place) if copied else os.symlink(entry.path, place)  # noqa: PTH211


def _copy_programs(venv: Path) -> None:
    """Put real files in the place of links to programs that look for libraries beside themselves.

    The kernel resolves the link to a program, so that $ORIGIN would be a folder of uv's cache. That of a library is the
    folder that it was found in, link or not.
    """
    from crossgrade.inspect.elf import FileSource, UnreadableElfError, parse_elf
    from crossgrade.inspect.environment import elf_files

    interpreter = (venv / "bin" / "python").resolve()
    for path in map(Path, elf_files(str(venv))):
        if not path.is_symlink() or path.resolve() == interpreter:  # which is a link in a run, too
            continue
        try:
            with FileSource(str(path)) as source:
                elf = parse_elf(source)
        except UnreadableElfError:
            continue  # the gate says so
        is_program = elf.kind == "executable" or elf.is_pie or elf.interpreter
        if is_program and (elf.rpath or elf.runpath):
            target = path.resolve()
            path.unlink()
            shutil.copy2(target, path)


def _install_lock(lock: Lock, recipe: Recipe, venv: Path, laying: Laying) -> None:
    """By the interpreter behind the venv, not by the venv's own: that would run what .pth files say."""
    lock_file = venv.with_name("lock.txt")
    lock_file.write_text(lock.text, encoding="utf-8")
    argv = uv.install_lock(recipe.python, lock_file, recipe.request, compile_bytecode=False, link_mode="symlink")
    argv += ["--no-build", "--prefix", str(venv)]
    environment = uv.uv_environment(laying.host.environment, recipe.request)
    laying.progress(f"laying out {counted(len(lock.dists), 'dist')}")
    run = laying.host.run
    if run([*argv, "--offline"], environment=environment, timeout=UV_SECONDS).succeeded:
        return
    _announce(lock, recipe.request, argv, venv, laying)
    _must(laying, argv, environment, "lay out the lock")


def _announce(lock: Lock, request: LockRequest, argv: Sequence[str], venv: Path, laying: Laying) -> None:
    """Say how much is fetched, and see that there is room for it. Raises NotForeseenError."""
    run, environment = laying.host.run, uv.uv_environment(laying.host.environment, request)
    asked = run([*argv, "--dry-run", "--verbose"], environment=environment, timeout=uv.RESOLVE_SECONDS)
    names, exact = uncached(asked.stderr, [dist.name for dist in lock.dists])
    if not names:
        return
    offers = locked_offers(request, lock, run, laying.host.environment)
    known = [offers[name].bytes for name in names if name in offers and offers[name].bytes]
    told = counted(len(names), "wheel")
    told += f", {shown_bytes(sum(known))}" if known else ", of a size that the index does not say"
    told += (
        f" and {counted(len(names) - len(known), 'more wheel')} of unknown size" if 0 < len(known) < len(names) else ""
    )
    laying.fetching(f"fetching {'' if exact else 'up to '}{told}, into uv's cache, where `upgrade` finds them")
    cache = run([uv.uv_program(), "cache", "dir"])
    place = Path(cache.stdout.strip()) if cache.succeeded else venv
    laying.require([Space(place, int(sum(known) * unpacked_factor()), "wheels in uv's cache")])


def uncached(said: str, names: Sequence[str]) -> tuple[list[str], bool]:
    """The dists that uv would fetch, from what a verbose dry run says; False with all of `names` when it is not clear.

    The message for people and the one for developers must agree, for neither is a promise of uv's.
    """
    listed = sorted(set(_UNCACHED.findall(said)))
    stated = _WOULD_DOWNLOAD.search(said)
    if stated is None and not listed:
        return ([], True) if "Would install" in said else (list(names), False)
    if stated is not None and int(stated[1]) == len(listed):
        return listed, True
    return list(names), False


def _must(laying: Laying, argv: Sequence[str], environment: Mapping[str, str], what: str) -> None:
    completed = laying.host.run(argv, environment=environment, timeout=UV_SECONDS)
    if not completed.succeeded:
        raise NotForeseenError(f"uv could not {what}: {uv.explain(completed.stderr) or completed.outcome()}")
