"""The commands on a store and its generations, as invoke tasks; no logic."""

from __future__ import annotations

from typing import Any

from invoke.context import Context

from crossgrade.commands.declaring import STORE, command, leave, options_of


@command("status", STORE)
def status(context: Context, **shared: Any) -> None:
    """Show the active generation, all generations, and whether a run was interrupted or is under way."""
    from crossgrade.commands.state import status_command

    leave(status_command(options_of(locals())))


@command("history", STORE)
def history(context: Context, **shared: Any) -> None:
    """Show all runs and every turn of the active link."""
    from crossgrade.commands.state import history_command

    leave(history_command(options_of(locals())))


@command("report", STORE)
def report(
    context: Context, run: str = "", open_: bool = False, format_: str = "", out: str = "", **shared: Any
) -> None:
    """Make the report of a run: a page for people; JSON, JUnit XML or a Prometheus textfile for programs."""
    from crossgrade.commands.reporting import report_command

    leave(report_command(options_of(locals())))


@command("verify", STORE)
def verify(context: Context, generation: str = "", full: bool = False, **shared: Any) -> None:
    """Compare a generation with its manifest, file by file."""
    from crossgrade.commands.state import verify_command

    leave(verify_command(options_of(locals())))


@command("facts", STORE)
def facts(context: Context, only: str = "", venv: str = "", **shared: Any) -> None:
    """Show what crossgrade sees of this server: system, GPUs, toolkits, compilers, an environment and who uses it."""
    from crossgrade.commands.observing import facts_command

    leave(facts_command(options_of(locals())))


@command("gc", STORE)
def gc(context: Context, keep: str = "2", verbose: int = 0, **shared: Any) -> None:
    """Remove generations that nobody needs any more, and toolkits and wheels that only they used."""
    from crossgrade.commands.keeping import gc_command

    leave(gc_command(options_of(locals())))


@command("export", STORE)
def export(context: Context, to: str = "", generation: str = "", level: str = "3", **shared: Any) -> None:
    """Write a generation to an archive (tar, compressed by zstd) with its manifest."""
    from crossgrade.commands.archiving import export_command

    leave(export_command(options_of(locals())))


@command("restore", STORE)
def restore(context: Context, archive: str, link: str = "", check: bool = False, **shared: Any) -> None:
    """Recreate a generation from an archive, after checking every byte of it."""
    from crossgrade.commands.archiving import restore_command

    leave(restore_command(options_of(locals())))


@command("diff", STORE)
def diff(
    context: Context, one: str, other: str, detailed_exitcode: bool = False, verbose: int = 0, **shared: Any
) -> None:
    """Show what differs between two generations: dists, settings, native libraries, gates, files."""
    from crossgrade.commands.comparing import diff_command

    leave(diff_command(options_of(locals())))


@command("pin", STORE)
def pin(context: Context, generation: str, **shared: Any) -> None:
    """Let gc keep a generation, however old it gets."""
    from crossgrade.commands.keeping import pin_command

    leave(pin_command(options_of(locals()), pinned=True))


@command("unpin", STORE)
def unpin(context: Context, generation: str, **shared: Any) -> None:
    """Let gc remove a generation again."""
    from crossgrade.commands.keeping import pin_command

    leave(pin_command(options_of(locals()), pinned=False))


@command("retire", STORE)
def retire(context: Context, generation: str, force: bool = False, yes: bool = False, **shared: Any) -> None:
    """Remove one generation."""
    from crossgrade.commands.keeping import retire_command

    leave(retire_command(options_of(locals())))
