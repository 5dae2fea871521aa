"""Where the working environment stands, read from the disk."""

from __future__ import annotations

from crossgrade.store.layout import Store


def working_environment(store: Store) -> str:
    """In one sentence: which generation the active link points at, or that the plain directory is still there."""
    active, link = store.active(), store.active_link
    if active is None:
        if link is not None and link.is_dir() and not link.is_symlink():
            return f"{link} is the plain directory that it was"
        return "nothing was adopted yet"
    return f"generation {active} is active: {link} -> {store.venv(active)}"
