"""wait_for: wait until a port is open or closed, or a file is there, gone or holds a text."""

from __future__ import annotations

import re
import socket
import struct
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from crossgrade.errors import TaskError
from crossgrade.modules.contract import ApplyContext, Change, HostView, Module, Outcome, Plan
from crossgrade.modules.files import absolute, entry_at, path_values
from crossgrade.playbook.arguments import argument

# include/net/tcp_states.h of the Linux kernel, as /proc/net/tcp writes them
CONNECTION_STATES = {
    "ESTABLISHED": 1,
    "SYN_SENT": 2,
    "SYN_RECV": 3,
    "FIN_WAIT1": 4,
    "FIN_WAIT2": 5,
    "TIME_WAIT": 6,
}
READ_BYTES = 1 << 16
Found = re.Match[bytes] | bool | None


@dataclass(frozen=True)
class Arguments:
    """Waits for a condition and fails when it does not come in time. Without port and path it just waits."""

    host: str = argument(doc="The host whose port is watched.", default="127.0.0.1")
    port: int | None = argument(doc="The TCP port.", default=None)
    path: str | None = argument(doc="The file or directory that is watched.", default=None)
    state: Literal["started", "present", "stopped", "absent", "drained"] = argument(
        doc="`started`, `present`: open or there; `stopped`, `absent`: closed or gone; `drained`: open, but "
        "nobody is connected.",
        default="started",
        choices=("started", "present", "stopped", "absent", "drained"),
    )
    timeout: float = argument(doc="Seconds until it fails.", default=300)
    delay: float = argument(doc="Seconds before the first look.", default=0)
    sleep: float = argument(doc="Seconds between two looks.", default=1)
    connect_timeout: float = argument(doc="Seconds for one attempt to connect.", default=5)
    search_regex: str | None = argument(
        doc="The file, or what the port sends, must match this somewhere (several lines are searched).", default=None
    )
    exclude_hosts: tuple[str, ...] = argument(doc="`drained`: connections from these do not count.", default=())
    active_connection_states: tuple[str, ...] = argument(
        doc="`drained`: the TCP states that count as connected.", default=tuple(CONNECTION_STATES)
    )
    msg: str | None = argument(doc="What to say when it fails.", default=None)
    mutually_exclusive: ClassVar[tuple[tuple[str, ...], ...]] = (("port", "path"),)


@dataclass(frozen=True)
class State:
    """What is watched. `pattern` is compiled, or None."""

    path: Path | None
    pattern: re.Pattern[bytes] | None


def inspect(arguments: Arguments, host: HostView) -> State:
    if arguments.path and arguments.state in ("stopped", "drained"):
        raise TaskError(f"`state: {arguments.state}` is for ports", remedy="For a path: present or absent.")
    if arguments.state == "drained" and arguments.port is None:
        raise TaskError("`state: drained` needs a `port`")
    if arguments.exclude_hosts and arguments.state != "drained":
        raise TaskError("`exclude_hosts` goes with `state: drained` only")
    for name in arguments.active_connection_states:
        if name not in CONNECTION_STATES:
            raise TaskError(f"{name!r} is no TCP state", remedy=f"Known: {', '.join(CONNECTION_STATES)}.")
    pattern = None
    if arguments.search_regex is not None:
        try:
            pattern = re.compile(arguments.search_regex.encode(), re.MULTILINE)
        except re.error as error:
            raise TaskError(f"`search_regex` is no regular expression: {error}") from error
    return State(absolute(arguments.path, host) if arguments.path else None, pattern)


def plan(arguments: Arguments, state: State) -> Plan:
    return Change(f"wait {_what(arguments, state)}", values_known=False, payload={"state": state})


def _what(arguments: Arguments, state: State) -> str:
    if state.path is None and arguments.port is None:
        return f"{arguments.timeout:g} s"
    subject = str(state.path) if state.path else f"{arguments.host}:{arguments.port}"
    if arguments.search_regex is not None and arguments.state in ("started", "present"):
        return f"until {subject} shows {arguments.search_regex!r}"
    kinds = {"started": "present", "stopped": "absent"} if state.path else {"present": "started", "absent": "stopped"}
    words = {
        "started": "is open",
        "stopped": "is closed",
        "drained": "is drained",
        "present": "exists",
        "absent": "is gone",
    }
    return f"until {subject} {words[kinds.get(arguments.state, arguments.state)]}"


def apply(arguments: Arguments, change: Change, context: ApplyContext) -> Outcome:
    state: State = change.payload["state"]
    started = time.monotonic()
    deadline = started + arguments.timeout
    time.sleep(arguments.delay)
    look = _condition(arguments, state, deadline)
    if look is None:
        time.sleep(max(0.0, deadline - time.monotonic()))
        return Outcome(_values(arguments, state, started, True))
    while time.monotonic() < deadline:
        found = look()
        if found:
            return Outcome(_values(arguments, state, started, found))
        context.progress(f"waiting {_what(arguments, state)} ({time.monotonic() - started:.0f} s)")
        time.sleep(max(0.0, min(arguments.sleep, deadline - time.monotonic())))
    message = arguments.msg or f"waited {arguments.timeout:g} s in vain {_what(arguments, state)}"
    values = {"msg": message, "elapsed": int(time.monotonic() - started)}
    return Outcome(values, failed=True, message=message)


def _values(arguments: Arguments, state: State, started: float, found: Found) -> dict[str, Any]:
    match = found if isinstance(found, re.Match) else None
    groups = match.groups() if match else ()
    named = match.groupdict() if match else {}
    return {
        "state": arguments.state,
        "port": arguments.port,
        "path": arguments.path,
        "search_regex": arguments.search_regex,
        "match_groups": [_text(group) for group in groups],
        "match_groupdict": {name: _text(group) for name, group in named.items()},
        "elapsed": int(time.monotonic() - started),
        # Ansible's adds this to every result that names a path, over the `state` that was asked for
        **(path_values(entry_at(state.path)) if state.path is not None and state.path.exists() else {}),
    }


def _text(group: bytes | None) -> str | None:
    return None if group is None else group.decode(errors="replace")


def _condition(arguments: Arguments, state: State, deadline: float) -> Callable[[], Found] | None:
    """What to look at each time; None when there is only time to pass."""
    path, pattern, port = state.path, state.pattern, arguments.port
    wants_it = arguments.state in ("started", "present")
    if path is not None:
        return (lambda: _file(path, pattern)) if wants_it else (lambda: not path.exists())
    if port is None:
        return None
    if arguments.state == "drained":
        return lambda: not _connections(arguments, port)
    if wants_it:
        return lambda: _port(arguments, port, pattern, deadline)
    return lambda: not _accepts(arguments, port, deadline)


def _file(path: Path, pattern: re.Pattern[bytes] | None) -> Found:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    if pattern is None:
        return True
    try:
        return pattern.search(path.read_bytes())
    except OSError:  # it may be readable at the next look
        return False


def _accepts(arguments: Arguments, port: int, deadline: float) -> bool:
    """Whether anybody listens there, even one who hangs up at once."""
    try:
        socket.create_connection((arguments.host, port), _patience(arguments, deadline)).close()
    except (OSError, OverflowError):
        return False
    return True


def _patience(arguments: Arguments, deadline: float) -> float:
    return max(0.05, min(arguments.connect_timeout, deadline - time.monotonic()))


def _port(arguments: Arguments, port: int, pattern: re.Pattern[bytes] | None, deadline: float) -> Found:
    try:
        with socket.create_connection((arguments.host, port), _patience(arguments, deadline)) as connection:
            if pattern is None:
                # one that the other side has reset already is not open for us
                connection.shutdown(socket.SHUT_RDWR)
                return True
            received = b""
            while (left := deadline - time.monotonic()) > 0:
                connection.settimeout(left)
                block = connection.recv(READ_BYTES)
                received += block
                if match := pattern.search(received):
                    return match
                if not block:
                    return False
    except (OSError, OverflowError):
        return False
    return False


# ---- connections of others, from /proc/net/tcp and tcp6 (proc(5))


def _connections(arguments: Arguments, port: int) -> int:
    lines: list[str] = []
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            lines += Path("/proc/net", name).read_text(encoding="ascii").splitlines()[1:]
    wanted = {CONNECTION_STATES[name] for name in arguments.active_connection_states}
    here = {address for name in (arguments.host, "0.0.0.0", "::") for address in _addresses(name)}  # noqa: S104 - compared, not bound
    return count_connections(
        lines, port, wanted, here, {a for name in arguments.exclude_hosts for a in _addresses(name)}
    )


def count_connections(lines: Iterable[str], port: int, states: set[int], here: set[bytes], excluded: set[bytes]) -> int:
    """How many connections to a local port there are. Addresses are 16 bytes, IPv4 as ::ffff:a.b.c.d."""
    count = 0
    for line in lines:
        fields = line.split()
        (local, local_port), (remote, _) = (field.split(":") for field in fields[1:3])
        if int(local_port, 16) == port and int(fields[3], 16) in states:
            count += _from_proc(local) in here and _from_proc(remote) not in excluded
    return count


def _from_proc(text: str) -> bytes:
    """The kernel writes each four bytes as one number in its own byte order."""
    words = [int(text[start : start + 8], 16) for start in range(0, len(text), 8)]
    return _sixteen(struct.pack(f"={len(words)}I", *words))


def _sixteen(address: bytes) -> bytes:
    return address if len(address) == 16 else bytes(10) + b"\xff\xff" + address


def _addresses(host: str) -> set[bytes]:
    try:
        found = socket.getaddrinfo(host, None, proto=socket.IPPROTO_TCP)
    except OSError as error:
        raise TaskError(f"the host {host!r} has no address: {error}") from error
    return {_sixteen(socket.inet_pton(family, str(place[0]))) for family, _, _, _, place in found}


MODULE = Module(
    name="wait_for",
    arguments=Arguments,
    effect="checks",
    inspect=inspect,
    plan=plan,
    apply=apply,
    proves_itself=False,
    summary="Wait for a port or a file.",
)
