"""Plans and runs of playbooks that make hosts and groups: what a plan knows of them, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.commands import Answer, crossgrade

INVENTORY = "[trio]\na size=1\nb size=2\n[trio:vars]\nansible_connection=local\n"


def lay_out(folder: Path, play: str, **files: str) -> list[str | Path]:
    """The playbook and the files beside it; returns the options for all commands."""
    (folder / "hosts.ini").write_text(INVENTORY)
    (folder / "play.yml").write_text(play)
    for name, text in files.items():
        (folder / f"{name}.yml").write_text(text)
    return ["--playbook", folder / "play.yml", "--root", folder / "root", "-i", folder / "hosts.ini"]


def planned(answer: Answer) -> list[tuple[str, str, str]]:
    """Host, name and action of each task of the plan."""
    plan: dict[str, Any] = answer.of_kind("plan")[-1]["plan"]
    return [(task["host"], task["name"], task["action"]) for task in plan["tasks"]]


MAKING = """
- hosts: localhost
  gather_facts: false
  tasks:
    - {name: ask, command: echo secret, register: asked}
    - name: add
      add_host: {name: fresh, groups: made, ansible_connection: local, word: "{{ asked.stdout }}", size: 3}
    - {name: look, debug: {msg: "{{ groups.made }} {{ hostvars.fresh.size }}"}}
    - {name: look closer, debug: {msg: "{{ hostvars.fresh.word }}"}}
- hosts: trio
  gather_facts: false
  tasks:
    - {name: sort, group_by: {key: "size_{{ size }}"}}
    - {name: names, debug: {msg: "{{ group_names }}"}}
- hosts: made:size_2
  gather_facts: false
  tasks:
    - {name: write, copy: {content: "{{ size }}", dest: "{{ playbook_dir }}/{{ inventory_hostname }}"}}
    - {name: tell, debug: {msg: "{{ word | default('none') }}"}}
- hosts: size_9
  gather_facts: false
  tasks: [{name: never, debug: }]
"""


def test_a_plan_shows_what_later_plays_do_on_hosts_that_tasks_make(tmp_path: Path) -> None:
    options = lay_out(tmp_path, MAKING)
    plan = crossgrade("plan", *options, "--json")
    assert plan.code == 0, plan.stderr
    assert planned(plan) == [
        ("localhost", "ask", "change"),
        ("localhost", "add", "ok"),
        ("localhost", "look", "ok"),
        ("localhost", "look closer", "may change"),
        ("a", "sort", "ok"),
        ("b", "sort", "ok"),
        ("a", "names", "ok"),
        ("b", "names", "ok"),
        ("fresh", "write", "change"),
        ("b", "write", "change"),
        ("fresh", "tell", "may change"),
        ("b", "tell", "ok"),
    ]
    (warning,) = plan.of_kind("warning")
    assert "size_9" in warning["message"]
    run = crossgrade("upgrade", *options, "--json", "--yes")
    assert run.code == 0, run.stderr
    assert run.ended["differs"] == 0
    assert (tmp_path / "fresh").read_text() == "3"
    assert (tmp_path / "b").read_text() == "2"
    assert {recap["host"] for recap in run.of_kind("recap")} >= {"localhost", "a", "b", "fresh"}


def test_a_second_run_has_nothing_to_do_on_the_machine(tmp_path: Path) -> None:
    play = """
- {hosts: trio, gather_facts: false, tasks: [{group_by: {key: "size_{{ size }}"}}]}
- hosts: size_2
  gather_facts: false
  tasks: [{copy: {content: x, dest: "{{ playbook_dir }}/made"}}]
"""
    options = lay_out(tmp_path, play)
    assert crossgrade("upgrade", *options, "--yes").code == 0
    assert crossgrade("plan", *options, "--detailed-exitcode").code == 0


UNKNOWN = """
- hosts: localhost
  gather_facts: false
  tasks:
    - {name: ask, command: echo fresh, register: asked}
    - {name: add, add_host: {name: "{{ asked.stdout }}", groups: made, ansible_connection: local}}
    - {name: look, debug: {msg: "{{ groups.made | default('none') }}"}}
    - {name: by name, debug: {msg: "{{ 'fresh' in hostvars }}"}}
    - {name: on it, command: echo there, delegate_to: fresh}
- hosts: made
  gather_facts: false
  tasks: [{name: on the new one, debug: {msg: "{{ inventory_hostname }}"}}]
- hosts: trio
  gather_facts: false
  tasks: [{name: on the others, debug: {msg: "{{ group_names }} {{ of_a_group }}"}, ignore_errors: true}]
"""


def test_what_depends_on_hosts_of_which_only_the_run_knows_may_change(tmp_path: Path) -> None:
    options = lay_out(tmp_path, UNKNOWN)
    plan = crossgrade("plan", *options, "--json")
    assert plan.code == 0, plan.stderr
    assert planned(plan) == [
        ("localhost", "ask", "change"),
        ("localhost", "add", "may change"),
        ("localhost", "look", "may change"),
        ("localhost", "by name", "may change"),
        ("localhost", "on it", "may change"),
        ("made", "on the new one", "may change"),
        ("a", "on the others", "may change"),
        ("b", "on the others", "may change"),
    ]
    run = crossgrade("upgrade", *options, "--json", "--yes")
    assert run.code == 0, run.stderr
    assert run.result("on the new one")["values"] == {"msg": "fresh"}
    assert run.result("look")["values"] == {"msg": ["fresh"]}
    assert run.result("by name")["values"] == {"msg": True}


def test_a_group_by_whose_key_is_unknown_leaves_the_later_plays_open(tmp_path: Path) -> None:
    play = """
- hosts: trio
  gather_facts: false
  tasks:
    - {name: ask, command: echo x, register: asked, when: size == 1}
    - {name: sort, group_by: {key: "g_{{ asked.stdout }}"}, when: asked is not skipped}
    - {name: perhaps, group_by: {key: other}, when: asked.stdout == 'x', ignore_errors: true, loop: [1]}
- {hosts: g_x, gather_facts: false, tasks: [{name: later, debug: {msg: x}}]}
"""
    options = lay_out(tmp_path, play)
    plan = crossgrade("plan", *options, "--limit", "a", "--json")
    assert plan.code == 0, plan.stderr
    assert ("g_x", "later", "may change") in planned(plan)
    run = crossgrade("upgrade", *options, "--limit", "a", "--json", "--yes")
    assert run.code == 0, run.stderr
    assert run.result("later")["host"] == "a"


def refused(tmp_path: Path, play: str, **files: str) -> str:
    """What both commands say of a playbook that they refuse, having changed nothing."""
    options = lay_out(tmp_path, play, **files)
    said = []
    for command in (["plan"], ["upgrade", "--yes"]):
        answer = crossgrade(*command, *options)
        assert answer.code == 5, answer.stdout + answer.stderr
        said.append(answer.stderr)
    assert not list(tmp_path.glob("made*"))
    return said[-1]


TOUCH = (
    "- {hosts: localhost, gather_facts: false, tasks: [{copy: {content: x, dest: '{{ playbook_dir }}/made'}}, %s]}\n"
)
LATER = "- {hosts: %s, gather_facts: false, tasks: [{debug: {msg: x}}]}\n"


def test_an_added_host_over_ssh_is_refused_before_anything_is_changed(tmp_path: Path) -> None:
    said = refused(tmp_path, TOUCH % "{add_host: {name: far, groups: away}}" + LATER % "away")
    assert "far would be reached over SSH" in said
    assert "ansible_connection: local" in said
    to_it = TOUCH % "{add_host: {name: far}}, {command: echo x, delegate_to: far}"
    answer = crossgrade("plan", *lay_out(tmp_path, to_it))
    assert answer.code == 1
    assert "far cannot be reached from here: its connection is ssh" in answer.stdout


def test_a_misspelt_group_is_refused_where_nothing_can_make_it(tmp_path: Path) -> None:
    nothing = LATER % "nowhere" + TOUCH % "{add_host: {name: x}}"
    assert 'no host or group matches "nowhere"' in refused(tmp_path, nothing)
    included = TOUCH % "{include_tasks: more.yml}" + LATER % "tiro"
    assert "trio" in refused(tmp_path, included, more="- {debug: {msg: x}}\n")
    options = lay_out(tmp_path, included, more="- {group_by: {key: tiro}, when: false}\n")
    plan = crossgrade("plan", *options, "--json")
    assert plan.code == 0, plan.stderr
    assert "is left out" in plan.of_kind("warning")[0]["message"]
