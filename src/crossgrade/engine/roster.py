"""Which hosts there are while a run goes on: those of the inventory, and what `add_host` and `group_by` have made."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from crossgrade.engine.prepare import Prepared, connection_of, patterns_of
from crossgrade.engine.results import TaskResult
from crossgrade.errors import CrossgradeError, WrongOptionsError
from crossgrade.playbook.inventory import Host, Inventory
from crossgrade.playbook.inventory_made import MadeHost, with_made
from crossgrade.playbook.markers import DependsOnUnknown
from crossgrade.playbook.model import Play
from crossgrade.playbook.variables import Precedence, Scope

CONTROLLER = "crossgrade_controller"
"""The variable that says, on a host that is reached by SSH, where the command was given."""

_OF_INVENTORY = (Precedence.GROUP_ALL_VARS, Precedence.GROUP_VARS, Precedence.HOST_VARS)


@dataclass(frozen=True)
class Turnout:
    """The hosts of a play on its turn. `missing` are sentences about parts of its pattern that match nothing.

    `perhaps` says what the run may yet add to them, "" when a plan knows them all.
    """

    hosts: tuple[Host, ...]
    missing: tuple[str, ...] = ()
    perhaps: str = ""


@dataclass
class Roster:
    """The hosts of one walk over a playbook.

    `doubt` is, in a plan, a task that may make hosts or groups of which only the run knows; "" without one. `may_grow`
    says that something the playbook includes may make some, `unread` names what a plan could not read of that.
    `playing` are all hosts of the play under way, by name. `version` counts the changes. `walked` are the hosts that
    plays have been for.
    """

    inventory: Inventory = field(default_factory=lambda: Inventory((), {}))
    doubt: str = ""
    may_grow: bool = False
    unread: str = ""
    version: int = 0
    playing: list[str] = field(default_factory=list)
    walked: dict[str, Host] = field(default_factory=dict)
    _seen: dict[str, int] = field(default_factory=dict)

    def host(self, name: str) -> Host:
        """The host of this name; one that no inventory names is taken for this machine."""
        return next((host for host in self.inventory.hosts if host.name == name), self.inventory.local_host(name))

    def turn_out(self, prepared: Prepared, play: Play, hosts: tuple[Host, ...]) -> Turnout:
        """The hosts of a play whose turn has come; `hosts` are those that it had at the beginning.

        Raises WrongOptionsError for a pattern that matches nothing where nothing could have made its group, and for a
        host over SSH.
        """
        turnout = Turnout(hosts)
        if self.version or play.uid in prepared.open:
            turnout = self._turn_out(prepared, play)
            for host in turnout.hosts:
                self._refuse_remote(prepared, play, host)
        self.playing = [host.name for host in turnout.hosts]
        self.walked.update({host.name: host for host in turnout.hosts})
        return turnout

    def _turn_out(self, prepared: Prepared, play: Play) -> Turnout:
        request, missing = prepared.request, list[str]()
        try:
            patterns = patterns_of(play, request, self.inventory)
            hosts = self.inventory.select(patterns, request.limit or None, missing=missing)
        except DependsOnUnknown as unknown:
            return Turnout((), (), unknown.origin)
        except WrongOptionsError:
            raise
        except CrossgradeError:
            if self.doubt:
                return Turnout((), (), self.doubt)
            raise
        if missing and not (self.doubt or self.may_grow or prepared.open.get(play.uid)):
            self.inventory.select(patterns, request.limit or None)  # it raises
        doubt = self.doubt or (self.unread if missing and not hosts else "")
        plain = all(name in self.inventory.draft.hosts for name in patterns)
        return Turnout(hosts, () if doubt else tuple(missing), "" if plain else doubt)

    def _refuse_remote(self, prepared: Prepared, play: Play, host: Host) -> None:
        given = prepared.request.extra_vars
        if CONTROLLER in given and not host.added:
            return
        try:
            # on a host over SSH, -e says `local` of the host itself, and not of what it adds
            connection = connection_of(play, host, {} if CONTROLLER in given else given)
        except DependsOnUnknown:
            return  # the run knows
        if connection != "local":
            raise WrongOptionsError(
                f"the host {host.name} would be reached over SSH, and a run stays on the machine that it began on",
                remedy="If it is this machine under another name, let `add_host` say `ansible_connection: local`. "
                "Else write it into the inventory and give it a run of its own, with --limit.",
                place=play.spot_of("hosts").place,
            )

    def take(self, host: str, result: TaskResult, *, check_mode: bool) -> TaskResult:
        """Keep what a task on this host has made. The task has changed something where that is new.

        For a plan it is `ok` all the same: nothing on the machine will be changed.
        """
        if not result.made or result.failed:
            return result
        inventory = self.inventory
        try:
            for made in result.made:
                inventory = with_made(inventory, made, host)
        except CrossgradeError as error:
            return TaskResult("failed", message=str(error), failed=True)
        changed = inventory is not self.inventory
        if changed:
            self.inventory = inventory
            self.version += 1
            names = (made.name for made in result.made if isinstance(made, MadeHost))
            self.playing += [name for name in names if name not in self.playing]
        return replace(result, changed=changed, status="changed" if changed and not check_mode else "ok")

    def note_doubt(self, origin: str) -> None:
        """In a plan: from here on there may be more hosts and groups, by what is named here."""
        self.doubt = self.doubt or origin
        self.version += 1

    def renewed(self, scope: Scope, host: str) -> Scope:
        """A play's scope on a host with what the inventory says of the host by now."""
        if self._seen.get(host, 0) == self.version:
            return scope
        self._seen[host] = self.version
        return self.doubtful(scope.with_layers_of(self.inventory.scope(self.host(host)), _OF_INVENTORY))

    def doubtful(self, scope: Scope) -> Scope:
        """The scope, where a variable that is not there may be one of a group that the run makes."""
        return scope.with_unknown(self.doubt) if self.doubt else scope

    def hosts_of(self, prepared: Prepared) -> Iterable[Host]:
        """Every host of the run once: those that it began with, and those that came on the way."""
        return {**{host.name: host for host in prepared.hosts}, **self.walked}.values()
