"""Which hosts there are, in which groups, with which variables: Ansible's inventories in YAML, JSON and INI."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from crossgrade.errors import PlaybookError, WrongOptionsError
from crossgrade.playbook.patterns import parts_of, select_names
from crossgrade.playbook.positions import Spot, printable
from crossgrade.playbook.values import is_template_text
from crossgrade.playbook.variable_files import VariableFiles
from crossgrade.playbook.variables import Precedence, Scope

LOCALHOSTS = ("localhost", "127.0.0.1", "::1")
OVER_SSH = ("ssh", "smart", "paramiko", "paramiko_ssh")
# What decides where and how a host is reached; templates in their values are expanded.
_EXPANDED = (
    *("ansible_host", "ansible_port", "ansible_user", "ansible_ssh_host", "ansible_ssh_port", "ansible_ssh_user"),
    *("ansible_ssh_private_key_file", "ansible_private_key_file", "ansible_connection", "ansible_become"),
    "crossgrade_command",
)
_PRIORITY = "ansible_group_priority"


@dataclass(frozen=True)
class Host:
    """One host. `vars` are its own; `groups` are all that it is in, those that win last, without `all`.

    `made` are the variables that `add_host` gave it: data, in which a template is only text. `added` says that no
    inventory names it. `settings` are its connection variables (`ansible_…`) from wherever they are set, with
    templates expanded where they count; a host that `Inventory.select` has given has them.
    """

    name: str
    vars: Mapping[str, Any] = field(default_factory=dict)
    groups: tuple[str, ...] = ()
    implicit: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    made: Mapping[str, Any] = field(default_factory=dict)
    added: bool = False

    def setting(self, name: str) -> Any:
        """The value of a connection variable, None when nobody sets it."""
        return self.settings.get(name, self.made.get(name, self.vars.get(name)))

    @property
    def connection(self) -> str:
        """`local` or `ssh`. The local machine needs no connection, whatever the inventory calls it.

        Raises PlaybookError for another one.
        """
        given = self.setting("ansible_connection")
        if given is None:
            return "local" if self.name in LOCALHOSTS else "ssh"
        short = str(given).removeprefix("ansible.builtin.")
        if short not in ("local", *OVER_SSH):
            raise PlaybookError(
                printable(f'the host {self.name}: crossgrade has no connection "{given}"'),
                remedy="ansible_connection is `ssh` or `local`.",
            )
        return "local" if short == "local" else "ssh"

    @property
    def address(self) -> str:
        given = self.setting("ansible_host")
        return self.name if given is None else str(given)

    @property
    def port(self) -> int | None:
        port = self.setting("ansible_port")
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
    """An inventory while it is read. `made` are the variables that `add_host` gives to hosts, `added` are its own."""

    groups: dict[str, Group] = field(default_factory=lambda: {"all": Group("all"), "ungrouped": Group("ungrouped")})
    hosts: dict[str, dict[str, Any]] = field(default_factory=dict)
    made: dict[str, dict[str, Any]] = field(default_factory=dict)
    added: set[str] = field(default_factory=set)

    def group(self, name: str) -> Group:
        return self.groups.setdefault(name, Group(name))

    def host(self, name: str) -> dict[str, Any]:
        return self.hosts.setdefault(name, {})


@dataclass(frozen=True)
class Inventory:
    """All hosts and the members of each group, children's members included, in Ansible's order.

    `written` are the hosts in the order in which they were first written down: so a glob names them.
    `group_vars` are those that stand in the inventory itself; `files` reads `group_vars/` and `host_vars/` when a
    host is asked for, so that files of groups that a run has nothing to do with need not be readable. `draft` is what
    it was made from, for what a run adds to it.
    """

    hosts: tuple[Host, ...]
    groups: Mapping[str, tuple[str, ...]]
    group_vars: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    files: VariableFiles = field(default_factory=VariableFiles)
    written: tuple[str, ...] = ()
    implicit: Mapping[str, Host] = field(default_factory=dict)
    draft: Draft = field(default_factory=Draft, repr=False, compare=False)

    def host(self, name: str) -> Host | None:
        """The host with its connection variables, None where the inventory does not name it."""
        return next((self._settled(host) for host in self.hosts if host.name == name), None)

    def local_host(self, name: str) -> Host:
        """The host of a name of this machine that the inventory does not name; `group_by` may put it into groups."""
        return self.implicit.get(name) or Host(name, {"ansible_connection": "local"}, implicit=True)

    def select(
        self, pattern: str | Sequence[str], limit: str | None = None, *, missing: list[str] | None = None
    ) -> tuple[Host, ...]:
        """The hosts that a play's `hosts` means, cut down to those that `--limit` means.

        `localhost` is always there, also where the inventory does not name it. Raises WrongOptionsError for
        a part that matches nothing (with `missing` it is put in there instead), PlaybookError for a file of variables
        with errors.
        """
        known = {host.name: host for host in self.hosts}
        patterns = parts_of(pattern)
        for name in LOCALHOSTS:
            if name not in known and (name in patterns or name in self.implicit):
                known[name] = self.local_host(name)
        names = [*self.written, *(name for name in known if known[name].implicit)]
        chosen = select_names(patterns, names, self.groups, missing=missing)
        if limit:
            kept = set(select_names(_limit_parts(limit), names, self.groups, "--limit", missing=missing))
            chosen = [name for name in chosen if name in kept]
        return tuple(self._settled(known[name]) for name in chosen)

    def scope(self, host: Host, base: Scope | None = None) -> Scope:
        """`base` with the variables of the host's groups, and its own above them.

        Of groups, what stands in the inventory counts least, then `group_vars/all` (beside the inventory, then beside
        the playbook), then `group_vars/` of other groups (in the same order): only among equals does the deeper group
        win (Ansible's "Understanding variable precedence"). Raises PlaybookError for a file with errors.
        """
        scope = base or Scope()
        scope = scope.with_layer(Precedence.GROUP_ALL_VARS, self.group_vars.get("all", {}))
        for group in host.groups:
            scope = scope.with_layer(Precedence.GROUP_VARS, self.group_vars.get(group, {}))
        for groups in (("all",), host.groups):
            for folder in self.files.folders:
                for group in groups:
                    scope = scope.with_layer(Precedence.GROUP_VARS, self.files.of_group(folder, group))
        scope = scope.with_layer(Precedence.HOST_VARS, host.vars)
        scope = scope.with_layer(Precedence.HOST_VARS, host.made, templated=False)
        for folder in self.files.folders:
            scope = scope.with_layer(Precedence.HOST_VARS, self.files.of_host(folder, host.name))
        return scope

    def _settled(self, host: Host) -> Host:
        """The host with its connection variables, from its groups and files too."""
        scope = self.scope(host)
        found = {name: scope.lookup(name) for name in scope.names() if name.startswith("ansible_") or name in _EXPANDED}
        raw = {
            name: found[name] for name in _EXPANDED if is_template_text(found.get(name)) and _is_written(scope, name)
        }
        if raw:
            from crossgrade.playbook.templating import Templar

            magic = {"inventory_hostname": host.name, "inventory_hostname_short": host.name.split(".")[0]}
            templar = Templar(scope.with_layer(Precedence.MAGIC, magic, templated=False))
            found.update({name: templar.template(value) for name, value in raw.items()})
        return replace(host, settings=found)


def _is_written(scope: Scope, name: str) -> bool:
    """Whether the variable was written by people, with templates, and is no data of `add_host`."""
    layer = scope.find(name)
    return layer is not None and layer.templated


def _limit_parts(limit: str) -> list[str]:
    """`--limit`, with `@FILE` among its parts as the names in that file, one a line."""
    parts: list[str] = []
    for part in limit.split(",") if "," in limit else [limit]:
        parts += _names_in(part.strip()) if part.strip().startswith("@") else [part]
    return parts


def _names_in(part: str) -> list[str]:
    try:
        lines = Path(part[1:]).expanduser().read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise WrongOptionsError(f"--limit {part}: the file cannot be read: {error}") from error
    names = [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]
    if not names:
        raise WrongOptionsError(f"--limit {part}: the file names no host")
    return names


def load_inventory(sources: Sequence[str], playbook_directory: Path | None = None) -> Inventory:
    """The inventory that all `-i` options give together: files, directories, or lists such as `host1,host2,`.

    Without any, there is only this machine. `group_vars/` and `host_vars/` are read beside each file, and in the
    playbook's directory, which wins. Raises PlaybookError for a file with errors, WrongOptionsError for
    one that is not there.
    """
    from crossgrade.playbook.inventory_files import inventory_files, read_hosts_list, read_inventory_file

    draft = Draft()
    folders: list[Path] = []
    for source in sources:
        if "," in source:
            read_hosts_list(source, draft)
            continue
        path = Path(source).expanduser()
        if path.is_dir():
            files = inventory_files(path)
            if not files:
                raise WrongOptionsError(
                    f"-i {source}: there is no inventory in this directory",
                    remedy="Hidden files, and endings such as .cfg, .bak, .md and .txt are passed over.",
                )
        elif path.is_file():
            files = [path]
        else:
            raise WrongOptionsError(
                f"-i {source}: there is no such file", remedy="A list of hosts ends with a comma: -i host1,"
            )
        for file in files:
            read_inventory_file(file, draft)
        folder = path if path.is_dir() else path.parent
        if folder not in folders:
            folders.append(folder)
    if playbook_directory is not None:
        folders.append(playbook_directory)
    return finished(draft, VariableFiles(tuple(folders)))


def finished(draft: Draft, files: VariableFiles) -> Inventory:
    """The inventory of a draft, with the groups of each host. Raises PlaybookError for groups in a circle."""
    children = {name: list(group.children) for name, group in draft.groups.items()}
    _check_circles(children)
    parents = _parents(children)
    top = [name for name in draft.groups if name not in ("all", "ungrouped") and not parents[name]]
    children["all"] = ["ungrouped", *top]
    grouped = {host for name, group in draft.groups.items() if name not in ("all", "ungrouped") for host in group.hosts}
    alone = draft.groups["ungrouped"]
    alone.hosts = {host: None for host in (*alone.hosts, *draft.hosts) if host not in grouped}
    members = {name: _members(name, draft, children) for name in draft.groups}
    group_vars = {name: dict(group.vars) for name, group in draft.groups.items()}
    priorities = {name: _priority(values.pop(_PRIORITY, 1)) for name, values in group_vars.items()}
    depths: dict[str, int] = {}
    groups_of: dict[str, list[str]] = {name: [] for name in draft.hosts}
    for group, those in members.items():
        for name in those if group != "all" else ():
            groups_of.setdefault(name, []).append(group)
    for groups in groups_of.values():
        groups.sort(key=lambda group: (_depth(group, parents, depths), priorities[group], group))
    # `group_by` puts this machine into groups where no inventory names it; `all` does not mean it all the same
    implicit = {
        name: Host(name, {"ansible_connection": "local"}, tuple(groups), implicit=True)
        for name, groups in groups_of.items()
        if name not in draft.hosts
    }
    members["all"] = tuple(name for name in members["all"] if name not in implicit)
    hosts = [
        Host(name, draft.hosts[name], tuple(groups_of[name]), made=draft.made.get(name, {}), added=name in draft.added)
        for name in members["all"]
    ]
    return Inventory(tuple(hosts), members, group_vars, files, tuple(draft.hosts), implicit, draft)


def _members(name: str, draft: Draft, children: Mapping[str, list[str]]) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for below in _with_descendants(name, children):
        found.update(draft.groups[below].hosts)
    return tuple(found)


def _priority(value: Any) -> int:
    """`ansible_group_priority`: of groups of one depth, the higher one wins."""
    try:
        return int(value)
    except (TypeError, ValueError):
        return 1


def _with_descendants(name: str, children: Mapping[str, list[str]]) -> list[str]:
    found: dict[str, None] = {}
    waiting = [name]
    for one in waiting:  # it grows while it is walked
        if one not in found:
            found[one] = None
            waiting += children.get(one, [])
    return list(found)


def _parents(children: Mapping[str, list[str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {name: [] for name in children}
    for parent, those in children.items():
        for child in those if parent != "all" else ():
            found[child].append(parent)
    return found


def _depth(name: str, parents: Mapping[str, list[str]], known: dict[str, int]) -> int:
    """How far below `all` a group is: the variables of a deeper one win. No circle is left in them."""
    if name not in known:
        known[name] = 1 + max((_depth(parent, parents, known) for parent in parents[name]), default=0)
    return known[name]


def _check_circles(children: Mapping[str, list[str]]) -> None:
    for name in children:
        below = [one for child in children[name] for one in _with_descendants(child, children)]
        if name in below:
            raise PlaybookError(printable(f'the inventory\'s group "{name}" is among its own children'))
