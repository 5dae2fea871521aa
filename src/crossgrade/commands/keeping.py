"""`gc`, `pin`, `unpin` and `retire`: which generations stay."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from json import dumps
from typing import Any

from crossgrade.commands.common import agreed, existing_store, generation_number, guarded, number, people, request_from
from crossgrade.engine.events import Events
from crossgrade.engine.interrupt import undisturbed
from crossgrade.engine.journal import Journal
from crossgrade.engine.opening import opened_journal
from crossgrade.engine.records import predecessor_of
from crossgrade.engine.recovery import empty_temporary, refuse_while_interrupted
from crossgrade.engine.request import Request
from crossgrade.engine.returning import finish_overdue
from crossgrade.errors import CrossgradeError, ExitCode, WrongOptionsError
from crossgrade.report.steady import SteadyStream
from crossgrade.report.terminal import Terminal
from crossgrade.report.text import Line
from crossgrade.store.confirmation import read_confirmation
from crossgrade.store.layout import Store
from crossgrade.store.lock import hold
from crossgrade.store.processes import Turn

Options = Mapping[str, Any]
SCHEMA = 1


def gc_command(options: Options) -> int:
    return guarded(lambda: _gc(options, request_from(options, "gc")))


def pin_command(options: Options, *, pinned: bool) -> int:
    name = "pin" if pinned else "unpin"
    return guarded(lambda: _pin(options, request_from(options, name), pinned=pinned))


def retire_command(options: Options) -> int:
    return guarded(lambda: _retire(options, request_from(options, "retire")))


@contextmanager
def _settled(options: Options, request: Request) -> Iterator[Journal]:
    """Hold the lock over a store without an interrupted run, after a return that is overdue."""
    store = request.store
    with hold(store.lock_path, f"crossgrade {request.command}"), opened_journal(store, create=True) as journal:
        with undisturbed():
            finish_overdue(request, journal, Events("localhost", (Terminal(SteadyStream(people(options))),)))
        refuse_while_interrupted(journal, f"`{request.command}` waits until it is settled")
        empty_temporary(store)
        yield journal


def _predecessor(store: Store, journal: Journal) -> int | None:
    """Where `rollback` would go."""
    active = store.active()
    return None if active is None else predecessor_of(active, journal.activations())


def _turns(journal: Journal) -> list[Turn]:
    return [(turn.time, turn.active) for turn in journal.activations()]


def _gc(options: Options, request: Request) -> int:
    from crossgrade.bench.history import update_index
    from crossgrade.store.gc import collect

    keep = number("keep", options["keep"])
    if keep is None:
        raise WrongOptionsError("--keep needs a whole number")
    store = existing_store(request)
    with _settled(options, request) as journal:
        update_index(store)  # what was measured stays on record, whatever goes
        collected = collect(store, predecessor=_predecessor(store, journal), turns=_turns(journal), keep=keep)
    if options["json"]:
        sys.stdout.write(dumps({"schema": SCHEMA, **asdict(collected)}) + "\n")
    terminal = Terminal(people(options))
    for what, names in (
        ("generation", collected.generations),
        ("toolkit", collected.toolkits),
        ("wheel", collected.wheels),
        ("for builds:", collected.for_builds),
    ):
        terminal.write(Line(f"removed {what} {name}", "changed") for name in names)
    for kept, reason in collected.kept.items():
        busy = reason.startswith("in use")
        if busy or options["verbose"]:
            terminal.write([Line(f"kept generation {kept}: {reason}", "warning" if busy else "faint")])
    if collected.hidden_processes and collected.generations:
        who = "" if os.geteuid() == 0 else "; root can"
        text = f"{collected.hidden_processes} processes could not be looked into{who}"
        terminal.write([Line(text, "warning")])
    terminal.write([Line(f"freed {collected.bytes:,} bytes")])
    return ExitCode.DONE


def _pin(options: Options, request: Request, *, pinned: bool) -> int:
    store, chosen = existing_store(request), generation_number(options)
    with _settled(options, request):
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
    with _settled(options, request) as journal:
        generation, active, predecessor = store.generation(chosen), store.active(), _predecessor(store, journal)
        waits = read_confirmation(store)
        if waits is not None and chosen in (waits.generation, waits.previous):
            raise CrossgradeError(
                f"generation {waits.generation} waits to be confirmed, or {waits.previous} comes back: both stay",
                remedy=f"`{request.hint('confirm')}`, or `{request.hint('rollback')}`.",
            )
        if active is None and store.active_link is not None:
            raise CrossgradeError(
                f"{store.active_link} leads to no generation of this store: nothing is removed",
                remedy="`crossgrade rollback --to N` points it at one again.",
            )
        if active == chosen:
            raise CrossgradeError(f"generation {chosen} is the active one", remedy="Activate another one first.")
        if chosen in store.pinned():
            raise CrossgradeError(f"generation {chosen} is pinned", remedy=f"crossgrade unpin {chosen}")
        users = find_users(store, [chosen], _turns(journal)).users.get(chosen, ())
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
