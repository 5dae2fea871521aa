"""Arguments, short forms and inventories that real Ansible and crossgrade read."""

from __future__ import annotations

from typing import Any

_SCALARS: list[Any] = [1, 0, -5, 1.5, 2.0, True, False, "", "x", "yes", "No", "off", "1", "0", "2", "1.5", " 3 ", "a,b"]
_COLLECTIONS: list[Any] = [["a", 1], [], {"a": 1}, {}, '{"a": 1}', "a=1"]

# What Ansible's validator makes of a value, for an argument of a type.
ARGUMENTS: list[list[Any]] = [
    *[[{"type": kind}, value] for kind in ("str", "int", "float", "bool", "list") for value in _SCALARS],
    *[[{"type": kind}, value] for kind in ("list", "dict", "int", "bool", "raw") for value in _COLLECTIONS],
    *[[{"type": "dict"}, value] for value in (1, "x", True)],
    *[[{"type": "path"}, value] for value in ("/a", "~/x", "$HOME/x", "a b", 5)],
    *[[{"type": "list", "elements": "int"}, value] for value in (["1", 2], "1,2", ["x"], 3, [])],
    *[[{"type": "list", "elements": "str"}, value] for value in (["1", 2], "a, b", [True], [1.5])],
    *[[{"type": "list", "elements": "bool"}, value] for value in (["yes", "off"], "yes,no", ["maybe"])],
    *[[{"type": "str", "choices": ["present", "absent"]}, value] for value in ("present", "other", 1)],
    *[[{"type": "str", "choices": ["yes", "no", "auto"]}, value] for value in ("yes", True, False, "auto")],
    *[[{"type": "str", "choices": ["on", "off"]}, value] for value in (True, False)],
]

# `module: TEXT` as arguments and the rest of the text; `command` keeps words that are no argument of it.
SHORT_FORMS: list[list[Any]] = [
    *[
        [text, True]
        for text in (
            "echo hi",
            "echo 'a  b'   c",
            "echo a creates=/x",
            "creates=/x echo a",
            "echo 'creates=/x'",
            "echo \"a b\" chdir='/x y' z",
            "FOO=1 env x=y",
            "echo {{ a b }} creates={{ c d }}",
            "echo a=b creates=/x removes=/y c=d",
            "",
        )
    ],
    *[
        [text, False]
        for text in (
            "a=1 b=2",
            "a='1 2' b=\"3 4\"",
            "a={{ x | default('1 2') }} b=2",
            "a=",
            "a=b=c",
            "a='it''s'",
            'a="x\'y"',
            "a='{{ x }}/{{ y }}'",
        )
    ],
]

INVENTORY_FILES: dict[str, str] = {
    "hosts.ini": """
lonely ansible_host=10.0.0.9
[gpu]
gpu[01:03] user=root n=5 f=1.5 t=True l="[1, 2]" s='a b' y=yes
[gpu:vars]
colour=gpu
kind = gpu
number = 7
text=two words
[gpu:children]
big
[big]
gpu03 colour=own
[big:vars]
colour=big
size=big
[web]
web[a:c]
gpu01
[web:vars]
colour=web
ansible_group_priority=10
[all:vars]
colour=all
depth=0
""",
    "hosts.yml": """
all:
  vars: {colour: all, depth: 0}
  hosts: {lonely: {ansible_host: 10.0.0.9}}
  children:
    gpu:
      vars: {colour: gpu, kind: gpu}
      hosts: {"gpu[01:03]": {user: root}}
      children:
        big:
          vars: {colour: big, size: "{{ depth + 1 }}"}
          hosts: {gpu03: {colour: own}}
    web:
      vars: {colour: web}
      hosts: {web1: , gpu01: }
""",
    "group_vars/all.yml": "depth: 1\nfrom_all: x\nkind: all\n",
    "group_vars/gpu.yml": "kind: gpu_file\n",
    "group_vars/big/one.yml": "size: one\n",
    "group_vars/big/two.yml": "size: two\n",
    "host_vars/gpu02.yml": "colour: host_file\nuser: file\n",
}
PATTERNS = [
    *("all", "*", "gpu", "gpu:web", "gpu,lonely", "gpu:&web", "all:!gpu", "gpu:!gpu02", "g*", "gpu0[!1]"),
    *("~gpu0[12]", "gpu[0]", "gpu[-1]", "gpu[1:]", "gpu[0:1]", "ungrouped", "big", "!gpu", "&gpu", "all:&gpu:!big"),
]
