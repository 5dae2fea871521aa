"""Reading what `serving` needs from /proc (proc(5)), and which folder is the environment of a server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from crossgrade.facts.serving import ProcessRecord, Server, find_launch, find_servers
from crossgrade.facts.text import is_there

_LISTENING = "0A"


def read_servers(proc: Path = Path("/proc")) -> tuple[Server, ...]:
    """The servers that run on this machine, also those of other users."""
    records = [record for folder in proc.iterdir() if folder.name.isdigit() for record in _record(folder)]
    return find_servers(records)


def environment_of(server: Server) -> Path | None:
    """The environment that a server runs from: of the folders that may be it, the first that is one."""
    return next((Path(folder) for folder in server.venvs if is_environment(Path(folder))), None)


def is_environment(folder: Path) -> bool:
    return is_there(folder / "bin" / "python") and (is_there(folder / "pyvenv.cfg") or is_there(folder / "conda-meta"))


def _record(folder: Path) -> Iterator[ProcessRecord]:
    """The record of a process that starts a server; nothing for others, and for one that ends meanwhile."""
    with suppress(OSError):
        arguments = _words(folder / "cmdline")
        if find_launch(arguments) is None:
            return
        # the name in parentheses may hold spaces and parentheses itself
        parent = int((folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
        uid = folder.stat().st_uid
        group = (folder / "cgroup").read_text(errors="replace")
        try:
            variables = dict(word.partition("=")[::2] for word in _words(folder / "environ"))
            directory = os.readlink(folder / "cwd")  # noqa: PTH115 - it may be gone: `/tmp/x (deleted)`
            program = os.readlink(folder / "exe")  # noqa: PTH115
            elsewhere = not (folder / "root").samefile("/")
            ports = _ports(folder)
        except PermissionError:
            yield ProcessRecord(int(folder.name), parent, arguments, uid, control_group=group)
            return
        local = frozenset(_local(arguments, Path(directory)))
        yield ProcessRecord(
            int(folder.name), parent, arguments, uid, program, directory, variables, group, ports, local, elsewhere
        )


def _local(arguments: tuple[str, ...], directory: Path) -> Iterator[str]:
    for word in arguments[1:]:
        value = word.partition("=")[2] if word.startswith("--") and "=" in word else word
        if value and not value.startswith(("-", "/")) and is_there(directory / value):
            yield value


def _ports(folder: Path) -> tuple[int, ...]:
    """The TCP ports that a process listens on."""
    sockets = set()
    for entry in os.scandir(folder / "fd"):
        with suppress(OSError):  # it was closed meanwhile
            target = os.readlink(entry.path)  # noqa: PTH115
            if target.startswith("socket:["):
                sockets.add(target[8:-1])
    found = set()
    for table in ("tcp", "tcp6"):
        with suppress(FileNotFoundError):
            for line in (folder / "net" / table).read_text(encoding="ascii").splitlines():
                fields = line.split()
                if len(fields) > 9 and fields[3] == _LISTENING and fields[9] in sockets:
                    found.add(int(fields[1].rpartition(":")[2], 16))
    return tuple(sorted(found))


def _words(path: Path) -> tuple[str, ...]:
    """Bytes that are no text become U+FFFD: what is read here is shown and written."""
    return tuple(word.decode("utf-8", "replace") for word in path.read_bytes().split(b"\0")[:-1])
