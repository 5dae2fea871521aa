"""The generated pages are what the code says."""

from __future__ import annotations

from pathlib import Path

import pytest

from crossgrade.commands.documentation import pages

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize("name", sorted(pages()))
def test_generated_pages_are_up_to_date(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == pages()[name], "run `invoke docs`"
