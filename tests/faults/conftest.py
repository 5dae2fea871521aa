"""The tally of interruptions, for the tests that make them."""

from __future__ import annotations

import pytest
from tests.support.tally import TALLY, Tally


@pytest.fixture
def tally() -> Tally:
    return TALLY
