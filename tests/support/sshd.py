"""A real sshd on loopback, started and stopped by the tests that use it."""

from __future__ import annotations

import contextlib
import getpass
import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from crossgrade import __version__
from crossgrade.hosts.ssh import SshTarget

SSHD_CONFIG = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {place}/host_key
PidFile none
AuthorizedKeysFile {place}/authorized_keys
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
MaxAuthTries 10
Subsystem sftp internal-sftp
"""

# Stands for the host's crossgrade: it says what it was given, and does what it is told.
PROGRAM = f"""\
#!{sys.executable}
import json, os, signal, sys, time
from pathlib import Path
command, *arguments = sys.argv[1:]
if command == "--version":
    print("crossgrade {__version__}")
elif command == "describe":
    print(json.dumps({{"arguments": arguments, "stdin": sys.stdin.read()}}), flush=True)
    print("text for people", file=sys.stderr)
elif command == "read":
    playbook = Path(arguments[arguments.index("--playbook") + 1])
    names = [str(path.relative_to(playbook.parent)) for path in playbook.parent.rglob("*")]
    modes = {{name: oct((playbook.parent / name).stat().st_mode & 0o777) for name in names}}
    mode = oct(playbook.parent.stat().st_mode & 0o777)
    print(json.dumps({{"text": playbook.read_text(), "modes": modes, "mode": mode, "path": str(playbook)}}))
    if "--make" in arguments:
        (playbook.parent / "made.txt").touch()
elif command == "count":
    for number in range(int(arguments[-1])):
        print(json.dumps({{"number": number, "text": "\\u00e4" * 50}}))
elif command == "exit":
    sys.exit(int(arguments[-1]))
elif command == "die":
    os.kill(os.getpid(), signal.SIGKILL)
elif command == "hang":
    while True:  # until nobody listens any more
        print("started", flush=True)
        time.sleep(0.2)
elif command == "leave":
    pid = os.fork()
    if pid == 0:
        time.sleep(60)
    print(pid, flush=True)
"""


@dataclass(frozen=True)
class Sshd:
    """A running sshd: its folder, its port, the target that reaches it."""

    place: Path
    port: int
    pid: int
    target: SshTarget


def keygen(path: Path, passphrase: str = "") -> Path:
    command: list[str | Path] = ["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-f", path]
    subprocess.run(command, check=True)
    return path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def sshd_program() -> str:
    found = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
    assert found, "these tests need OpenSSH's server: apt-get install -y openssh-server"
    return found


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen within 20 s"
        time.sleep(0.02)


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextlib.contextmanager
def running_sshd(place: Path) -> Iterator[Sshd]:
    """An sshd with keys of its own in `place`, which accepts the key of its `target` for this user."""
    keygen(place / "host_key")
    key = keygen(place / "user key")
    shutil.copy(f"{key}.pub", place / "authorized_keys")
    program = place / "crossgrade program"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    port = free_port()
    (place / "sshd_config").write_text(SSHD_CONFIG.format(place=place, port=port))
    if os.geteuid() == 0:  # sshd's own directory, which only a service manager makes
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    with (place / "log").open("wb") as log:
        server = subprocess.Popen([sshd_program(), "-D", "-e", "-f", place / "sshd_config"], stderr=log)
    try:
        wait_until(lambda: server.poll() is not None or answers(port), "sshd's start")
        assert server.poll() is None, (place / "log").read_text()
        target = SshTarget("node1", "127.0.0.1", port, getpass.getuser(), key, shlex.quote(str(program)))
        yield Sshd(place, port, server.pid, target)
    finally:
        server.terminate()
        server.wait(10)


def trust(home: Path, sshd: Sshd, key: Path, host: str = "127.0.0.1") -> None:
    with (home / ".ssh/known_hosts").open("a") as file:
        file.write(f"[{host}]:{sshd.port} {key.read_text()}")
