"""Inventories in YAML and INI, group and host variables, patterns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from crossgrade.errors import PlaybookError, WrongOptionsError
from crossgrade.playbook.inventory import Inventory, load_inventory
from crossgrade.playbook.positions import PlaybookErrors
from crossgrade.playbook.templating import Templar

Write = Callable[..., Path]

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
"""

INI = """
# a comment
lonely ansible_host=10.0.0.9

[gpu]
gpu[01:03] ansible_user=root  # all of them
[gpu:vars]
colour=gpu
kind = gpu
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
; another comment
"""


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def make(**files: str) -> Path:
        for name, text in files.items():
            path = tmp_path / name.replace("__", "/").replace("_yml", ".yml")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return tmp_path

    return make


def variables_of(inventory: Inventory, name: str) -> dict[str, Any]:
    host = inventory.host(name)
    assert host is not None
    expanded = Templar(inventory.scope(host)).template(inventory.scope(host).flatten())
    assert isinstance(expanded, dict)
    return expanded


@pytest.mark.parametrize(("name", "text"), [("hosts_yml", YAML), ("hosts", INI)])
def test_groups_ranges_and_variables(write: Write, name: str, text: str) -> None:
    inventory = load_inventory([str(write(**{name: text}) / name.replace("_yml", ".yml"))])
    assert {host.name for host in inventory.hosts} == {"lonely", "gpu01", "gpu02", "gpu03", "web1"}
    assert set(inventory.groups["gpu"]) == {"gpu01", "gpu02", "gpu03"}
    assert inventory.groups["big"] == ("gpu03",)
    assert inventory.groups["ungrouped"] == ("lonely",)
    assert variables_of(inventory, "lonely") == {"ansible_host": "10.0.0.9", "colour": "all", "depth": 0}
    assert variables_of(inventory, "gpu02") == {"ansible_user": "root", "colour": "gpu", "kind": "gpu", "depth": 0}
    assert variables_of(inventory, "gpu03") == {
        "ansible_user": "root",
        "colour": "own",
        "kind": "gpu",
        "depth": 0,
        "memory": 96,
    }
    gpu03, gpu01 = inventory.host("gpu03"), inventory.host("gpu01")
    assert gpu03 is not None
    assert gpu01 is not None
    assert gpu03.groups == ("gpu", "big")
    assert set(gpu01.groups) == {"gpu", "web"}


def test_variable_files_beside_the_inventory(write: Write) -> None:
    directory = write(
        hosts="[gpu]\ng1 a=inventory\n[gpu:vars]\nb=inventory\n",
        group_vars__all_yml="b: all\nc: all\nd: all\n",
        group_vars__gpu_yml="b: group\nc: group\n",
        host_vars__g1__one_yml="a: host\n",
        host_vars__g1__two_yml="e: '{{ c }}'\n",
    )
    inventory = load_inventory([str(directory / "hosts")])
    assert variables_of(inventory, "g1") == {"a": "host", "b": "group", "c": "group", "d": "all", "e": "group"}


def test_variable_files_beside_the_playbook(write: Write) -> None:
    directory = write(
        inventory__hosts="g1 a=inventory\n",
        inventory__group_vars__all_yml="b: inventory\nc: inventory\n",
        group_vars__all_yml="b: playbook\n",
        host_vars__localhost_yml="d: local\n",
    )
    inventory = load_inventory([str(directory / "inventory" / "hosts")], directory)
    assert variables_of(inventory, "g1") == {"a": "inventory", "b": "playbook", "c": "inventory"}
    without = load_inventory([], directory)
    (local,) = without.select("localhost")
    assert without.scope(local).flatten() == {"ansible_connection": "local", "b": "playbook", "d": "local"}


def test_lists_of_hosts() -> None:
    inventory = load_inventory(["h1,h2:2222,[::1]:22,"])
    assert [(host.name, host.port) for host in inventory.hosts] == [("h1", None), ("h2", 2222), ("::1", 22)]
    assert [host.connection for host in inventory.hosts] == ["ssh", "ssh", "local"]


def test_without_an_inventory_there_is_this_machine() -> None:
    inventory = load_inventory([])
    (host,) = inventory.select("localhost")
    assert (host.name, host.connection, host.groups) == ("localhost", "local", ())


def test_localhost_is_there_beside_any_inventory() -> None:
    inventory = load_inventory(["h1,"])
    assert [host.name for host in inventory.select("localhost")] == ["localhost"]
    assert [host.name for host in inventory.select("all")] == ["h1"]
    own = load_inventory(["localhost,h1,"])
    assert [host.name for host in own.select("all")] == ["localhost", "h1"]


def test_several_sources_are_one_inventory(write: Write) -> None:
    directory = write(one="[a]\nx v=1\n", two_yml="a: {hosts: {y: , x: {v: 2}}}\n")
    inventory = load_inventory([str(directory / "one"), str(directory / "two.yml"), "z,"])
    assert inventory.groups["a"] == ("x", "y")
    assert variables_of(inventory, "x") == {"v": 2}
    assert [host.name for host in inventory.hosts] == ["z", "x", "y"]  # those of no group come first


@pytest.mark.parametrize(
    ("pattern", "limit", "names"),
    [
        ("all", None, "lonely gpu01 gpu02 gpu03 web1"),
        ("*", None, "lonely gpu01 gpu02 gpu03 web1"),
        ("gpu", None, "gpu01 gpu02 gpu03"),
        ("web", None, "gpu01 web1"),
        ("gpu02", None, "gpu02"),
        ("gpu:web", None, "gpu01 gpu02 gpu03 web1"),
        ("gpu,web1", None, "gpu01 gpu02 gpu03 web1"),
        (["gpu", "!gpu02"], None, "gpu01 gpu03"),
        ("gpu:&web", None, "gpu01"),
        ("all:!gpu", None, "lonely web1"),
        ("web:&gpu:!gpu03", None, "gpu01"),
        ("gpu0*", None, "gpu01 gpu02 gpu03"),
        ("g*:!big", None, "gpu01 gpu02"),
        ("~gpu0[12]", None, "gpu01 gpu02"),
        ("gpu[0]", None, "gpu01"),
        ("gpu[-1]", None, "gpu03"),
        ("gpu[1:]", None, "gpu02 gpu03"),
        ("gpu[0:1]", None, "gpu01 gpu02"),
        ("ungrouped", None, "lonely"),
        ("all", "gpu", "gpu01 gpu02 gpu03"),
        ("gpu", "web", "gpu01"),
        ("gpu", "!gpu01", "gpu02 gpu03"),
        ("all", "gpu01,web1", "gpu01 web1"),
        ("all:!nothing_like_this", None, "lonely gpu01 gpu02 gpu03 web1"),
    ],
)
def test_patterns(write: Write, pattern: str | list[str], limit: str | None, names: str) -> None:
    inventory = load_inventory([str(write(hosts=INI) / "hosts")])
    assert sorted(host.name for host in inventory.select(pattern, limit)) == sorted(names.split())


def test_a_limit_from_a_file(write: Write) -> None:
    directory = write(hosts=INI, retry="gpu02\n# no\n\nweb1\n")
    inventory = load_inventory([str(directory / "hosts")])
    assert sorted(host.name for host in inventory.select("all", f"@{directory / 'retry'}")) == ["gpu02", "web1"]
    with pytest.raises(WrongOptionsError, match="cannot be read"):
        inventory.select("all", "@/nope/nope")


def test_unknown_patterns_name_the_nearest(write: Write) -> None:
    inventory = load_inventory([str(write(hosts=INI) / "hosts")])
    with pytest.raises(WrongOptionsError, match='no host or group matches "gpu04"') as caught:
        inventory.select("gpu04")
    assert "Did you mean" in caught.value.remedy
    with pytest.raises(WrongOptionsError, match=r"--limit: no host or group"):
        inventory.select("all", "wbe1")
    with pytest.raises(WrongOptionsError, match="regular expression"):
        inventory.select("~(")


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a[1:3]", "a1 a2 a3"),
        ("a[08:10]b", "a08b a09b a10b"),
        ("a[x:z]", "ax ay az"),
        ("a[1:5:2]", "a1 a3 a5"),
        ("a[1:2]-[a:b]", "a1-a a1-b a2-a a2-b"),
    ],
)
def test_ranges(pattern: str, names: str) -> None:
    inventory = load_inventory([f"{pattern},"])
    assert [host.name for host in inventory.hosts] == names.split()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("hosts", "[gpu\nx\n", "not a valid section"),
        ("hosts", "[gpu:varz]\na=1\n", 'no section ":varz"'),
        ("hosts", "x y\n", 'expected name=value after the host, got "y"'),
        ("hosts", "[a:vars]\nb\n", "expected name=value"),
        ("hosts", "x[1:\n", ""),
        ("hosts", "x[3:1]\n", "starts after its end"),
        ("hosts", "x[01:100]\n", "leading zeros"),
        ("hosts", "x[1:99999999]\n", "more than 10000"),
        ("hosts", "x v='a\n", "not closed"),
        ("hosts", "[a:children]\nb\n[b:children]\na\n", "among its own children"),
        ("hosts_yml", "gpu: {hots: {x: }}\n", 'the group "gpu" has no key "hots"'),
        ("hosts_yml", "gpu: {hosts: [x]}\n", "expected a mapping"),
        ("hosts_yml", "- x\n", "expected a mapping"),
        ("hosts_yml", "gpu: {hosts: {'x[3:1]': }}\n", "starts after its end"),
        ("hosts_yml", "gpu: {hosts: {x: {}, x: {}}}\n", "is there twice"),
        ("hosts_yml", "gpu: {vars: {a b: 1}}\n", "cannot be the name of a variable"),
    ],
)
def test_mistakes_have_a_place(write: Write, name: str, text: str, message: str) -> None:
    file = write(**{name: text}) / name.replace("_yml", ".yml")
    if not message:  # not a range, only an odd name
        assert load_inventory([str(file)]).hosts
        return
    with pytest.raises(PlaybookError, match=message.replace("(", r"\(")) as caught:
        load_inventory([str(file)])
    if isinstance(caught.value, PlaybookErrors):
        assert caught.value.place is not None


def test_all_mistakes_of_a_file_at_once(write: Write) -> None:
    with pytest.raises(PlaybookErrors) as caught:
        load_inventory([str(write(hosts="[a\nx y\nz[2:1]\n") / "hosts")])
    assert [error.place.line for error in caught.value.errors if error.place] == [1, 2, 3]


def test_sources_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(WrongOptionsError, match="no such file") as caught:
        load_inventory([str(tmp_path / "nope")])
    assert "comma" in caught.value.remedy
    with pytest.raises(WrongOptionsError, match="no inventory in this directory"):
        load_inventory([str(tmp_path)])


def test_values_in_an_ini_file_have_types(write: Write) -> None:
    text = "x a=1 b=1.5 c=True d=yes e='[1, 2]' f=\"it's\" g=None h=01\n[all:vars]\ni=[1, 'a']\nj=two words\n"
    inventory = load_inventory([str(write(hosts=text) / "hosts")])
    assert variables_of(inventory, "x") == {
        "a": 1,
        "b": 1.5,
        "c": True,
        "d": "yes",
        "e": [1, 2],
        "f": "it's",
        "g": None,
        "h": "01",
        "i": [1, "a"],
        "j": "two words",
    }


def test_connection_variables_come_from_groups_and_files_too(write: Write) -> None:
    directory = write(
        hosts="[gpu]\ng1\ng2 ansible_port=24\n[gpu:vars]\nansible_host={{ inventory_hostname }}.{{ domain }}\n"
        "ansible_port=23\n[odd]\nd ansible_connection=docker\n",
        group_vars__all_yml="domain: example.org\n",
        group_vars__gpu_yml="ansible_user: root\n",
        host_vars__g2_yml="ansible_connection: ansible.builtin.local\n",
    )
    inventory = load_inventory([str(directory / "hosts")])
    one, two = inventory.select("gpu")
    assert (one.address, one.port, one.connection, one.setting("ansible_user")) == ("g1.example.org", 23, "ssh", "root")
    assert (two.address, two.port, two.connection) == ("g2.example.org", 24, "local")
    with pytest.raises(PlaybookError, match='no connection "docker"'):
        _ = inventory.select("d")[0].connection


def test_files_of_groups_that_are_not_asked_for_are_not_read(write: Write) -> None:
    directory = write(hosts="[a]\nx\n[b]\ny\n", group_vars__b_yml="a: [\n")
    inventory = load_inventory([str(directory / "hosts")])
    assert [host.name for host in inventory.select("a")] == ["x"]
    with pytest.raises(PlaybookErrors, match=r"b\.yml:1:4"):
        inventory.select("b")


@pytest.mark.parametrize(
    ("name", "text", "message", "line"),
    [
        ("hosts.py", "#!/usr/bin/env python3\nprint('{}')\n", "a program as inventory is not run", None),
        ("hosts.toml", "[all.hosts]\n", "YAML, JSON or INI", None),
        ("aws.yml", "regions: [x]\nplugin: amazon.aws.aws_ec2\n", 'plugin "amazon.aws.aws_ec2"', 2),
        ("out.json", '{"_meta": {"hostvars": {}}}\n', "what an inventory program prints", 1),
    ],
)
def test_what_ansible_would_run_is_refused(
    tmp_path: Path, name: str, text: str, message: str, line: int | None
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(PlaybookError, match=message) as caught:
        load_inventory([str(tmp_path / name)])
    assert (caught.value.place.line if caught.value.place else None) == line
    assert caught.value.remedy
