"""`invoke plan`, `invoke upgrade`, `invoke rollback` and the rest: the same collection as the `crossgrade` program."""

from __future__ import annotations

import sys

from crossgrade.cli import check_options, make_collection

ns = make_collection()
check_options(sys.argv[1:])
