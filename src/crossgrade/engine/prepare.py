"""From a request to what a walk needs: the playbook, the host, the variables, the facts that a plan rests on."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from crossgrade.engine.failpoints import VARIABLES
from crossgrade.engine.request import ROOT_VARIABLE, Request
from crossgrade.engine.surroundings import role_variables
from crossgrade.errors import CrossgradeError, WrongOptionsError
from crossgrade.modules import NAMES, arguments_of
from crossgrade.playbook.check import check_templates
from crossgrade.playbook.inventory import Host, Inventory, load_inventory
from crossgrade.playbook.inventory_made import MAKERS
from crossgrade.playbook.library import at_home, first_file
from crossgrade.playbook.loader import ModuleCatalogue, load_playbook, load_variables
from crossgrade.playbook.model import Play, Playbook, walk
from crossgrade.playbook.positions import PlaybookErrors
from crossgrade.playbook.roles import with_layers
from crossgrade.playbook.secrets import masked
from crossgrade.playbook.statements import DYNAMIC
from crossgrade.playbook.templating import Templar
from crossgrade.playbook.variables import Precedence, Scope
from crossgrade.store.layout import Store


@dataclass(frozen=True)
class Prepared:
    """A loaded playbook and the hosts that each of its plays is for, `--limit` applied.

    `plays` is what the inventory says. `open` are the plays, by their uid, for which that need not be the last word, as
    tasks before them may make hosts and groups: True where such a task stands in the playbook for all to see, False
    where something that is included may hold one.
    """

    request: Request
    playbook: Playbook
    inventory: Inventory
    plays: tuple[tuple[Play, tuple[Host, ...]], ...]
    open: Mapping[str, bool] = field(default_factory=dict)

    @property
    def hosts(self) -> tuple[Host, ...]:
        """Every host once, in the order in which plays name them."""
        found = {host.name: host for _, hosts in self.plays for host in hosts}
        return tuple(found.values())

    @property
    def remote_hosts(self) -> tuple[Host, ...]:
        """The hosts that are not this machine: by `ansible_connection` of -e, of the inventory, or the play's."""
        found = {
            host.name: host
            for play, hosts in self.plays
            for host in hosts
            if connection_of(play, host, self.request.extra_vars) != "local"
        }
        return tuple(found.values())


def connection_of(play: Play, host: Host, extra_vars: Mapping[str, Any]) -> str:
    """How a play reaches a host: as -e says, else as the inventory says, else as the play says."""
    own = host.connection if host.setting("ansible_connection") else play.connection or host.connection
    return str(extra_vars.get("ansible_connection") or own)


def patterns_of(play: Play, request: Request, inventory: Inventory) -> list[str]:
    """The patterns of a play's `hosts`, templates expanded. Raises TemplateError."""
    scope = Scope().with_layer(Precedence.PLAY_VARS, play.vars).with_layer(Precedence.EXTRA_VARS, request.extra_vars)
    templar = Templar(scope.with_layer(Precedence.MAGIC, {"groups": groups_of(inventory)}, templated=False))
    found: list[str] = []
    for pattern in play.hosts:
        value = templar.template(pattern, play.spot_of("hosts"))
        found += map(str, value) if isinstance(value, list) else [str(value)]
    return found


def prepare(request: Request) -> Prepared:
    """Load and check what can be checked without looking at a host and without compiling templates.

    Raises PlaybookErrors (exit code 4) for the playbook and WrongOptionsError for hosts that do not exist.
    """
    playbook = load_playbook(request.playbook, ModuleCatalogue(NAMES, arguments_of), request.extra_vars)
    inventory = load_inventory(request.inventory, playbook.directory)
    opened = _after_makers(playbook.plays)
    plays = tuple((play, _hosts_of(play, request, inventory, opened)) for play in playbook.plays)
    prepared = Prepared(request, playbook, inventory, plays, opened)
    if not prepared.hosts:
        raise WrongOptionsError(
            "no host is left to run on",
            remedy="Look at `hosts` in the playbook, at the inventory and at --limit.",
        )
    return prepared


def _after_makers(plays: Sequence[Play]) -> dict[str, bool]:
    """The plays with a task before them that makes hosts (True), or may bring in one that does (False)."""
    found: dict[str, bool] = {}
    seen = False
    for play in plays:
        if seen or found:
            found[play.uid] = seen
        steps = [step for _, section in play.sections() for step in section]
        modules = {task.module for task in walk((*steps, *play.handlers))}
        seen = seen or not modules.isdisjoint(MAKERS)
        if not modules.isdisjoint(DYNAMIC):
            found.setdefault("", False)  # from the next play on
    found.pop("", None)
    return found


def _hosts_of(play: Play, request: Request, inventory: Inventory, opened: Mapping[str, bool]) -> tuple[Host, ...]:
    """The hosts at first. Where hosts may come on the way, a pattern may match nothing yet, and so may --limit."""
    limit = request.limit or None
    if not opened:
        return inventory.select(patterns_of(play, request, inventory), limit)
    try:
        patterns = patterns_of(play, request, inventory)
    except CrossgradeError:
        if play.uid in opened:
            return ()  # `groups['made_later']`
        raise
    if play.uid not in opened:
        inventory.select(patterns)
    return inventory.select(patterns, limit, missing=[])


def check_all_templates(prepared: Prepared) -> None:
    """Compile every template and condition, also of tasks whose turn may never come. Raises PlaybookErrors."""
    found = check_templates(prepared.playbook)
    if found:
        raise PlaybookErrors(found)


def play_scope(prepared: Prepared, play: Play, host: Host, inventory: Inventory, *, check_mode: bool) -> Scope:
    """The variables of a play on a host, layer over layer as Ansible documents it. Raises PlaybookErrors.

    `inventory` is what is known of the hosts by now.
    """
    request = prepared.request
    magic = magic_variables(prepared, play, host, inventory, check_mode=check_mode)
    scope = inventory.scope(host).with_layer(Precedence.MAGIC, magic, templated=False)
    scope = scope.with_layer(Precedence.PLAY_VARS, play.vars, spot=play.spot_of("vars"))
    scope = scope.with_layer(Precedence.PLAY_VARS, request.answers.get(play.uid, {}), templated=False)
    scope = scope.with_layer(Precedence.EXTRA_VARS, request.extra_vars)
    for role in play.roles:
        scope = with_layers(scope, role.public_layers())
    scope = scope.with_layer(Precedence.MAGIC, role_variables(play.roles), templated=False)
    library, directory = prepared.playbook.library, play.directory or prepared.playbook.directory
    for names in play.vars_files:
        file = _variables_file([str(Templar(scope).template(name)) for name in names], directory)
        variables = library.variables_in(file) if library else load_variables(file)
        scope = scope.with_layer(Precedence.PLAY_VARS_FILES, variables.values, spot=variables.spot)
    return scope


def _variables_file(names: Sequence[str], directory: Path) -> Path:
    """The first of these that is there, each looked for in `vars/` first; the first one itself when none is there."""
    places = [folder / at_home(name) for name in names for folder in (directory / "vars", directory)]
    return first_file(places) or directory / at_home(names[0])


def magic_variables(
    prepared: Prepared, play: Play, host: Host, inventory: Inventory, *, check_mode: bool
) -> dict[str, Any]:
    """The variables that crossgrade itself gives. `crossgrade_active` is the number of the active generation or none.

    `crossgrade_active` is as it was when the play began.
    """
    request = prepared.request
    return {
        "inventory_hostname": host.name,
        **_of_inventory(request, host),
        "group_names": sorted(host.groups),
        "groups": groups_of(inventory),
        "playbook_dir": str(play.directory or prepared.playbook.directory),
        "ansible_check_mode": check_mode,
        ROOT_VARIABLE: str(request.root),
        "crossgrade_store": str(request.store.root),
        "crossgrade_active": request.store.active(),
        "crossgrade_python": sys.executable,
    }


def groups_of(inventory: Inventory) -> dict[str, list[str]]:
    """The variable `groups`."""
    return {name: list(members) for name, members in inventory.groups.items()}


def _of_inventory(request: Request, host: Host) -> dict[str, Any]:
    """Where the inventory says what it says of a host; of a host that it does not name, only the short name."""
    found: dict[str, Any] = {"inventory_hostname_short": host.name.split(".")[0]}
    if host.added:  # by a task, which may say what it likes
        return found | {name: host.made.get(name) for name in ("inventory_file", "inventory_dir")}
    files = [Path(source).expanduser().absolute() for source in request.inventory if "," not in source]
    if files and not host.implicit:
        found |= {"inventory_file": str(files[0]), "inventory_dir": str(files[0].parent)}
    return found


def plan_basis(prepared: Prepared, store: Store, observe: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
    """The facts that a plan rests on, as plain data: a saved plan is refused when one of them has changed.

    `observe` gives the facts of the machine.
    """
    request = prepared.request
    text = request.playbook.read_bytes()
    # A digest of a secret could be guessed at: that one has changed is not seen here.
    variables = "\n".join(f"{name}={masked(request.extra_vars[name])!r}" for name in sorted(request.extra_vars))
    return {
        "playbook": sha256(text).hexdigest(),
        **_other_files(prepared.playbook),
        "extra variables": sha256(variables.encode()).hexdigest(),
        "hosts": [host.name for host in prepared.hosts],
        "tags": [list(request.only_tags), list(request.skip_tags)],
        "python": sys.executable,
        "active generation": store.active(),
        "generations": [[each.number, each.identity, each.state] for each in store.generations()],
        **observe(),
    }


def _other_files(playbook: Playbook) -> dict[str, str]:
    """The sha256 of each file of tasks or variables that was read up to now, by its name for people."""
    found = {}
    for path, digest in sorted((playbook.library.digests if playbook.library else {}).items()):
        inside = Path(path).is_relative_to(playbook.directory)
        found[f"file {Path(path).relative_to(playbook.directory) if inside else path}"] = digest
    return found


def process_environment() -> dict[str, str]:
    """The environment for programs that tasks start: ours, without what belongs to the venv that crossgrade runs in."""
    hidden = {"VIRTUAL_ENV", "PYTHONHOME", "PYTHONPATH", "__PYVENV_LAUNCHER__", *VARIABLES}
    return {name: value for name, value in os.environ.items() if name not in hidden}
