"""Includes, imports, roles and the precedence of variables: the same by real ansible-core and by crossgrade.

Each case is a folder of files. What is compared: the messages of `debug` in their order, the recap, the exit code.
A case is long on purpose, because each costs a start of ansible-playbook.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from tests.support.two_programs import Asked, OwnProcesses, Programs, WarmPrograms

SETTINGS = {"ANSIBLE_NOCOLOR": "1", "ANSIBLE_ROLES_PATH": "/nowhere"}
HEAD = "- hosts: localhost\n  gather_facts: false\n"

# name → file → text; `play.yml` without an own `hosts` gets HEAD. `options` are given to both programs.
CASES: dict[str, dict[str, str]] = {
    "include_tasks": {
        "play.yml": """
  vars: {where: play}
  tasks:
    - {include_tasks: sub.yml, loop: [1, 2, 2], register: r, vars: {x: 5}}
    - debug: {msg: "{{ r.results | length }} {{ r.results[0].include }} {{ r.changed }} {{ r.skipped }}"}
    - {include_tasks: sub.yml, when: false, register: r}
    - debug: {msg: "{{ r is skipped }}"}
    - {include_tasks: sub.yml, loop: [1, 2], when: item == 2, register: r}
    - debug: {msg: "{{ r.results | map(attribute='skipped', default=false) | list }}"}
    - {include_tasks: sub.yml, loop: [], register: r}
    - {include_tasks: sub.yml, loop: [1, 2], when: false}
    - {include_tasks: no-such.yml, when: where == 'elsewhere'}
    - set_fact: {x: fact}
    - {include_tasks: sub.yml, vars: {x: given}}
    - {import_tasks: sub.yml, vars: {x: given}}
    - include_tasks: "{{ item }}.yml"
      loop: [sub, set]
      loop_control: {index_var: at}
    - debug: {msg: "{{ flag }}"}
    - {include_tasks: set.yml, loop: [1, 2], when: other is not defined}
    - vars: {x: block}
      when: where == 'play'
      environment: {A: block}
      block:
        - {include_tasks: sub.yml, vars: {y: 1}}
        - include_tasks: {file: nested/one.yml}
        - import_tasks: nested/one.yml
""",
        "sub.yml": """
- debug: {msg: "sub {{ item | default('none') }} x={{ x | default('unset') }} {{ lookup('env', 'A') }}"}
- {debug: {msg: "inner {{ item }} {{ ansible_loop_var }}"}, loop: [a, b]}
""",
        "set.yml": "- {set_fact: {flag: 1, other: 2}}\n- {debug: {msg: set}, when: true}\n",
        "nested/one.yml": "- {debug: {msg: one}}\n- {include_tasks: two.yml}\n- {import_tasks: two.yml}\n",
        "nested/two.yml": "- {debug: {msg: two beside one}}\n- {include_tasks: three.yml}\n",
        "two.yml": "- {debug: {msg: two beside the playbook}}\n",
        "three.yml": "- {debug: {msg: three beside the playbook}}\n",
    },
    "apply, when and tags": {
        "options": "--tags one,imported,inside",
        "play.yml": """
  vars: {nope: false}
  tasks:
    - {include_tasks: sub.yml, tags: one}
    - include_tasks: {file: sub.yml, apply: {tags: one}}
      tags: one
    - include_tasks: {file: sub.yml, apply: {when: nope}}
      tags: one
    - {import_tasks: sub.yml, tags: imported}
    - {import_tasks: sub.yml, tags: imported, when: nope}
    - {include_tasks: sub.yml, tags: other}
    - {include_tasks: sub.yml}
    - tags: one
      block:
        - {include_tasks: sub.yml}
    - {include_role: {name: r}, tags: one}
    - include_role: {name: r, apply: {tags: one, vars: {v: applied}}}
      tags: one
    - {import_role: {name: r}, tags: imported}
    - {import_role: {name: r}, tags: other}
    - include_tasks: {file: fails.yml, apply: {ignore_errors: true}}
      tags: one
""",
        "sub.yml": """
- {debug: {msg: untagged}}
- {debug: {msg: inside}, tags: inside}
- {debug: {msg: never}, tags: never}
""",
        "fails.yml": "- {command: 'false', tags: one}\n- {debug: {msg: went on}, tags: one}\n",
        "roles/r/tasks/main.yml": """
- {debug: {msg: "role {{ v | default('') }}"}}
- {debug: {msg: role}, tags: inside}
""",
    },
    "failures in what is included": {
        "play.yml": """
  tasks:
    - block:
        - {include_tasks: fails.yml, loop: [1, 2]}
      rescue:
        - debug: {msg: "rescued {{ ansible_failed_task.name }}"}
      always:
        - debug: {msg: always}
    - block:
        - {include_role: {name: r}}
      rescue:
        - debug: {msg: "rescued {{ ansible_failed_task.name }}"}
    - {include_tasks: "{{ nowhere }}.yml", ignore_errors: true, register: r}
    - debug: {msg: "{{ r is failed }}"}
    - {include_tasks: fails.yml, when: nowhere, ignore_errors: true}
    - {include_tasks: fails.yml}
    - debug: {msg: never}
""",
        "fails.yml": "- {debug: {msg: before}}\n- {name: fall, command: 'false'}\n- {debug: {msg: never}}\n",
        "roles/r/tasks/main.yml": "- {name: fall over, command: 'false'}\n",
    },
    "roles": {
        "play.yml": """
  pre_tasks:
    - {debug: {msg: "pre {{ d }} {{ v }}"}, changed_when: true, notify: all}
  roles:
    - a
    - {role: b, p: 9, vars: {v: given}, tags: tb}
    - a
    - {role: a, when: false}
    - {role: twice}
    - {role: twice}
    - {role: "{{ named }}", p: 1}
  vars: {named: a}
  tasks:
    - {debug: {msg: "task {{ d }} {{ v }}"}, notify: h, changed_when: true}
    - {import_role: {name: a}, vars: {p: imported}}
    - {include_role: {name: b}, vars: {p: included}}
    - {include_role: {name: b, allow_duplicates: false}}
    - {include_role: {name: b, allow_duplicates: false}}
    - {include_role: {name: "{{ item }}", tasks_from: other}, loop: [a, b]}
    - {debug: {msg: "{{ d }} {{ only_public | default('hidden') }}"}}
    - {include_role: {name: public, public: true}}
    - {debug: {msg: "{{ only_public | default('hidden') }}"}}
    - {include_role: {name: private}}
    - {import_role: {name: private, vars_from: more, defaults_from: more.yml}}
    - {debug: {msg: "{{ hidden | default('hidden') }}"}}
  post_tasks:
    - {debug: {msg: post}, changed_when: true, notify: [h, "a : only a"]}
  handlers:
    - {name: h, debug: {msg: handler of the play}}
    - {name: p, listen: all, debug: {msg: listener of the play}}
""",
        "roles/a/meta/main.yml": "dependencies: [{role: c, p: 3}]\n",
        "roles/b/meta/main.yml": "dependencies: [{role: c, p: 3}]\n",
        "roles/twice/meta/main.yml": "allow_duplicates: true\ndependencies: [c]\n",
        "roles/twice/tasks/main.yml": "- {debug: {msg: 'twice {{ d }}'}}\n",
        "roles/public/defaults/main.yml": "only_public: seen\n",
        "roles/public/tasks/main.yml": "- {debug: {msg: '{{ only_public }}'}}\n",
        "roles/private/vars/more.yml": "hidden: 1\n",
        "roles/private/defaults/more.yml": "by_default: 1\n",
        "roles/private/tasks/main.yml": """
- {debug: {msg: "{{ hidden | default('-') }} {{ by_default | default('-') }}"}}
""",
        **{
            f"roles/{name}/{file}": text.replace("NAME", name)
            for name in "abc"
            for file, text in {
                "tasks/main.yml": """
- debug:
    msg: >-
      NAME {{ d }} {{ v }} {{ p | default(0) }} {{ role_name }} {{ role_path | basename }}
      {{ ansible_parent_role_names | default([]) }}
  changed_when: true
  notify: [h, all]
""",
                "tasks/other.yml": "- {debug: {msg: 'other of NAME {{ d }} {{ item }}'}}\n",
                "handlers/main.yml": """
- {name: h, debug: {msg: "h of NAME {{ d }}"}}
- {name: l, listen: all, debug: {msg: l of NAME}}
- {name: only NAME, debug: {msg: only NAME}}
""",
                "defaults/main.yml": "d: d of NAME\n",
                "vars/main.yml": "v: v of NAME\n",
            }.items()
        },
    },
    "roles in roles": {
        "play.yml": """
  roles:
    - {role: outer, given: 1, tags: t}
  tasks:
    - {include_role: {name: outer}, vars: {given: 2}}
""",
        "roles/outer/meta/main.yml": "dependencies:\n  - {role: needed, vars: {n: of outer}, when: given == 1}\n",
        "roles/outer/defaults/main.yml": "deep: of outer\ngiven: 0\n",
        "roles/outer/vars/main.yml": "fixed: of outer\n",
        "roles/outer/tasks/main.yml": """
- {debug: {msg: "outer {{ deep }} {{ fixed }} {{ given }} {{ n | default('-') }}"}}
- {include_role: {name: inner}, vars: {handed: "{{ role_name }}"}}
- {import_role: {name: inner}}
- {include_tasks: part.yml}
""",
        "roles/outer/tasks/part.yml": "- {debug: {msg: 'part {{ role_name }} {{ deep }}'}}\n",
        "roles/needed/tasks/main.yml": "- {debug: {msg: 'needed {{ n }} {{ deep }} {{ fixed }} {{ given }}'}}\n",
        "roles/inner/defaults/main.yml": "deep: of inner\n",
        "roles/inner/vars/main.yml": "fixed: of inner\n",
        "roles/inner/tasks/main.yml": (
            "- {debug: {msg: \"inner {{ deep }} {{ fixed }} {{ given }} {{ handed | default('-') }} {{ role_name }}"
            ' {{ ansible_parent_role_names }}"}}\n'
        ),
    },
    "handlers": {
        "play.yml": """
  tasks:
    - {debug: {msg: x}, changed_when: true, notify: [inc, inner two, late]}
    - include_role: {name: r}
  post_tasks:
    - {debug: {msg: x}, changed_when: true, notify: [same, topic]}
    - {include_tasks: notifies.yml}
  handlers:
    - {name: late, debug: {msg: late}}
    - {name: inc, include_tasks: handlers.yml}
    - {name: imp, import_tasks: handlers.yml}
    - {name: same, debug: {msg: same 1}}
    - {name: hb, debug: {msg: hb}}
    - {name: same, debug: {msg: same 2}}
    - {name: s3, debug: {msg: same 3}, listen: same}
    - {name: s4, debug: {msg: same 4}, listen: [topic, same]}
""",
        "handlers.yml": """
- {name: inner one, debug: {msg: inner one}, changed_when: true, notify: [late, hb]}
- {name: inner two, debug: {msg: inner two}}
""",
        "notifies.yml": "- {debug: {msg: notifies}, changed_when: true, notify: of r}\n",
        "roles/r/tasks/main.yml": "- {debug: {msg: r}, changed_when: true, notify: [of r, late]}\n",
        "roles/r/handlers/main.yml": "- {name: of r, include_tasks: more.yml}\n",
        "roles/r/handlers/more.yml": "- {debug: {msg: 'more of {{ role_name }}'}}\n",
    },
    "search paths": {
        "play.yml": """
  roles: [r]
  tasks:
    - {debug: {msg: "{{ lookup('file', 'f.txt') }} {{ lookup('file', 'g.txt') }}"}}
    - {include_tasks: sub/t.yml}
    - {include_vars: v.yml}
    - {debug: {msg: "{{ v }}"}}
    - {import_role: {name: ./elsewhere/q}}
""",
        "files/f.txt": "f of the playbook",
        "files/g.txt": "g of the playbook",
        "sub/t.yml": """
- {debug: {msg: "{{ lookup('file', 'f.txt') }} {{ lookup('file', 'h.txt') }}"}}
""",
        "sub/files/f.txt": "f of sub",
        "sub/h.txt": "h of sub",
        "vars/v.yml": "v: of vars\n",
        "v.yml": "v: beside the playbook\n",
        "roles/r/tasks/main.yml": """
- {debug: {msg: "{{ lookup('file', 'f.txt') }} {{ lookup('file', 'g.txt') }}"}}
- {copy: {src: f.txt, dest: "{{ playbook_dir }}/out.txt", mode: "0600"}}
- {command: "cat {{ playbook_dir }}/out.txt", register: got, changed_when: false}
- {debug: {msg: "{{ got.stdout }}"}}
- {template: {src: t.j2, dest: "{{ playbook_dir }}/out2.txt", mode: "0600"}}
- {command: "cat {{ playbook_dir }}/out2.txt", register: got, changed_when: false}
- {debug: {msg: "{{ got.stdout }}"}}
- {include_vars: v.yml}
- {debug: {msg: "{{ v }}"}}
- {include_vars: {dir: all}}
- {debug: {msg: "{{ one }} {{ two }}"}}
- {include_tasks: deep/a.yml}
""",
        "roles/r/tasks/deep/a.yml": "- {debug: {msg: a}}\n- {include_tasks: b.yml}\n- {include_tasks: deep/b.yml}\n",
        "roles/r/tasks/deep/b.yml": "- {debug: {msg: \"b {{ lookup('file', 'f.txt') }}\"}}\n",
        "roles/r/files/f.txt": "f of the role",
        "roles/r/templates/t.j2": "template of {{ role_name }}",
        "roles/r/vars/v.yml": "v: of the role\n",
        "roles/r/vars/all/1.yml": "one: 1\n",
        "roles/r/vars/all/2.yml": "two: 2\none: 11\n",
        "elsewhere/q/tasks/main.yml": "- {debug: {msg: q}}\n",
    },
    "include_vars": {
        "play.yml": """
  vars: {where: play, mv: play}
  tasks:
    - {include_vars: more.yml, register: r}
    - {debug: {msg: "{{ mv }} {{ where }} {{ r.ansible_included_var_files | map('basename') | list }}"}}
    - {include_vars: {file: more.yml, name: nested}}
    - {debug: {msg: "{{ nested.where }}"}}
    - {set_fact: {mv: fact}}
    - {include_vars: more.yml}
    - {debug: {msg: "{{ mv }} {{ where }} {{ nested.where }}"}}
    - {debug: {msg: "{{ where }}"}, vars: {where: task}}
    - {include_vars: {dir: d, extensions: [yml], ignore_unknown_extensions: true, ignore_files: [skipped.yml]}}
    - {debug: {msg: "{{ x }} {{ y | default('-') }} {{ z | default('-') }}"}}
    - {include_vars: {dir: d, depth: 1, files_matching: "^b", extensions: [yml]}}
    - {include_vars: nowhere.yml, ignore_errors: true, register: r}
    - {debug: {msg: "{{ r is failed }}"}}
    - {include_vars: "{{ item }}.yml", loop: [more, other]}
    - {debug: {msg: "{{ where }}"}}
    - {include_vars: other.yml, when: false}
""",
        "more.yml": "{mv: more, where: 'included {{ mv }}'}\n",
        "other.yml": "where: other\n",
        "d/a.yml": "x: a\n",
        "d/b.yml": "x: b\n",
        "d/skipped.yml": "y: 1\n",
        "d/deep/c.yml": "z: deep\n",
        "d/readme.md": "no variables\n",
    },
    "precedence": {
        "options": "-e extra=extra",
        "play.yml": """
  vars:
    {play: play, files: play, role: play, block: play, task: play, included: play, fact: play, par: play, extra: play}
  vars_files: [files.yml]
  roles:
    - {role: r, par: parameter, extra: parameter}
  tasks:
    - {debug: {msg: "{{ default }} {{ group }} {{ host }} {{ play }} {{ files }} {{ role }} {{ extra }}"}}
    - {debug: {msg: "{{ par.stdout | default(par) }}"}}
""",
        "group_vars/all.yml": "{default: all, group: all, host: all, play: all, extra: all}\n",
        "host_vars/localhost.yml": "{host: host, play: host}\n",
        "files.yml": "{files: f, role: f, block: f, task: f, included: f, fact: f, par: f}\n",
        "roles/r/defaults/main.yml": "{default: default, group: default, only: default}\n",
        "roles/r/vars/main.yml": "{role: role, block: role, task: role, included: role, fact: role, par: role}\n",
        "included.yml": "{included: included, fact: included, par: included, extra: included}\n",
        "roles/r/tasks/main.yml": """
- vars: {block: block, task: block, included: block, fact: block, par: block, only: block, inc: block}
  block:
    - {include_vars: included.yml}
    - set_fact: {fact: fact, par: fact, extra: fact, inc: fact}
    - vars: {task: task, included: task, fact: task, par: task, extra: task}
      debug:
        msg: >-
          {{ default }} {{ group }} {{ host }} {{ play }} {{ files }} {{ role }} {{ block }} {{ task }} {{ included }}
          {{ fact }} {{ par }} {{ extra }} {{ only }}
    - {include_tasks: sub.yml, vars: {inc: include, extra: include, par: include}}
    - {import_tasks: sub.yml, vars: {inc: import, extra: import, par: import}}
    - {command: echo registered, register: par, changed_when: false}
    - {debug: {msg: "{{ par.stdout | default(par) }}"}}
""",
        "roles/r/tasks/sub.yml": "- {debug: {msg: '{{ inc }} {{ par }} {{ extra }}'}, vars: {inc: task, par: task}}\n",
    },
    "uses of roles": {
        "options": "-e picked=r",
        "play.yml": """
  vars: {given: play}
  roles: [{role: r, when: given == 'play'}]
  tasks:
    - {import_role: {name: r}}
    - {import_role: {name: r, allow_duplicates: false}}
    - {import_role: {name: r, allow_duplicates: false}}
    - {include_role: {name: r, allow_duplicates: false}}
    - {set_fact: {role_to_use: r, given: fact}}
    - {include_role: {name: "{{ role_to_use }}", tasks_from: sub/more.yml}, vars: {given: include}}
    - {import_role: {name: "{{ picked }}", tasks_from: sub/more}, vars: {given: import}}
    - include_role: {name: r, tasks_from: sub/more, handlers_from: others, vars_from: main, apply: {vars: {a: applied}}}
      loop: [x, y]
      loop_control: {loop_var: each, index_var: at}
      vars: {given: "{{ each }}{{ at }}"}
      register: result
    - {debug: {msg: "{{ result.results | length }} {{ result.changed }}"}}
    - {include_role: {name: shared, public: true}, when: given != 'fact'}
    - {debug: {msg: "{{ from_shared | default('hidden') }}"}}
    - {include_role: {name: shared, public: true}}
    - {debug: {msg: "{{ from_shared }} {{ by_default }} {{ from_directory }}"}}
    - {import_tasks: uses.yml}
    - block:
        - {include_role: {name: falls}}
      rescue:
        - {include_tasks: uses.yml}
        - {debug: {msg: "{{ ansible_failed_task.name }}"}}
      always:
        - {include_role: {name: r, tasks_from: sub/more}}
  handlers:
    - {name: h, debug: {msg: "play's h {{ given }}"}}
""",
        "uses.yml": """
- {import_role: {name: r, tasks_from: sub/more}}
- {debug: {msg: "{{ given }}"}, vars: {given: task}}
""",
        "roles/r/tasks/main.yml": "- {debug: {msg: 'r {{ given }}'}}\n- {include_tasks: sub/more.yml}\n",
        "roles/r/tasks/sub/more.yml": """
- {debug: {msg: "more {{ given }} {{ a | default('-') }} {{ v }} {{ d }}"}, changed_when: true, notify: h}
""",
        "roles/r/handlers/main.yml": "- {name: h, debug: {msg: 'h of r {{ given }}'}}\n",
        "roles/r/handlers/others.yml": "- {name: h, debug: {msg: 'other h of r {{ given }} {{ a | default(0) }}'}}\n",
        "roles/r/vars/main.yml": "v: 'v {{ given }}'\n",
        "roles/r/defaults/main.yml": "d: 'd {{ v }}'\n",
        "roles/shared/vars/main/a.yml": "from_shared: a\n",
        "roles/shared/vars/main/b.yml": "{from_shared: b, from_directory: b}\n",
        "roles/shared/defaults/main.yml": "by_default: '{{ from_shared }}'\n",
        "roles/falls/tasks/main.yml": "- {include_tasks: it.yml}\n",
        "roles/falls/tasks/it.yml": "- {name: it falls, command: 'false'}\n",
    },
    "tags of plays, roles and imports": {
        "options": "--tags chosen --skip-tags not",
        "play.yml": """
- hosts: localhost
  gather_facts: false
  tags: chosen
  roles: [{role: r}]
  tasks:
    - {include_tasks: sub.yml}
    - {import_tasks: sub.yml, tags: not}
- {import_playbook: other.yml, tags: chosen}
- {import_playbook: other.yml}
- hosts: localhost
  gather_facts: false
  roles: [{role: r, tags: chosen}, {role: r, tags: [other], vars: {x: 1}}]
  tasks:
    - {include_role: {name: r}, tags: [chosen]}
    - {include_role: {name: r}, tags: always}
    - {import_role: {name: r}, tags: never}
    - {include_role: {name: r, apply: {tags: chosen}}, tags: [chosen, not]}
""",
        "other.yml": """
- hosts: localhost
  gather_facts: false
  tasks: [{debug: {msg: other}}, {include_tasks: sub.yml}, {debug: {msg: skipped}, tags: not}]
""",
        "sub.yml": "- {debug: {msg: sub}}\n- {debug: {msg: chosen}, tags: chosen}\n- {debug: {msg: not}, tags: not}\n",
        "roles/r/meta/main.yml": "dependencies: [needed]\n",
        "roles/r/tasks/main.yml": "- {debug: {msg: r}}\n- {include_tasks: more.yml}\n",
        "roles/r/tasks/more.yml": "- {debug: {msg: more of r}}\n- {debug: {msg: chosen of r}, tags: chosen}\n",
        "roles/needed/tasks/main.yml": "- {debug: {msg: needed}}\n",
    },
    "loops and conditions around includes": {
        "play.yml": """
  vars: {rows: [{name: a, cells: [1, 2]}, {name: b, cells: [3]}], deep: 0}
  tasks:
    - {include_tasks: row.yml, loop: "{{ rows }}", loop_control: {loop_var: row, label: "{{ row.name }}"}}
    - {include_tasks: "{{ item.name }}.yml", loop: "{{ rows }}", when: item.name == 'a'}
    - {include_tasks: again.yml}
    - {set_fact: {n: 0}}
    - {include_tasks: count.yml, when: n < 1, loop: [1, 2, 3]}
    - {debug: {msg: "{{ n }} {{ item | default('no item') }} {{ row | default('no row') }}"}}
    - when: n == 3
      vars: {seen: block}
      block:
        - {include_tasks: count.yml, vars: {item: 7}}
        - {include_tasks: changes.yml}
        - {debug: {msg: never}}
    - {include_tasks: registers.yml, register: ignored}
    - {debug: {msg: "{{ inner.stdout }}"}}
    - {include_tasks: {file: "{{ lookup('vars', 'which', default='count') }}.yml"}, vars: {item: 1}}
""",
        "row.yml": """
- include_tasks: cell.yml
  loop: "{{ row.cells }}"
  loop_control: {loop_var: cell}
  vars: {up: "{{ row.name }}"}
""",
        "cell.yml": "- {debug: {msg: '{{ up }} {{ row.name }} {{ cell }} {{ item | default(0) }}'}}\n",
        "a.yml": "- {debug: {msg: '{{ item.name }}'}}\n- {debug: {msg: '{{ item }}'}, loop: '{{ item.cells }}'}\n",
        "again.yml": """
- {set_fact: {deep: "{{ deep | int + 1 }}"}}
- {debug: {msg: "deep {{ deep }}"}}
- {include_tasks: again.yml, when: deep | int < 4}
""",
        "count.yml": """
- {set_fact: {n: "{{ n + 1 }}"}}
- {debug: {msg: "{{ n }} {{ item }} {{ seen | default('-') }}"}}
""",
        "changes.yml": "- {set_fact: {n: 99}}\n- {debug: {msg: not any more}}\n",
        "registers.yml": "- {command: echo inner, register: inner, changed_when: false}\n",
    },
    "import_playbook": {
        "play.yml": """
- import_playbook: sub/first.yml
  vars: {given: 1, own: imported}
- {import_playbook: sub/first.yml, when: false, tags: t}
- import_playbook: "{{ name | default('sub/second.yml') }}"
- hosts: localhost
  gather_facts: false
  tasks:
    - {debug: {msg: "last {{ given | default('unset') }}"}}
""",
        "sub/first.yml": """
- hosts: localhost
  gather_facts: false
  vars: {own: own}
  vars_files: [v.yml]
  roles: [r]
  tasks:
    - {debug: {msg: "first {{ given | default('unset') }} {{ own }} {{ v }} {{ playbook_dir | basename }}"}}
    - {include_tasks: t.yml}
    - {debug: {msg: "{{ lookup('file', 'f.txt') }}"}, changed_when: true, notify: h}
  handlers:
    - {name: h, debug: {msg: h}}
""",
        "sub/second.yml": "- {import_playbook: third.yml}\n",
        "sub/third.yml": "- {hosts: localhost, gather_facts: false, tasks: [{debug: {msg: third}}]}\n",
        "sub/v.yml": "v: 1\n",
        "sub/t.yml": "- {debug: {msg: included}}\n",
        "sub/files/f.txt": "of sub",
        "sub/roles/r/tasks/main.yml": "- {debug: {msg: role beside the imported playbook}}\n",
    },
}


@dataclass(frozen=True)
class Outcome:
    """What both programs must agree about."""

    code: int
    recap: dict[str, int]
    messages: list[str]
    headings: list[str]


def lay_out(folder: Path, case: dict[str, str]) -> list[str]:
    """The files of a case; returns the options for the programs."""
    for name, text in case.items():
        if name != "options":
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            whole = HEAD + text.lstrip("\n") if name == "play.yml" and text.lstrip()[0] != "-" else text
            (folder / name).write_text(whole)
            if name.endswith(".yml"):
                yaml.safe_load(whole)
    return case.get("options", "").split()


def outcome(code: int, output: str) -> Outcome:
    line = next((line for line in output.splitlines() if re.match(r"localhost\s+:", line)), "")
    recap = {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", line)}
    recap.pop("rolled_back", None)
    messages = re.findall(r'^    "msg": (.*)$', output, re.MULTILINE)
    headings = re.findall(r"^(?:TASK|RUNNING HANDLER) \[(.*)\]", output, re.MULTILINE)
    # ansible-playbook names an include_role by its role, and counts one in a loop as it is written
    return Outcome(code, recap, messages, [heading for heading in headings if "include" not in heading])


def by_both(base: Path, programs: Programs, case: dict[str, str]) -> tuple[Outcome, Outcome]:
    """What ansible-playbook made of it, and crossgrade."""
    theirs, ours = base / "theirs", base / "ours"
    theirs.mkdir()
    options = lay_out(theirs, case)
    lay_out(ours, case)
    local = ("-c", "local", "-e", f"ansible_python_interpreter={programs.python}")
    answers = programs.both(
        Asked((*local, *options, "play.yml"), theirs, {**os.environ, **SETTINGS}),
        Asked(
            ("upgrade", "--playbook", ours / "play.yml", "--root", ours / "root", *options),
            Path.cwd(),
            {**os.environ, **SETTINGS},
        ),
    )
    first, second = (outcome(one.code, one.stdout) for one in answers)
    assert first.recap, "ansible-playbook printed no recap"
    return first, second


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    with WarmPrograms(tmp_path_factory.mktemp("warm"), SETTINGS) as programs:
        yield programs


@pytest.mark.parametrize("name", CASES)
def test_like_ansible(tmp_path: Path, warm: Programs, name: str) -> None:
    theirs, ours = by_both(tmp_path, warm, CASES[name])
    assert ours.messages == theirs.messages
    assert ours == theirs


@pytest.mark.parametrize("name", ["include_tasks"])
def test_like_ansible_in_processes_of_their_own(tmp_path: Path, name: str) -> None:
    theirs, ours = by_both(tmp_path, OwnProcesses(), CASES[name])
    assert ours.messages == theirs.messages
    assert ours == theirs
