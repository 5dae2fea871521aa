"""`vars_prompt`: asked at a real terminal, and what holds where there is none."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path

import pytest
from tests.support.commands import PROGRAM, Answer, crossgrade

from crossgrade.store.layout import Store

PLAYBOOK = """
- hosts: localhost
  gather_facts: false
  vars_prompt:
    - {name: place, prompt: Which place, private: false, default: here}
    - {name: token, prompt: Token, confirm: true}
  tasks:
    - name: What was said
      copy: {content: "{{ place }} {{ token }}", dest: "%s/told"}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "play.yml").write_text(PLAYBOOK % tmp_path)
    return tmp_path


def run(folder: Path, command: str, *more: str) -> Answer:
    return crossgrade(command, "--root", folder / "root", "--playbook", folder / "play.yml", *more)


@pytest.mark.parametrize("command", ["plan", "upgrade", "bisect"])
def test_nobody_to_ask(folder: Path, command: str) -> None:
    Store(folder / "root/store").create()
    words = {"bisect": ("--from", "1", "--to", "2"), "upgrade": ("--yes",), "plan": ()}[command]
    answer = run(folder, command, *words)
    assert answer.code == 1
    assert "nobody can be asked for 'token'" in answer.stderr
    assert "-e token=" in answer.stderr
    assert "play.yml:6:7" in answer.stderr
    assert not (folder / "told").exists()


def test_defaults_and_extra_variables_need_no_terminal(folder: Path) -> None:
    answer = run(folder, "upgrade", "--yes", "-e", "token=hunter2")
    assert answer.code == 0, answer.stderr
    assert (folder / "told").read_text() == "here hunter2"


def test_questions_at_a_terminal(folder: Path) -> None:
    """A private answer is not echoed, is asked for again where the two differ, and the answers reach the tasks."""
    said = talk(
        [str(PROGRAM), "upgrade", "--yes", "--root", str(folder / "root"), "--playbook", str(folder / "play.yml")],
        [
            (b"Which place [here]:", b"there\n"),
            (b"Token:", b"hunter2\n"),
            (b"confirm Token:", b"hunter3\n"),
            (b"The two answers differ", b""),
            (b"Token:", b"hunter2\n"),
            (b"confirm Token:", b"hunter2\n"),
        ],
    )
    assert (folder / "told").read_text() == "there hunter2", said.decode()
    assert b"hunter3" not in said
    for path in (folder / "root").rglob("*"):
        if path.is_file() and "backups" not in path.parts:
            assert b"hunter3" not in path.read_bytes()


def talk(argv: list[str], turns: list[tuple[bytes, bytes]]) -> bytes:
    """Run a program at a terminal of its own: each answer is typed once its question has been read after the last."""
    controller, terminal = os.openpty()
    running = subprocess.Popen(argv, stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True)
    os.close(terminal)
    said, start = b"", 0
    try:
        for question, answer in turns:
            while question not in said[start:]:
                said += os.read(controller, 4096)
            start = said.index(question, start) + len(question)
            os.write(controller, answer)
        with contextlib.suppress(OSError):  # EIO: the other side is closed
            while data := os.read(controller, 4096):
                said += data
    finally:
        os.close(controller)
        running.wait()
    return said
