"""Commands on a host over SSH: what goes there, what comes back, and what happens when the link breaks."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from tests.support.commands import PROGRAM, crossgrade
from tests.support.sshd import Sshd, running_sshd, trust

from crossgrade import __version__
from crossgrade.errors import ExitCode
from crossgrade.hosts.remote_run import RemoteSetupError, RunLostError, files_to_copy, run_remote
from crossgrade.hosts.ssh import SshTarget, open_connection


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


@dataclass(frozen=True)
class Followed:
    exit_code: int
    lines: list[str]
    errors: list[str]


def follow(target: SshTarget, *command: str, playbook: Path | None = None) -> Followed:
    lines: list[str] = []
    errors: list[str] = []
    with open_connection(target) as connection:
        code = run_remote(
            connection,
            command,
            lines.append,
            on_stderr=errors.append,
            playbook=playbook,
            program=target.crossgrade_command,
            name=target.name,
        )
    return Followed(code, lines, errors)


def test_arguments_survive_as_they_are(known: SshTarget) -> None:
    arguments = [
        "a b",
        "",
        "it's",
        '"quoted"',
        "$HOME `id` $(id)",
        "new\nline",
        "back\\slash",
        "*",
        "~",
        "é",
        ";",
        "-x",
    ]
    followed = follow(known, "describe", *arguments)
    assert followed.exit_code == 0
    said = json.loads(followed.lines[0])
    assert said["arguments"] == ["--json", *arguments]
    assert said["stdin"] == ""
    assert followed.errors == ["text for people"]


@pytest.mark.parametrize("code", [0, 2, 75])
def test_the_exit_code_comes_back(known: SshTarget, code: int) -> None:
    assert follow(known, "exit", str(code)).exit_code == code


def test_many_lines_in_order(known: SshTarget) -> None:
    followed = follow(known, "count", "20000")
    assert [json.loads(line)["number"] for line in followed.lines] == list(range(20000))
    assert json.loads(followed.lines[-1])["text"] == "ä" * 50


def test_a_process_left_behind_does_not_hold_the_line(known: SshTarget) -> None:
    started_at = time.monotonic()
    followed = follow(known, "leave")
    os.kill(int(followed.lines[0]), signal.SIGKILL)  # fails if it had ended before
    assert (followed.exit_code, len(followed.lines)) == (0, 1)
    assert time.monotonic() - started_at < 30


def test_the_real_program_over_ssh(known: SshTarget, tmp_path: Path) -> None:
    program = shlex.quote(str(Path(sys.executable).with_name("crossgrade")))
    followed = follow(replace(known, crossgrade_command=program), "status", "--root", str(tmp_path / "the root"))
    assert (followed.exit_code, followed.errors) == (0, [])
    status = json.loads("\n".join(followed.lines))
    assert status["active"] is None
    assert status["store"].startswith(str(tmp_path / "the root"))


def make_playbook(folder: Path) -> Path:
    (folder / "engine/native").mkdir(parents=True)
    (folder / "engine/native/kernel.cu").write_text("// code\n")
    (folder / "build.sh").write_text("#!/bin/sh\n")
    (folder / "build.sh").chmod(0o755)
    (folder / "my playbook.yml").write_text("- hosts: all\n")
    (folder / "linked.txt").symlink_to("engine/native/kernel.cu")
    (folder / "dangling").symlink_to("nowhere")
    for left_out in (
        ".git/config",
        ".crossgrade/store.db",
        "__pycache__/x.pyc",
        "env/pyvenv.cfg",
        "env/lib/big.so",
    ):
        (folder / left_out).parent.mkdir(parents=True, exist_ok=True)
        (folder / left_out).touch()
    return folder / "my playbook.yml"


def test_the_playbooks_folder_is_there_and_private_and_removed(known: SshTarget, tmp_path: Path) -> None:
    followed = follow(known, "read", playbook=make_playbook(tmp_path / "books"))
    said = json.loads(followed.lines[0])
    assert (said["text"], said["mode"]) == ("- hosts: all\n", "0o700")
    assert said["modes"] == {
        "build.sh": "0o700",
        "engine": "0o700",
        "engine/native": "0o700",
        "engine/native/kernel.cu": "0o600",
        "linked.txt": "0o600",
        "my playbook.yml": "0o600",
    }
    assert followed.errors == []
    assert not Path(said["path"]).parent.exists()


def test_what_the_run_makes_beside_the_playbook_is_not_removed(known: SshTarget, tmp_path: Path) -> None:
    followed = follow(known, "read", "--make", playbook=make_playbook(tmp_path / "books"))
    place = Path(json.loads(followed.lines[0])["path"]).parent
    try:
        assert [path.name for path in place.iterdir()] == ["made.txt"]
        assert followed.errors == [f"node1: {place} was left there, because the run made files in it"]
    finally:
        shutil.rmtree(place)


def test_a_folder_that_is_too_big_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "big").open("wb") as file:
        file.truncate(65 << 20)
    with pytest.raises(RemoteSetupError, match="too much to copy"):
        files_to_copy(tmp_path)


def test_a_host_without_crossgrade(known: SshTarget) -> None:
    with pytest.raises(RemoteSetupError, match="gives no version") as caught:
        follow(replace(known, crossgrade_command="/nowhere/crossgrade"), "status")
    assert f"pip install crossgrade=={__version__}" in caught.value.remedy
    assert caught.value.exit_code is ExitCode.NOTHING_CHANGED


def test_a_host_with_another_version(known: SshTarget, tmp_path: Path) -> None:
    older = tmp_path / "crossgrade"
    older.write_text("#!/bin/sh\necho crossgrade 0.0.9\n")
    older.chmod(0o755)
    with pytest.raises(RemoteSetupError, match=rf"its crossgrade is 0\.0\.9, the one here is {__version__}"):
        follow(replace(known, crossgrade_command=str(older)), "status")


def test_a_run_that_is_killed_there(known: SshTarget) -> None:
    with pytest.raises(RunLostError, match="node1: crossgrade there was killed by a signal"):
        follow(known, "die")


def test_a_connection_that_drops(known: SshTarget, sshd: Sshd) -> None:
    lines: list[str] = []

    def cut(line: str) -> None:
        lines.append(line)
        for pid in sessions(sshd.pid):
            os.kill(pid, signal.SIGKILL)

    with open_connection(known) as connection, pytest.raises(RunLostError, match="may go on there") as caught:
        run_remote(connection, ["hang"], cut, program=known.crossgrade_command, name="node1")
    assert lines[0] == "started"
    assert caught.value.exit_code is ExitCode.UNREACHABLE
    assert "crossgrade status" in caught.value.remedy


def sessions(server: int) -> list[int]:
    """sshd's processes for its connections: all of its descendants that are sshd themselves."""
    found = []
    for child in Path(f"/proc/{server}/task/{server}/children").read_text().split():
        name = Path(f"/proc/{child}/comm").read_text().strip()
        if name.startswith("sshd"):
            found += [int(child), *sessions(int(child))]
    return found


def test_an_exception_of_a_listener_arrives_as_it_is(known: SshTarget) -> None:
    def broken(line: str) -> None:
        raise BrokenPipeError(line)

    with open_connection(known) as connection, pytest.raises(BrokenPipeError, match="started"):
        run_remote(connection, ["hang"], broken, program=known.crossgrade_command)


def test_upgrade_on_a_host_in_the_inventory(known: SshTarget, home: Path) -> None:
    """The command line, from the inventory to the recap under the host's name; the host's own crossgrade works."""
    playbook = home / "play" / "site.yml"
    playbook.parent.mkdir()
    playbook.write_text(
        "- hosts: node1\n  tasks:\n    - copy: {content: '{{ word }}', dest: '" + str(home / "made") + "'}\n"
    )
    inventory = home / "hosts.yml"
    inventory.write_text(
        f"all: {{hosts: {{node1: {{ansible_host: {known.address}, ansible_port: {known.port}, "
        f"ansible_user: {known.user}, ansible_ssh_private_key_file: {known.key_file}, "
        f"crossgrade_command: {PROGRAM}}}}}}}\n"
    )
    options = ("--playbook", playbook, "-i", inventory, "-e", "word='a b'", "--root", home / "there", "--json")
    environment = {"HOME": str(home)}
    planned = crossgrade("plan", *options, environment=environment)
    assert planned.code == 0, planned.stderr
    assert not (home / "made").exists()
    done = crossgrade("upgrade", *options, environment=environment)
    assert done.code == 0, done.stderr
    assert (home / "made").read_text() == "a b"
    assert {event["host"] for event in done.events} == {"node1"}
    assert done.recap["changed"] == 1
    assert crossgrade("upgrade", *options, environment=environment).recap["changed"] == 0
