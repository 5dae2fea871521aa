"""The inference servers that run, and how each of them was started: from command lines and environments. Pure.

What starts a server, its default port and which variables matter are tables: `servers`, `launch_options`,
`serving_variables`. No secret leaves this file: `Server` holds references to variables in their place.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from crossgrade.facts.secrets import is_secret
from crossgrade.knowledge import Row, table

_PYTHON = re.compile(r"(?:python|pypy)[\d.]*t?$")
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")  # of Python's own options (python --help)
_PATHS = re.compile(r"(?:path|template|config|model|tokenizer|file|dir)$")
_SERVICE = re.compile(r"([^/]+\.service)$")
_USER_MANAGER = re.compile(r"/user@\d+\.service/")
_CONTAINER = re.compile(r"([0-9a-f]{12})[0-9a-f]{52}")
EVERYWHERE = ("0.0.0.0", "::", "[::]")  # noqa: S104 - read, not bound to


@dataclass(frozen=True)
class ProcessRecord:
    """What /proc shows of a process. `environment` is None where it may not be read: another user's.

    `ports` are the TCP ports that it listens on. `local` are the words of its command line that name something below
    its directory. `elsewhere` says that it sees another root folder: it runs in a container.
    """

    pid: int
    parent: int
    arguments: tuple[str, ...]
    uid: int | None = None
    program: str = ""
    directory: str = ""
    environment: Mapping[str, str] | None = None
    control_group: str = ""
    ports: tuple[int, ...] = ()
    local: frozenset[str] = frozenset()
    elsewhere: bool = False


@dataclass(frozen=True)
class Secret:
    """A value that is not kept. `variable` stands for it in a playbook, `where` says where it stood: `HF_TOKEN`."""

    variable: str
    where: str


@dataclass(frozen=True)
class LeftOut:
    """Something of the running server that a server under test is not started with, without its value."""

    name: str
    why: str


@dataclass(frozen=True)
class Server:
    """A server as it runs now, fit to be shown.

    `command` starts it again, with ``{python}``, ``{venv}``, ``{host}`` and ``{port}`` for what changes; a `Secret`
    stands for a word that is one. `environment` is the same for variables. `unit` is its systemd service, `user_unit`
    says that it is one of a user's own systemd. `noted` are its options that a person should know of, with the
    reason. `venvs` are the folders that may be its environment, the likeliest first. `unread` names what could not be
    read.
    """

    pid: int
    engine: str
    model: str
    host: str
    port: int
    command: tuple[str | Secret, ...]
    environment: Mapping[str, str | Secret] = field(default_factory=dict)
    health: str = "/health"
    imports: tuple[str, ...] = ()
    uid: int | None = None
    unit: str = ""
    user_unit: bool = False
    container: str = ""
    elsewhere: bool = False
    left_out: tuple[LeftOut, ...] = ()
    noted: Mapping[str, str] = field(default_factory=dict)
    venvs: tuple[str, ...] = ()
    unread: str = ""

    @property
    def secrets(self) -> tuple[Secret, ...]:
        """Every secret once, in the order in which it is met."""
        words = (*self.command, *self.environment.values())
        return tuple(dict.fromkeys(word for word in words if isinstance(word, Secret)))


@dataclass(frozen=True)
class Launch:
    """Where in a command line a server is started: its row in `servers`, and the words before its own arguments."""

    row: Row
    start: tuple[str, ...]
    arguments: tuple[str, ...]
    script: str = ""


def find_launch(arguments: Sequence[str]) -> Launch | None:
    """How a command line starts a server; None when it does not."""
    if not arguments or not _PYTHON.fullmatch(Path(arguments[0]).name):
        return None
    at = 1
    while at < len(arguments) and arguments[at].startswith("-") and not arguments[at].startswith("-m"):
        if arguments[at].startswith("-c") or arguments[at] == "-":
            return None
        at += 2 if arguments[at] in _WITH_VALUE else 1
    options, rest = tuple(arguments[1:at]), list(arguments[at:])
    if rest and rest[0].startswith("-m") and len(rest[0]) > 2:
        rest[:1] = ["-m", rest[0][2:]]
    if len(rest) < 2:
        return None
    for row in table("servers"):
        if rest[0] == "-m":
            if rest[1] == row.get("module"):
                return Launch(row, ("{python}", *options, "-m", rest[1]), tuple(rest[2:]))
        elif "script" in row:
            if Path(rest[0]).name == row["script"] and rest[1] == row["word"]:
                start = ("{python}", *options, f"{{venv}}/bin/{row['script']}", rest[1])
                return Launch(row, start, tuple(rest[2:]), rest[0])
        elif rest[0].endswith(str(row["module"]).replace(".", "/") + ".py"):
            return Launch(row, ("{python}", *options, "-m", str(row["module"])), tuple(rest[1:]))
    return None


def find_servers(records: Sequence[ProcessRecord]) -> tuple[Server, ...]:
    """Every server, by process number. A worker that was forked from one, and has its command line, is none."""
    starting = {record.pid: launch for record in records if (launch := find_launch(record.arguments))}
    return tuple(
        describe(record, starting[record.pid])
        for record in sorted(records, key=lambda one: one.pid)
        if record.pid in starting and record.parent not in starting
    )


def describe(record: ProcessRecord, launch: Launch) -> Server:
    """A server from its process and the way in which that was started."""
    row = launch.row
    reading = _Reading(record, row)
    words = reading.command(launch)
    environment, variables_left_out = _environment(record.environment or {})
    service = _SERVICE.search(record.control_group.strip().splitlines()[-1] if record.control_group.strip() else "")
    container = _CONTAINER.search(record.control_group)
    unread = "" if record.environment is not None else f"environment of process {record.pid} (of user {record.uid})"
    return Server(
        pid=record.pid,
        engine=str(row["engine"]),
        model=reading.model,
        host=reading.host,
        port=reading.port or next(iter(record.ports), 0) or int(str(row["port"])),
        command=words,
        environment=environment,
        health=str(row["health"]),
        imports=tuple(map(str, _list(row["imports"]))),
        uid=record.uid,
        unit=service[1] if service and not service[1].startswith("user@") else "",
        user_unit=bool(_USER_MANAGER.search(record.control_group)),
        container=container[1] if container else "",
        elsewhere=record.elsewhere,
        left_out=(*reading.left_out, *variables_left_out),
        noted=dict(reading.noted),
        venvs=_venvs(record, launch),
        unread=unread,
    )


class _Reading:
    """Goes through a server's own arguments, once."""

    def __init__(self, record: ProcessRecord, row: Row) -> None:
        self.record, self.row = record, row
        self.model, self.host, self.port = "", "127.0.0.1", 0
        self.left_out: list[LeftOut] = []
        self.noted: dict[str, str] = {}

    def command(self, launch: Launch) -> tuple[str | Secret, ...]:
        words: list[str | Secret] = list(launch.start)
        given = list(launch.arguments)
        if self.row["positional"] and given and not given[0].startswith("-"):
            self.model = self._absolute(given.pop(0))
            words.append(self.model)
        while given:
            word = given.pop(0)
            option, equals, value = word.partition("=")
            if not option.startswith("-"):
                words.append(_kept("", word))  # one more value of the option before it
                continue
            if not equals and given and not _is_option(given[0]):
                value = given.pop(0)
                words += self._option(option, value)
            else:
                words += self._option(option, value if equals else None)
        for option in ("--host", "--port"):
            if option not in words:
                words += [option, f"{{{option[2:]}}}"]
        return _told_apart(words)

    def _option(self, option: str, value: str | None) -> list[str | Secret]:
        name = option.replace("_", "-") if option.startswith("--") else option
        if name == "--host":
            self.host = value or self.host
            return ["--host", "{host}"]
        if name == "--port":
            self.port = int(value) if value and value.isdecimal() and len(value) < 6 else 0
            return ["--port", "{port}"]
        for known in table("launch_options"):
            if known["option"] == name and "left_out" in known:
                self.left_out.append(LeftOut(name, str(known["left_out"])))
                return []
            if known["option"] == name and value != "1":  # one node is no cluster
                self.noted[name] = str(known["note"])
        if value is None:
            return [option]
        if name in _list(self.row["model"]):
            value = self.model = self._absolute(value)
        elif _PATHS.search(name):
            value = self._absolute(value)
        return [option, _kept(name, value)]

    def _absolute(self, word: str) -> str:
        """A server under test works in another directory."""
        return os.path.normpath(f"{self.record.directory}/{word}") if word in self.record.local else word


def _is_option(word: str) -> bool:
    return word.startswith("-") and not re.fullmatch(r"-[\d.]+", word)


def _kept(name: str, value: str) -> str | Secret:
    if not is_secret(name, value):
        return value
    return Secret(_variable(f"server_{name.strip('-') or 'argument'}"), name or "its command line")


def _told_apart(words: Sequence[str | Secret]) -> tuple[str | Secret, ...]:
    """The words with a variable of its own for each secret, also for the second one of the same option."""
    met: dict[str, int] = {}
    found: list[str | Secret] = []
    for word in words:
        if isinstance(word, Secret):
            number = met[word.variable] = met.get(word.variable, 0) + 1
            word = word if number == 1 else Secret(f"{word.variable}_{number}", word.where)
        found.append(word)
    return tuple(found)


def _variable(name: str) -> str:
    return re.sub(r"\W", "_", name.lower())


def _environment(variables: Mapping[str, str]) -> tuple[dict[str, str | Secret], tuple[LeftOut, ...]]:
    """The variables that matter, in the order of their names, and those that a server under test does not get."""
    kept: dict[str, str | Secret] = {}
    left_out = []
    caches = {str(row["variable"]) for row in table("caches")}
    for name, value in sorted(variables.items()):
        row = next((row for row in table("serving_variables") if name.startswith(str(row["prefix"]))), None)
        if name in caches:
            left_out.append(LeftOut(name, "a generation has caches of its own"))
        elif row is not None and "left_out" in row:
            left_out.append(LeftOut(name, str(row["left_out"])))
        elif row is not None:
            kept[name] = Secret(_variable(name), name) if is_secret(name, value) else value
    return kept, tuple(left_out)


def _venvs(record: ProcessRecord, launch: Launch) -> tuple[str, ...]:
    """Folders that may be the environment: above the program as it was called, the script, VIRTUAL_ENV, PATH."""
    variables = record.environment or {}
    programs = [word for word in (record.arguments[0], launch.script) if "/" in word]
    found = [os.path.normpath(f"{record.directory}/{word}" if word[0] != "/" else word) for word in programs]
    named = [variables["VIRTUAL_ENV"]] if variables.get("VIRTUAL_ENV") else []
    if "/" not in record.arguments[0]:
        named += [str(Path(entry).parent) for entry in variables.get("PATH", "").split(":") if entry.endswith("/bin")]
    above = [str(Path(program).parent.parent) for program in found]
    conda = [str(Path(record.program).parent.parent)] if record.program else []
    return tuple(dict.fromkeys([*above, *named, *conda]))


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
