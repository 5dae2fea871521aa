"""A server under test from the systemd service that starts the working one: its command line and its variables.

The unit itself is left alone: systemd would start it on its own port, from the active environment and under its own
name. So what it starts is read from its files and started as a command, on a free port, from the environment that is
judged. What `crossgrade init` leaves out of a server under test is left out here too: keys, certificates, paths of the
old toolkit, caches.
"""

from __future__ import annotations

from pathlib import Path

from crossgrade.errors import TaskError
from crossgrade.facts.serving import ProcessRecord, Secret, describe, find_launch
from crossgrade.facts.units import UnitStart, read_unit_start


def read_unit(name: str, *, user: bool, system: Path = Path("/")) -> tuple[tuple[str, ...], dict[str, str]]:
    """The command, with ``{python}``, ``{venv}``, ``{host}`` and ``{port}``, and the variables of a service's server.

    Raises TaskError when there is no such service, or none that starts a server that is known.
    """
    name = name if "." in name else f"{name}.service"
    try:
        started = read_unit_start(name, user=user, system=system, home=Path.home())
    except ValueError as error:
        raise TaskError(f"{name}: only systemd can fill in {error} of its command line", remedy=_BY_HAND) from error
    if started is None:
        raise TaskError(f"no file of {name} with an ExecStart= was found", remedy=_BY_HAND)
    if started.unread:
        raise TaskError(
            f"{name}: cannot read {', '.join(started.unread)}, which holds variables of the server",
            remedy="run as a user who may",
        )
    return command_of(name, started)


_BY_HAND = "give the server's `command` and `environment`, as `crossgrade init` writes them"


def command_of(name: str, started: UnitStart) -> tuple[tuple[str, ...], dict[str, str]]:
    """The same from what a service starts. Pure, but for looking which words name something in its directory."""
    before, launch = [], None
    for at, word in enumerate(started.words):
        rest = started.words[at:]
        launch = find_launch(rest) or find_launch(("python", *rest))
        if launch is not None:
            break
        before.append(word)
    if launch is None:
        raise TaskError(
            f"{name} starts {started.words[0]}: how that starts a server is not known here ({started.file})",
            remedy=_BY_HAND,
        )
    directory = started.directory or "/"
    local = frozenset(
        word for word in started.words if not word.startswith(("/", "-")) and Path(directory, word).exists()
    )
    record = ProcessRecord(0, 0, started.words, directory=directory, environment=started.variables, local=local)
    server = describe(record, launch)
    hidden = [word.where for word in server.command if isinstance(word, Secret)]
    if hidden:
        raise TaskError(
            f"{name}: its command line holds a secret ({', '.join(hidden)}), which is not taken over", remedy=_BY_HAND
        )
    command = (*before, *(word for word in server.command if isinstance(word, str)))
    return command, {variable: started.variables[variable] for variable in server.environment}
