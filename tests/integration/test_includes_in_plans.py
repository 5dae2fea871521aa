"""Plans, saved plans, resumed runs and predictions of playbooks that include other files."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

from tests.support.commands import PROGRAM, Answer, crossgrade

HEAD = "- hosts: localhost\n  gather_facts: false\n  tasks:\n"


def lay_out(folder: Path, **files: str) -> list[str | Path]:
    """`play` and other files (`__` is a slash); returns the options for all commands."""
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.yml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(HEAD + text.lstrip("\n") if name == "play" else text)
    return ["--playbook", folder / "play.yml", "--root", folder / "root"]


def planned(answer: Answer) -> list[tuple[str, str]]:
    """Name and action of each task of the plan."""
    return [(task["name"], task["action"]) for task in the_plan(answer)["tasks"]]


def the_plan(answer: Answer) -> dict[str, Any]:
    plan: dict[str, Any] = answer.of_kind("plan")[-1]["plan"]
    return plan


UNKNOWN = """
    - {name: ask, command: echo sub, register: asked}
    - {name: by name, include_tasks: "{{ asked.stdout }}.yml"}
    - {name: what it may have set, debug: {msg: "{{ set_in_sub }}"}}
    - {name: known name, include_tasks: other.yml, when: asked.stdout == 'sub'}
    - {name: a loop, include_tasks: other.yml, loop: "{{ asked.stdout_lines }}"}
    - {name: variables, include_vars: "{{ asked.stdout }}-vars.yml"}
    - {name: their use, debug: {msg: "{{ from_file }}"}}
"""


def test_what_depends_on_an_unknown_may_change_and_is_told_true_by_the_run(tmp_path: Path) -> None:
    options = lay_out(
        tmp_path,
        play=UNKNOWN,
        sub="- {name: in sub, set_fact: {set_in_sub: 1}}\n",
        other="- {name: in other, command: echo other}\n",
    )
    (tmp_path / "sub-vars.yml").write_text("from_file: 2\n")
    answer = crossgrade("plan", *options, "--json")
    assert planned(answer) == [
        ("ask", "change"),
        ("by name", "may change"),
        ("what it may have set", "may change"),
        ("known name", "may change"),
        ("in other", "may change"),
        ("a loop", "may change"),
        ("variables", "may change"),
        ("their use", "may change"),
    ]
    by_name = the_plan(answer)["tasks"][1]
    assert "the result of task 'ask'" in by_name["summary"]
    run = crossgrade("upgrade", *options, "--json", "--yes")
    assert run.code == 0, run.stderr
    assert run.result("what it may have set")["values"] == {"msg": 1}
    assert run.result("their use")["values"] == {"msg": 2}
    assert run.ended["differs"] == 0
    assert not run.of_kind("prediction_differs")


MADE = """
    - {name: make, copy: {content: "- {name: made, debug: {msg: made}}", dest: "{{ playbook_dir }}/made.yml"}}
    - {name: include it, include_tasks: made.yml}
    - {name: make variables, copy: {content: "v: 1", dest: "{{ playbook_dir }}/v.yml"}}
    - {name: read them, include_vars: v.yml}
    - {name: use, debug: {msg: "{{ v }}"}}
"""


def test_a_file_that_an_earlier_task_makes_is_read_when_it_is_there(tmp_path: Path) -> None:
    options = lay_out(tmp_path, play=MADE)
    actions = dict(planned(crossgrade("plan", *options, "--json")))
    assert actions == {
        "make": "change",
        "include it": "may change",
        "make variables": "change",
        "read them": "may change",
        "use": "may change",
    }
    run = crossgrade("upgrade", *options, "--json", "--yes")
    assert (run.code, run.result("made")["values"], run.result("use")["values"]) == (0, {"msg": "made"}, {"msg": 1})
    assert run.ended["differs"] == 0


STEPS = """
    - {include_tasks: sub.yml, loop: [1, 2]}
    - {import_role: {name: r}}
    - {include_vars: v.yml}
"""
SUB = "- {name: 'file {{ item }}', file: {path: '{{ playbook_dir }}/made{{ item }}', state: touch}}\n"
ROLE = "- {name: last, copy: {content: x, dest: '{{ playbook_dir }}/last'}}\n"


def test_a_saved_plan_is_tied_to_the_files_that_it_includes(tmp_path: Path) -> None:
    options = lay_out(tmp_path, play=STEPS, sub=SUB, roles__r__tasks__main=ROLE, v="a: 1\n")
    saved = tmp_path / "saved.plan"
    assert crossgrade("plan", *options, "-o", saved).code == 0
    for file in ("sub.yml", "roles/r/tasks/main.yml", "v.yml"):
        text = (tmp_path / file).read_text()
        (tmp_path / file).write_text(f"{text}# another remark\n")
        refused = crossgrade("upgrade", "--plan", saved, "--yes")
        assert refused.code == 1
        assert f"file {file}: " in refused.stdout + refused.stderr
        (tmp_path / file).write_text(text)
    assert crossgrade("upgrade", "--plan", saved, "--yes").code == 0


def test_tasks_have_stable_identities_and_an_interrupted_run_is_resumed(tmp_path: Path) -> None:
    options = lay_out(tmp_path, play=STEPS, sub=SUB, roles__r__tasks__main=ROLE, v="a: 1\n")
    tasks = the_plan(crossgrade("plan", *options, "--json"))["tasks"]
    identities = [task["task"] for task in tasks if task["action"] == "change"]
    assert len(set(identities)) == 3
    assert tasks == the_plan(crossgrade("plan", *options, "--json"))["tasks"]
    killed = subprocess.run(
        [PROGRAM, "upgrade", *map(str, options), "--yes"],
        env={**os.environ, "CROSSGRADE_KILL_AT": f"effect:{identities[1]}"},
        capture_output=True,
        start_new_session=True,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    assert (tmp_path / "made1").exists()
    assert not (tmp_path / "last").exists()
    resumed = crossgrade("upgrade", *options, "--yes", "--resume", "--json")
    assert resumed.code == 0, resumed.stderr
    assert resumed.ended["differs"] == 0
    assert (tmp_path / "last").read_text() == "x"


FAILS = """
    - {include_tasks: sub.yml, loop: [1, 2]}
    - {import_role: {name: r}}
    - {command: "false"}
"""


def test_what_included_tasks_did_is_taken_back(tmp_path: Path) -> None:
    options = lay_out(tmp_path, play=FAILS, sub=SUB, roles__r__tasks__main=ROLE)
    failed = crossgrade("upgrade", *options, "--yes", "--json")
    assert failed.code == 2
    assert failed.recap["rolled_back"] >= 3
    assert not any((tmp_path / name).exists() for name in ("made1", "made2", "last"))


def test_endless_includes_end_with_an_error_that_says_where(tmp_path: Path) -> None:
    options = lay_out(tmp_path, play="    - {include_tasks: again.yml}\n", again="- {include_tasks: again.yml}\n")
    answer = crossgrade("plan", *options)
    assert answer.code == 1
    assert "again.yml:1:19: includes are nested more than 50 deep" in answer.stdout + answer.stderr
    counted = "- {set_fact: {n: '{{ n | default(0) + 1 }}'}}\n- {include_tasks: again.yml, when: n < 40}\n"
    (tmp_path / "again.yml").write_text(counted)
    assert crossgrade("plan", *options).code == 0


def test_a_missing_file_is_told_with_its_place_and_where_was_looked(tmp_path: Path) -> None:
    options = lay_out(tmp_path, play="    - {include_tasks: sub/a.yml}\n", sub__a="- include_tasks: gone.yml\n")
    answer = crossgrade("plan", *options)
    said = answer.stdout + answer.stderr
    assert answer.code == 1
    assert f"{tmp_path}/sub/a.yml:1:18: there is no file of tasks 'gone.yml'" in said
    assert f"Looked for: {tmp_path}/sub/gone.yml, {tmp_path}/gone.yml." in said


def test_a_rescue_that_includes_a_broken_file_is_found_before_anything_is_done(tmp_path: Path) -> None:
    play = """
    - block: [{command: "false"}]
      rescue: [{include_tasks: broken.yml}]
"""
    options = lay_out(tmp_path, play=play, broken="- {debug: {msg: '{{ x | }}'}}\n")
    answer = crossgrade("plan", *options)
    assert answer.code != 0
    assert f"{tmp_path}/broken.yml:1:17" in answer.stdout + answer.stderr
    (tmp_path / "broken.yml").write_text("- {debgu: {msg: x}}\n")
    answer = crossgrade("plan", *options)
    assert answer.code != 0
    assert f"{tmp_path}/broken.yml:1:4" in answer.stdout + answer.stderr


def test_no_log_of_an_include_hides_what_is_inside(tmp_path: Path) -> None:
    play = "    - {include_tasks: sub.yml, no_log: true, vars: {secret: hunter2}, loop: [hunter3]}\n"
    options = lay_out(tmp_path, play=play, sub="- {name: s, command: 'echo {{ secret }} {{ item }}'}\n")
    planned_text = crossgrade("plan", *options, "--json")
    run = crossgrade("upgrade", *options, "--json", "--yes")
    assert run.code == 0
    for answer in (planned_text, run):
        assert "hunter" not in answer.stdout + answer.stderr
    kept = [path for path in (tmp_path / "root").rglob("*") if path.is_file() and b"hunter" in path.read_bytes()]
    assert kept == []
