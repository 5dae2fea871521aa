"""The variables that nobody sets, as real ansible-core and crossgrade have them, on two hosts that are this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.commands import crossgrade

INVENTORY = """
[web]
web1.example.org own=1 ansible_connection=local
[web:vars]
colour=red
[dbs]
db own=2 made="{{ own }}x" ansible_connection=local
[dbs:vars]
colour=blue
"""

# name → expression, worked out by a task on every host and written to a file as JSON
SAME = {
    "short": "[inventory_hostname, inventory_hostname_short]",
    "inventory": "[inventory_dir, inventory_file, ansible_inventory_sources]",
    "groups": "[groups, group_names]",
    "play": "[play_hosts, ansible_play_hosts, ansible_play_hosts_all, ansible_play_batch, ansible_play_name]",
    "modes": "[ansible_check_mode, ansible_diff_mode, ansible_verbosity]",
    "options": "[ansible_run_tags, ansible_skip_tags, ansible_limit, ansible_config_file]",
    "version": "[ansible_version.major, ansible_version.minor, ansible_version.full is version('2.18', '>=')]",
    "keys of the version": "ansible_version | sort",
    "facts": "ansible_facts",
    "places": "[playbook_dir, ansible_search_path]",
    "no role": "[role_path is defined, ansible_role_name is defined, role_names, ansible_play_role_names]",
    "hosts": "[hostvars | length, hostvars.keys() | sort, 'db' in hostvars, 'nope' in hostvars]",
    "of another host": "[hostvars['db'].own, hostvars.db.colour, hostvars.db.made, hostvars.db.group_names]",
    "set by another host": "hostvars['db'].mine ~ hostvars['web1.example.org'].mine",
    "registered by another host": "hostvars['db'].said.stdout",
    "own": "hostvars[inventory_hostname].inventory_hostname",
    "no variables of the play": "hostvars['db'].of_the_play | default('none')",
    "given": "hostvars['db'].given",
    "every host": "groups['all'] | map('extract', hostvars, 'own') | list",
    "filtered": "hostvars | dict2items | selectattr('value.own', 'equalto', 2) | map(attribute='key')",
    "no such host": "hostvars.nope is defined",
    "localhost": "hostvars['localhost'].inventory_hostname",
    "a loop's names": "[ansible_loop_var, ansible_index_var, at]",
    "the whole loop": "[ansible_loop.index, ansible_loop.first, ansible_loop.length, ansible_loop.allitems | length]",
    "selected hosts": "query('inventory_hostnames', 'all:!db')",
    "names": "query('varnames', '^of_the_pl')",
    "not there": "ansible_managed is defined or ansible_failed_task is defined",
}

PLAY = """
- name: The play
  hosts: all
  gather_facts: false
  vars: {{of_the_play: 1}}
  tasks:
    - set_fact: {{mine: "{{{{ inventory_hostname }}}}"}}
    - command: echo {{{{ inventory_hostname }}}}
      register: said
      changed_when: false
    - copy:
        content: "{{{{ expressions[item] | to_json }}}}"
        dest: "{folder}/{{{{ inventory_hostname }}}}.{{{{ at }}}}.json"
        mode: "0644"
      loop: "{{{{ names }}}}"
      loop_control: {{index_var: at, extended: true}}
      vars:
        names: {names}
        expressions:
{expressions}
"""


def prepared(folder: Path, expressions: dict[str, str]) -> None:
    folder.mkdir()
    (folder / "hosts.ini").write_text(INVENTORY)
    lines = "\n".join(f'          "{name}": "{{{{ {text} }}}}"' for name, text in expressions.items())
    (folder / "play.yml").write_text(PLAY.format(folder=folder, names=json.dumps(list(expressions)), expressions=lines))


def results(folder: Path, expressions: dict[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for host in ("web1.example.org", "db"):
        for at, name in enumerate(expressions):
            text = (folder / f"{host}.{at}.json").read_text().replace(str(folder), "FOLDER")
            found[f"{host}: {name}"] = json.loads(text)
    return found


@pytest.mark.parametrize("limit", ["all"])
def test_magic_variables(tmp_path: Path, limit: str) -> None:
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    prepared(theirs, SAME)
    prepared(ours, SAME)
    environment = {"ANSIBLE_NOCOLOR": "1", "ANSIBLE_HOME": str(tmp_path / "home"), "ANSIBLE_LOCALHOST_WARNING": "0"}
    ran = subprocess.run(
        [
            *(Path(sys.executable).parent / "ansible-playbook", "-i", theirs / "hosts.ini", theirs / "play.yml"),
            *("-e", f"given=2 ansible_python_interpreter={sys.executable}", "--limit", limit),
        ],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        cwd=theirs,
    )
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    answer = crossgrade(
        *("upgrade", "--playbook", ours / "play.yml", "-i", ours / "hosts.ini", "--root", tmp_path / "root"),
        *("-e", "given=2", "--limit", limit),
        environment=environment,
        cwd=ours,
    )
    assert answer.code == 0, answer.stdout[-3000:] + answer.stderr[-3000:]
    assert results(ours, SAME) == results(theirs, SAME)
