"""The commands that change over and go back, as invoke tasks; no logic."""

from __future__ import annotations

from typing import Any

from invoke.context import Context

from crossgrade.commands.declaring import PLAY, STORE, command, leave, options_of


@command("plan", PLAY)
def plan(context: Context, out: str = "", deep: bool = False, **shared: Any) -> None:
    """Say exactly what `upgrade` would do. Changes nothing."""
    from crossgrade.commands.upgrading import plan_command

    leave(plan_command(options_of(locals())))


@command("upgrade", PLAY)
def upgrade(
    context: Context,
    plan: str = "",
    resume: bool = False,
    confirm_within: str = "",
    check: bool = False,
    yes: bool = False,
    **shared: Any,
) -> None:
    """Carry the playbook out as one transaction; roll back when a task or gate fails."""
    from crossgrade.commands.upgrading import upgrade_command

    leave(upgrade_command(options_of(locals())))


@command("rollback", STORE)
def rollback(context: Context, to: str = "", verbose: int = 0, **shared: Any) -> None:
    """Return to the earlier generation by one rename, or undo an interrupted run."""
    from crossgrade.commands.returning import rollback_command

    leave(rollback_command(options_of(locals())))


@command("confirm", STORE)
def confirm(context: Context, **shared: Any) -> None:
    """Keep what `upgrade --confirm-within` activated."""
    from crossgrade.commands.confirming import confirm_command

    leave(confirm_command(options_of(locals())))


@command("return-unless-confirmed")
def return_unless_confirmed(context: Context, root: str = "", detach: bool = False) -> None:
    """Wait for the confirmation and go back without it; `upgrade --confirm-within` starts this by itself."""
    from crossgrade.commands.confirming import watch_command

    leave(watch_command(options_of(locals())))
