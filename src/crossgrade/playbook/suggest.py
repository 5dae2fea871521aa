"""The nearest valid name, for messages about a name that does not exist."""

from __future__ import annotations

from collections.abc import Iterable

MAX_CANDIDATES = 2000  # comparing is quadratic in length; beyond this nobody would read the answer anyway


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """The candidate that looks most like `name`, or None when none is near."""
    from difflib import get_close_matches

    if len(name) > 100:
        return None
    valid = [candidate for candidate in list(candidates)[:MAX_CANDIDATES] if candidate != name]
    lowered: dict[str, str] = {}
    for candidate in valid:
        lowered.setdefault(candidate.lower(), candidate)
    found = get_close_matches(name.lower(), lowered, n=1, cutoff=0.6)
    return lowered[found[0]] if found else None


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """`Did you mean "copy"?`, or "" when nothing is near."""
    found = nearest(name, candidates)
    return f'Did you mean "{found}"?' if found else ""


def listing(names: Iterable[str], limit: int = 20) -> str:
    """Names for a message, sorted; what is over the limit is counted."""
    ordered = sorted(names)
    if len(ordered) <= limit:
        return ", ".join(ordered)
    return ", ".join(ordered[:limit]) + f" and {len(ordered) - limit} more"
