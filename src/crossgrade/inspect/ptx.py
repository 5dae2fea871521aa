"""Which driver compiles which PTX, by the version of its instruction set (``.version`` in PTX). Pure.

A driver compiles PTX up to the version of the CUDA release that it belongs to; minor-version compatibility, by which a
driver runs programs of newer minor releases, does not cover PTX. The tables: `knowledge/ptx_isa.yml` and
`knowledge/drivers.yml`.

The version is read from the headers of the fatbin: nvcc's `fatbinary` copies it there from the PTX itself
(`tests/integration/test_cuda_oracle.py` unpacks the PTX and compares).
"""

from __future__ import annotations

from dataclasses import dataclass

from crossgrade.inspect.toolkit import is_at_least, version_numbers
from crossgrade.knowledge import table


@dataclass(frozen=True)
class PtxNeed:
    """What a version of PTX asks for: the CUDA release that brought it, and the first driver of that release.

    ``cuda`` is None for a version that is not known, ``driver`` for a release whose driver is not.
    """

    ptx: str
    cuda: str | None
    driver: str | None

    @property
    def words(self) -> str:
        """For messages: ``a driver of 580.65.06 or newer (PTX 9.0, CUDA 13.0)``."""
        if self.cuda is None:
            return f"a driver that knows PTX {self.ptx} (which that is, is not known)"
        if self.driver is None:
            return f"the driver of CUDA {self.cuda} or newer (PTX {self.ptx})"
        return f"a driver of {self.driver} or newer (PTX {self.ptx}, CUDA {self.cuda})"


def ptx_need(version: str) -> PtxNeed:
    """What PTX of a version (``9.0``) needs."""
    cuda = next((str(row["cuda"]) for row in table("ptx_isa") if row["ptx"] == version), None)
    if cuda is None:
        return PtxNeed(version, None, None)
    # The table has no driver of 12.7 (no toolkit was released) nor of each release of CUDA 11: the next one knows it
    later = [(numbers, driver) for numbers, driver in _paired() if numbers >= version_numbers(cuda)]
    return PtxNeed(version, cuda, later[0][1] if later else None)


def compiles(driver: str, version: str) -> bool | None:
    """Whether a driver (``580.95.05``) compiles PTX of a version (``9.0``); None where the tables do not say."""
    need, paired = ptx_need(version), _paired()
    if need.cuda is None or need.driver is None:
        newest = max(version_numbers(str(row["ptx"])) for row in table("ptx_isa"))
        later = need.cuda is not None or version_numbers(version) > newest
        # Later than every driver in the table: an older driver certainly does not know it
        return False if later and not is_at_least(driver, paired[-1][1]) else None
    if is_at_least(driver, need.driver):
        return True
    return False if version_numbers(need.cuda) in [release for release, _ in paired] else None


def _paired() -> list[tuple[tuple[int, ...], str]]:
    """The first driver of each CUDA release, the oldest release first."""
    rows = [(version_numbers(str(row["cuda"])), str(row["paired"])) for row in table("drivers") if "paired" in row]
    return sorted(rows)
