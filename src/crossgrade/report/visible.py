"""Text from elsewhere made harmless to look at: names of files and logs can hold anything."""

from __future__ import annotations

import re

# What would move the cursor, change colours, turn the direction of writing, cannot be encoded, or is no character of
# XML 1.0 (section 2.2): names of files and what is read from them can hold it.
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")


def visible(text: str) -> str:
    """The text with what cannot be shown written as Python writes it: `\\x1b`, `\\u202e`."""
    return _UNPRINTABLE.sub(lambda match: ascii(match[0])[1:-1], text)
