"""A command of crossgrade on another host, followed line by line over SSH.

The host has its own crossgrade, of the same version; the command runs there, beside the environment that it
changes. The playbook's folder is copied to a private directory there first.

What this station does not do yet: bring crossgrade to the host, start the run detached, and attach to it
again after the connection dropped. Until then a run whose connection drops may end there with its next line
of output; `crossgrade status` there tells from the journal, and the next command there resumes or undoes it.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import queue
import secrets
import shlex
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from crossgrade import __version__
from crossgrade.errors import CrossgradeError, HostUnreachableError

if TYPE_CHECKING:
    from fabric import Connection
    from paramiko import Channel, SFTPClient

MAX_FILES = 2000
MAX_BYTES = 64 << 20
READ_BYTES = 1 << 16
# How long to wait for more output after the command ended: something it left behind may hold the pipe open.
QUIET_SECONDS = 1.0
_NOT_COPIED = {".git", ".crossgrade", ".venv", "__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache"}

Listener = Callable[[str], None]


class RunLostError(HostUnreachableError):
    """The connection dropped while a command ran; what became of it is not known here."""


class RemoteSetupError(CrossgradeError, RuntimeError):
    """The host is not ready for a run, or the playbook cannot be copied there. Nothing was changed."""


@dataclass(frozen=True)
class FileToCopy:
    """One file of the playbook's folder: its path relative to the folder, and whether it is executable."""

    path: str
    executable: bool


def run_remote(
    connection: Connection,
    command: Sequence[str],
    on_line: Listener,
    *,
    on_stderr: Listener | None = None,
    playbook: Path | None = None,
    program: str = "crossgrade",
    name: str = "",
) -> int:
    """Run a command of the host's crossgrade and return its exit code.

    `command` is the subcommand with its arguments, without `--json` and `--playbook`, which are added:
    ``["upgrade", "--yes", "-e", "x=a b"]``. `playbook` is a local file; its folder, without version control
    and caches, is copied there, and is removed after the run together with nothing else. `on_line` gets each
    line of standard output (an event as JSON), `on_stderr` each line of text, both in this thread.
    `program` is how crossgrade is called there, `name` the host's name for messages. The command starts in
    the home directory of the user there.

    Raises RemoteSetupError before anything ran; RunLostError when the connection drops; HostUnreachableError
    when it was not there. An exception of a listener ends the following, not the run.
    """
    host = name or connection.original_host
    tell = on_stderr or (lambda _line: None)
    with _transport_errors(host):
        argv = _program(connection, program, host)
        _require_same_version(connection, argv, host)
    arguments = [*argv, *command[:1], "--json"]
    folder = None
    if playbook is not None:
        files = files_to_copy(playbook.parent)
        with _transport_errors(host):
            folder = _copy(connection, playbook.parent, files, host)
        arguments += ["--playbook", f"{folder}/{playbook.name}"]
    exit_code = _follow(connection, [*arguments, *command[1:]], on_line, tell, host)
    if playbook is not None and folder is not None:
        with contextlib.suppress(HostUnreachableError, RemoteSetupError), _transport_errors(host):
            if not _remove(connection.sftp(), folder, files):
                tell(f"{host}: {folder} was left there, because the run made files in it")
    return exit_code


def files_to_copy(folder: Path) -> tuple[FileToCopy, ...]:
    """The files of a playbook's folder in order; reads only the file system.

    Left out: version control, caches, crossgrade's own store, virtual environments. Links to files count as
    files, links to directories are not followed. Raises RemoteSetupError when there is too much.
    """
    found: list[FileToCopy] = []
    size = 0
    for place, directories, names in os.walk(folder):
        directories[:] = sorted(
            name for name in directories if name not in _NOT_COPIED and not (Path(place) / name / "pyvenv.cfg").exists()
        )
        for name in sorted(names):
            path = Path(place) / name
            if not path.is_file():  # a socket, a pipe, a dangling link
                continue
            status = path.stat()
            size += status.st_size
            found.append(FileToCopy(path.relative_to(folder).as_posix(), bool(status.st_mode & stat.S_IXUSR)))
            if len(found) > MAX_FILES or size > MAX_BYTES:
                raise RemoteSetupError(
                    f"{folder} holds more than {MAX_FILES} files or {MAX_BYTES >> 20} MiB, too much to copy",
                    remedy="Put the playbook and what it uses into a folder of their own.",
                )
    return tuple(found)


def _program(connection: Connection, program: str, host: str) -> list[str]:
    """The command line's beginning; ``~/`` becomes the home directory there, as no shell will do it."""
    try:
        argv = shlex.split(program)
    except ValueError as error:
        raise RemoteSetupError(f"{host}: crossgrade_command is not a command: {error}") from error
    if not argv:
        raise RemoteSetupError(f"{host}: crossgrade_command is empty")
    if argv[0].startswith("~/"):
        argv[0] = f"{connection.sftp().normalize('.')}{argv[0][1:]}"
    return argv


def _require_same_version(connection: Connection, argv: Sequence[str], host: str) -> None:
    output: list[str] = []
    errors: list[str] = []
    code = _execute(connection, [*argv, "--version"], output.append, errors.append)
    found = output[0].split()[-1] if output and output[0].split() else ""
    if code == 0 and found == __version__:
        return
    install = f"pip install crossgrade=={__version__}"
    if code == 0 and found:
        raise RemoteSetupError(
            f"{host}: its crossgrade is {found}, the one here is {__version__}", remedy=f"There: `{install}`."
        )
    said = next(iter([*errors, *output]), "nothing")
    raise RemoteSetupError(
        f"{host}: `{shlex.join([*argv, '--version'])}` gives no version (exit code {code}, it said: {said})",
        remedy=f"There: `{install}` in a virtual environment; then set crossgrade_command in the inventory"
        " to the path of its bin/crossgrade.",
    )


def _copy(connection: Connection, folder: Path, files: Sequence[FileToCopy], host: str) -> str:
    """Copy the files to a new directory that only this user can enter; returns its path there."""
    place = f"/tmp/crossgrade-{secrets.token_hex(8)}"  # noqa: S108  # there; mkdir fails where the name exists
    try:
        sftp = connection.sftp()
        sftp.mkdir(place, 0o700)
        for directory in _directories(files):
            sftp.mkdir(f"{place}/{directory}", 0o700)
        for file in files:
            sftp.put(str(folder / file.path), f"{place}/{file.path}")
            sftp.chmod(f"{place}/{file.path}", 0o700 if file.executable else 0o600)
    except OSError as error:
        if isinstance(error, ConnectionError):
            raise
        raise RemoteSetupError(
            f"{host}: the playbook cannot be copied to {place} there: {error}",
            remedy="Check the space and the permissions of /tmp there.",
        ) from error
    return place


def _directories(files: Sequence[FileToCopy]) -> list[str]:
    """The directories that the files stand in, parents first."""
    parents = {parent.as_posix() for file in files for parent in Path(file.path).parents}
    return sorted(parents - {"."})


def _remove(sftp: SFTPClient, place: str, files: Sequence[FileToCopy]) -> bool:
    """Remove what `_copy` made and nothing else; False where something else stands in it."""
    for file in files:
        with contextlib.suppress(FileNotFoundError):
            sftp.remove(f"{place}/{file.path}")
    directories = [f"{place}/{directory}" for directory in reversed(_directories(files))]
    try:
        for directory in [*directories, place]:
            sftp.rmdir(directory)
    except OSError:
        return False
    return True


def _follow(connection: Connection, argv: Sequence[str], on_line: Listener, on_stderr: Listener, host: str) -> int:
    with _transport_errors(host):
        code = _execute(connection, argv, on_line, on_stderr)
    if code is not None:
        return code
    connection.transport.join(QUIET_SECONDS)  # it ends just after its channels
    look = "Look there with `crossgrade status`; `crossgrade upgrade --resume` or `rollback` ends what it began."
    if connection.transport.is_active():
        raise RunLostError(f"{host}: crossgrade there was killed by a signal", remedy=look)
    raise RunLostError(f"{host}: the connection dropped; the run may go on there", remedy=look)


def _execute(connection: Connection, argv: Sequence[str], on_stdout: Listener, on_stderr: Listener) -> int | None:
    """Run a program there; None when it ended without an exit code or the connection dropped.

    SSH carries one string, which the user's login shell there takes apart again (RFC 4254, 6.5). This is the
    one place where an argument list becomes a string: quoted as POSIX shells read it.
    """
    channel: Channel = connection.create_session()
    lines: queue.SimpleQueue[tuple[Listener, str] | None] = queue.SimpleQueue()

    def pump(receive: Callable[[int], bytes], listener: Listener) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        rest = ""
        with contextlib.suppress(OSError):
            while data := receive(READ_BYTES):
                *whole, rest = (rest + decoder.decode(data)).split("\n")
                for line in whole:
                    lines.put((listener, line.rstrip("\r")))
        rest += decoder.decode(b"", final=True)
        if rest:
            lines.put((listener, rest))
        lines.put(None)

    try:
        channel.exec_command(shlex.join(argv))
        channel.shutdown_write()
        for receive, listener in ((channel.recv, on_stdout), (channel.recv_stderr, on_stderr)):
            threading.Thread(target=pump, args=(receive, listener), daemon=True).start()
        _deliver(lines, channel)
        code = channel.recv_exit_status()
    finally:
        channel.close()
    return None if code < 0 else code


class _ListenerError(Exception):
    """Carries an exception of a listener past the translation of transport errors."""


def _deliver(lines: queue.SimpleQueue[tuple[Listener, str] | None], channel: Channel) -> None:
    """Hand lines over until both streams have ended."""
    open_streams = 2
    while open_streams:
        try:
            item = lines.get(timeout=QUIET_SECONDS)
        except queue.Empty:
            if channel.exit_status_ready():
                return
            continue
        if item is None:
            open_streams -= 1
            continue
        listener, line = item
        try:
            listener(line)
        except Exception as error:
            raise _ListenerError from error


@contextlib.contextmanager
def _transport_errors(host: str) -> Iterator[None]:
    """Errors of the connection, but not those of listeners, as HostUnreachableError."""
    from paramiko import SSHException

    try:
        yield
    except _ListenerError as error:
        raise error.__cause__ or error from None
    except CrossgradeError:
        raise
    except (OSError, EOFError, SSHException) as error:
        raise HostUnreachableError(
            f"{host}: the connection failed: {error or type(error).__name__}",
            remedy="Look there with `crossgrade status`, then try again.",
        ) from error
