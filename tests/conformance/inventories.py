"""Inventories that are read by Ansible and by crossgrade, and patterns and limits that are asked of each."""

from __future__ import annotations

import random
from dataclasses import dataclass

PATTERNS: tuple[str | list[str], ...] = (
    *("all", "*", "gpu", "gpu:web", "gpu,web", "web,lonely,gpu01", "gpu01 web1", "gpu03:gpu01", "lonely:web:gpu"),
    *("all:!gpu", "gpu:&web", "!gpu", "&gpu", "!gpu:all", "web:&gpu:!gpu03", "gpu:!~gpu0[12]", "all:!nope"),
    *("gpu0*", "g*:!big", "gpu0?", "*0*", "~gpu0[12]", "~.*0[12]$", "~^l"),
    *("gpu[0]", "gpu[-1]", "gpu[1:]", "gpu[0:1]", "gpu[0-1]", "all[0]", "gpu0*[0]", "all[1:2]:&gpu"),
    *("ungrouped", "localhost", "localhost:gpu01"),
    ["gpu", "!gpu02"],
    ["web1", "gpu01"],
)
LIMITS = ("gpu", "!gpu01", "gpu01,web1", "gpu:&web", "~gpu0.", "gpu[0:1]", "web:&gpu:!gpu03", "web1 gpu02", "&web")


@dataclass(frozen=True)
class Case:
    """Files below a folder, what `-i` names of them, and the folder of the playbook."""

    files: dict[str, str]
    sources: tuple[str, ...] = ("hosts",)
    playbook: str = "."
    patterns: tuple[str | list[str], ...] = ()
    limits: tuple[str, ...] = ()


INI = """
# a comment
lonely ansible_host=10.0.0.9
z2:2222 a=1 b="two words" c='x y' d=[1,2] e={'a':1} f=yes g=True h=None i=01 j=1.50 k=0x10 l=a#b m="a # b"   # trailing
q a='"1"' b="'1'" c=\\"x\\" d="it\\'s" e='a\\nb' f="a=b=c" g=
[gpu]
gpu[01:03] ansible_user=root  # all of them
g[a:c]x
g[1:7:3]y
[gpu:vars]
colour=gpu
kind = gpu   # no comment
quoted="abc"
sq='1'
lst=[1, 'a']
tup=(1,2)
hash={"a": true}
num=12 # one
t=True
y=yes
n=null
empty=
neg=-5
f=1e3
mem="{{ 90 + 6 }}"
[gpu:children]
big
[big]
gpu03 colour=own memory="{{ 90 + 6 }}"
[big:vars]
colour=big
[web]
web1
gpu01
[all:vars]
colour=all
depth=0
"""
YAML = """
all:
  vars: {colour: all, depth: 0}
  hosts:
    lonely: {ansible_host: 10.0.0.9}
  children:
    gpu:
      vars: {colour: gpu, kind: gpu}
      hosts:
        gpu[01:03]: {ansible_user: root}
      children:
        big:
          vars: {colour: big}
          hosts:
            gpu03: {colour: own, memory: "{{ 90 + 6 }}"}
    web:
      hosts: {web1: , gpu01: }
other:
  hosts: {o1: , 'o2:2222': {x: yes, y: 012, z: 1_000, d: 2020-01-01, n: ~, u: !unsafe '{{ x }}', s: 1:30}}
ungrouped:
  hosts: {u1: }
"""
GROUPS = {
    "inv/hosts": "[big]\ng1 hv=inv\n[gpu:children]\nbig\n"
    "[big:vars]\na=inv-big\nb=inv-big\nc=inv-big\nd=inv-big\n"
    "[gpu:vars]\na=inv-gpu\nz=inv-gpu\ny=inv-gpu\n[all:vars]\na=inv-all\nq=inv-all\nr=inv-all\n",
    "inv/group_vars/all.yml": "q: invfile-all\nz: invfile-all\nb: invfile-all\n",
    "inv/group_vars/gpu.yml": "b: invfile-gpu\ny: invfile-gpu\n",
    "group_vars/gpu.yml": "c: playfile-gpu\n",
    "group_vars/all.yml": "c: playfile-all\nd: playfile-all\nr: playfile-all\nhv: playfile-all\n",
    "inv/host_vars/g1.yml": "hv: invfile\nhw: invfile\n",
    "host_vars/g1.yml": "hw: playfile\n",
}
FOLDER = {
    "hosts": "[g]\nx\n",
    "group_vars/g/b.yml": "v: b\nu: b\n",
    "group_vars/g/a.yml": "v: a\n",
    "group_vars/g/c.yaml": "t: c\n",
    "group_vars/g/d.json": '{"s": 1}',
    "group_vars/g/e": "r: e\n",
    "group_vars/g/f.txt": "q: f\n",
    "group_vars/g/g.yml~": "p: g\n",
    "group_vars/g/.h.yml": "o: h\n",
    "group_vars/g/sub/i.yml": "n: i\n",
    "group_vars/g.yml": "v: file\nm: file\n",
    "group_vars/all": "k: plain\nv: all\n",
    "host_vars/x": "j: plain\n",
}
PASSED_OVER = (".txt", ".cfg", ".bak", "~", ".orig", ".retry", ".rpm", ".md", ".rst", ".pyc", ".pyo", ".swp")
DIRECTORY = {
    "inv/02-b": "[g]\nb v=2\na v=2\n",
    "inv/01-a.yml": "g: {hosts: {a: {v: 1}}}\n",
    **{f"inv/{number:02}{ending}": f"n{number}\n" for number, ending in enumerate(PASSED_OVER, 4)},
    "inv/18.ini": "n18\n",
    "inv/19.x": "n19\n",
    "inv/.hidden": "n99\n",
    "inv/30.json": '{"g":{"hosts":{"j":{}}}}',
    "inv/sub/20": "s1\n",
    "inv/group_vars/g.yml": "gv: 1\n",
    "inv/host_vars/a.yml": "hv: 1\n",
}
ORDER = "[b]\nx\ny\n[a]\nz\nx\n[p:children]\nb\na\n[c]\nw\nlast\n[q:children]\np\nc\n"
DIAMOND = "[top:children]\nl\nr\n[l:children]\nbase\n[r:children]\nbase\n[base]\nx\n"
DIAMOND += "[top:vars]\nv=top\n[l:vars]\nv=l\nw=l\n[r:vars]\nv=r\nw=r\n"
RANGES = "n[00:10:5]\no[a:z:7]\np[:3]\nq[A:C]\nr[0:2]\nh[1:2]x[a:b]\ns[y:B]\n"
PORTS = "h1:22\nh[1:3]:2222\n[::1]:2200\n::2\n10.0.0.[1:3]:22 a=1\n2001:db8::[1:3]\n"
PRIORITY = "[a]\nx\n[b]\nx\n[a:vars]\nv=a\nansible_group_priority=10\n[b:vars]\nv=b\n[c]\nx\n[c:vars]\nw=c\n"
SPACES = (
    "   x   a=1   \n\t[g]   # c\n\ty\n[g:vars]\n  a  =  b c  \n  d=e # f\n ;x=1\n g = 1 # one\n h = 'q' # two\n i=#z\n"
)
LITERALS = "[g]\nx a=\"{'b': 1}\" c='[1, 2]' d=\"{{ a.b }}\" f=0b11 g=1_000 i=1e5 j=.5 k=-1 m='' q=012 r=~\n"
LITERALS += "y s=(1,) t=1j u={7} w='[1, (2,)]'\n"

CASES: dict[str, Case] = {
    "INI": Case({"hosts": INI}, patterns=PATTERNS, limits=LIMITS),
    "YAML": Case({"hosts.yml": YAML}, ("hosts.yml",), patterns=PATTERNS, limits=LIMITS),
    "JSON": Case({"h.json": '{"all":{"hosts":{"a":{"x":1},"b":null},"vars":{"v":[1,true,null]}}}'}, ("h.json",)),
    "JSON without an ending": Case({"hosts": '{"all":{"hosts":{"a":{"x":1}}}}'}),
    "YAML without an ending": Case({"hosts": "all:\n  hosts:\n    a: {x: 1}\n"}),
    "INI with an ending": Case({"hosts.prod": "[g]\na.b.c x=1\n"}, ("hosts.prod",)),
    "order": Case({"hosts": ORDER}, patterns=("all", "p", "q", "a:b", "b:a", "q:!a", "a[0]", "q[1:]")),
    "precedence": Case(GROUPS, ("inv/hosts",)),
    "a folder of variables": Case(FOLDER),
    "two files for one group": Case(
        {"hosts": "[g]\nx\n", "group_vars/g.yaml": "m: 1\n", "group_vars/g.json": '{"m":2}'}
    ),
    "a file without an ending": Case({"hosts": "[g]\nx\n", "group_vars/g": "m: 1\n", "group_vars/g.yml": "m: 2\n"}),
    "priority": Case({"hosts": PRIORITY}),
    "priority in a file": Case({"hosts": PRIORITY, "group_vars/c.yml": "ansible_group_priority: 99\nv: c\n"}),
    "a directory": Case(DIRECTORY, ("inv",)),
    "several": Case({"one": "[a]\nx v=1\n", "two.yml": "a: {hosts: {y: , x: {v: 2}}}\n"}, ("one", "two.yml", "z,")),
    "several folders": Case(
        {
            "p/one": "[a]\nx\n",
            "p/group_vars/a.yml": "k: p\n",
            "q/two.yml": "a: {hosts: {y: }}\n",
            "q/group_vars/a.yml": "k: q\n",
        },
        ("p/one", "q/two.yml"),
    ),
    "a list": Case({"group_vars/all.yml": "k: 1\n"}, ("h1,h2:2222,[::1]:22, h3 ,",), patterns=("all", "h1", "h*[0]")),
    "late children": Case({"hosts": "x\n[g:children]\nh\n[h]\ny\n[k:vars]\na=1\n[k]\nz\n"}),
    "all with hosts": Case({"hosts": "[all]\nx\ny a=1\n[g]\nx\n"}),
    "all with children": Case({"hosts": "x\n[all:children]\nh\n[h]\ny\n"}),
    "ungrouped with hosts": Case({"hosts": "[ungrouped]\nx\n[g]\nx\ny\n"}),
    "a group twice": Case({"hosts": "[g]\nx a=1 b=1\n[h]\nx a=2\n[g]\ny\n"}),
    "ranges": Case({"hosts": RANGES}),
    "ports": Case({"hosts": PORTS}),
    "odd names": Case({"hosts": "[my-group]\nx-y_z.local\n[g.h]\nx\n[12]\nq\n"}, patterns=("my-group", "g.h", "12")),
    "spaces": Case({"hosts": SPACES}),
    "literals": Case({"hosts": LITERALS}),
    "a host called as a group": Case({"hosts": "[a]\na\nb\n"}, patterns=("a", "a:b", "a*")),
    "a diamond": Case({"hosts": DIAMOND}),
    "texts for mappings": Case({"h.yml": "g: {hosts: a}\nh: {children: g}\nn:\nm: {hosts: , vars: }\n"}, ("h.yml",)),
    "top and child": Case({"h.yml": "g: {children: {h: }}\nh: {hosts: {y: }}\nall: {hosts: {x: }}\n"}, ("h.yml",)),
    "ungrouped in all": Case(
        {"h.yml": "all: {children: {ungrouped: {hosts: {a: }}, g: {hosts: {b: }}}}\n"}, ("h.yml",)
    ),
}


def random_case(seed: int) -> Case:
    """A small inventory by chance: groups with children, variables at every level, priorities, files of variables."""
    chance = random.Random(seed)  # noqa: S311 - no secret
    names = [f"g{number}" for number in range(chance.randint(2, 6))]
    hosts = [f"h{number}" for number in range(chance.randint(1, 6))]
    files: dict[str, str] = {}
    lines = [f"{host} own={host}" for host in chance.sample(hosts, chance.randint(0, min(2, len(hosts))))]
    for at, name in enumerate(names):
        lines += [f"[{name}]", *(chance.sample(hosts, chance.randint(0, len(hosts))))]
        below = [child for child in names[at + 1 :] if chance.random() < 0.4]
        lines += [f"[{name}:children]", *below] if below else []
        lines += [f"[{name}:vars]", *(f"v{chance.randint(0, 3)}={name}-{chance.randint(0, 9)}" for _ in range(2))]
        if chance.random() < 0.3:
            lines.append(f"ansible_group_priority={chance.randint(0, 5)}")
        for folder in ("", "play/"):
            if chance.random() < 0.3:
                files[f"{folder}group_vars/{name}.yml"] = f"v{chance.randint(0, 3)}: {folder}{name}\n"
    lines += ["[all:vars]", "v0=all", "v1=all"]
    for folder in ("", "play/"):
        if chance.random() < 0.5:
            files[f"{folder}group_vars/all.yml"] = f"v{chance.randint(0, 3)}: {folder}all\n"
        if chance.random() < 0.5:
            files[f"{folder}host_vars/{chance.choice(hosts)}.yml"] = f"v{chance.randint(0, 3)}: {folder}host\n"
    files["hosts"] = "\n".join(lines) + "\n"
    some = [chance.choice([*names, "all", "h*", "g*"]) for _ in range(6)]
    signs = [chance.choice(["", "!", "&"]) for _ in range(6)]
    patterns = tuple(f"all:{sign}{one}" for sign, one in zip(signs, some, strict=True))
    return Case(files, ("hosts",), "play", patterns=(*some, *patterns, f"{some[0]}:{some[1]}", f"{some[2]},{some[3]}"))
