"""`status`, `history`, `verify` and `facts`: they only read."""

from __future__ import annotations

import json
import stat
import sys
import time
from collections.abc import Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crossgrade.commands.common import existing_store, guarded, number, people, request_from
from crossgrade.engine.journal import Journal, reading
from crossgrade.engine.records import OPEN_STATES
from crossgrade.engine.recovery import way_out
from crossgrade.engine.request import Request
from crossgrade.errors import CrossgradeError, ExitCode, StoreError
from crossgrade.report.terminal import Terminal
from crossgrade.report.text import Line, confirmation_lines
from crossgrade.store.layout import Store
from crossgrade.store.lock import Holder, read_holder
from crossgrade.store.watcher import describe

if TYPE_CHECKING:
    from crossgrade.store.manifest import Entry

Options = Mapping[str, Any]
SCHEMA = 1


def status_command(options: Options) -> int:
    return guarded(lambda: _status(options, request_from(options, "status")))


def history_command(options: Options) -> int:
    return guarded(lambda: _history(options, request_from(options, "history")))


def verify_command(options: Options) -> int:
    return guarded(lambda: _verify(options, request_from(options, "verify")))


def _print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=2, default=str) + "\n")


def _when(seconds: float | None) -> str:
    return "" if seconds is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


# ---- status


def describe_status(store: Store) -> dict[str, Any]:
    """The state of a store as plain data; also of one that is not there yet."""
    holder = read_holder(store.lock_path)
    link, pinned = store.active_link, store.pinned()
    interrupted: dict[str, Any] | None = None
    problem = ""
    if store.journal_path.exists():
        try:
            with reading(store.journal_path, in_use=holder is not None) as journal:
                interrupted = None if holder else _describe_interrupted(journal)
        except StoreError as error:  # what the disk says is still worth saying
            problem = str(error)
    confirmation, unreadable = None, ""
    try:
        confirmation = describe(store)
    except StoreError as error:
        unreadable = str(error)
    return {
        "schema": SCHEMA,
        "store": str(store.root),
        "active_link": str(link) if link else None,
        "active": store.active(),
        "generations": [_describe_generation(store, number_, pinned) for number_ in store.numbers()],
        "interrupted": interrupted,
        "journal_problem": problem or None,
        "lock": asdict(holder) if holder else None,
        "confirmation": confirmation,
        "confirmation_problem": unreadable or None,
    }


def _describe_interrupted(journal: Journal) -> dict[str, Any] | None:
    run = journal.unfinished()
    if run is None:
        return None
    steps = journal.steps(run.id)
    return {
        "run": run.id,
        "command": run.command,
        "started": run.started,
        "done": [step.intent for step in steps if step.state == "done"],
        "unfinished": [step.intent for step in steps if step.state == "intended"],
    }


def _describe_generation(store: Store, number_: int, pinned: Collection[int]) -> dict[str, Any]:
    try:
        generation = store.generation(number_)
    except StoreError as error:  # one that is damaged must not hide the others
        return {"number": number_, "path": str(store.venv(number_)), "problem": str(error)}
    described: dict[str, Any] = {
        **generation.to_json(),
        "path": str(store.venv(number_)),
        "pinned": number_ in pinned,
        "verdicts": [],
    }
    try:
        described["verdicts"] = [
            {"gate": verdict.gate, "outcome": verdict.outcome, "reason": verdict.reason}
            for verdict in store.verdicts(number_)
        ]
    except StoreError as error:
        described["verdicts_problem"] = str(error)
    return described


def _status(options: Options, request: Request) -> int:
    status = describe_status(request.store)
    code = ExitCode.NOTHING_CHANGED if status["journal_problem"] else ExitCode.DONE
    if options["json"]:
        _print_json(status)
        return code
    terminal = Terminal(sys.stdout)
    if not request.store.exists:
        terminal.write([Line(f"there is no store at {request.store.root} yet: `crossgrade upgrade` makes it")])
        return ExitCode.DONE
    terminal.write(_status_lines(status, request.hint("confirm")))
    return code


def _status_lines(status: Mapping[str, Any], confirm: str) -> list[Line]:
    active = status["active"]
    lines = [Line(f"store: {status['store']}")]
    if active is None:
        lines.append(Line(f"active: none ({status['active_link'] or 'nothing was adopted yet'})", "warning"))
    else:
        lines.append(Line(f"active: generation {active}, {status['active_link']}", "ok"))
    if status["confirmation"]:
        lines += confirmation_lines({**status["confirmation"], "command": confirm})
    if status["confirmation_problem"]:
        lines.append(Line(f"  {status['confirmation_problem']}", "failed"))
    for generation in status["generations"]:
        if "problem" in generation:
            lines.append(Line(f"  {generation['number']:>3}  {generation['problem']}", "failed"))
            continue
        gates = ", ".join(f"{verdict['gate']} {verdict['outcome']}" for verdict in generation["verdicts"])
        mark = "*" if generation["number"] == active else " "
        number_, origin, state = generation["number"], generation["origin"], generation["state"]
        text = f"{mark} {number_:>3}  {origin:<8} {state:<9} {generation['created']}"
        pinned = "  pinned" if generation["pinned"] else ""
        lines.append(Line(f"{text}{pinned}  {gates}".rstrip()))
        if "verdicts_problem" in generation:
            lines.append(Line(f"       {generation['verdicts_problem']}", "failed"))
    if status["journal_problem"]:
        lines.append(Line(f"journal: {status['journal_problem']}", "failed"))
    interrupted = status["interrupted"]
    if interrupted:
        lines.append(Line(f"interrupted: run {interrupted['run']} (`{interrupted['command']}`)", "warning"))
        lines += [Line(f"    done: {intent}") for intent in interrupted["done"]]
        lines += [Line(f"    unfinished: {intent}", "warning") for intent in interrupted["unfinished"]]
        lines.append(Line(f"    {way_out(interrupted['command'])}"))
    if status["lock"]:
        holder = Holder(**status["lock"])
        lines.append(Line(f"under way: `{holder.command}`, pid {holder.pid}, since {_when(holder.since)}", "changed"))
    return lines


# ---- history


def _history(options: Options, request: Request) -> int:
    store = existing_store(request)
    with reading(store.journal_path, in_use=read_holder(store.lock_path) is not None) as journal:
        runs, activations = journal.runs(), journal.activations()
    if options["json"]:
        _print_json(
            {
                "schema": SCHEMA,
                "runs": [asdict(run) for run in runs],
                "activations": [asdict(a) for a in activations],
            }
        )
        return ExitCode.DONE
    terminal = Terminal(sys.stdout)
    for run in runs:
        seconds = "" if run.ended is None else f"{run.ended - run.started:.1f} s"
        state = "interrupted" if run.state in OPEN_STATES else run.state
        style = {"done": "ok", "interrupted": "warning"}.get(state, "failed")
        terminal.write(
            [
                Line(
                    f"{_when(run.started)}  {run.id}  {run.command:<8} {state:<15} {seconds:>8}  {run.summary}",
                    style,
                )
            ]
        )
        for turn in activations:
            if turn.run == run.id:
                before = "the plain directory" if turn.previous is None else f"generation {turn.previous}"
                after = "the plain directory" if turn.active is None else f"generation {turn.active}"
                terminal.write([Line(f"    {_when(turn.time)}  active: {before} -> {after}")])
    return ExitCode.DONE


# ---- verify


def _verify(options: Options, request: Request) -> int:
    from crossgrade.store.manifest import compare, recorded_manifest

    store = existing_store(request)
    chosen = number("generation", options["generation"])
    active = store.active() if chosen is None else chosen
    if active is None:
        raise CrossgradeError("no generation is active", remedy="Name one with --generation N.")
    manifest = recorded_manifest(store, active)
    began = time.monotonic()
    comparison = compare(manifest, store.venv(active), full=options["full"])
    seconds = time.monotonic() - began
    terminal = Terminal(people(options))
    if options["json"]:
        _print_json({"schema": SCHEMA, "generation": active, "identical": comparison.identical, **asdict(comparison)})
    terminal.write(
        Line(f"changed: {path} ({what_changed(manifest.entries[path], store.venv(active) / path)})", "failed")
        for path in comparison.changed
    )
    for kind in ("missing", "extra"):
        terminal.write(Line(f"{kind}: {path}", "failed") for path in getattr(comparison, kind))
    if comparison.bytecode:
        terminal.write([Line(f"{len(comparison.bytecode)} bytecode files that Python wrote since (harmless)", "faint")])
    if not comparison.identical:
        terminal.write([Line(f"generation {active} differs from its manifest", "failed")])
        return ExitCode.FAILED
    how = "every byte read" if options["full"] else "by inode, size, mode and times; `--full` reads every byte"
    size = f"{manifest.file_count} files, {manifest.total_bytes:,} bytes"
    text = f"generation {active}: {size}, all identical to its manifest"
    terminal.write([Line(f"{text} ({how}; {seconds:.2f} s)", "ok")])
    return ExitCode.DONE


def what_changed(before: Entry, path: Path) -> str:
    """In words, what of an entry is not as recorded: type, link target, mode, owner, content."""
    from crossgrade.store.manifest import type_of

    try:
        status = path.lstat()
    except OSError as error:
        return str(error.strerror)
    kind = type_of(status.st_mode)
    if kind != before.type:
        return f"it was a {before.type} and is a {kind}"
    found = []
    if kind == "link" and str(path.readlink()) != before.target:
        found.append(f"target {before.target} -> {path.readlink()}")
    if stat.S_IMODE(status.st_mode) != before.mode:
        found.append(f"mode {before.mode:04o} -> {stat.S_IMODE(status.st_mode):04o}")
    if (status.st_uid, status.st_gid) != (before.uid, before.gid):
        found.append(f"owner {before.uid}:{before.gid} -> {status.st_uid}:{status.st_gid}")
    if kind == "file" and status.st_size != before.size:
        found.append(f"{before.size:,} -> {status.st_size:,} bytes")
    return ", ".join(found) or "content"
