"""The commands about the playbook language, as invoke tasks; no logic."""

from __future__ import annotations

from invoke.context import Context

from crossgrade.commands.declaring import command, leave, options_of


@command("schema")
def schema(context: Context, kind: str = "playbook") -> None:
    """Print the JSON Schema of playbooks (or of tasks, vars, inventory), for editors."""
    from crossgrade.commands.schema_output import schema_command

    leave(schema_command(options_of(locals())))


@command("doc")
def doc(
    context: Context, name: list[str] | None = None, type_: str = "", list_: bool = False, json: bool = False
) -> None:
    """Say what a module, keyword, filter, test or lookup does: arguments, results, and an example to copy."""
    from crossgrade.commands.looking_up import doc_command

    leave(doc_command(options_of(locals())))


@command("lint")
def lint(
    context: Context,
    file: list[str] | None = None,
    skip: list[str] | None = None,
    vault_password_file: list[str] | None = None,
    vault_id: list[str] | None = None,
    ask_vault_pass: bool = False,
    rules: bool = False,
    fix: bool = False,
    json: bool = False,
) -> None:
    """Check playbooks for risks; without one, in a checkout, run ruff, mypy --strict and import-linter as well."""
    from crossgrade.commands.linting import lint_command

    leave(lint_command(options_of(locals())))
