"""`gc`, `pin`, `unpin` and `retire`: which generations stay."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from json import dumps
from typing import Any

from crossgrade.commands.common import agreed, existing_store, generation_number, guarded, number, people, request_from
from crossgrade.engine.opening import opened_journal
from crossgrade.engine.records import predecessor_of
from crossgrade.engine.recovery import empty_temporary, refuse_while_interrupted
from crossgrade.engine.request import Request
from crossgrade.errors import CrossgradeError, ExitCode, WrongOptionsError
from crossgrade.report.terminal import Terminal
from crossgrade.report.text import Line
from crossgrade.store.layout import Store
from crossgrade.store.lock import hold

Options = Mapping[str, Any]
SCHEMA = 1


def gc_command(options: Options) -> int:
    return guarded(lambda: _gc(options, request_from(options, "gc")))


def pin_command(options: Options, *, pinned: bool) -> int:
    name = "pin" if pinned else "unpin"
    return guarded(lambda: _pin(options, request_from(options, name), name, pinned=pinned))


def retire_command(options: Options) -> int:
    return guarded(lambda: _retire(options, request_from(options, "retire")))


@contextmanager
def _settled(store: Store, command: str) -> Iterator[int | None]:
    """Hold the lock over a store without an interrupted run; gives the number that `rollback` would go to."""
    with hold(store.lock_path, f"crossgrade {command}"), opened_journal(store, create=True) as journal:
        refuse_while_interrupted(journal, "what it needs is not removed")
        empty_temporary(store)
        active = store.active()
        yield None if active is None else predecessor_of(active, journal.activations())


def _gc(options: Options, request: Request) -> int:
    from crossgrade.store.gc import collect

    keep = number("keep", options["keep"])
    if keep is None:
        raise WrongOptionsError("--keep needs a whole number")
    store = existing_store(request)
    with _settled(store, "gc") as predecessor:
        collected = collect(store, predecessor=predecessor, keep=keep)
    if options["json"]:
        sys.stdout.write(dumps({"schema": SCHEMA, **asdict(collected)}) + "\n")
    terminal = Terminal(people(options))
    for what, names in (
        ("generation", collected.generations),
        ("toolkit", collected.toolkits),
        ("wheel", collected.wheels),
    ):
        terminal.write(Line(f"removed {what} {name}", "changed") for name in names)
    for kept, reason in collected.kept.items():
        busy = reason.startswith("in use")
        if busy or options["verbose"]:
            terminal.write([Line(f"kept generation {kept}: {reason}", "warning" if busy else "faint")])
    if collected.hidden_processes and collected.generations:
        text = f"{collected.hidden_processes} processes of other users could not be looked into; root can"
        terminal.write([Line(text, "warning")])
    terminal.write([Line(f"freed {collected.bytes:,} bytes")])
    return ExitCode.DONE


def _pin(options: Options, request: Request, name: str, *, pinned: bool) -> int:
    store, chosen = existing_store(request), generation_number(options)
    with hold(store.lock_path, f"crossgrade {name}"):
        store.generation(chosen)
        changed = store.set_pinned(chosen, pinned=pinned)
    if options["json"]:
        sys.stdout.write(dumps({"schema": SCHEMA, "generation": chosen, "pinned": pinned, "changed": changed}) + "\n")
    state = "pinned: gc keeps it" if pinned else "not pinned"
    again = "" if changed else " (it was already)"
    Terminal(people(options)).write([Line(f"generation {chosen} is {state}{again}", "changed" if changed else "ok")])
    return ExitCode.DONE


def _retire(options: Options, request: Request) -> int:
    from crossgrade.store.gc import size_of
    from crossgrade.store.processes import find_users

    store, chosen = existing_store(request), generation_number(options)
    with _settled(store, "retire") as predecessor:
        generation = store.generation(chosen)
        if store.active() == chosen:
            raise CrossgradeError(f"generation {chosen} is the active one", remedy="Activate another one first.")
        if chosen in store.pinned():
            raise CrossgradeError(f"generation {chosen} is pinned", remedy=f"crossgrade unpin {chosen}")
        users = find_users(store, [chosen]).users.get(chosen, ())
        if users:
            told = ", ".join(f"pid {user.pid} ({user.command})" for user in users)
            raise CrossgradeError(f"generation {chosen} is in use by {told}", remedy="Stop that first.")
        lost = "the backup of what was adopted" if generation.origin == "adopted" else ""
        lost = lost or ("where `rollback` goes" if chosen == predecessor else "")
        if lost and not options["force"]:
            raise CrossgradeError(
                f"generation {chosen} is {lost}", remedy="With --force it is removed all the same. Export it first?"
            )
        if not agreed(options, f"Remove generation {chosen}{f' ({lost})' if lost else ''} for good?"):
            raise CrossgradeError("not confirmed", remedy="Nothing was changed.")
        freed = size_of(store.folder(chosen))
        store.remove_generation(chosen)
    if options["json"]:
        sys.stdout.write(dumps({"schema": SCHEMA, "generation": chosen, "bytes": freed}) + "\n")
    Terminal(people(options)).write([Line(f"removed generation {chosen}, freed {freed:,} bytes", "changed")])
    return ExitCode.DONE
