"""What on a command line or in an environment is a secret: by its name, or by what it looks like. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache

from crossgrade.knowledge import table

_WORDS = (
    r"(?:key|token|secret|pass|password|passwd|passphrase|pwd|credentials?|auth|authorization|cookie|header|headers)"
)
_OF_OPTION = re.compile(rf"(?:^|-){_WORDS}$")
_OF_VARIABLE = re.compile(rf"(?:^|_){_WORDS}(?:_|$)")
_COUNT = re.compile(r"[\d.,]+(?:\s+[\d.,]+)*|true|false|yes|no|on|off|", re.IGNORECASE)


def is_secret(name: str, value: str) -> bool:
    """Whether an option (``--api-key``) or variable (``HF_TOKEN``) holds a secret.

    Models count tokens too: a number under a name that ends in `token` is none, and neither is a switch. Under other
    names of secrets any value is one.
    """
    words = name.lstrip("-").replace("_", "-").lower()
    named = _OF_OPTION.search(words) if name.startswith("-") else _OF_VARIABLE.search(name.lower())
    if named and not ("token" in named[0] and _COUNT.fullmatch(value)):
        return bool(value)
    return looks_secret(value)


def looks_secret(value: str) -> bool:
    """Whether a value shows by itself that it holds a secret, such as a password in an address or a key in JSON."""
    if any(pattern.search(value) for pattern in _patterns()):
        return True
    if value.lstrip()[:1] in ("{", "["):
        try:
            return any(is_secret(name, text) for name, text in _pairs(json.loads(value)))
        except (ValueError, RecursionError):
            return False
    return False


@cache
def _patterns() -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(str(row["pattern"])) for row in table("secrets"))


def _pairs(value: object) -> Iterator[tuple[str, str]]:
    """The names and texts of a JSON value, however deep."""
    if isinstance(value, dict):
        for name, item in value.items():
            if isinstance(item, (dict, list)):
                yield from _pairs(item)
            else:
                yield str(name), "" if item is None else str(item)
    elif isinstance(value, list):
        for item in value:
            yield from _pairs(item)
