"""Commands met with what goes wrong around them: each a message, a documented exit code, and no traceback."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from tests.support.commands import CHECKOUT, PROGRAM, crossgrade

PLAY = "- hosts: localhost\n  tasks:\n    - debug: {msg: hello}\n"


@pytest.fixture
def play(tmp_path: Path) -> Path:
    (tmp_path / "play.yml").write_text(PLAY)
    return tmp_path / "play.yml"


def test_a_damaged_journal_is_named_and_status_says_the_rest(tmp_path: Path, play: Path) -> None:
    options = ("--playbook", play, "--root", tmp_path / "root")
    assert crossgrade("upgrade", *options).code == 0
    (tmp_path / "root" / "store" / "journal.db").write_bytes(os.urandom(3000))
    for command in ("plan", "upgrade", "rollback", "history", "gc", "status"):
        answer = crossgrade(command, *options)
        assert answer.code == 1, command
        assert "journal.db is damaged" in answer.stdout + answer.stderr
        assert "Traceback" not in answer.stderr
    status = json.loads(crossgrade("status", *options, "--json").stdout)
    assert status["generations"] == []
    assert "damaged" in status["journal_problem"]


@pytest.mark.parametrize("command", ["plan", "upgrade", "status", "rollback", "facts"])
def test_a_root_that_cannot_be_one(tmp_path: Path, play: Path, command: str) -> None:
    (tmp_path / "file").write_text("")
    answer = crossgrade(command, "--playbook", play, "--root", tmp_path / "file" / "root")
    assert "Traceback" not in answer.stderr
    assert answer.code in (0, 1)
    assert (tmp_path / "file").read_text() == ""


def test_an_option_that_is_given_twice(tmp_path: Path) -> None:
    answer = crossgrade("status", "--root", tmp_path, "--root", tmp_path / "other")
    assert (answer.code, "--root is given twice" in answer.stderr) == (5, True), answer.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["plan", "--playbook", "missing.yml"], 4, "missing.yml"),
        (["plan", "--bogus"], 5, "--bogus"),
        (["plan", "-f", "5"], 5, "-f"),
        (["rollback", "--to", "one"], 5, "whole number"),
        (["upgrade", "--plan", "missing.json"], 1, "missing.json"),
        (["upgrade", "-e", "@missing.yml"], 5, "missing.yml"),
        (["upgrade", "--limit", "nobody"], 5, "nobody"),
        (["upgrade", "--resume"], 1, "no interrupted run"),
        (["rollback"], 1, "no store"),
        (["verify"], 1, "no store"),
    ],
)
def test_wrong_calls(tmp_path: Path, play: Path, arguments: list[str], code: int, words: str) -> None:
    options = [] if "--playbook" in arguments or "--bogus" in arguments else ["--playbook", str(play)]
    answer = crossgrade(*arguments, *options, cwd=tmp_path)
    assert (answer.code, answer.stdout) == (code, "")
    assert words in answer.stderr
    assert "Traceback" not in answer.stderr


@pytest.mark.parametrize(("arguments", "code"), [(["plan", "--bogus"], 5), (["status"], 0), (["--list"], 0)])
def test_invoke_says_the_same(tmp_path: Path, arguments: list[str], code: int) -> None:
    (tmp_path / "tasks.py").write_text((CHECKOUT / "tasks.py").read_text())
    done = subprocess.run(
        [str(PROGRAM.with_name("invoke")), *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr


def test_an_unreachable_host(tmp_path: Path, play: Path) -> None:
    play.write_text(PLAY.replace("localhost", "gpu"))
    (tmp_path / "hosts").write_text("[gpu]\nnode.invalid\n")
    answer = crossgrade("upgrade", "--playbook", play, "-i", tmp_path / "hosts", cwd=tmp_path)
    assert answer.code == 4
    assert "unreachable: [node.invalid]" in answer.stdout


def test_every_line_of_json_is_an_event(tmp_path: Path, play: Path) -> None:
    answer = crossgrade("upgrade", "--playbook", play, "--root", tmp_path / "root", "--json", "-vv")
    assert answer.code == 0
    assert {event["schema"] for event in answer.events} == {"crossgrade.event/1"}
    assert [event["sequence"] for event in answer.events] == list(range(1, len(answer.events) + 1))
    assert "PLAY RECAP" in answer.stderr


def test_no_colour_without_a_terminal_and_with_no_color(tmp_path: Path, play: Path) -> None:
    for environment in ({}, {"FORCE_COLOR": "1", "NO_COLOR": "1"}):
        answer = crossgrade("upgrade", "--playbook", play, "--root", tmp_path / "root", environment=environment)
        assert "\x1b" not in answer.stdout
    coloured = crossgrade("upgrade", "--playbook", play, "--root", tmp_path / "root", environment={"FORCE_COLOR": "1"})
    assert "\x1b[" in coloured.stdout


def test_tags_choose(tmp_path: Path) -> None:
    (tmp_path / "play.yml").write_text(
        "- hosts: localhost\n  tasks:\n    - {debug: {msg: one}, name: one, tags: a}\n"
        "    - {debug: {msg: two}, name: two, tags: [b]}\n    - {debug: {msg: three}, name: three}\n"
    )
    options = ("upgrade", "--playbook", tmp_path / "play.yml", "--root", tmp_path / "root", "--json")

    def names(*arguments: str) -> list[str]:
        return [event["name"] for event in crossgrade(*options, *arguments).of_kind("task_result")]

    assert names("-t", "a") == ["one"]
    assert names("-t", "a,b") == ["one", "two"]
    assert names("--skip-tags", "b") == ["one", "three"]
    assert names("--tags", "untagged") == ["three"]


def test_a_command_that_changes_nothing_is_foreseen_so(tmp_path: Path) -> None:
    (tmp_path / "play.yml").write_text(
        "- hosts: localhost\n  tasks:\n    - {command: hostname, register: h, changed_when: false}\n"
        "    - {command: hostname, register: g, changed_when: g.rc > 0}\n"
    )
    options = ("--playbook", tmp_path / "play.yml", "--root", tmp_path / "root", "--json")
    planned = crossgrade("plan", *options).of_kind("plan")[-1]["plan"]["tasks"]
    assert [task["action"] for task in planned] == ["check", "may change"]
    done = crossgrade("upgrade", *options)
    assert done.recap["changed"] == 0
    assert done.of_kind("prediction_differs") == []


def test_a_saved_plan_knows_what_it_is_for(tmp_path: Path, play: Path) -> None:
    play.write_text(f"- hosts: localhost\n  tasks:\n    - copy: {{content: x, dest: {tmp_path}/made}}\n")
    saved = tmp_path / "saved.plan"
    assert crossgrade("plan", "--playbook", play, "--root", tmp_path / "root", "-o", saved).code == 0
    answer = crossgrade("upgrade", "--plan", saved, cwd=tmp_path)
    assert answer.code == 0, answer.stderr
    assert (tmp_path / "made").read_text() == "x"


def test_hints_lead_to_the_same_store(tmp_path: Path, play: Path) -> None:
    play.write_text("- hosts: localhost\n  tasks:\n    - command: 'false'\n")
    answer = crossgrade("upgrade", "--playbook", play, "--root", tmp_path / "root", "--json")
    assert f"crossgrade upgrade --root {tmp_path / 'root'} --playbook {play}" in answer.ended["next_command"]


def test_tags_that_choose_nothing_say_so(tmp_path: Path, play: Path) -> None:
    answer = crossgrade("upgrade", "--playbook", play, "--root", tmp_path / "root", "-t", "nosuch", "--json")
    assert "no task was chosen" in answer.ended["outcome"]
