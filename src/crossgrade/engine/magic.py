"""The variables that nobody sets: which hosts there are, which are still in the play, with which options it runs.

Names and meanings are Ansible's ("Special Variables" in its documentation). What changes while a play runs is worked
out when it is asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossgrade.engine.company import Company
from crossgrade.engine.memory import Memory
from crossgrade.engine.prepare import Prepared, groups_of, magic_variables
from crossgrade.engine.roster import Roster
from crossgrade.playbook.inventory import LOCALHOSTS, Host
from crossgrade.playbook.markers import DependsOnUnknown, Unknown
from crossgrade.playbook.model import Play
from crossgrade.playbook.variables import Precedence, Scope, ScopeTable

ANSIBLE_VERSION = (2, 19, 14)
"""The release of ansible-core whose meaning the language has: playbooks compare it with what they need."""


class LiveVariables(Mapping[str, Any]):
    """Variables that are worked out each time."""

    def __init__(self, given: Mapping[str, Callable[[], Any]]) -> None:
        self._given = given

    def __getitem__(self, name: str) -> Any:
        return self._given[name]()

    def __contains__(self, name: object) -> bool:
        return name in self._given

    def __iter__(self) -> Iterator[str]:
        return iter(self._given)

    def __len__(self) -> int:
        return len(self._given)


@dataclass(frozen=True, eq=False)
class HostVariables(ScopeTable):
    """`hostvars`: what is known of each host, without what belongs to a play. `localhost` is always there."""

    prepared: Prepared
    play: Play
    memory: Memory
    roster: Roster
    check_mode: bool

    def __getitem__(self, name: str) -> Scope:
        prepared, inventory = self.prepared, self.roster.inventory
        host = next((host for host in self._hosts() if host.name == name), None)
        if host is None:
            raise KeyError(name)
        memory = self.memory.of(name)
        scope = self.roster.doubtful(inventory.scope(host)).with_layer(
            Precedence.FACTS, {"ansible_facts": {}}, templated=False
        )
        scope = scope.with_layer(Precedence.FACTS, memory.gathered, templated=False)
        scope = scope.with_layer(Precedence.INCLUDED_VARS, memory.included)
        scope = scope.with_layer(Precedence.SET_FACTS, memory.known, templated=False)
        scope = scope.with_layer(Precedence.EXTRA_VARS, prepared.request.extra_vars)
        own = magic_variables(prepared, self.play, host, inventory, check_mode=self.check_mode)
        return scope.with_layer(Precedence.MAGIC, {**own, **options(prepared)}, templated=False)

    def __contains__(self, name: object) -> bool:
        there = name in LOCALHOSTS or any(host.name == name for host in self._hosts())
        if not there and self.roster.doubt:
            raise DependsOnUnknown(self.roster.doubt)
        return there

    def __iter__(self) -> Iterator[str]:
        return (host.name for host in self.roster.inventory.hosts)

    def __len__(self) -> int:
        return len(self.roster.inventory.hosts)

    def _hosts(self) -> Iterator[Host]:
        yield from self.roster.inventory.hosts
        yield from self.prepared.hosts
        yield from map(self.roster.inventory.local_host, LOCALHOSTS)


def with_magic(
    scope: Scope,
    prepared: Prepared,
    play: Play,
    host: Host,
    batch: Sequence[Host],
    company: Company,
    *,
    check_mode: bool,
) -> Scope:
    """The scope of a play on a host, with the variables that nobody sets and that may change while it runs."""
    memory, roster = company.memory, company.roster
    names = [host.name for host in batch]

    def standing(hosts: Sequence[str]) -> Callable[[], list[str]]:
        return lambda: [name for name in hosts if memory.of(name).failure is None]

    def known(value: Callable[[], Any]) -> Callable[[], Any]:
        return lambda: Unknown(roster.doubt) if roster.doubt else value()

    hostvars = HostVariables(prepared, play, memory, roster, check_mode)
    live = {
        "ansible_play_batch": standing(names),
        "ansible_play_hosts": standing(roster.playing),
        "ansible_play_hosts_all": lambda: list(roster.playing),
        "group_names": known(lambda: sorted(roster.host(host.name).groups)),
        "groups": known(lambda: groups_of(roster.inventory)),
        "hostvars": lambda: hostvars,
        "play_hosts": standing(names),
    }
    scope = scope.with_layer(Precedence.FACTS, {"ansible_facts": {}}, templated=False)
    name = play.name or ",".join(play.hosts)
    scope = scope.with_layer(Precedence.MAGIC, {**options(prepared), "ansible_play_name": name}, templated=False)
    return scope.with_layer(Precedence.MAGIC, LiveVariables(live), templated=False)


def options(prepared: Prepared) -> dict[str, Any]:
    """The options that a run was asked for with, as variables."""
    request = prepared.request
    major, minor, revision = ANSIBLE_VERSION
    full = f"{major}.{minor}.{revision}"
    found: dict[str, Any] = {
        "ansible_config_file": None,
        "ansible_diff_mode": bool(getattr(request, "diff", False)),
        "ansible_forks": 1,
        "ansible_inventory_sources": [_absolute(source) for source in request.inventory],
        "ansible_playbook_python": sys.executable,
        "ansible_run_tags": list(request.only_tags) or ["all"],
        "ansible_skip_tags": list(request.skip_tags),
        "ansible_verbosity": request.verbosity,
        "ansible_version": {"string": full, "full": full, "major": major, "minor": minor, "revision": revision},
    }
    if request.limit:
        found["ansible_limit"] = request.limit
    return found


def _absolute(source: str) -> str:
    return source if "," in source else str(Path(source).expanduser().absolute())
