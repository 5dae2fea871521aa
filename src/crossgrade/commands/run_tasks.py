"""The commands that change over and go back, as invoke tasks; no logic."""

from __future__ import annotations

from invoke.context import Context

from crossgrade.commands.declaring import command, leave, options_of


@command("plan")
def plan(
    context: Context,
    playbook: str = "",
    inventory: list[str] | None = None,
    extra_vars: list[str] | None = None,
    limit: str = "",
    tags: list[str] | None = None,
    skip_tags: list[str] | None = None,
    root: str = "",
    out: str = "",
    detailed_exitcode: bool = False,
    diff: bool = False,
    list_tasks: bool = False,
    syntax_check: bool = False,
    json: bool = False,
    verbose: int = 0,
) -> None:
    """Say exactly what `upgrade` would do. Changes nothing."""
    from crossgrade.commands.upgrading import plan_command

    leave(plan_command(options_of(locals())))


@command("upgrade")
def upgrade(
    context: Context,
    playbook: str = "",
    inventory: list[str] | None = None,
    extra_vars: list[str] | None = None,
    limit: str = "",
    tags: list[str] | None = None,
    skip_tags: list[str] | None = None,
    root: str = "",
    plan: str = "",
    resume: bool = False,
    confirm_within: str = "",
    check: bool = False,
    diff: bool = False,
    list_tasks: bool = False,
    syntax_check: bool = False,
    detailed_exitcode: bool = False,
    json: bool = False,
    yes: bool = False,
    verbose: int = 0,
) -> None:
    """Carry the playbook out as one transaction; roll back when a task or gate fails."""
    from crossgrade.commands.upgrading import upgrade_command

    leave(upgrade_command(options_of(locals())))


@command("rollback")
def rollback(
    context: Context,
    to: str = "",
    playbook: str = "",
    extra_vars: list[str] | None = None,
    root: str = "",
    json: bool = False,
    verbose: int = 0,
) -> None:
    """Return to the earlier generation by one rename, or undo an interrupted run."""
    from crossgrade.commands.returning import rollback_command

    leave(rollback_command(options_of(locals())))


@command("confirm")
def confirm(
    context: Context,
    playbook: str = "",
    extra_vars: list[str] | None = None,
    root: str = "",
    json: bool = False,
) -> None:
    """Keep what `upgrade --confirm-within` activated."""
    from crossgrade.commands.confirming import confirm_command

    leave(confirm_command(options_of(locals())))


@command("return-unless-confirmed")
def return_unless_confirmed(context: Context, root: str = "", detach: bool = False) -> None:
    """Wait for the confirmation and go back without it; `upgrade --confirm-within` starts this by itself."""
    from crossgrade.commands.confirming import watch_command

    leave(watch_command(options_of(locals())))
