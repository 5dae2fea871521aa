"""Names of runs."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable


def new_run_id(now: Callable[[], float] = time.time) -> str:
    """A name for a run that sorts by time: `20261201T054633-1f3a` (UTC)."""
    return f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime(now()))}-{secrets.token_hex(2)}"
