"""From playbook text to plays, blocks and tasks, and what is said about mistakes."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.playbooks import playbook_of, problems_of

from crossgrade.playbook.model import Block, Task, walk
from crossgrade.playbook.schema import KEYWORDS
from crossgrade.playbook.tags import is_selected


def tasks_of(text: str) -> list[Task]:
    """The tasks of a play whose `tasks` are this text."""
    indented = "".join(f"    {line}\n" for line in text.strip("\n").splitlines())
    return list(walk(playbook_of("- hosts: localhost\n  tasks:\n" + indented).plays[0].tasks))


def messages_of_tasks(text: str) -> list[str]:
    indented = "".join(f"    {line}\n" for line in text.strip("\n").splitlines())
    problems = problems_of("- hosts: localhost\n  tasks:\n" + indented)
    return [
        f"{problem.place.line}:{problem.place.column} {problem.message} | {problem.remedy}"
        for problem in problems
        if problem.place
    ]


def test_a_play_with_everything() -> None:
    text = """
- name: A play
  hosts: [web, "!old"]
  gather_facts: no
  vars: {a: 1, b: "{{ a }}"}
  vars_files: vars.yml
  environment: {X: "1"}
  tags: one, two
  any_errors_fatal: true
  force_handlers: "{{ a == 1 }}"
  pre_tasks:
    - command: first
  tasks:
    - name: Copy
      ansible.builtin.copy: {src: a, dest: b}
      register: result
      until: result is success
      retries: 3
      delay: 0.5
      loop: [1, 2]
      loop_control: {loop_var: thing, label: "{{ thing }}", index_var: at}
      changed_when: [false]
      failed_when: result is failed
      notify: [restart]
      no_log: true
      check_mode: no
      diff: yes
      environment: {Y: "{{ b }}"}
      tags: [three]
      vars: {c: 2}
      when: a is defined
  post_tasks:
    - command: last
  handlers:
    - name: restart
      listen: [topic]
      command: now
"""
    playbook = playbook_of(text)
    (play,) = playbook.plays
    assert (play.name, play.hosts, play.gather_facts) == ("A play", ("web", "!old"), False)
    assert play.vars_files == (("vars.yml",),)
    assert play.tags == ("one", "two")
    assert play.force_handlers == "{{ a == 1 }}"
    assert [name for name, _ in play.sections()] == ["pre_tasks", "tasks", "post_tasks"]
    (task,) = walk(play.tasks)
    assert task.module == "copy"
    assert task.arguments == {"src": "a", "dest": "b"}
    assert task.uid == "play0/tasks/0"
    assert (task.register, task.retries, task.delay, task.loop) == ("result", 3, 0.5, [1, 2])
    assert (task.loop_control.loop_var, task.loop_control.index_var) == ("thing", "at")
    assert (task.when, task.until) == (("a is defined",), ("result is success",))
    assert (task.changed_when, task.failed_when) == ((False,), ("result is failed",))
    assert task.tags == ("one", "two", "three")
    assert task.environment == ({"X": "1"}, {"Y": "{{ b }}"})
    assert (task.no_log, task.check_mode, task.diff, task.any_errors_fatal) == (True, False, True, True)
    assert play.handlers[0].uid == "play0/handlers/0"
    assert play.handlers[0].listen == ("topic",)
    assert str(task.spot_of("arguments", "dest").place) == "p.yml:15:44"
    assert str(task.spot_of("when").place) == "p.yml:31:13"


def test_blocks_hand_their_keywords_down() -> None:
    text = """
- hosts: localhost
  tags: p
  ignore_errors: true
  tasks:
    - name: Outer
      when: [a, b]
      tags: q
      vars: {x: 1, y: 1}
      environment: {E: "1"}
      notify: h
      block:
        - block:
            - command: one
              when: c
              vars: {y: 3}
              ignore_errors: false
          when: d
          vars: {y: 2, z: 2}
          tags: [q, r]
      rescue:
        - command: two
      always:
        - command: three
          notify: [i]
"""
    (play,) = playbook_of(text).plays
    (block,) = play.tasks
    assert isinstance(block, Block)
    one, two, three = walk(play.tasks)
    assert one.when == ("a", "b", "d", "c")
    assert one.vars == {"x": 1, "y": 3, "z": 2}
    assert one.tags == ("p", "q", "r")
    assert (one.ignore_errors, two.ignore_errors) == (False, True)
    assert (one.uid, two.uid) == ("play0/tasks/0/block/0/block/0", "play0/tasks/0/rescue/0")
    assert three.notify == ("i",)  # the nearest, as in Ansible
    assert two.environment == ({"E": "1"},)
    assert one.vars_spots is not None
    assert str(one.vars_spots.at("y").place) == "p.yml:16:25"
    assert str(one.vars_spots.at("z").place) == "p.yml:19:27"
    assert str(one.vars_spots.at("x").place) == "p.yml:9:17"


@pytest.mark.parametrize(
    ("task", "arguments"),
    [
        ("command: echo hi", {"cmd": "echo hi"}),
        ("command: echo 'a  b'  creates=/x  c", {"cmd": "echo 'a  b'  c", "creates": "/x"}),
        ('command: echo {{ a b }} creates="/x y"', {"cmd": "echo {{ a b }}", "creates": "/x y"}),
        ("command: FOO=1 env x=y", {"cmd": "FOO=1 env x=y"}),
        ("command: {cmd: x, creates: /y}", {"cmd": "x", "creates": "/y"}),
        ("{command: x, args: {creates: /y}}", {"cmd": "x", "creates": "/y"}),
        ("copy: src=a dest='b c' force=no", {"src": "a", "dest": "b c", "force": "no"}),
        ("copy: dest={{ x | default('a b') }}", {"dest": "{{ x | default('a b') }}"}),
        ("set_fact: a=1 b={{ c }}", {"a": "1", "b": "{{ c }}"}),
        ("set_fact: {a: 1, b: [2]}", {"a": 1, "b": [2]}),
        ("ansible.legacy.command: x", {"cmd": "x"}),
    ],
)
def test_short_forms(task: str, arguments: dict[str, Any]) -> None:
    (made,) = tasks_of(f"- {task}")
    assert made.arguments == arguments


def test_places_of_arguments() -> None:
    (task,) = tasks_of("- copy: {dest: a}\n  args:\n    src: b")
    assert [str(task.spot_of("arguments", name).place) for name in ("dest", "src")] == ["p.yml:3:20", "p.yml:5:14"]
    assert str(task.spot_of("arguments").at("src").place) == "p.yml:5:14"
    assert str(task.spot_of("arguments").place) == "p.yml:3:13"
    (short,) = tasks_of("- command: echo x")
    assert str(short.spot_of("arguments", "cmd").place) == "p.yml:3:16"


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        ("- copi: {dest: a}", ['3:7 there is no module or keyword `copi` | Did you mean "copy"?']),
        ("- copy: {dset: a}", ["missing", '3:14 there is no argument "dset" | Did you mean "dest"?']),
        ("- copy: {dest: a, force: maybe}", ['3:30 argument "force": expected true or false, got "maybe"']),
        ("- copy: {dest: a, force: '{{ x }}'}", []),
        (
            "- copy: {dest: a, state: presnt}",
            ['expected one of present, absent, got "presnt". Did you mean "present"?'],
        ),
        ("- copy: {dest: a, path: b}", ["two names of one argument"]),
        ("- copy: {dest: [a]}", ['"dest": expected a path, got a list']),
        ("- copy: just text", ["`copy` takes no text of its own"]),
        ("- copy: [1]", ["as a mapping"]),
        ("- copy:\n    src: a\n  dest: b", ["missing", "5:7 `dest` is an argument of `copy`"]),
        ("- command: {cmd: a, argv: [b]}", ['only one of "cmd", "argv"']),
        ("- command: {creates: a}", ['one of "cmd", "argv" must be given']),
        ("- command: 'echo \"x'", ["is opened and not closed"]),
        ("- command: x\n  wehn: y", ['a task has no keyword `wehn` | Did you mean "when"?']),
        ("- command: x\n  async: 3", ["Ansible keyword `async` cannot be supported here"]),
        ("- command: x\n  become: perhaps", ["`become`: expected true or false"]),
        ("- command: x\n  handlers: []", ["`handlers` is a keyword of a play: check the indentation"]),
        ("- command: x\n  listen: a", ["`listen` is a keyword of a handler"]),
        ("- dnf: {name: x}", ["Ansible's module `dnf` is not supported here yet"]),
        ("- ansible.builtin.cron: {}", ["Ansible's module `cron` is not supported"]),
        ("- name: nothing", ["the task names no module"]),
        ("- command: a\n  copy: {dest: b}", ["a task has one module, this one has `command` and `copy`"]),
        ("- just text", ["expected a task"]),
        (
            "- command: x\n  loop: words",
            [
                "expected a list, or a template",
            ],
        ),
        ("- command: x\n  loop: {a: 1}", ["dict2items"]),
        ("- command: x\n  register: a-b", ["cannot be the name of a variable"]),
        ("- command: x\n  register: 'class'", ["cannot be the name of a variable"]),
        ("- command: x\n  retries: many", ["`retries`: expected a number"]),
        ("- command: x\n  retries: -1", ["not negative"]),
        ("- command: x\n  retries: 1.5", ["a whole number"]),
        ("- command: x\n  ignore_errors: perhaps", ["`ignore_errors`: expected true or false"]),
        ("- command: x\n  when:", ["a condition is missing"]),
        ("- command: x\n  when: {a: b}", ["expected an expression"]),
        ("- command: x\n  vars: [a]", ["`vars`: expected a mapping"]),
        ("- command: x\n  vars: {a b: 1}", ["cannot be the name of a variable"]),
        ("- command: x\n  environment: x", ["`environment`: expected a mapping"]),
        ("- command: x\n  environment: {A: [1]}", ["an environment variable is text"]),
        ("- command: x\n  tags: {a: 1}", ["`tags`: expected text"]),
        ("- command: x\n  loop: [1]\n  loop_control: {lable: x}", ['no keyword `lable` | Did you mean "label"?']),
        ("- rescue:\n    - command: x", ["`rescue` without `block`"]),
        ("- block: {a: 1}", ["expected a list of tasks"]),
        ("- block:\n    - command: x\n  register: y", ["a block has no keyword `register`"]),
        ("- block:\n    - copi: x\n  rescue:\n    - comand: y", ["`copi`", "`comand`"]),
        ("- 3: x\n  command: y", ["a keyword or module was expected, got 3"]),
    ],
)
def test_mistakes_in_tasks(task: str, expected: list[str]) -> None:
    messages = messages_of_tasks(task)
    assert len(messages) == len(expected), messages
    for message, part in zip(messages, expected, strict=True):
        assert part in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "expected a list of plays"),
        ("a: 1", "expected a list of plays"),
        ("- 1", "expected a play"),
        ("- command: x", "this is a task, where a play was expected"),
        ("- import_playbook: x.yml", "there is no playbook `x.yml`"),
        ("- name: x", "the play has no `hosts`"),
        ("- hosts:", "`hosts` is empty"),
        ("- hosts: a\n  taks: []", 'a play has no keyword `taks` | Did you mean "tasks"?'),
        ("- hosts: a\n  serial: true", "`serial`: expected a number of hosts, or a percentage such as 30%, got true"),
        ("- hosts: a\n  serial: none", '`serial`: expected a number of hosts, or a percentage such as 30%, got "none"'),
        ("- hosts: a\n  roles: [x]", "there is no role `x`"),
        ("- hosts: a\n  command: x", "`command` is a module"),
        ("- hosts: a\n  when: x", "`when` is a keyword of a block or task or handler"),
        ("- hosts: a\n  connection: docker", "`connection`: expected one of local, smart, ssh"),
        ("- hosts: a\n  tasks: {command: x}", "Each task starts with `- `"),
        (
            "- hosts: a\n  handlers:\n    - block: [{command: x}]\n      rescue: [{command: y}]",
            "`rescue` would never run",
        ),
        ("- hosts: a\n  vars: {1a: x}", "cannot be the name of a variable"),
        ("- hosts: {a: 1}", "`hosts`: expected text"),
    ],
)
def test_mistakes_in_plays(text: str, expected: str) -> None:
    found = [f"{problem.message} | {problem.remedy}" for problem in problems_of(text)]
    assert any(expected in message for message in found), found


def test_every_later_keyword_is_named_as_such() -> None:
    for place, body in (
        ("play", "- hosts: a\n  {}: x"),
        ("task", "- hosts: a\n  tasks:\n    - command: x\n      {}: x"),
    ):
        for keyword in KEYWORDS[place].values():  # type: ignore[index]  # the literals above are its keys
            if not keyword.supported:
                messages = [problem.message for problem in problems_of(body.format(keyword.name))]
                when = "cannot be supported here" if keyword.never else "is not supported here yet"
                assert messages == [f"Ansible keyword `{keyword.name}` {when}"]


@pytest.mark.parametrize(
    ("tags", "only", "skip", "selected"),
    [
        ([], [], [], True),
        (["a"], ["a"], [], True),
        (["a"], ["b"], [], False),
        ([], ["a"], [], False),
        (["always"], ["a"], [], True),
        (["never"], [], [], False),
        (["never", "a"], ["a"], [], True),
        (["never"], ["tagged"], [], False),
        (["a"], ["tagged"], [], True),
        ([], ["untagged"], [], True),
        (["a"], ["untagged"], [], False),
        (["a"], [], ["a"], False),
        (["a", "b"], ["a"], ["b"], False),
        (["always"], [], ["always"], False),
        (["always"], [], ["all"], True),
        (["a"], [], ["tagged"], False),
        ([], [], ["untagged"], False),
        ([], [], ["tagged"], True),
    ],
)
def test_tags(tags: list[str], only: list[str], skip: list[str], selected: bool) -> None:
    assert is_selected(tags, only, skip) is selected
