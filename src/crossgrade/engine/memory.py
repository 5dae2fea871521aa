"""What a run learns of each host and keeps from play to play: registered values, facts, counts, failures."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from crossgrade.engine.results import Counts

if TYPE_CHECKING:
    from crossgrade.engine.walk import HostFailed


@dataclass
class HostMemory:
    """One host. `known` holds what was registered and set, `gathered` the facts, `included` what `include_vars` read;
    `failure` took it out."""

    host: str
    known: dict[str, Any] = field(default_factory=dict)
    gathered: dict[str, Any] = field(default_factory=dict)
    included: dict[str, Any] = field(default_factory=dict)
    counts: Counts = field(default_factory=Counts)
    failure: HostFailed | None = None


@dataclass
class Memory:
    """All hosts of a run or of a plan, each as it comes."""

    hosts: dict[str, HostMemory] = field(default_factory=dict)

    def of(self, host: str) -> HostMemory:
        return self.hosts.setdefault(host, HostMemory(host))

    @property
    def failure(self) -> HostFailed | None:
        """The first failure that is still standing, a host's own before one that came with it."""
        standing = [memory.failure for memory in self.hosts.values() if memory.failure is not None]
        own = (failure for failure in standing if failure.own)
        return next(own, standing[0] if standing else None)

    def total(self) -> Counts:
        return sum_of(memory.counts for memory in self.hosts.values())


def sum_of(several: Iterable[Counts]) -> Counts:
    """The counts of all hosts together."""
    total = Counts()
    for counts in several:
        for name, number in vars(counts).items():
            setattr(total, name, getattr(total, name) + number)
    return total
