"""What a run learns of each host and keeps from play to play: registered values, facts, counts, failures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from crossgrade.engine.results import Counts

if TYPE_CHECKING:
    from crossgrade.engine.walk import HostFailed


class Facts(MutableMapping[str, Any]):
    """The facts of a host as variables. With `on_demand`, they are gathered when one is first asked for."""

    def __init__(self) -> None:
        self._found: dict[str, Any] = {}
        self._gather: Callable[[], None] | None = None

    def on_demand(self, gather: Callable[[], None] | None) -> None:
        """Let `gather` add to these facts when one of them is asked for; None when nothing may be gathered."""
        self._gather = gather

    def __getitem__(self, name: str) -> Any:
        if name.startswith("ansible_"):
            self._have_gathered()
        return self._found[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._found[name] = value

    def __delitem__(self, name: str) -> None:
        del self._found[name]

    def __iter__(self) -> Iterator[str]:
        self._have_gathered()
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def __bool__(self) -> bool:
        return bool(self._found) or self._gather is not None

    def clear(self) -> None:
        self._found.clear()
        self._gather = None

    def _have_gathered(self) -> None:
        gather, self._gather = self._gather, None
        if gather is not None:
            gather()


@dataclass
class HostMemory:
    """One host. `known` holds what was registered and set, `gathered` the facts, `included` what `include_vars` read;
    `failure` took it out."""

    host: str
    known: dict[str, Any] = field(default_factory=dict)
    gathered: Facts = field(default_factory=Facts)
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
