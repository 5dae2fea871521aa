"""Zstandard as Python 3.14 has it, and as its backport brings it to earlier ones: one name for both."""

from __future__ import annotations

import sys

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

__all__ = ["zstd"]
