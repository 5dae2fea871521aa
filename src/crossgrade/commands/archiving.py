"""`export` and `restore`: generations to archives, and back."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import Any

from crossgrade.commands.common import existing_store, guarded, number, people, request_from
from crossgrade.engine.request import Request
from crossgrade.errors import CrossgradeError, ExitCode, WrongOptionsError
from crossgrade.report.terminal import Terminal
from crossgrade.report.text import Line
from crossgrade.store.archive import LEVELS, SUFFIX, archive_name, check_folder

Options = Mapping[str, Any]
SCHEMA = 1


def export_command(options: Options) -> int:
    return guarded(lambda: _export(options, request_from(options, "export")))


def restore_command(options: Options) -> int:
    return guarded(lambda: _restore(options, request_from(options, "restore")))


def _progress(terminal: Terminal) -> Callable[[str], None]:
    return lambda text: terminal.write([Line(text, "faint")])


def _export(options: Options, request: Request) -> int:
    from crossgrade.store.archive_writing import write_archive

    store = existing_store(request)
    chosen = number("generation", options["generation"])
    chosen = store.active() if chosen is None else chosen
    if chosen is None:
        raise CrossgradeError("no generation is active", remedy="Name one: `crossgrade export N --to DIR`.")
    if not options["to"]:
        raise WrongOptionsError(
            "export needs --to DIR or --to FILE", remedy="A place on another disk is a better backup."
        )
    level = number("level", options["level"])
    if level is None or level not in LEVELS:
        raise WrongOptionsError(f"--level goes from {LEVELS[0]} to {LEVELS[-1]}, not {options['level']!r}")
    generation = store.generation(chosen)
    target = Path(options["to"]).expanduser().absolute()
    if not target.name.endswith(SUFFIX):
        target /= archive_name(store, generation)
    if not target.parent.is_dir():
        raise CrossgradeError(
            f"there is no directory {target.parent}", remedy=f"Make it first, or name a file that ends in {SUFFIX}."
        )
    check_folder(store, target.parent)
    terminal = Terminal(people(options))
    size = write_archive(store, chosen, target, level=level, progress=_progress(terminal))
    if options["json"]:
        value = {"schema": SCHEMA, "generation": chosen, "archive": str(target), "bytes": size}
        sys.stdout.write(dumps(value) + "\n")
    terminal.write([Line(f"generation {chosen}: {target}, {size:,} bytes", "ok")])
    return ExitCode.DONE


def _restore(options: Options, request: Request) -> int:
    archive = Path(options["archive"]).expanduser().absolute()
    terminal = Terminal(people(options))
    progress = _progress(terminal)
    if options["check"]:
        from crossgrade.store.archive_reading import unpack

        unpacked = unpack(archive, None, progress)
        record = unpacked.record
        if options["json"]:
            sys.stdout.write(dumps({"schema": SCHEMA, "archive": str(archive), **record.to_json()}) + "\n")
        what = f"generation {record.generation.number} of {record.host}, {record.created}"
        terminal.write([Line(f"{archive}: {what}; {unpacked.files} files, {unpacked.bytes:,} bytes, all whole", "ok")])
        return ExitCode.DONE
    from crossgrade.engine.restoring import restore

    link = Path(options["link"]).expanduser().absolute() if options["link"] else None
    restored = restore(request, archive, progress, link=link)
    chosen = restored.generation.number
    if options["json"]:
        sys.stdout.write(dumps({"schema": SCHEMA, "archive": str(archive), **asdict(restored)}, default=str) + "\n")
    text = f"generation {chosen}: {restored.files} files, {restored.bytes:,} bytes, each as it was archived"
    if link is not None:
        following = f"it is active: {link}"
    elif request.store.active_link is None:
        following = "this store has no active link yet; `crossgrade restore ARCHIVE --link PATH` makes one"
    else:
        following = f"`{request.hint('rollback')} --to {chosen}` activates it"
    terminal.write([Line(text, "ok"), Line(following)])
    return ExitCode.DONE
