"""What a failing run leaves behind: files as they were, secrets nowhere, and the way out when even the undo fails."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from tests.support.commands import Answer, crossgrade, snapshot

SECRET = "correct-horse-battery"  # noqa: S105 - it opens nothing

ENVIRONMENT = """
- hosts: localhost
  vars: {env: "{{ crossgrade_root }}/env", restart: [], six: 1.17.0}
  tasks:
    - python_env: {path: "{{ env }}", requirements: [six==1.16.0]}
      when: crossgrade_active is none
    - venv_backup: {path: "{{ env }}"}
    - python_env: {requirements: ["six=={{ six }}"]}
      register: candidate
    - smoke_check: {generation: "{{ candidate.generation }}", imports: [six]}
    - activate: {generation: "{{ candidate.generation }}", restart: "{{ restart }}"}
"""


def run(folder: Path, text: str, *arguments: str) -> Answer:
    (folder / "play.yml").write_text(text)
    return crossgrade("upgrade", "--playbook", folder / "play.yml", "--root", folder / "root", *arguments)


def test_a_failing_task_takes_back_what_the_run_changed(tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    (files / "old").write_text("old\n")
    (files / "old").chmod(0o640)
    os.utime(files / "old", ns=(1_700_000_000_000_000_000, 1_700_000_000_000_000_000))
    (files / "gone").write_text("still needed\n")
    before = snapshot(files)
    answer = run(
        tmp_path,
        f"""
- hosts: localhost
  tasks:
    - copy: {{content: new, dest: {files}/old, mode: "0600"}}
    - file: {{path: {files}/sub/dir, state: directory}}
    - file: {{path: {files}/gone, state: absent}}
    - file: {{src: old, dest: {files}/link, state: link}}
    - command: "false"
    - copy: {{content: never, dest: {files}/never}}
""",
        "--json",
    )
    assert answer.code == 2
    assert answer.recap["rolled_back"] == 4
    assert answer.recap["changed"] == 4
    after = snapshot(files)
    assert after == before


def test_the_end_names_the_gates_that_were_not_run(tmp_path: Path) -> None:
    subprocess.run(["python3", "-m", "venv", "--without-pip", str(tmp_path / "env")], check=True)
    text = f"""
- hosts: localhost
  tasks:
    - name: Nothing to import
      smoke_check: {{path: {tmp_path}/env, imports: [], on_not_run: POLICY}}
    - name: Something to import
      smoke_check: {{path: {tmp_path}/env, imports: [json]}}
"""
    answer = run(tmp_path, text.replace("POLICY", "warn"))
    assert answer.code == 0, answer.stdout
    assert "  not run, and let pass by `on_not_run: warn`: 'Nothing to import'\n" in answer.stdout
    assert run(tmp_path, text.replace("POLICY", "warn"), "--json").ended["gates_not_run"] == ["Nothing to import"]
    answer = run(tmp_path, text.replace("POLICY", "fail"))
    assert answer.code == 2
    assert "let pass" not in answer.stdout


def test_a_rescued_failure_takes_nothing_back(tmp_path: Path) -> None:
    answer = run(
        tmp_path,
        f"""
- hosts: localhost
  tasks:
    - block:
        - copy: {{content: kept, dest: {tmp_path}/kept}}
        - command: "false"
      rescue:
        - debug: {{msg: rescued}}
""",
        "--json",
    )
    assert answer.code == 0
    assert (tmp_path / "kept").read_text() == "kept"
    assert answer.recap["rescued"] == 1
    assert answer.recap["rolled_back"] == 0


def test_secrets_are_nowhere(tmp_path: Path) -> None:
    text = f"""
- hosts: localhost
  tasks:
    - copy: {{content: "{{{{ db_password }}}}", dest: {tmp_path}/secret}}
      no_log: true
    - command: {{argv: [echo, "{{{{ db_password }}}}"]}}
      no_log: true
      register: shown
    - command: {{argv: [sh, -c, "echo $0 >&2; exit 3", "{{{{ db_password }}}}"]}}
      no_log: true
      when: fail | default(false) | bool
"""
    saved = tmp_path / "plan.json"
    (tmp_path / "play.yml").write_text(text)
    told = crossgrade(
        "plan", "--playbook", tmp_path / "play.yml", "--root", tmp_path / "root", "-o", saved, "-D", "-vvv",
        "-e", f"db_password={SECRET}",
    )  # fmt: skip
    done = run(tmp_path, text, "-e", f"db_password={SECRET}", "--json", "-vvv", "-D")
    failed = run(tmp_path, text, "-e", f"db_password={SECRET}", "-e", "fail=true", "--json", "-vvv", "-D")
    assert (told.code, done.code, failed.code) == (0, 0, 2)
    assert (tmp_path / "secret").read_text() == SECRET
    for answer in (told, done, failed):
        assert SECRET not in answer.stdout + answer.stderr
    for path in [saved, *(tmp_path / "root").rglob("*")]:
        if path.is_file() and "undo" not in path.parts:
            assert SECRET.encode() not in path.read_bytes(), path
            assert path.stat().st_mode & 0o077 == 0, path


@pytest.fixture(scope="module")
def upgraded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an environment of six 1.16.0, taken to 1.17.0."""
    folder = tmp_path_factory.mktemp("transaction")
    answer = run(folder, ENVIRONMENT, "--json")
    assert answer.code == 0, answer.stderr
    return folder


def version(folder: Path) -> str:
    program = [str(folder / "root" / "env" / "bin" / "python"), "-B", "-c", "import six; print(six.__version__)"]
    return subprocess.run(program, capture_output=True, text=True, check=True).stdout.strip()


def status(folder: Path) -> dict[str, object]:
    answer = crossgrade("status", "--playbook", folder / "play.yml", "--root", folder / "root", "--json")
    found: dict[str, object] = json.loads(answer.stdout)
    return found


def test_another_user_gets_through_to_the_environment(upgraded: Path) -> None:
    """A server of another user must start from the active generation, and may read nothing else."""
    store = upgraded / "root" / "store"
    venv = (upgraded / "root" / "env").resolve()
    for folder in (store, store / "generations", venv.parent):
        assert folder.stat().st_mode & 0o777 == 0o711
    for private in (store / "runs", store / "tmp", store / "locks"):
        assert private.stat().st_mode & 0o077 == 0
    for record in [store / "journal.db", store / "store.json", venv.parent / "generation.json"]:
        assert record.stat().st_mode & 0o077 == 0


def test_a_restart_that_fails_both_ways_says_how_to_mend_it(upgraded: Path) -> None:
    assert version(upgraded) == "1.17.0"
    back = crossgrade("rollback", "--playbook", upgraded / "play.yml", "--root", upgraded / "root")
    assert back.code == 0
    assert version(upgraded) == "1.16.0"
    answer = run(upgraded, ENVIRONMENT, "-e", '{"restart": ["false"]}', "--json")
    assert answer.code == 6
    # the link is back all the same; what could not be done is the restart
    assert version(upgraded) == "1.16.0"
    assert status(upgraded)["active"] == 1
    [failed] = answer.of_kind("rollback_failed")
    assert failed["by_hand"][-1] == "false"
    assert "ln -sfn" in failed["by_hand"][0]
    assert "false" in answer.ended["next_command"]


def test_a_restart_is_part_of_going_there_and_back(upgraded: Path) -> None:
    log = upgraded / "restarts"
    program = upgraded / "restart"
    program.write_text(f'#!/bin/sh\nreadlink "{upgraded}/root/env" >> "{log}"\n')
    program.chmod(0o755)
    answer = run(upgraded, ENVIRONMENT, "-e", json.dumps({"restart": [str(program)]}), "--json")
    assert answer.code == 0, answer.stderr
    back = crossgrade("rollback", "--playbook", upgraded / "play.yml", "--root", upgraded / "root")
    assert back.code == 0
    generations = [Path(line).parent.name for line in log.read_text().splitlines()]
    assert generations == ["2", "1"]


def test_a_broken_import_is_rejected_and_the_old_one_serves(upgraded: Path) -> None:
    text = ENVIRONMENT.replace("imports: [six]", "imports: [six, not_there]")
    answer = run(upgraded, text, "--json", "-e", "six=1.15.0")
    assert answer.code == 2
    assert "not_there" in answer.ended["reason"]
    assert version(upgraded) == "1.16.0"
