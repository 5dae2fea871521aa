"""Reading one inventory file: YAML by its ending, INI otherwise; and lists of hosts from the command line."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from crossgrade.errors import Place
from crossgrade.playbook.freeform import UnbalancedError, split_words, unquote
from crossgrade.playbook.inventory import Draft, Group
from crossgrade.playbook.patterns import expand_range
from crossgrade.playbook.positions import PlaybookErrors, PlaybookProblem, Spot, excerpt_of
from crossgrade.playbook.suggest import did_you_mean
from crossgrade.playbook.values import Reader
from crossgrade.playbook.yamltext import MAX_PROBLEMS, parse_yaml, read_text

GROUP_KEYS = ("hosts", "vars", "children")
_SECTION = re.compile(r"^\[([^\[\]:]+)(?::(\w+))?\]\s*(?:[#;].*)?$")
_PAIR = re.compile(r"^([^\s=]+)\s*=\s*(.*)$", re.DOTALL)


def read_hosts_list(text: str, draft: Draft) -> None:
    """`-i host1,host2:22,`."""
    for part in text.split(","):
        name = part.strip()
        if name:
            _add_host(name, draft, draft.group("ungrouped"))


def read_inventory_file(path: Path, draft: Draft) -> None:
    """Add what an inventory file says to the draft. Raises PlaybookErrors with every problem."""
    text = read_text(path)
    if path.suffix in (".yml", ".yaml", ".json"):
        _YamlInventory(draft).read(Spot(parse_yaml(text, str(path))))
    else:
        _IniInventory(draft, str(path), text).read()


def _split_port(name: str) -> tuple[str, int | None]:
    """`host:22` and `[::1]:22` as host and port."""
    found = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:\[\]]+(?:\[[^\]]*\][^:\[\]]*)*)):(\d+)", name)
    if found:
        return found[1] or found[2], int(found[3])
    return name, None


def _add_host(pattern: str, draft: Draft, group: Group, values: Mapping[str, Any] | None = None) -> None:
    """Raises ValueError for a wrong range."""
    name, port = _split_port(pattern)
    for one in expand_range(name):
        host = draft.host(one)
        if port is not None:
            host["ansible_port"] = port
        host.update(values or {})
        group.hosts[one] = None


class _YamlInventory:
    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.reader = Reader()

    def read(self, spot: Spot) -> None:
        top = self.reader.mapping(spot, spot.node.value)
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

    def read(self) -> None:
        group, kind = self.draft.group("ungrouped"), "hosts"
        for number, line in enumerate(self.text.splitlines(), start=1):
            stripped = line.strip()
            if not stripped or stripped[0] in "#;":
                continue
            if stripped.startswith("["):
                section = _SECTION.match(stripped)
                if section is None:
                    self._problem(number, "not a valid section", "A section is written [group] or [group:vars].")
                    continue
                kind = section[2] or "hosts"
                if kind not in GROUP_KEYS:
                    self._problem(number, f'a group has no section ":{kind}"', did_you_mean(kind, GROUP_KEYS))
                    kind = "hosts"
                group = self.draft.group(section[1].strip())
                continue
            self._line(number, stripped, group, kind)
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
            return
        values: dict[str, Any] = {}
        for word in words[1:]:
            name, equals, value = word.partition("=")
            if not equals:
                self._problem(number, f'expected name=value after the host, got "{word}"')
                return
            values[name] = _ini_value(unquote(value))
        try:
            _add_host(words[0], self.draft, group, values)
        except ValueError as error:
            self._problem(number, f'"{words[0]}": {error}')

    def _words(self, number: int, line: str) -> list[str]:
        try:
            words = [line[start:end] for start, end in split_words(line)]
        except UnbalancedError as error:
            self._problem(number, str(error))
            return []
        comment = next((at for at, word in enumerate(words) if word.startswith("#")), len(words))
        return words[:comment]


def _ini_value(text: str) -> Any:
    """A value in an INI inventory: a Python literal where it is one (numbers, lists), text otherwise."""
    if len(text) > 10_000:
        return text
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return text
    return value if isinstance(value, str | int | float | bool | list | dict | type(None)) else text
