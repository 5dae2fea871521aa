"""The commands for work on crossgrade in a checkout, as invoke tasks; no logic."""

from __future__ import annotations

from invoke.context import Context

from crossgrade.commands.declaring import command, leave, options_of


@command("test")
def test(context: Context, slow: bool = False, faults: bool = False) -> None:  # noqa: ARG001, PT028 - a command, and invoke hands it a context
    """Run the tests (in a checkout)."""
    from crossgrade.commands.development import test_command

    leave(test_command(slow=slow, faults=faults))


@command("bench")
def bench(
    context: Context,
    what: str = "",
    playbook: str = "",
    root: str = "",
    tree: str = "",
    gigabytes: str = "1",
    of: list[str] | None = None,
    metric: str = "",
    allowed_loss: str = "",
    force: bool = False,
    json: bool = False,
) -> None:
    """Show what launches have measured (`bench history`, `bench compare A B`), or measure crossgrade itself."""
    from crossgrade.commands.benchmarking import bench_command

    leave(bench_command(options_of(locals())))


@command("docs")
def docs(context: Context) -> None:  # noqa: ARG001 - invoke hands it a context
    """Write the pages of docs that are made from the code's own tables (in a checkout)."""
    from crossgrade.commands.documentation import docs_command

    leave(docs_command())
