"""Which hosts there are, in which groups, with which variables: Ansible's inventories in YAML and INI."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crossgrade.errors import PlaybookError, WrongOptionsError
from crossgrade.playbook.patterns import select_names
from crossgrade.playbook.positions import Spot, printable
from crossgrade.playbook.variables import Precedence, Scope

LOCALHOSTS = ("localhost", "127.0.0.1", "::1")
VARIABLE_FILES = (".yml", ".yaml", ".json", "")


@dataclass(frozen=True)
class Host:
    """One host. `groups` are all that it is in, parents before children, without `all`."""

    name: str
    vars: Mapping[str, Any] = field(default_factory=dict)
    groups: tuple[str, ...] = ()
    implicit: bool = False

    @property
    def connection(self) -> str:
        """`local` or `ssh`. The local machine needs no connection, whatever the inventory calls it."""
        given = self.vars.get("ansible_connection")
        if given is None:
            return "local" if self.name in LOCALHOSTS else "ssh"
        return "ssh" if given == "smart" else str(given)

    @property
    def address(self) -> str:
        return str(self.vars.get("ansible_host", self.name))

    @property
    def port(self) -> int | None:
        port = self.vars.get("ansible_port")
        try:
            return None if port is None else int(port)
        except (TypeError, ValueError):
            raise PlaybookError(f'the host {self.name}: ansible_port is no number: "{port}"') from None


@dataclass
class Group:
    """A group while the inventory is read."""

    name: str
    vars: dict[str, Any] = field(default_factory=dict)
    hosts: dict[str, None] = field(default_factory=dict)
    children: dict[str, None] = field(default_factory=dict)
    spots: dict[str, Spot] = field(default_factory=dict)


@dataclass
class Draft:
    """An inventory while it is read."""

    groups: dict[str, Group] = field(default_factory=lambda: {"all": Group("all"), "ungrouped": Group("ungrouped")})
    hosts: dict[str, dict[str, Any]] = field(default_factory=dict)

    def group(self, name: str) -> Group:
        return self.groups.setdefault(name, Group(name))

    def host(self, name: str) -> dict[str, Any]:
        return self.hosts.setdefault(name, {})


@dataclass(frozen=True)
class Inventory:
    """All hosts in the order of the inventory, and the members of each group, children's members included."""

    hosts: tuple[Host, ...]
    groups: Mapping[str, tuple[str, ...]]
    group_vars: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    local_vars: Mapping[str, Any] = field(default_factory=dict)

    def host(self, name: str) -> Host | None:
        return next((host for host in self.hosts if host.name == name), None)

    def select(self, pattern: str | Sequence[str], limit: str | None = None) -> tuple[Host, ...]:
        """The hosts that a play's `hosts` means, cut down to those that `--limit` means.

        `localhost` is always there, also where the inventory does not name it. Raises WrongOptionsError for
        a pattern that matches nothing.
        """
        hosts = self.hosts
        patterns = [pattern] if isinstance(pattern, str) else list(pattern)
        for name in LOCALHOSTS:
            if name in patterns and self.host(name) is None:
                hosts = (*hosts, Host(name, {"ansible_connection": "local", **self.local_vars}, implicit=True))
        names = [host.name for host in hosts if not host.implicit or host.name in patterns]
        chosen = set(select_names(patterns, names, self.groups))
        if limit:
            chosen &= set(select_names(_limit_parts(limit), names, self.groups, "--limit"))
        return tuple(host for host in hosts if host.name in chosen)

    def scope(self, host: Host, base: Scope | None = None) -> Scope:
        """`base` with the variables of the host's groups, and its own above them."""
        scope = base or Scope()
        scope = scope.with_layer(Precedence.GROUP_ALL_VARS, self.group_vars.get("all", {}))
        for group in host.groups:
            scope = scope.with_layer(Precedence.GROUP_VARS, self.group_vars.get(group, {}))
        return scope.with_layer(Precedence.HOST_VARS, host.vars)


def _limit_parts(limit: str) -> list[str]:
    if not limit.startswith("@"):
        return [limit]
    try:
        lines = Path(limit[1:]).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise WrongOptionsError(f"--limit {limit}: the file cannot be read: {error}") from error
    names = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not names:
        raise WrongOptionsError(f"--limit {limit}: the file names no host")
    return names


def load_inventory(sources: Sequence[str], playbook_directory: Path | None = None) -> Inventory:
    """The inventory that all `-i` options give together: files, or lists such as `host1,host2,`.

    Without any, there is only this machine. `group_vars/` and `host_vars/` are read beside each file, and in the
    playbook's directory, which wins. Raises PlaybookError for a file with errors, WrongOptionsError for
    one that is not there.
    """
    from crossgrade.playbook.inventory_files import read_hosts_list, read_inventory_file

    draft = Draft()
    directories: list[Path] = []
    for source in sources:
        if "," in source:
            read_hosts_list(source, draft)
            continue
        path = Path(source).expanduser()
        if path.is_dir():
            raise WrongOptionsError(f"-i {source}: a directory is not supported here yet", remedy="Give its files.")
        if not path.is_file():
            raise WrongOptionsError(
                f"-i {source}: there is no such file", remedy="A list of hosts ends with a comma: -i host1,"
            )
        read_inventory_file(path, draft)
        if path.parent not in directories:
            directories.append(path.parent)
    if playbook_directory is not None and playbook_directory not in directories:
        directories.append(playbook_directory)
    return _finished(draft, directories)


def _finished(draft: Draft, directories: Sequence[Path]) -> Inventory:
    children = {name: list(group.children) for name, group in draft.groups.items()}
    _check_circles(children)
    members: dict[str, tuple[str, ...]] = {}
    for name in draft.groups:
        found: dict[str, None] = {}
        for below in _with_descendants(name, children):
            found.update(draft.groups[below].hosts)
        members[name] = tuple(found)
    grouped = {host for name, hosts in members.items() if name not in ("all", "ungrouped") for host in hosts}
    members["all"] = tuple(draft.hosts)
    members["ungrouped"] = tuple(host for host in draft.hosts if host not in grouped)
    group_vars = {name: dict(group.vars) for name, group in draft.groups.items()}
    host_vars = {name: dict(values) for name, values in draft.hosts.items()}
    for directory in directories:
        for name, values in group_vars.items():
            values.update(_variable_files(directory / "group_vars", name))
        for name, values in host_vars.items():
            values.update(_variable_files(directory / "host_vars", name))
    priorities = {name: _priority(values.pop("ansible_group_priority", 1)) for name, values in group_vars.items()}
    local_vars: dict[str, Any] = {}
    for directory in directories:
        local_vars.update(_variable_files(directory / "host_vars", "localhost"))
    depths = {name: _depth(name, children) for name in draft.groups}
    groups_of: dict[str, list[str]] = {name: [] for name in host_vars}
    for group, those in members.items():
        for name in those if group != "all" else ():
            groups_of[name].append(group)
    hosts = []
    for name, values in host_vars.items():
        groups = groups_of[name]
        groups.sort(key=lambda group: (depths[group], priorities[group], group))
        hosts.append(Host(name, values, tuple(groups)))
    return Inventory(tuple(hosts), members, group_vars, local_vars)


def _priority(value: Any) -> int:
    """`ansible_group_priority`: of groups of one depth, the higher one wins."""
    try:
        return int(value)
    except (TypeError, ValueError):
        return 1


def _with_descendants(name: str, children: Mapping[str, list[str]]) -> list[str]:
    found: dict[str, None] = {}
    waiting = [name]
    while waiting:
        one = waiting.pop(0)
        if one not in found:
            found[one] = None
            waiting += children.get(one, [])
    return list(found)


def _depth(name: str, children: Mapping[str, list[str]]) -> int:
    """How far below `all` a group is: the variables of a deeper one win."""
    parents = [parent for parent, those in children.items() if name in those and parent not in ("all", name)]
    return 1 + max((_depth(parent, children) for parent in parents), default=0)


def _check_circles(children: Mapping[str, list[str]]) -> None:
    for name in children:
        below = [one for child in children[name] for one in _with_descendants(child, children)]
        if name in below:
            raise PlaybookError(printable(f'the inventory\'s group "{name}" is among its own children'))


def _variable_files(directory: Path, name: str) -> dict[str, Any]:
    """The variables for a group or host: a file of this name, or all files in a directory of this name."""
    from crossgrade.playbook.loader import load_variables

    values: dict[str, Any] = {}
    if "/" in name or name.startswith("."):
        return values
    for ending in VARIABLE_FILES:
        path = directory / f"{name}{ending}"
        if path.is_file():
            values.update(load_variables(path).values)
        elif not ending and path.is_dir():
            for one in sorted(path.iterdir()):
                if one.is_file() and one.suffix in VARIABLE_FILES and not one.name.startswith((".", "~")):
                    values.update(load_variables(one).values)
    return values
