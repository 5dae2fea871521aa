"""A run with vaults: what is encrypted is opened, and nothing of it is left anywhere but where it was asked for."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.support.commands import PROGRAM, crossgrade
from tests.support.vaults import encrypt, encrypt_file, encrypt_value, password_file

PLAYBOOK = """
- name: With vaults
  hosts: localhost
  gather_facts: false
  vars_files: [value.yml]
  tasks:
    - name: say {{ token }}
      command: echo {{ token }} {{ words }} {{ pin }}
      register: said
    - copy: {src: blob, dest: "{{ out }}/blob"}
    - copy: {src: blob, dest: "{{ out }}/sealed", decrypt: false}
    - copy: {src: "{{ out }}/sealed", dest: "{{ out }}/opened"}
    - copy: {src: tree, dest: "{{ out }}"}
    - template: {src: lines.j2, dest: "{{ out }}/lines"}
    - copy: {content: "a={{ token }}\\n{{ key }}", dest: "{{ out }}/mine", mode: "0600"}
    - debug: {msg: "{{ said.stdout }} {{ lookup('file', 'blob') }}"}
    - assert: {that: said.stdout == token ~ ' ' ~ words ~ ' ' ~ pin}
    - name: perhaps fail
      command:
        argv: [sh, -c, "echo {{ token }}; echo {{ token }} >&2; exit {{ code | default(0) }}"]
"""
VARIABLES = "token: token-9f8e7d6c5b\npin: 771177\nkey: |\n  -----BEGIN-----\n  kkkkkkkkkkkkkkkk\n  -----END-----\n"
SECRETS = (
    "token-9f8e7d6c5b",
    "correct-horse-battery",
    "771177",
    "kkkkkkkkkkkkkkkk",
    "blob-of-secrets",
    "a-sealed-template",
)


@pytest.fixture(scope="module")
def vaults(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A playbook with vaults of every kind, and its password."""
    made = tmp_path_factory.mktemp("vaults")
    password = password_file(made)
    for name, text in {
        "play.yml": PLAYBOOK,
        "group_vars/all.yml": VARIABLES,
        "files/blob": "blob-of-secrets-in-it\n",
        "files/tree/leaf": "blob-of-secrets-in-a-tree\n",
        "templates/lines.j2": "a-sealed-template {{ token }}\n",
    }.items():
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text(text)
        if name != "play.yml":
            encrypt_file(made / name, password, "prod" if name.startswith("files") else "")
    (made / "value.yml").write_text(encrypt_value("correct-horse-battery staple", "words", password))
    (made / "out").mkdir()
    return made


@pytest.fixture
def folder(vaults: Path, tmp_path: Path) -> Path:
    """A copy of it, for one test."""
    return Path(shutil.copytree(vaults, tmp_path / "here"))


def options(folder: Path, *more: str | Path) -> tuple[str | Path, ...]:
    return ("--playbook", folder / "play.yml", "--root", folder / "root", "-e", f"out={folder / 'out'}", "-D", *more)


def leaks(folder: Path) -> set[str]:
    """Each file with a secret in it, but those that the playbook was asked to write."""
    found = set()
    for path in folder.rglob("*"):
        if path.is_file() and folder / "out" not in path.parents:
            data = path.read_bytes()
            found |= {f"{path}: {secret}" for secret in SECRETS if secret.encode() in data}
    return found


def test_a_plan_and_a_run_leave_no_secret_anywhere(folder: Path) -> None:
    password = ("--vault-password-file", folder / "password")
    planned = crossgrade("plan", *options(folder, *password), "-v", "-o", folder / "plan.json")
    assert planned.code == 0, planned.stderr
    ran = crossgrade("upgrade", *options(folder, *password), "-vv", "--plan", folder / "plan.json", "--json")
    assert ran.code == 0, ran.stderr
    failed = crossgrade("upgrade", *options(folder, *password), "-vv", "-e", "code=3")
    assert failed.code == 2, failed.stderr
    for said in (planned, ran, failed):
        assert [secret for secret in SECRETS if secret in said.stdout + said.stderr] == []
    assert leaks(folder) == set()
    events = [json.loads(line) for line in ran.stdout.splitlines()]
    assert {event["status"] for event in events if event["event"] == "task_result"} == {"changed", "ok"}
    assert [event for event in events if event["event"] == "prediction_differs"] == []
    out = {name: (folder / "out" / name).read_text() for name in ("blob", "opened", "tree/leaf", "lines", "mine")}
    assert out == {
        "blob": "blob-of-secrets-in-it\n",
        "opened": "blob-of-secrets-in-it\n",
        "tree/leaf": "blob-of-secrets-in-a-tree\n",
        "lines": "a-sealed-template token-9f8e7d6c5b\n",
        "mine": "a=token-9f8e7d6c5b\n-----BEGIN-----\nkkkkkkkkkkkkkkkk\n-----END-----\n",
    }
    assert (folder / "out" / "sealed").read_text() == (folder / "files" / "blob").read_text()


def test_an_interrupted_run_keeps_where_passwords_come_from(folder: Path) -> None:
    password = ("--vault-password-file", folder / "password")
    (folder / "extra.yml").write_text(encrypt("more: extra-secret-value\n", folder / "password"))
    argv = [PROGRAM, "upgrade", *options(folder, *password), "-e", f"@{folder / 'extra.yml'}"]
    environment = {**os.environ, "CROSSGRADE_KILL_AT": "done:copy"}
    killed = subprocess.run(argv, env=environment, start_new_session=True, capture_output=True, check=False)
    assert killed.returncode == -9
    record = (folder / "root" / "store" / "journal.db").read_bytes()
    record += (folder / "root" / "store" / "journal.db-wal").read_bytes()
    assert b"extra-secret-value" not in record
    refused = crossgrade("upgrade", "--playbook", folder / "play.yml", "--root", folder / "root", "--resume")
    assert (refused.code, "more" in refused.stderr) == (5, True), refused.stderr
    resumed = crossgrade(
        *("upgrade", "--playbook", folder / "play.yml", "--root", folder / "root", "--resume", "-e", "more=again")
    )
    assert resumed.code == 0, resumed.stderr


@pytest.mark.parametrize(
    ("given", "code", "words"),
    [
        ((), 4, "no password is given"),
        (("--vault-password-file", "other"), 4, "no given password opens it"),
        (("--vault-password-file", "missing"), 5, "missing is not there"),
        (("--vault-id", "prod@"), 5, "expected LABEL@FILE"),
        (("--ask-vault-pass",), 5, "there is no terminal"),
    ],
)
def test_what_goes_wrong_has_its_exit_code(folder: Path, given: tuple[str, ...], code: int, words: str) -> None:
    password_file(folder, "wrong", "other")
    named = [str(folder / word) if word in ("other", "missing") else word for word in given]
    answer = crossgrade("plan", *options(folder, *named))
    assert (answer.code, words in answer.stderr, "Traceback" in answer.stderr) == (code, True, False), answer.stderr
    if code == 4:
        assert "group_vars/all.yml:1:1" in answer.stderr
    assert not (folder / "root").exists()


def test_ansibles_variable_is_honoured(folder: Path) -> None:
    answer = crossgrade(
        *("upgrade", *options(folder)), environment={"ANSIBLE_VAULT_PASSWORD_FILE": str(folder / "password")}
    )
    assert answer.code == 0, answer.stderr


def test_the_password_is_asked_for_at_a_terminal(folder: Path) -> None:
    ours, theirs = pty.openpty()
    argv = [str(word) for word in (PROGRAM, "plan", *options(folder, "--ask-vault-pass"))]
    with subprocess.Popen(argv, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True) as process:
        os.close(theirs)
        said = b""
        while b"Vault password" not in said:
            said += os.read(ours, 1000)
        os.write(ours, b"hunter2\n")
        try:
            while data := os.read(ours, 1000):
                said += data
        except OSError:  # so a terminal ends
            pass
    assert process.returncode == 0, said
    assert b"hunter2" not in said


def test_a_playbook_may_be_encrypted_itself(folder: Path) -> None:
    encrypt_file(folder / "play.yml", folder / "password")
    answer = crossgrade("upgrade", *options(folder, "--vault-id", folder / "password"))
    assert answer.code == 0, answer.stderr
    assert leaks(folder) == set()
    status = crossgrade("status", "--playbook", folder / "play.yml")
    assert status.code != 0  # where its store is stands in the playbook, perhaps
    assert "no password is given" in status.stderr
