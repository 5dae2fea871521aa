"""`bisect` as an invoke task; no logic."""

from __future__ import annotations

from typing import Any

from invoke.context import Context

from crossgrade.commands.declaring import STORE, command, leave, options_of


@command("bisect", STORE)
def bisect(
    context: Context,
    from_: str = "",
    to: str = "",
    metric: str = "output_tokens_per_second",
    load: str = "",
    allowed_loss: str = "",
    builds: str = "",
    anew: bool = False,
    dry_run: bool = False,
    inventory: list[str] | None = None,
    limit: str = "",
    yes: bool = False,
    verbose: int = 0,
    **shared: Any,
) -> None:
    """Find which change from one generation to another brings a loss, by building and measuring what lies between."""
    from crossgrade.commands.bisecting import bisect_command

    leave(bisect_command(options_of(locals())))
