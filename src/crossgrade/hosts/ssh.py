"""Connections to hosts over SSH, by Fabric.

OpenSSH's configuration counts: aliases, users, ports, ProxyJump, ProxyCommand, IdentityFile, IdentitiesOnly,
UserKnownHostsFile and ConnectTimeout of ~/.ssh/config and /etc/ssh/ssh_config; keys come from there, from the
agent, or from ~/.ssh. Host keys are always verified against known_hosts, those of jump hosts too, and an
unknown key is refused whatever StrictHostKeyChecking says. Not understood, so that such a host is refused as
unknown: HostKeyAlias, @cert-authority lines and wildcards in known_hosts. Nobody is asked for a password.

Fabric and Paramiko are loaded by the first connection (0.4 s).
"""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crossgrade.errors import HostUnreachableError, PlaybookError
from crossgrade.hosts.ssh_keys import KeyLogin
from crossgrade.jsontype import JSON

if TYPE_CHECKING:
    from fabric import Config, Connection
    from paramiko import PKey, SSHClient

ATTEMPTS = 3
FIRST_WAIT_SECONDS = 0.5
CONNECT_SECONDS = 10.0
LOGIN_SECONDS = 30.0
KEEPALIVE_SECONDS = 15
# How long sent bytes may stay unacknowledged before the kernel gives the connection up.
SILENCE_SECONDS = 45

_REFUSED_VARIABLES = {
    "ansible_ssh_common_args": "put what it says into ~/.ssh/config",
    "ansible_ssh_extra_args": "put what it says into ~/.ssh/config",
    "ansible_password": "use a key (ansible_ssh_private_key_file, or ssh-agent)",
    "ansible_ssh_pass": "use a key (ansible_ssh_private_key_file, or ssh-agent)",
    "ansible_become": "log in as the user who owns the environment (ansible_user)",
}


@dataclass(frozen=True)
class SshTarget:
    """Where and how to log in. `name` is the inventory's; None means what ~/.ssh/config or OpenSSH says.

    `crossgrade_command` is how crossgrade is called there, split as a shell would.
    """

    name: str
    address: str
    port: int | None = None
    user: str | None = None
    key_file: Path | None = None
    crossgrade_command: str = "crossgrade"


def ssh_target(name: str, variables: Mapping[str, JSON]) -> SshTarget:
    """The target that an inventory's host variables describe, under Ansible's names; pure but for ``~``.

    Understood: ansible_host, ansible_port, ansible_user, ansible_ssh_private_key_file (older ones with `ssh`
    too), crossgrade_command. Raises PlaybookError for a wrong value, and for a variable whose neglect would
    change who logs in where.
    """
    for variable, remedy in _REFUSED_VARIABLES.items():
        if variables.get(variable):
            raise PlaybookError(
                f"host {name}: crossgrade does not act on {variable} over SSH",
                remedy=f"Remove it and {remedy}.",
            )

    def text(*names: str) -> str | None:
        for variable in names:
            value = variables.get(variable)
            if value is None:
                continue
            if not isinstance(value, str) or not value.strip():
                raise PlaybookError(f"host {name}: {variable} must be text, not {value!r}")
            return value.strip()
        return None

    port = variables.get("ansible_port", variables.get("ansible_ssh_port"))
    if isinstance(port, str) and port.isdigit():
        port = int(port)
    if port is not None and not (isinstance(port, int) and not isinstance(port, bool) and 0 < port < 65536):
        raise PlaybookError(f"host {name}: ansible_port must be a number from 1 to 65535, not {port!r}")
    address = text("ansible_host", "ansible_ssh_host") or name
    if "@" in address or address.count(":") == 1 or any(character.isspace() for character in address):
        raise PlaybookError(
            f"host {name}: {address!r} is not a host name or an address",
            remedy="Write the user into ansible_user and the port into ansible_port.",
        )
    key_file = text("ansible_ssh_private_key_file", "ansible_private_key_file")
    return SshTarget(
        name=name,
        address=address,
        port=port,
        user=text("ansible_user", "ansible_ssh_user"),
        key_file=Path(key_file).expanduser() if key_file else None,
        crossgrade_command=text("crossgrade_command") or "crossgrade",
    )


def open_connection(
    target: SshTarget,
    *,
    attempts: int = ATTEMPTS,
    first_wait: float = FIRST_WAIT_SECONDS,
    on_retry: Callable[[str], None] | None = None,
) -> Connection:
    """An open, verified connection; close it, or use it in a `with` statement.

    What may pass by itself (refused, timed out, reset) is tried `attempts` times, with waits that grow from
    `first_wait` seconds; `on_retry` gets a sentence before each wait. Raises HostUnreachableError.
    """
    import tenacity
    from fabric import Config, Connection

    # Paramiko logs tracebacks of what it also raises; without a handler Python would print them.
    logging.getLogger("paramiko").addHandler(logging.NullHandler())
    with _reported(target.name):
        try:
            config = Config()
            settings = config.base_ssh_config.lookup(target.address)
            connection = Connection(
                target.address,
                user=target.user,
                port=target.port,
                config=config,
                gateway=_gateway(Connection, config, settings.get("proxyjump", "")),
            )
        except ValueError as error:
            raise HostUnreachableError(
                f"{target.name}: its settings for SSH are not valid: {error}",
                remedy=f"See what `ssh -G {target.address}` says about ~/.ssh/config.",
            ) from error

    def before_wait(state: tenacity.RetryCallState) -> None:
        if on_retry is not None and state.outcome is not None and state.next_action is not None:
            reason = _explain(state.outcome.exception() or OSError())[0]
            on_retry(f"{target.name}: {reason}; trying again in {state.next_action.sleep:.1f} s")

    retrying = tenacity.Retrying(
        stop=tenacity.stop_after_attempt(attempts),
        wait=tenacity.wait_exponential(multiplier=first_wait, max=10) + tenacity.wait_random(0, first_wait / 4),
        retry=tenacity.retry_if_exception(_may_pass),
        before_sleep=before_wait,
        reraise=True,
    )
    with _reported(target.name, attempts):
        retrying(_open, connection, target.name, target.key_file)
    return connection


def _gateway(connection: type[Connection], config: Config, jumps: str) -> Connection | bool | None:
    """The chain of jump hosts; None leaves a single one (or a ProxyCommand) to Fabric, False means none.

    Fabric 3.2 goes through several jump hosts in the wrong order and takes `none` for a host.
    """
    if jumps.strip().lower() == "none":
        return False
    if "," not in jumps:
        return None
    hop: Connection | bool = False
    for host in jumps.split(","):
        hop = connection(host.strip(), config=config.clone(), gateway=hop)
    return hop


def _open(connection: Connection, name: str, key_file: Path | None) -> None:
    """Open one connection and, before it, those that it goes through."""
    from paramiko import PKey

    if not isinstance(connection.gateway, (str, bool, type(None))):
        _open(connection.gateway, f"jump host {connection.gateway.original_host} of {name}", None)
    if connection.is_connected:
        return
    settings = connection.ssh_config
    connection.client.set_missing_host_key_policy(_RefuseUnknown(name, connection.port))
    for path in _known_hosts_files(settings):
        with contextlib.suppress(OSError):
            connection.client.load_system_host_keys(str(path))
    only_stated = settings.get("identitiesonly", "no") == "yes"
    stated = [key_file] if key_file else [Path(path).expanduser() for path in settings.get("identityfile", [])]
    connection.connect_timeout = int(settings.get("connecttimeout", CONNECT_SECONDS))
    connection.connect_kwargs = {
        "banner_timeout": CONNECT_SECONDS,
        "auth_timeout": LOGIN_SECONDS,
        "auth_strategy": KeyLogin(name, connection.user, stated, only_stated, key_file, PKey.from_path),
    }
    try:
        connection.open()
        _tune(connection)
    except BaseException:
        connection.client.close()  # Paramiko leaves its thread and socket behind when a login fails
        raise


def _tune(connection: Connection) -> None:
    """Small messages at once, and a dead link noticed within a minute."""
    transport = connection.transport
    transport.set_keepalive(KEEPALIVE_SECONDS)
    if isinstance(transport.sock, socket.socket):  # through a gateway it is a channel of the gateway's
        transport.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            transport.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE_SECONDS * 1000)


def _known_hosts_files(settings: Mapping[str, Any]) -> Iterator[Path]:
    """The files that OpenSSH would look a host up in (ssh_config(5), UserKnownHostsFile)."""
    stated = settings.get("userknownhostsfile", "~/.ssh/known_hosts ~/.ssh/known_hosts2")
    system = settings.get("globalknownhostsfile", "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2")
    for name in f"{stated} {system}".split():
        if name != "none":
            yield Path(name.strip('"')).expanduser()


class _RefuseUnknown:
    """Paramiko's policy for a host whose key is in no known_hosts file."""

    def __init__(self, name: str, port: int) -> None:
        self._name = name
        self._port = port

    def missing_host_key(self, client: SSHClient, hostname: str, key: PKey) -> None:  # noqa: ARG002 (Paramiko's)
        host = hostname.strip("[").partition("]")[0]
        raise HostUnreachableError(
            f"{self._name}: its host key is unknown ({key.get_name()} {key.fingerprint})",
            remedy=f"Connect once by `ssh -p {self._port} {host}` and compare the fingerprint, or add what"
            f" `ssh-keyscan -p {self._port} {host}` prints to ~/.ssh/known_hosts if you trust the network.",
        )


@contextlib.contextmanager
def _reported(name: str, attempts: int = 1) -> Iterator[None]:
    """Every failure to connect as a HostUnreachableError."""
    from paramiko import SSHException

    try:
        yield
    except HostUnreachableError:
        raise
    except (OSError, EOFError, SSHException) as error:
        reason, remedy = _explain(error)
        tries = f" ({attempts} attempts)" if attempts > 1 and _may_pass(error) else ""
        raise HostUnreachableError(f"{name}: {reason}{tries}", remedy=remedy) from error


def _may_pass(error: BaseException) -> bool:
    """Whether another attempt may succeed without anybody doing anything."""
    from paramiko import ChannelException, SSHException

    if isinstance(error, HostUnreachableError):
        return False
    if isinstance(error, socket.gaierror):
        return error.errno == socket.EAI_AGAIN
    if isinstance(error, (ConnectionError, TimeoutError, EOFError, ChannelException)):
        return True
    if isinstance(error, OSError):
        # Paramiko's NoValidConnectionsError, which stands for refused and no route, has no errno.
        unreachable = (None, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN)
        return error.errno in unreachable
    # Plain ones are broken or silent connections; the subclasses say that something does not fit.
    return type(error) is SSHException


def _explain(error: BaseException) -> tuple[str, str]:
    """What happened, and a remedy."""
    from paramiko import BadHostKeyException, ChannelException
    from paramiko.ssh_exception import NoValidConnectionsError

    if isinstance(error, BadHostKeyException):
        return (
            f"its host key is not the one in known_hosts ({error.key.get_name()} {error.key.fingerprint}): "
            "it was installed anew, or something stands in between",
            f"If the change is known: `ssh-keygen -R {error.hostname}` (with a port: '[HOST]:PORT'), "
            "then connect once by ssh.",
        )
    if isinstance(error, socket.gaierror):
        return "its name cannot be resolved", "Check ansible_host in the inventory and the name service."
    if isinstance(error, (ConnectionRefusedError, NoValidConnectionsError)):
        return (
            f"nothing answers there ({error})",
            "Check that the host is up and sshd runs, and ansible_host and ansible_port in the inventory.",
        )
    if isinstance(error, TimeoutError):
        return (
            "it does not answer in time",
            "Check that the host is up and that no firewall drops the connection.",
        )
    if isinstance(error, ChannelException):
        return f"the jump host cannot connect to it ({error.text})", "Try the same with ssh -v."
    return str(error) or type(error).__name__, "Try the same with ssh -v."
