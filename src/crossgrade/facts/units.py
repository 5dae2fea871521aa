"""systemd units that name an environment, and containers that run.

Sources: systemd.unit(5) (search paths, drop-ins), systemd.service(5), systemd.exec(5); ``docker ps --format json``,
which podman has too.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from crossgrade.facts.text import text_of
from crossgrade.inspect.query import Runner, programs_on_path
from crossgrade.process import StartError

SYSTEMCTL_SECONDS = 10.0
ENGINE_SECONDS = 5.0
_SYSTEM_FOLDERS = ("etc/systemd/system", "run/systemd/system", "usr/local/lib/systemd/system", "usr/lib/systemd/system")
_USER_FOLDERS = ("etc/systemd/user", "run/systemd/user", "usr/lib/systemd/user")
_SUFFIXES = (".service", ".timer", ".socket", ".path", ".mount")
SHOWN_PROPERTIES = "Id,ActiveState,SubState,UnitFileState,MainPID"


@dataclass(frozen=True)
class Unit:
    """A unit whose files name the environment. `user` is true for a user's own systemd.

    `settings` are the lines that name it (``ExecStart=…``), `files` where they stand. `active`, `enabled` and `pid` are
    systemctl's words, empty or None where it could not be asked.
    """

    name: str
    user: bool
    files: tuple[str, ...]
    settings: tuple[str, ...]
    active: str = ""
    enabled: str = ""
    pid: int | None = None


@dataclass(frozen=True)
class Container:
    """A running container: the start of its id, its name, image, command, and its mounts as the engine words them."""

    engine: str
    id: str
    name: str
    image: str
    command: str
    mounts: str = ""


@dataclass(frozen=True)
class UnitFacts:
    """What starts or holds the environment beside plain processes. `unknown` says what could not be asked."""

    units: tuple[Unit, ...]
    containers: tuple[Container, ...]
    unknown: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ExecStart:
    """The command line of a service, in words, and the file that it stands in. Variables stay as they are written."""

    words: tuple[str, ...]
    file: str


@dataclass(frozen=True)
class UnitStart:
    """How a service starts its program: words with their variables filled in, its variables, its directory.

    `unread` says what could not be read of it: a file of variables, say.
    """

    words: tuple[str, ...]
    variables: Mapping[str, str]
    directory: str
    file: str
    unread: tuple[str, ...] = ()


# ---- pure


def variables_of(settings: Sequence[str], read: Callable[[str], str | None]) -> tuple[dict[str, str], tuple[str, ...]]:
    """The variables of a service from its settings, and the files of variables that could not be read.

    ``EnvironmentFile=`` counts above ``Environment=``; an empty assignment takes back those before it; a dash before a
    file lets it be missing (systemd.exec(5)). `read` gives the text of a file, or None.
    """
    own: dict[str, str] = {}
    files: list[str] = []
    for setting in settings:
        name, _, value = setting.partition("=")
        value = value.strip()
        if name.strip() == "Environment":
            own = own if value else {}
            own.update(_pair(word) for word in _words(value) if "=" in word)
        elif name.strip() == "EnvironmentFile":
            files = [*files, value] if value else []
    unread = []
    for file in files:
        text = read(file.removeprefix("-"))
        if text is None and not file.startswith("-"):
            unread.append(file)
        own.update(_pair(line) for line in map(_unquoted, settings_of(text or "")))
    return own, tuple(unread)


def _pair(assignment: str) -> tuple[str, str]:
    name, _, value = assignment.partition("=")
    return name, value


def _unquoted(line: str) -> str:
    """A line of a file of variables: one pair of quotes around the value is not part of it."""
    name, _, value = line.partition("=")
    value = value.strip()
    if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
        value = value[1:-1]
    return f"{name.strip()}={value}"


def _words(value: str) -> list[str]:
    try:
        return shlex.split(value)
    except ValueError:  # a quote that is not closed
        return value.split()


def filled_in(words: Sequence[str], variables: Mapping[str, str], home: str) -> list[str]:
    """A command line with its variables and with ``%h`` and ``%%`` (systemd.service(5), COMMAND LINES).

    ``$NAME`` alone becomes as many words as its value has. Raises ValueError for another specifier.
    """
    found: list[str] = []
    for word in words:
        specifiers = set(re.findall(r"%(.)", word.replace("%%", ""))) - {"h"}
        if specifiers:
            raise ValueError(f"the specifier %{min(specifiers)}")
        word = word.replace("%%", "\0").replace("%h", home).replace("\0", "%")
        if re.fullmatch(r"\$\w+", word):
            found += variables.get(word[1:], "").split()
        else:
            found.append(re.sub(r"\$\{(\w+)\}", lambda match: variables.get(match[1], ""), word))
    return found


def exec_start(files: Sequence[tuple[str, str]]) -> ExecStart | None:
    """What a service starts, from its files as (path, text): its own first, then its drop-ins in order of name.

    An empty ``ExecStart=`` takes back those before it; of several, the last is the service (systemd.service(5)).
    """
    found: ExecStart | None = None
    for path, text in files:
        for setting in settings_of(text):
            name, _, value = setting.partition("=")
            if name.strip() != "ExecStart":
                continue
            words = _words(value.strip().lstrip("@-:+!|"))
            found = ExecStart(tuple(words), path) if words else None
    return found


def settings_of(text: str) -> list[str]:
    """The assignments of a unit file as ``Name=value``, with continued lines joined and comments left out."""
    found: list[str] = []
    begun = ""
    for line in text.splitlines():
        stripped = line.strip()
        if not begun and stripped.startswith(("#", ";", "[")):
            continue
        if begun and stripped.startswith(("#", ";")):  # a comment does not end a continued line
            continue
        begun += stripped.removesuffix("\\").strip() + (" " if stripped.endswith("\\") else "")
        if not stripped.endswith("\\"):
            if "=" in begun:
                found.append(begun)
            begun = ""
    return [*found, begun.strip()] if "=" in begun else found


def naming(settings: Sequence[str], paths: Sequence[str]) -> tuple[str, ...]:
    """The settings that name one of the paths, or something below it."""

    def names(setting: str, path: str) -> bool:
        start = setting.find(path)
        while start >= 0:
            after = setting[start + len(path) : start + len(path) + 1]
            if not after or after in "/\"' :;,":
                return True
            start = setting.find(path, start + 1)
        return False

    return tuple(setting for setting in settings if any(names(setting, path) for path in paths))


def parse_shown(text: str) -> dict[str, dict[str, str]]:
    """The blocks of ``systemctl show --property=Id,…`` by Id."""
    blocks = (dict(line.split("=", 1) for line in block.splitlines() if "=" in line) for block in text.split("\n\n"))
    return {block["Id"]: block for block in blocks if "Id" in block}


def parse_containers(engine: str, text: str) -> tuple[Container, ...]:
    """The lines of ``docker ps --no-trunc --format '{{json .}}'``. Raises ValueError for anything else."""
    found = []
    for line in text.splitlines():
        if line.strip():
            said = json.loads(line)
            if not isinstance(said, dict) or "ID" not in said:
                raise ValueError(f"a line names no container: {line[:80]}")
            texts = [str(said.get(name, "")) for name in ("ID", "Names", "Image", "Command", "Mounts")]
            found.append(Container(engine, texts[0][:12], texts[1], texts[2], texts[3].strip('"'), texts[4]))
    return tuple(found)


# ---- reading


def read_exec_start(name: str, *, user: bool, system: Path = Path("/"), home: Path | None = None) -> ExecStart | None:
    """What the service of this name starts; None when no file of it was found. `home` has the user's own units."""
    return exec_start(_texts_of_unit(name, user, system, home))


def read_unit_start(name: str, *, user: bool, system: Path = Path("/"), home: Path | None = None) -> UnitStart | None:
    """How the service of this name starts its program; None when no file of it with an ``ExecStart=`` was found.

    Raises ValueError, in words, for a command line that only systemd can fill in.
    """
    texts = _texts_of_unit(name, user, system, home)
    started = exec_start(texts)
    if started is None:
        return None
    settings = [setting for _, text in texts for setting in settings_of(text)]

    def read(path: str) -> str | None:
        try:
            return (system / path.lstrip("/")).read_text(errors="replace")
        except OSError:
            return None

    variables, unread = variables_of(settings, read)
    directory = ""
    for setting in settings:
        key, _, value = setting.partition("=")
        directory = value.strip().removeprefix("-") if key.strip() == "WorkingDirectory" else directory
    at_home = str(home or "")
    words = filled_in(started.words, variables, at_home)
    return UnitStart(tuple(words), variables, at_home if directory == "~" else directory, started.file, unread)


def _texts_of_unit(name: str, user: bool, system: Path, home: Path | None) -> list[tuple[str, str]]:
    """The files of a unit as (path, text): its own first, then its drop-ins in order of name."""
    own = [home / ".config/systemd/user"] if home is not None and user else []
    places = [*own, *(system / folder for folder in (_USER_FOLDERS if user else _SYSTEM_FOLDERS))]
    unit, *drop_ins = _unit_files(places).get(name, ("",))
    files = [unit, *sorted(drop_ins, key=lambda path: Path(path).name)]
    return [(path, text_of(Path(path))) for path in files if path]


def read_units(
    venv: Path | None,
    environment: Mapping[str, str],
    runner: Runner,
    *,
    system: Path = Path("/"),
    home: Path | None = None,
) -> UnitFacts:
    """The units that name `venv` by any of its spellings, and the running containers. `home` has the user's units."""
    unknown: dict[str, str] = {}
    units: list[Unit] = []
    if venv is not None:
        paths = list(dict.fromkeys([str(venv.absolute()), os.path.realpath(venv)]))
        own = [home / ".config/systemd/user"] if home is not None else []
        for user, folders in ((False, _SYSTEM_FOLDERS), (True, _USER_FOLDERS)):
            places = [*(own if user else ()), *(system / folder for folder in folders)]
            found = [
                Unit(name, user, files, named)
                for name, files in _unit_files(places).items()
                if (named := naming([line for file in files for line in settings_of(text_of(Path(file)))], paths))
            ]
            units += _with_states(found, user, environment, runner, system, unknown) if found else []
    else:
        unknown["units"] = "no environment is named (--venv)"
    return UnitFacts(tuple(units), _containers(environment, runner, unknown), unknown)


def _unit_files(folders: Sequence[Path]) -> dict[str, tuple[str, ...]]:
    """The files of each unit: its own from the first folder that has it, and all drop-ins."""
    own: dict[str, str] = {}
    more: dict[str, list[str]] = {}
    for folder in folders:
        for path in _entries(folder):
            if path.name.endswith(_SUFFIXES):
                own.setdefault(path.name, str(path))
            elif path.name.endswith(".d") and path.name[:-2].endswith(_SUFFIXES):
                more.setdefault(path.name[:-2], []).extend(
                    str(file) for file in _entries(path) if file.suffix == ".conf"
                )
    names = sorted({*own, *more})
    return {name: (*([own[name]] if name in own else []), *more.get(name, [])) for name in names}


def _entries(folder: Path) -> Iterator[Path]:
    try:
        yield from sorted(folder.iterdir())
    except OSError:
        return


def _with_states(
    units: list[Unit],
    user: bool,
    environment: Mapping[str, str],
    runner: Runner,
    system: Path,
    unknown: dict[str, str],
) -> list[Unit]:
    """The units with what systemctl says of them."""
    what = "user units' states" if user else "units' states"
    programs = programs_on_path(environment.get("PATH", ""), "systemctl")
    if not programs or not (system / "run/systemd/system").is_dir():  # sd_booted(3)
        unknown[what] = "systemd does not run here"
        return units
    argv = [
        str(programs[0]),
        *(["--user"] if user else []),
        "show",
        f"--property={SHOWN_PROPERTIES}",
        *(u.name for u in units),
    ]
    try:
        answer = runner(argv, timeout=SYSTEMCTL_SECONDS)
    except StartError as error:
        unknown[what] = str(error)
        return units
    if not answer.succeeded:
        unknown[what] = f"systemctl show: {answer.outcome()}, it said: {(answer.stderr.strip() or 'nothing')[:200]}"
        return units
    shown = parse_shown(answer.stdout)
    found = []
    for unit in units:
        said = shown.get(unit.name, {})
        pid = said.get("MainPID", "")
        active = f"{said['ActiveState']} ({said.get('SubState', '')})" if "ActiveState" in said else ""
        number = int(pid) if pid.isdigit() and pid != "0" else None
        found.append(Unit(unit.name, user, unit.files, unit.settings, active, said.get("UnitFileState", ""), number))
    return found


def _containers(environment: Mapping[str, str], runner: Runner, unknown: dict[str, str]) -> tuple[Container, ...]:
    found: tuple[Container, ...] = ()
    for engine in ("docker", "podman"):
        programs = programs_on_path(environment.get("PATH", ""), engine)
        if not programs:
            continue
        try:
            answer = runner([str(programs[0]), "ps", "--no-trunc", "--format", "{{json .}}"], timeout=ENGINE_SECONDS)
            if not answer.succeeded:
                said = (answer.stderr.strip() or "nothing").splitlines()[0]
                raise ValueError(f"{engine} ps: {answer.outcome()}, it said: {said[:200]}")
            found += parse_containers(engine, answer.stdout)
        except (StartError, ValueError) as error:
            unknown[engine] = str(error)
    return found
