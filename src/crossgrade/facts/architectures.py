"""Which CUDA releases compile for an architecture, by `knowledge/ptxas_architectures.yml`. Pure."""

from __future__ import annotations

from crossgrade.facts.gpus import release_numbers
from crossgrade.knowledge import table


def compiles_for(architecture: str, release: str) -> bool | None:
    """Whether a release (``13.0``) compiles for an architecture (``sm_120f``); None where the table does not tell.

    A release between two rows that agree is as they are; one of the newest row's major release that is newer than the
    table is taken to know what that row knows.
    """
    wanted = release_numbers(release)[:2]
    rows = [
        (release_numbers(str(row["cuda"])), str(row["architectures"]).split()) for row in table("ptxas_architectures")
    ]
    before = [names for numbers, names in rows if numbers <= wanted]
    after = [names for numbers, names in rows if numbers >= wanted]
    if before and after:
        known = {architecture in before[-1], architecture in after[0]}
        return known.pop() if len(known) == 1 else None
    if before and rows[-1][0][0] == wanted[0]:
        return True if architecture in before[-1] else None
    return None


def first_release_for(architecture: str) -> str | None:
    """The first release of the table that compiles for it; None where none does."""
    rows = table("ptxas_architectures")
    return next((str(row["cuda"]) for row in rows if architecture in str(row["architectures"]).split()), None)
