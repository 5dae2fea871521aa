"""The commands that look at files, as invoke tasks; no logic."""

from __future__ import annotations

from typing import Any

from invoke.context import Context

from crossgrade.commands.declaring import STORE, command, leave, options_of


@command("inspect")
def inspect(
    context: Context,
    path: list[str] | None = None,
    for_: str = "",
    against: str = "",
    compare: str = "",
    ignore: list[str] | None = None,
    ignore_dist: list[str] | None = None,
    preload: list[str] | None = None,
    entry: list[str] | None = None,
    driver: str = "",
    cuda_home: str = "",
    no_cache: bool = False,
    json: bool = False,
    verbose: int = 0,
) -> None:
    """Say whether native code will load and run: of a venv, of wheels, or of single files. Nothing is imported."""
    from crossgrade.commands.inspect_unchanged import inspect_command

    leave(inspect_command(options_of(locals())))


@command("explain")
def explain(
    invocation: Context,  # noqa: ARG001 - invoke's own; `context` is ours here
    text: list[str] | None = None,
    context: list[str] | None = None,
    json: bool = False,
) -> None:
    """Say what an error output means: cause, evidence, remedy and link. Of text, of a log file, or of - (its input)."""
    from crossgrade.commands.explaining import explain_command

    leave(explain_command({"text": text, "context": context, "json": json}))


@command("init")
def init(
    context: Context,
    folder: str = "",
    venv: str = "",
    port: str = "",
    cuda: str = "13.0",
    force: bool = False,
    json: bool = False,
) -> None:
    """Write a first playbook and inventory from the inference server that runs now."""
    from crossgrade.commands.initializing import init_command

    leave(init_command(options_of(locals())))


@command("patches", STORE)
def patches(
    context: Context, venv: str = "", save: str = "", diff: bool = False, verbose: int = 0, **shared: Any
) -> None:
    """Show what was changed by hand in a venv: files unlike their RECORD, and checkouts with work of their own."""
    from crossgrade.commands.patching import patches_command

    leave(patches_command(options_of(locals())))
