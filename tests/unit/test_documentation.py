"""The generated pages are what the code says."""

from __future__ import annotations

from pathlib import Path

import pytest

from crossgrade.commands.documentation import pages

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize("name", sorted(pages()))
def test_generated_pages_are_up_to_date(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == pages()[name], "run `invoke docs`"


def test_every_option_with_a_value_is_known_where_a_positional_may_be_left_out() -> None:
    """Else its value would be taken for the positional: `inspect VENV --entry torch` looked for a file `torch`."""
    from crossgrade.cli import _OPTIONAL_POSITIONAL, _TAKES_VALUE, make_collection

    contexts = {context.name: context for context in make_collection().to_contexts()}
    for command in _OPTIONAL_POSITIONAL:
        flags = {flag for flag, argument in contexts[command].flags.items() if argument.takes_value}
        assert {flag for flag in flags if flag.startswith("--")} <= {*_TAKES_VALUE}, command
