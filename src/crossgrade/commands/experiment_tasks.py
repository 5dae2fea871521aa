"""The command on experiments, as an invoke task; no logic."""

from __future__ import annotations

from typing import Any

from invoke.context import Context

from crossgrade.commands.declaring import STORE, command, leave, options_of


@command("experiments", STORE)
def experiments(
    context: Context,
    dry_run: bool = False,
    generation: str = "",
    venv: str = "",
    for_: str = "",
    gpus: str = "",
    pcie: bool = False,
    tables: bool = False,
    folder: str = "",
    yes: bool = False,
    verbose: int = 0,
    **shared: Any,
) -> None:
    """Try again what used to fail, against the plain launch line, and write what came of it before and after."""
    from crossgrade.commands.experimenting import experiments_command

    leave(experiments_command(options_of(locals())))
