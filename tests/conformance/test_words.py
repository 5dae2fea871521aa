"""Keywords about hosts, loops and the order of things: run by real ansible-core and by crossgrade, same outcome.

Three hosts (`a`, `b`, `c`) are this machine. `say X` appends X to a log, so that the order over all hosts shows;
Ansible does one host at a time (`--forks 1`). Compared are the exit code, the recap of each host, and the log.
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
INVENTORY = "".join(f"{host} ansible_connection=local\n" for host in "abc") + (
    "[all:vars]\nansible_python_interpreter=%s\n"
)
ME = "{{ inventory_hostname }}"

# name → the plays. `ME` in capitals stands for the host's own name.
PLAYBOOKS = {
    "every with_": """
- hosts: a
  gather_facts: false
  vars:
    users: [{name: x, keys: [1, 2]}, {name: y, keys: [3]}, {name: z}]
    of: {k1: v1, k2: {a: 1}}
  tasks:
    - {command: "say items {{ item }}", with_items: [1, [2, 3], [[4]], "s"]}
    - {command: "say one {{ item }}", with_items: single}
    - {command: "say keys {{ item }}", with_items: "{{ users[0]['keys'] }}"}
    - {command: "say list {{ item }}", with_list: [1, [2, 3]]}
    - {command: "say dict {{ item.key }} {{ item.value }}", with_dict: "{{ of }}"}
    - {command: "say seq {{ item }}", with_sequence: start=4 end=16 stride=4}
    - {command: "say count {{ item }}", with_sequence: count=3}
    - {command: "say format {{ item }}", with_sequence: start=1 end=3 format=host%02d}
    - {command: "say short {{ item }}", with_sequence: "2-10/3:x%02x"}
    - {command: "say down {{ item }}", with_sequence: start=3 end=1 stride=-1}
    - {command: "say alone {{ item }}", with_sequence: "3"}
    - {command: "say nested {{ item }}", with_nested: [[a, b], [1, [2]], ["z"]]}
    - {command: "say together {{ item }}", with_together: [[a, b], [1, 2, 3]]}
    - {command: "say sub {{ item.0.name }} {{ item.1 }}",
       with_subelements: ["{{ users }}", keys, {skip_missing: true}]}
    - {command: "say sub {{ item }}", with_subelements: ["{{ users }}", keys], ignore_errors: true}
    - {command: "say indexed {{ item }}", with_indexed_items: [a, [b, c]]}
    - {command: "say glob {{ item | basename }}", with_fileglob: ["f1*.txt", "{{ playbook_dir }}/files/f2*"]}
    - {command: "say file {{ item }}", with_file: [f1.txt, f2.txt]}
    - {command: "say lines {{ item }}", with_lines: ["printf 'a\\\\nb\\\\n'", echo c]}
    - {command: "say first {{ item | basename }}", with_first_found: [nope.txt, f2.txt]}
    - {command: "say first {{ item | basename }}", with_first_found: [{files: [nofile, f1.txt], paths: [/tmp, files]}]}
    - {command: "say first {{ item }}", with_first_found: [{files: [nofile], skip: true}]}
    - {command: "say first {{ item }}", with_first_found: [nofile, neither], ignore_errors: true}
    - {command: "say random {{ item }}", with_random_choice: [q]}
    - {command: "say env {{ item }}", with_env: [WORDS_HERE, WORDS_NOT]}
    - {command: "say {{ item }}", with_items: "{{ undefined_list }}", when: false}
    - {command: "say {{ item }}", with_items: "{{ undefined_list }}", ignore_errors: true}
    - {command: "say {{ item }}", with_dict: [a], ignore_errors: true}
    - {command: "say {{ item }}", with_sequence: end=a, ignore_errors: true}
""",
    "loop_control": """
- hosts: a
  gather_facts: false
  tasks:
    - {command: "say {{ item }}", loop: [1, 2, 3], loop_control: {break_when: item == 2}, register: out}
    - {command: "say {{ out.results | length }}"}
    - {command: "say {{ item }}", loop: [1, 2, 3], register: r, loop_control: {break_when: ["r.rc == 0", true]}}
    - command: say {{ ansible_loop.index }}{{ ansible_loop.revindex0 }}{{ ansible_loop.first }}{{ ansible_loop.last }}
        {{ ansible_loop.length }} {{ ansible_loop.previtem | default('-') }} {{ ansible_loop.nextitem | default('-') }}
        {{ ansible_loop.allitems }}
      loop: [x, y, z]
      loop_control: {extended: true}
    - command: say {{ ansible_loop.allitems | default('none') }} {{ n }} {{ ansible_index_var }} {{ ansible_loop_var }}
      loop: [x, y]
      loop_control: {extended: true, extended_allitems: false, index_var: n, loop_var: it}
    - {command: "say {{ ansible_loop | default('not extended') }}", with_items: [1], loop_control: {pause: 0}}
""",
    "side by side": """
- hosts: all
  gather_facts: false
  order: reverse_sorted
  tasks:
    - {command: "say ME one"}
    - {command: "say ME two", when: inventory_hostname != 'b', register: two}
    - {command: "say once by ME", run_once: true, register: once, notify: told}
    - {command: "say ME {{ once.stdout }} {{ two is skipped }}"}
    - {set_fact: {whose: "ME"}, run_once: true}
    - {command: "say ME {{ whose }}"}
    - {command: "say ME at c", delegate_to: c}
    - {command: "say ME here", delegate_to: localhost}
    - {local_action: "command say local ME"}
    - {action: "command say action ME"}
    - {set_fact: {left: "by ME"}, delegate_to: b, delegate_facts: true}
    - {command: "say ME {{ left | default('nothing') }}"}
    - {command: "say ME throttled", throttle: 1}
    - {command: "false", run_once: true, when: inventory_hostname == 'b'}
    - meta: flush_handlers
    - {command: "say ME after"}
  handlers:
    - {name: told, command: "say told ME"}
- hosts: all
  gather_facts: false
  tasks:
    - {command: "say next play {{ once.stdout }} {{ whose }} {{ left | default('nothing') }}"}
""",
    "batches": """
- hosts: all
  gather_facts: false
  serial: [1, "100%"]
  tasks:
    - {command: "say ME one"}
    - {meta: end_batch, when: inventory_hostname == 'a'}
    - {command: "say ME two", notify: h}
    - {meta: end_host, when: inventory_hostname == 'b'}
    - {meta: noop}
    - {command: "say ME three"}
  handlers:
    - {name: h, command: "say handler ME"}
- hosts: all
  gather_facts: false
  serial: "50%"
  order: reverse_inventory
  tasks:
    - {command: "say ME"}
- hosts: all
  gather_facts: false
  tasks:
    - block:
        - {command: "say ME in", changed_when: false}
        - {meta: end_play, when: inventory_hostname == 'b'}
        - {meta: end_play, when: inventory_hostname == 'a'}
      always:
        - {command: say never}
- hosts: b
  gather_facts: false
  tasks:
    - {command: say last}
""",
    "one host fails": """
- hosts: all
  gather_facts: false
  tasks:
    - {command: "say ME one", notify: h}
    - {command: "false", when: inventory_hostname == 'b'}
    - {command: "say ME two"}
  post_tasks:
    - {command: "say ME post"}
  handlers:
    - {name: h, command: "say handler ME"}
- hosts: all
  gather_facts: false
  tasks:
    - {command: "say ME next"}
- hosts: b
  gather_facts: false
  tasks:
    - {command: say never}
""",
    "forced handlers": """
- hosts: all
  gather_facts: false
  force_handlers: true
  tasks:
    - {command: "say ME one", notify: h}
    - {command: "false", when: inventory_hostname == 'b'}
    - {command: "say ME two"}
  handlers:
    - {name: h, command: "say handler ME"}
""",
    "any_errors_fatal": """
- hosts: all
  gather_facts: false
  tasks:
    - block:
        - {command: "false", when: inventory_hostname == 'b'}
        - {command: say never}
      rescue:
        - {command: "say ME rescue {{ ansible_failed_task.action | default('not here') }}"}
      always:
        - {command: "say ME always"}
      any_errors_fatal: true
    - {command: "false", when: inventory_hostname == 'c', any_errors_fatal: true}
    - {command: say never}
- hosts: all
  gather_facts: false
  tasks:
    - {command: say never}
""",
    "run_once that fails": """
- hosts: all
  gather_facts: false
  tasks:
    - {command: "false", run_once: true, ignore_errors: true, register: r}
    - {command: "say ME {{ r.rc }}"}
    - {command: "false", run_once: true}
    - {command: say never}
""",
    "max_fail_percentage": """
- hosts: all
  gather_facts: false
  max_fail_percentage: 50
  tasks:
    - {command: "false", when: inventory_hostname == 'b'}
    - {command: "say ME goes on"}
    - {command: "false", when: inventory_hostname == 'c'}
    - {command: say never}
- hosts: a
  gather_facts: false
  tasks:
    - {command: say never}
""",
    "clear_host_errors": """
- hosts: all
  gather_facts: false
  tasks:
    - {command: "false", when: inventory_hostname == 'b'}
    - {meta: clear_host_errors}
    - {command: "say ME goes on"}
- hosts: all
  gather_facts: false
  tasks:
    - {command: "say ME again"}
""",
    "handlers": """
- hosts: a
  gather_facts: false
  vars: {v: x}
  pre_tasks:
    - {command: say pre, notify: [late, topic]}
  tasks:
    - {command: say task, notify: [late, same]}
    - {command: say t, notify: "name {{ v }}"}
    - meta: flush_handlers
    - {command: say middle, notify: chain}
  post_tasks:
    - {command: say post, notify: topic}
    - {command: say quiet, notify: late, changed_when: false}
  handlers:
    - {name: early, listen: topic, command: say early}
    - {name: same, command: say same 1}
    - {name: "name {{ v }}", command: say named}
    - {name: same, command: say same 2}
    - {name: other, listen: [topic, more], command: say other}
    - {name: late, command: say late}
    - {name: chain, command: say chain, notify: [after, early]}
    - {name: after, command: say after}
""",
    "how a task runs": """
- hosts: a
  gather_facts: false
  collections: [ansible.builtin]
  module_defaults:
    command: {chdir: /tmp}
    ansible.builtin.set_fact: {d: default}
  become: true
  ignore_unreachable: true
  gather_subset: [min]
  tasks:
    - {command: pwd, register: p}
    - {command: "say {{ p.stdout }}"}
    - {command: pwd, args: {chdir: /}, register: p}
    - {command: "say {{ p.stdout }}"}
    - block:
        - {ansible.builtin.command: pwd, register: p}
        - {command: "say {{ p.stdout }}"}
      module_defaults:
        - {command: {chdir: /usr}}
    - {set_fact: {x: 1}}
    - {command: "say {{ x }} {{ d }}"}
    - {command: sleep 30, timeout: 1, register: t, ignore_errors: true}
    - {command: "say {{ t is failed }} {{ t.timedout.period }}"}
    - {command: say quick, timeout: 60}
    - {command: id -un, become_user: root, register: who}
    - {command: "say {{ who.stdout }}"}
    - {action: {module: command, cmd: say mapping}}
    - {ansible.builtin.command: say never, when: false, become: false}
""",
}


@dataclass(frozen=True)
class Outcome:
    code: int
    recap: dict[str, dict[str, int]]
    log: list[str]


def laid_out(base: Path, name: str, python: Path) -> dict[str, str]:
    """The folder with the program `say`, the playbook and its files; what the environment is then."""
    (base / "files").mkdir(parents=True)
    for number in (1, 2):
        (base / "files" / f"f{number}.txt").write_text(f"text {number}\n")
    say = base / "say"
    say.write_text(f'#!/bin/sh\necho "$*" >> "{base}/log"\necho "$*"\n')
    say.chmod(0o755)
    (base / "play.yml").write_text(PLAYBOOKS[name].replace("ME", ME).lstrip())
    (base / "hosts").write_text(INVENTORY % python)
    path = f"{base}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, **SETTINGS, "WORDS_HERE": "here"}


def read(base: Path, code: int, output: str) -> Outcome:
    recap = {}
    for host, counts in re.findall(r"^(\w+)\s+: (ok=.*)$", output, re.MULTILINE):
        recap[host] = {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", counts) if key != "rolled_back"}
    log = (base / "log").read_text().splitlines() if (base / "log").exists() else []
    return Outcome(code, {host: counts for host, counts in recap.items() if any(counts.values())}, log)


def by_both(base: Path, programs: Programs, name: str, *options: str) -> tuple[Outcome, Outcome]:
    """What ansible-playbook made of it, and crossgrade."""
    folders = base / "theirs", base / "ours"
    theirs, ours = (laid_out(folder, name, programs.python) for folder in folders)
    places = ("--playbook", folders[1] / "play.yml", "-i", folders[1] / "hosts", "--root", folders[1] / "root")
    answers = programs.both(
        Asked(("-i", folders[0] / "hosts", "--forks", "1", folders[0] / "play.yml", *options), folders[0], theirs),
        Asked(("upgrade", *places, *options), Path.cwd(), ours),
    )
    first, second = (read(folder, one.code, one.stdout) for folder, one in zip(folders, answers, strict=True))
    assert first.recap, "ansible-playbook printed no recap"
    assert first.log
    return first, second


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    with WarmPrograms(tmp_path_factory.mktemp("warm"), SETTINGS) as programs:
        yield programs


@pytest.mark.parametrize("name", PLAYBOOKS)
def test_like_ansible(tmp_path: Path, warm: Programs, name: str) -> None:
    theirs, ours = by_both(tmp_path, warm, name)
    assert ours == theirs


def test_forced_handlers_by_option(tmp_path: Path, warm: Programs) -> None:
    theirs, ours = by_both(tmp_path, warm, "one host fails", "--force-handlers")
    assert ours == theirs


@pytest.mark.parametrize("name", ["how a task runs"])
def test_like_ansible_in_processes_of_their_own(tmp_path: Path, name: str) -> None:
    theirs, ours = by_both(tmp_path, OwnProcesses(), name)
    assert ours == theirs
