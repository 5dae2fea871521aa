"""Reading one inventory file: YAML by its ending, or INI; and lists of hosts from the command line.

A file without an ending is YAML or JSON where it is a mapping of those, and INI otherwise. Programs and
configurations of plugins, which Ansible would run, are refused.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from crossgrade.errors import Place, PlaybookError
from crossgrade.playbook.inventory import Draft, Group
from crossgrade.playbook.patterns import expand_range
from crossgrade.playbook.positions import PlaybookErrors, PlaybookProblem, Source, Spot, excerpt_of
from crossgrade.playbook.suggest import did_you_mean
from crossgrade.playbook.values import Reader
from crossgrade.playbook.yamltext import MAX_PROBLEMS, parse_yaml, read_text

_AS_A_FILE = "`ansible-inventory -i {} --list --export --yaml --output hosts.yml` writes it as one that is."
# Endings that are no inventory in a directory (`ansible-config dump`, INVENTORY_IGNORE_EXTS, ansible-core 2.19).
PASSED_OVER = (
    *(".pyc", ".pyo", ".swp", ".bak", "~", ".rpm", ".md", ".txt", ".rst"),
    *(".orig", ".cfg", ".retry"),
)
GROUP_KEYS = ("hosts", "vars", "children")
_SECTION = re.compile(r"^\[([^\[\]:]+)(?::(\w+))?\]\s*(?:[#;].*)?$")
_ADDRESS_AND_PORT = re.compile(r"^\[[0-9A-Fa-f:.]+\]:\d")
_PAIR = re.compile(r"^([^\s=]+)\s*=\s*(.*)$", re.DOTALL)


def read_hosts_list(text: str, draft: Draft) -> None:
    """`-i host1,host2:22,`."""
    for part in text.split(","):
        name = part.strip()
        if name:
            _add_host(name, draft, draft.group("ungrouped"))


def inventory_files(folder: Path) -> list[Path]:
    """The inventories in a directory and below it, by their names, without what Ansible passes over."""
    found: list[Path] = []
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.name.endswith(PASSED_OVER):
            continue
        if path.is_dir() and path.name not in ("group_vars", "host_vars"):
            found += inventory_files(path)
        elif path.is_file():
            found.append(path)
    return found


def read_inventory_file(path: Path, draft: Draft) -> None:
    """Add what an inventory file says to the draft. Raises PlaybookErrors with every problem."""
    text = read_text(path)
    if text.startswith("#!"):
        raise PlaybookError(
            f"{path}: a program as inventory is not run: a plan reads only, and must find the same hosts twice",
            remedy=_AS_A_FILE.format(path),
        )
    if path.suffix == ".toml":
        raise PlaybookError(f"{path}: an inventory is read as YAML, JSON or INI", remedy=_AS_A_FILE.format(path))
    if path.suffix in (".yml", ".yaml", ".json"):
        _YamlInventory(draft).read(Spot(parse_yaml(text, str(path))))
        return
    source = _as_yaml(text, path) if not path.suffix else None
    if source is not None:
        _YamlInventory(draft).read(Spot(source))
    else:
        _IniInventory(draft, str(path), text).read()


def _as_yaml(text: str, path: Path) -> Source | None:
    """The text as YAML where it is some: a mapping. Raises PlaybookErrors for one with errors that begins like YAML."""
    first = next((line.strip() for line in text.splitlines() if line.strip() and line.strip()[0] not in "#;"), "")
    if not (first == "---" or first.startswith("{") or re.match(r"^[\w.-]+:(\s|$)", first)):
        return None
    source = parse_yaml(text, str(path))
    return source if isinstance(source.root.value, dict) else None


def split_port(name: str) -> tuple[str, int | None]:
    """`host:22` and `[::1]:22` as host and port."""
    found = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:\[\]]+(?:\[[^\]]*\][^:\[\]]*)*)):(\d+)", name)
    if found:
        return found[1] or found[2], int(found[3])
    return name, None


def _add_host(pattern: str, draft: Draft, group: Group, values: Mapping[str, Any] | None = None) -> None:
    """Raises ValueError for a wrong range."""
    name, port = split_port(pattern)
    for one in expand_range(name):
        known = one in draft.hosts
        host = draft.host(one)
        if port is not None and not known:
            host["ansible_port"] = port
        host.update(values or {})
        group.hosts[one] = None


class _YamlInventory:
    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.reader = Reader()

    def read(self, spot: Spot) -> None:
        top = self.reader.mapping(spot, spot.node.value)
        if isinstance(top.get("plugin"), str):
            message = f'this configures the inventory plugin "{top["plugin"]}", and crossgrade runs no plugins'
            raise PlaybookErrors([spot.at("plugin").problem(message, _AS_A_FILE.format(spot.source.file), key=True)])
        if "_meta" in top:
            message = "this is what an inventory program prints, not an inventory"
            raise PlaybookErrors(
                [spot.at("_meta").problem(message, "Write it as YAML: `hosts`, `vars`, `children`.", key=True)]
            )
        for name, value in top.items():
            self._group(spot.at(name), str(name), value)
        if self.reader.problems:
            raise PlaybookErrors(self.reader.problems)

    def _group(self, spot: Spot, name: str, value: Any) -> None:
        group = self.draft.group(name)
        given = self.reader.mapping(spot, value)
        for key in given:
            if key not in GROUP_KEYS:
                hint = did_you_mean(str(key), GROUP_KEYS) or "A group has `hosts`, `vars` and `children`."
                self.reader.note(spot.at(key), f'the group "{name}" has no key "{key}"', hint, key=True)
        group.vars.update(self.reader.variables(spot.at("vars"), given.get("vars")))
        hosts_spot = spot.at("hosts")
        hosts = given.get("hosts")
        if isinstance(hosts, str):
            hosts = {hosts: None}
        for host, values in self.reader.mapping(hosts_spot, hosts).items():
            here = hosts_spot.at(host)
            try:
                _add_host(str(host), self.draft, group, self.reader.variables(here, values))
            except ValueError as error:
                self.reader.note(here, f'"{host}": {error}', key=True)
        children_spot = spot.at("children")
        children = given.get("children")
        if isinstance(children, str):
            children = {children: None}
        for child, inner in self.reader.mapping(children_spot, children).items():
            group.children[str(child)] = None
            self._group(children_spot.at(child), str(child), inner)


class _IniInventory:
    def __init__(self, draft: Draft, file: str, text: str) -> None:
        self.draft = draft
        self.file = file
        self.text = text
        self.problems: list[PlaybookProblem] = []
        self.declared: set[str] = set(draft.groups)
        self.children: dict[str, int] = {}  # each child that a section names, and its line

    def read(self) -> None:
        group, kind = self.draft.group("ungrouped"), "hosts"
        for number, line in enumerate(self.text.splitlines(), start=1):
            stripped = line.strip()
            if not stripped or stripped[0] in "#;":
                continue
            if stripped.startswith("[") and not _ADDRESS_AND_PORT.match(stripped):
                section = _SECTION.match(stripped)
                if section is None:
                    self._problem(number, "not a valid section", "A section is written [group] or [group:vars].")
                    continue
                kind = section[2] or "hosts"
                if kind not in GROUP_KEYS:
                    self._problem(number, f'a group has no section ":{kind}"', did_you_mean(kind, GROUP_KEYS))
                    kind = "hosts"
                group = self.draft.group(section[1].strip())
                self.declared.add(group.name)
                continue
            self._line(number, stripped, group, kind)
        for name, number in self.children.items():
            if name not in self.declared:
                hint = did_you_mean(name, self.declared - {"all", "ungrouped"}) or f"An empty one is written [{name}]."
                self._problem(number, f'there is no group "{name}"', hint)
        if self.problems:
            raise PlaybookErrors(self.problems)

    def _problem(self, line: int, message: str, remedy: str = "") -> None:
        if len(self.problems) < MAX_PROBLEMS:
            excerpt = excerpt_of(self.text, line, 1)
            place = Place(self.file, line, 1)
            self.problems.append(PlaybookProblem(message, remedy=remedy, place=place, excerpt=excerpt))

    def _line(self, number: int, line: str, group: Group, kind: str) -> None:
        if kind == "vars":
            pair = _PAIR.match(line)
            if pair is None:
                self._problem(number, "expected name=value")
            else:
                group.vars[pair[1]] = _ini_value(pair[2].strip())
            return
        words = self._words(number, line)
        if not words:
            return
        if kind == "children":
            group.children[words[0]] = None
            self.draft.group(words[0])
            self.children.setdefault(words[0], number)
            return
        values: dict[str, Any] = {}
        for word in words[1:]:
            name, equals, value = word.partition("=")
            if not equals:
                hint = "A value with spaces needs quotes around it." if "=" in line else ""
                self._problem(number, f'expected name=value after the host, got "{word}"', hint)
                return
            values[name] = _ini_value(value)
        try:
            _add_host(words[0], self.draft, group, values)
        except ValueError as error:
            self._problem(number, f'"{words[0]}": {error}')

    def _words(self, number: int, line: str) -> list[str]:
        """A line as a shell would split it: quotes go, a `#` begins a comment wherever it stands."""
        try:
            return shlex.split(line, comments=True)
        except ValueError as error:
            self._problem(number, f"a quote is not closed, or a backslash ends the line ({error})")
            return []


def _ini_value(text: str) -> Any:
    """A value in an INI inventory: a Python literal where it is one (numbers, lists), text otherwise."""
    if len(text) > 10_000:
        return text
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return text
    if isinstance(value, tuple | set):
        return list(value)
    return value if isinstance(value, str | int | float | bool | list | dict | type(None)) else text
