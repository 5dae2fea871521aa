"""Connections to a real sshd on loopback: keys, host keys, OpenSSH's configuration, failures."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.sshd import Sshd, free_port, keygen, running_sshd, trust, wait_until

from crossgrade.errors import ExitCode, HostUnreachableError, PlaybookError
from crossgrade.hosts.ssh import SshTarget, open_connection, ssh_target
from crossgrade.jsontype import JSON


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with running_sshd(tmp_path_factory.mktemp("sshd")) as server:
        yield server


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory without any keys, and no agent."""
    (tmp_path / ".ssh").mkdir(mode=0o700)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return tmp_path


@pytest.fixture
def known(sshd: Sshd, home: Path) -> SshTarget:
    """The target, its host key written where OpenSSH would write it."""
    trust(home, sshd, sshd.place / "host_key.pub")
    return sshd.target


# Connecting


def test_an_open_connection_is_tuned(known: SshTarget) -> None:
    with open_connection(known) as connection:
        sock = connection.transport.sock
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 45_000
        assert connection.run("echo here", hide=True, in_stream=False).stdout == "here\n"


def test_an_unknown_host_key_is_refused(sshd: Sshd) -> None:
    fingerprint = subprocess.check_output(["ssh-keygen", "-lf", sshd.place / "host_key.pub"], text=True).split()[1]
    with pytest.raises(HostUnreachableError, match="node1: its host key is unknown") as caught:
        open_connection(sshd.target)
    assert fingerprint in caught.value.message
    assert f"ssh-keyscan -p {sshd.port} 127.0.0.1" in caught.value.remedy
    assert caught.value.exit_code is ExitCode.UNREACHABLE


def test_openssh_settings_do_not_weaken_that(sshd: Sshd, home: Path) -> None:
    (home / ".ssh/config").write_text("StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\n")
    with pytest.raises(HostUnreachableError, match="its host key is unknown"):
        open_connection(sshd.target)


def test_what_the_remedy_says_helps(sshd: Sshd, home: Path) -> None:
    scanned = subprocess.run(
        ["ssh-keyscan", "-p", str(sshd.port), "127.0.0.1"], capture_output=True, text=True, check=True
    )
    (home / ".ssh/known_hosts").write_text(scanned.stdout)
    open_connection(sshd.target).close()


def test_a_changed_host_key_is_refused(sshd: Sshd, home: Path, tmp_path: Path) -> None:
    trust(home, sshd, keygen(tmp_path / "other").with_suffix(".pub"))
    with pytest.raises(HostUnreachableError, match="host key is not the one in known_hosts"):
        open_connection(sshd.target)


def test_hashed_known_hosts(sshd: Sshd, home: Path) -> None:
    trust(home, sshd, sshd.place / "host_key.pub")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", home / ".ssh/known_hosts"], check=True, capture_output=True)
    assert "127.0.0.1" not in (home / ".ssh/known_hosts").read_text()
    open_connection(sshd.target).close()


def test_a_wrong_key_is_refused_at_once_and_named(known: SshTarget, tmp_path: Path) -> None:
    wrong = keygen(tmp_path / "wrong")
    waits: list[str] = []
    with pytest.raises(HostUnreachableError, match=f"login as {getpass.getuser()} failed: {wrong} was refused"):
        open_connection(replace(known, key_file=wrong), on_retry=waits.append)
    assert waits == []


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (Path.exists, "does not exist"),
        (lambda path: keygen(path, "locked"), "has a passphrase"),
        (lambda path: path.write_text("no key"), "cannot be read"),
    ],
)
def test_keys_that_cannot_be_used(
    known: SshTarget, tmp_path: Path, prepare: Callable[[Path], object], words: str
) -> None:
    prepare(tmp_path / "key")
    with pytest.raises(HostUnreachableError, match=words):
        open_connection(replace(known, key_file=tmp_path / "key"))


def test_without_any_key(known: SshTarget) -> None:
    with pytest.raises(HostUnreachableError, match="there is no key to offer"):
        open_connection(replace(known, key_file=None))


def test_the_key_in_the_usual_place(known: SshTarget, home: Path) -> None:
    assert known.key_file is not None
    shutil.copy(known.key_file, home / ".ssh/id_ed25519")
    open_connection(replace(known, key_file=None)).close()


def test_a_key_with_a_passphrase_from_the_agent(
    known: SshTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = tmp_path / "locked"
    assert known.key_file is not None
    shutil.copy(known.key_file, key)
    shutil.copy(f"{known.key_file}.pub", f"{key}.pub")
    agent_socket = f"/tmp/crossgrade-test-agent-{os.getpid()}"  # noqa: S108  # a socket's path must be short
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", agent_socket], stdout=subprocess.DEVNULL)
    try:
        wait_until(Path(agent_socket).exists, "the agent's start")
        monkeypatch.setenv("SSH_AUTH_SOCK", agent_socket)
        subprocess.run(["ssh-add", "-q", key], check=True)
        subprocess.run(["ssh-keygen", "-q", "-p", "-P", "", "-N", "secret", "-f", key], check=True)
        open_connection(replace(known, key_file=key)).close()
    finally:
        agent.terminate()
        agent.wait(10)
        Path(agent_socket).unlink(missing_ok=True)


def test_a_closed_port_is_tried_again_and_then_unreachable(known: SshTarget) -> None:
    waits: list[str] = []
    closed = replace(known, port=free_port())
    with pytest.raises(HostUnreachableError, match=r"nothing answers there .*\(3 attempts\)") as caught:
        open_connection(closed, first_wait=0.01, on_retry=waits.append)
    assert len(waits) == 2
    assert "node1" in waits[0]
    assert "ansible_port" in caught.value.remedy


def test_a_host_that_comes_up_meanwhile_is_reached(known: SshTarget, sshd: Sshd) -> None:
    port = free_port()
    late = threading.Timer(0.3, forward, (port, sshd.port))
    late.start()
    with pytest.raises(HostUnreachableError, match="its host key is unknown"):  # another port, another name
        open_connection(replace(known, port=port), attempts=6, first_wait=0.1)
    late.join()


def forward(port: int, target: int) -> None:
    """Pass one connection on, both ways, until it ends."""
    with socket.create_server(("127.0.0.1", port)) as server:
        near, _ = server.accept()
    with near, socket.create_connection(("127.0.0.1", target)) as far:

        def pump(source: socket.socket, sink: socket.socket) -> None:
            try:
                while data := source.recv(65536):
                    sink.sendall(data)
                sink.shutdown(socket.SHUT_WR)
            except OSError:
                return

        back = threading.Thread(target=pump, args=(far, near))
        back.start()
        pump(near, far)
        back.join(10)


def test_a_port_that_speaks_no_ssh(known: SshTarget) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        greeter = threading.Thread(target=greet, args=(server,))
        greeter.start()
        target = replace(known, port=server.getsockname()[1])
        with pytest.raises(HostUnreachableError, match="node1"):
            open_connection(target, attempts=1)
        greeter.join()


def greet(server: socket.socket) -> None:
    client, _ = server.accept()
    with client:
        client.sendall(b"220 this is a mail server\r\n")


def test_a_name_that_does_not_exist(known: SshTarget) -> None:
    with pytest.raises(HostUnreachableError, match="its name cannot be resolved"):
        open_connection(replace(known, address="no-such-host.invalid"), attempts=1)


# OpenSSH's configuration


def test_an_alias_of_ssh_config(known: SshTarget, sshd: Sshd, home: Path) -> None:
    (home / ".ssh/config").write_text(
        f'Host gpu\n  Hostname 127.0.0.1\n  Port {sshd.port}\n  IdentityFile "{known.key_file}"\n'
    )
    with open_connection(SshTarget("gpu", "gpu")) as connection:
        assert connection.run("true", hide=True, in_stream=False).ok


@pytest.mark.parametrize("hops", [1, 2])
def test_through_jump_hosts(known: SshTarget, sshd: Sshd, home: Path, hops: int) -> None:
    common = f'Hostname 127.0.0.1\n  Port {sshd.port}\n  IdentityFile "{known.key_file}"\n'
    jumps = ",".join(["jump1", "jump2"][:hops])
    (home / ".ssh/config").write_text(
        f"Host jump*\n  {common}\nHost inside\n  ProxyJump {jumps}\n  {common}\n"
        f"Host direct\n  ProxyJump none\n  {common}"
    )
    with open_connection(SshTarget("inside", "inside")) as connection:
        assert connection.run("echo $SSH_CONNECTION", hide=True, in_stream=False).stdout.split()[-1] == str(sshd.port)
        chain = [connection.gateway]
        while chain[-1].gateway:
            chain.append(chain[-1].gateway)
        assert [gateway.original_host for gateway in chain] == ["jump2", "jump1"][-hops:]
        for gateway in reversed(chain):
            gateway.close()
    open_connection(SshTarget("direct", "direct")).close()


def test_the_key_of_a_jump_host_is_verified_too(known: SshTarget, sshd: Sshd, home: Path) -> None:
    (home / ".ssh/config").write_text(
        f'Host jump\n  Hostname localhost\n  Port {sshd.port}\n  IdentityFile "{known.key_file}"\n'
        "Host 127.0.0.1\n  ProxyJump jump\n"
    )
    with pytest.raises(HostUnreachableError, match="jump host jump of node1: its host key is unknown"):
        open_connection(known)


# Host variables


def test_host_variables() -> None:
    variables: dict[str, JSON] = {
        "ansible_host": "10.0.0.7",
        "ansible_port": "2222",
        "ansible_user": "ml",
        "ansible_ssh_private_key_file": "/keys/ml",
        "crossgrade_command": "~/cg/bin/crossgrade",
        "ansible_become": False,
        "other": [1],
    }
    expected = SshTarget("gpu7", "10.0.0.7", 2222, "ml", Path("/keys/ml"), "~/cg/bin/crossgrade")
    assert ssh_target("gpu7", variables) == expected
    assert ssh_target("gpu7", {}) == SshTarget("gpu7", "gpu7")
    assert ssh_target("v6", {"ansible_host": "fe80::1"}).address == "fe80::1"


@pytest.mark.parametrize(
    "variables",
    [
        {"ansible_port": 0},
        {"ansible_port": "ssh"},
        {"ansible_port": True},
        {"ansible_user": 3},
        {"ansible_host": "ml@10.0.0.7"},
        {"ansible_host": "10.0.0.7:22"},
        {"ansible_become": True},
        {"ansible_password": "x"},
        {"ansible_ssh_common_args": "-o StrictHostKeyChecking=no"},
    ],
)
def test_host_variables_that_cannot_be_honoured(variables: dict[str, JSON]) -> None:
    with pytest.raises(PlaybookError, match="host gpu7"):
        ssh_target("gpu7", variables)
