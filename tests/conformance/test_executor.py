"""The same playbook run by real ansible-core and by crossgrade: recap, order of what was written, exit code.

Each playbook appends to a log file through `command` (so order shows) and is run in a folder of its own.
Known differences on purpose: Ansible's fact gathering is switched off here; a play that fails already in check
mode is not begun by crossgrade (see `docs/architecture.md`), so failures here happen in `command`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support.two_programs import Asked, OwnProcesses, Programs, WarmPrograms

SETTINGS = {"ANSIBLE_NOCOLOR": "1"}
HEAD = "- hosts: localhost\n  gather_facts: false\n  vars: {log: '%s'}\n"

# name → the play below HEAD. `say X` appends X to the log.
PLAYS = {
    "order of tasks": """
  tasks:
    - {command: say one}
    - {command: say two}
""",
    "when true and false": """
  tasks:
    - {command: say yes, when: 1 < 2}
    - {command: say no, when: 1 > 2}
    - {command: say both, when: [true, 2 > 1]}
    - {command: say neither, when: [true, 2 < 1]}
""",
    "register and changed_when": """
  tasks:
    - {command: say a, register: first, changed_when: false}
    - {command: "say {{ first.rc }}-{{ first.changed }}"}
    - {command: say b, changed_when: "'x' in first.stdout"}
""",
    "failed_when": """
  tasks:
    - {command: "false", register: r, failed_when: r.rc > 1}
    - {command: "say rc{{ r.rc }}"}
    - {command: say x, register: s, failed_when: s.rc == 0, ignore_errors: true}
    - {command: "say failed-{{ s.failed }}"}
""",
    "ignore_errors": """
  tasks:
    - {command: "false", register: r, ignore_errors: true}
    - {command: "say {{ r is failed }}"}
""",
    "loop": """
  tasks:
    - {command: "say {{ item }}", loop: [a, b, c], register: out}
    - {command: "say {{ out.results | length }}-{{ out.results | map(attribute='item') | join('') }}"}
    - {command: "say {{ item }}", loop: [1, 2, 3], when: item != 2}
    - {command: "say {{ item }}", loop: []}
    - {command: "say {{ item }}", loop: [1, 2], when: false}
""",
    "loop_control": """
  tasks:
    - {command: "say {{ n }}{{ outer }}", loop: [x, y], loop_control: {loop_var: outer, index_var: n}}
""",
    "loop with a failing item": """
  tasks:
    - {command: "{{ item }}", loop: ["true", "false", "true"], register: r, ignore_errors: true}
    - {command: "say {{ r is failed }}-{{ r.results | selectattr('failed') | list | length }}"}
""",
    "block, rescue, always": """
  tasks:
    - block:
        - {command: say in}
        - {command: "false"}
        - {command: say never}
      rescue:
        - {command: "say rescued {{ ansible_failed_task.name }}", name: rescue it}
      always:
        - {command: say always}
    - {command: say after}
""",
    "rescue that fails": """
  tasks:
    - block:
        - {command: "false"}
      rescue:
        - {command: "false"}
      always:
        - {command: say always}
    - {command: say never}
""",
    "block without failure": """
  tasks:
    - block:
        - {command: say in}
      rescue:
        - {command: say never}
      always:
        - {command: say always}
""",
    "nested blocks": """
  tasks:
    - block:
        - block:
            - {command: "false"}
          always:
            - {command: say inner}
      rescue:
        - {command: say outer}
""",
    "when on a block": """
  tasks:
    - when: false
      block:
        - {command: say never}
        - {command: say never either}
    - when: true
      block:
        - {command: say yes}
""",
    "handlers run once, in their order": """
  tasks:
    - {command: say a, notify: [second, first]}
    - {command: say b, notify: first}
    - {command: say c, changed_when: false, notify: third}
  handlers:
    - {name: first, command: say first}
    - {name: second, command: say second}
    - {name: third, command: say third}
""",
    "handlers that listen": """
  tasks:
    - {command: say a, notify: topic}
  handlers:
    - {name: one, listen: topic, command: say one}
    - {name: two, listen: topic, command: say two}
""",
    "a handler that notifies": """
  tasks:
    - {command: say a, notify: one}
  handlers:
    - {name: one, command: say one, notify: two}
    - {name: two, command: say two}
""",
    "no handlers after a failure": """
  tasks:
    - {command: say a, notify: one}
    - {command: "false"}
  handlers:
    - {name: one, command: say one}
""",
    "pre and post tasks": """
  post_tasks:
    - {command: say post}
  pre_tasks:
    - {command: say pre, notify: one}
  tasks:
    - {command: say task}
  handlers:
    - {name: one, command: say handler}
""",
    "set_fact and precedence": """
  tasks:
    - {set_fact: {x: fact, y: 3}}
    - {command: "say {{ x }}{{ y + 1 }}"}
    - {command: "say {{ x }}", vars: {x: task}}
    - vars: {x: block}
      block:
        - {command: "say {{ x }}"}
        - {command: "say {{ x }}", vars: {x: inner}}
""",
    "until": """
  tasks:
    - {command: say try, register: r, until: r.stdout == 'x', retries: 2, delay: 0, ignore_errors: true}
    - {command: "say {{ r.attempts }}"}
    - {command: say once, register: s, until: s.rc == 0, retries: 3, delay: 0}
""",
    "tags always and never": """
  tasks:
    - {command: say plain}
    - {command: say never, tags: never}
    - {command: say always, tags: always}
""",
    "environment": """
  environment: {A: play}
  tasks:
    - {command: "env", register: e, environment: {B: task}}
    - {command: "say {{ e.stdout_lines | select('match', '[AB]=') | sort | join(' ') }}"}
""",
    "copy and file": """
  tasks:
    - {file: {path: "{{ log | dirname }}/d", state: directory, mode: "0700"}, register: d}
    - {copy: {content: "hello", dest: "{{ log | dirname }}/d/f", mode: "0640"}, register: f}
    - {copy: {content: "hello", dest: "{{ log | dirname }}/d/f"}, register: again}
    - {stat: {path: "{{ log | dirname }}/d/f"}, register: s}
    - {command: "say {{ d.changed }} {{ f.changed }} {{ again.changed }} {{ s.stat.size }} {{ s.stat.mode }}"}
    - {command: say no, args: {creates: "{{ log | dirname }}/d/f"}}
    - {file: {path: "{{ log | dirname }}/d", state: absent}}
    - {file: {path: "{{ log | dirname }}/d", state: absent}}
""",
    "assert and debug": """
  tasks:
    - {assert: {that: ["1 < 2", "'a' in 'abc'"]}}
    - {debug: {msg: "hello"}}
    - {assert: {that: "1 > 2"}, ignore_errors: true}
""",
}


@dataclass(frozen=True)
class Outcome:
    code: int
    recap: dict[str, int]
    log: list[str]


def folder_for(base: Path, name: str) -> tuple[Path, dict[str, str]]:
    """A folder with the program `say` on PATH and the playbook."""
    base.mkdir()
    say = base / "say"
    say.write_text(f'#!/bin/sh\necho "$*" >> "{base}/log"\necho "$*"\n')
    say.chmod(0o755)
    (base / "play.yml").write_text(HEAD % (base / "log") + PLAYS[name].lstrip("\n"))
    return base, {**os.environ, "PATH": f"{base}:{os.environ['PATH']}", **SETTINGS}


def read(base: Path, code: int, output: str) -> Outcome:
    line = next((line for line in output.splitlines() if re.match(r"localhost\s+:", line)), "")
    recap = {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", line)}
    recap.pop("rolled_back", None)
    log = (base / "log").read_text().splitlines() if (base / "log").exists() else []
    return Outcome(code, recap, log)


def by_both(base: Path, programs: Programs, name: str) -> tuple[Outcome, Outcome]:
    """What ansible-playbook made of it, and crossgrade."""
    (theirs, its_environment), (ours, environment) = (folder_for(base / side, name) for side in ("theirs", "ours"))
    local = ("-i", "localhost,", "-c", "local", "-e", f"ansible_python_interpreter={programs.python}")
    answers = programs.both(
        Asked((*local, theirs / "play.yml"), theirs, its_environment),
        Asked(("upgrade", "--playbook", ours / "play.yml", "--root", ours / "root"), Path.cwd(), environment),
    )
    first, second = (read(folder, one.code, one.stdout) for folder, one in zip((theirs, ours), answers, strict=True))
    assert first.recap, "ansible-playbook printed no recap"
    return first, second


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    with WarmPrograms(tmp_path_factory.mktemp("warm"), SETTINGS) as programs:
        yield programs


@pytest.mark.parametrize("name", PLAYS)
def test_like_ansible(tmp_path: Path, warm: Programs, name: str) -> None:
    theirs, ours = by_both(tmp_path, warm, name)
    assert ours == theirs


@pytest.mark.parametrize("name", ["copy and file"])
def test_like_ansible_in_processes_of_their_own(tmp_path: Path, name: str) -> None:
    theirs, ours = by_both(tmp_path, OwnProcesses(), name)
    assert ours == theirs
