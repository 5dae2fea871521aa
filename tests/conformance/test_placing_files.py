"""copy and template against Ansible's, through ansible-playbook: the same tasks on the same files, then undone."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.support.ansible_tasks import run_with_ansible
from tests.support.laid_files import Put, folder, lay
from tests.support.module_host import ModuleHost, plan_module, run_module, snapshot, undo_all

from crossgrade.errors import CrossgradeError
from crossgrade.modules import load_module
from crossgrade.modules.contract import Change

VARIABLES: dict[str, Any] = {"name": "server", "ports": [1, 2], "on": True, "nothing": ""}
# beside the playbook
SOURCES = (
    Put("files/one", b"one\n", 0o640),
    Put("files/script", b"#!/bin/sh\n", 0o755),
    folder("files/tree"),
    Put("files/tree/a", b"a\n", 0o600),
    folder("files/tree/sub", 0o700),
    Put("files/tree/sub/b", b"b\n"),
    Put("files/tree/link", link="a"),
    Put("beside", b"beside\n"),
    Put("templates/plain.j2", b"name={{ name }}\n{% for port in ports %}\nport={{ port }}\n{% endfor %}\nend\n", 0o600),
    Put("templates/indented.j2", b"{% if on %}\n  {% if on %}\n  x\n  {% endif %}\n{% endif %}\n"),
    Put("templates/other.j2", b"[[ name ]] {{ name }} <% if on %>yes<% endif %> <# no #>\n"),
    Put(
        "templates/header.j2", b"#jinja2: trim_blocks: False, lstrip_blocks: True\n  {% if on %}\n  x\n  {% endif %}\n"
    ),
    Put(
        "templates/marks.j2",
        b"#jinja2: variable_start_string: '[%', variable_end_string: '%]'\n[% on %] {{ on }}\n",
    ),
    Put("templates/bad-header.j2", b"#jinja2: trim_blocks\nx\n"),
    Put("templates/windows.j2", b"a\r\n{{ name }}\r\n"),
    Put("templates/no-end.j2", b"{{ name }}"),
    Put("templates/umlauts.j2", "süß {{ name }}\n".encode()),
    Put("templates/undefined.j2", b"{{ not_there }}\n"),
    Put("templates/broken.j2", b"{% if %}\n"),
    Put("templates/native.j2", b"{{ ports }} {{ on }} {{ nothing }}|\n"),
)
BEFORE = (
    Put("same", b"one\n", 0o640),
    Put("old", b"old\n", 0o600),
    folder("d"),
    Put("d/a", b"other a\n"),
    Put("link", link="old"),
    Put("rendered", b"server", 0o644),
)


@dataclass(frozen=True)
class Case:
    """A task that writes into the directory `PLACE`, in which lies what `BEFORE` says."""

    module: str
    arguments: tuple[tuple[str, Any], ...]

    @property
    def name(self) -> str:
        return f"{self.module} {json.dumps(dict(self.arguments))}"


def copy(dest: str, **arguments: Any) -> Case:
    return Case("copy", (("dest", f"PLACE/{dest}"), *arguments.items()))


def template(src: str, dest: str = "new", **arguments: Any) -> Case:
    return Case("template", (("src", src), ("dest", f"PLACE/{dest}"), *arguments.items()))


CASES = [
    copy("new", src="one"),
    copy("new", src="beside"),
    copy("same", src="one"),
    copy("old", src="one"),
    copy("old", src="one", backup=True),
    copy("old", src="one", force=False),
    copy("old", src="one", mode="0644"),
    copy("new", src="script", mode="preserve"),
    copy("new", src="script"),
    copy("new", src="script", mode="u=rw,g=r,o="),
    copy("d", src="one"),
    copy("d/", src="one"),
    copy("made/deep/", src="one"),
    copy("made/deep/new", src="one"),
    copy("link", src="one"),
    copy("link", src="one", follow=True),
    copy("new", src="nothing"),
    copy("new", content="text\n"),
    copy("new", content=""),
    copy("new", content={"a": [1, True, None]}),
    copy("d", content="text"),
    copy("d/", content="text"),
    copy("new", src="one", checksum="0" * 40),
    copy("new", src="one", validate="grep one %s"),
    copy("new", src="one", validate="grep two %s"),
    copy("new", src="one", validate="grep two"),
    copy("d", src="tree"),
    copy("d", src="tree/"),
    copy("new", src="tree/", mode="0640", directory_mode="0750"),
    copy("new", src="PLACE/old", remote_src=True),
    copy("new", src="PLACE/old", remote_src=True, mode="preserve"),
    copy("new/", src="PLACE/d", remote_src=True),
    copy("new", src="PLACE/nothing", remote_src=True),
    template("plain.j2"),
    template("plain.j2", "old"),
    template("plain.j2", "old", backup=True, mode="0600"),
    template("plain.j2", "d"),
    template("plain.j2", mode="preserve"),
    template("plain.j2", trim_blocks=False),
    template("indented.j2"),
    template("indented.j2", lstrip_blocks=True),
    template(
        "other.j2",
        variable_start_string="[[",
        variable_end_string="]]",
        block_start_string="<%",
        block_end_string="%>",
        comment_start_string="<#",
        comment_end_string="#>",
    ),
    template("header.j2"),
    template("marks.j2"),
    template("bad-header.j2"),
    template("windows.j2"),
    template("plain.j2", newline_sequence="\\r\\n"),
    template("no-end.j2", "rendered"),
    template("umlauts.j2", output_encoding="latin-1"),
    template("umlauts.j2", output_encoding="ascii"),
    template("undefined.j2"),
    template("broken.j2"),
    template("native.j2"),
    template("plain.j2", validate="grep server %s"),
    template("nothing.j2"),
]


@pytest.fixture(autouse=True)
def _usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def prepared(one: Case, place: Path) -> dict[str, Any]:
    place.mkdir(parents=True)
    for item in BEFORE:
        lay(item, place)
    return {name: v.replace("PLACE", str(place)) if isinstance(v, str) else v for name, v in one.arguments}


def tree(place: Path) -> dict[str, tuple[str, bytes | str]]:
    found: dict[str, tuple[str, bytes | str]] = {}
    for path in sorted(place.rglob("*")):
        status = path.lstat()
        content: bytes | str = path.read_bytes() if stat.S_ISREG(status.st_mode) else ""
        if path.is_symlink():
            content = os.readlink(path)  # noqa: PTH115 - as it was written
        name = re.sub(r"\.\d+\.[-\d]+@[\d:]+~$", ".backup", str(path.relative_to(place)))
        found[name] = (oct(status.st_mode), content)
    return found


def told(values: dict[str, Any], place: Path) -> dict[str, Any]:
    names = ("dest", "checksum", "md5sum", "size", "mode", "state", "owner", "uid")
    found = {name: values[name] for name in names if values.get(name) is not None}
    if "dest" in found:
        found["dest"] = os.path.normpath(found["dest"].replace(str(place), ""))
    return {**found, "backup": "backup_file" in values}


@dataclass(frozen=True)
class Done:
    failed: bool
    changed: bool
    values: dict[str, Any]
    files: dict[str, tuple[str, bytes | str]]


@pytest.fixture(scope="module")
def ansible(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Done]:
    where = tmp_path_factory.mktemp("ansible")
    before = os.umask(0o022)
    try:
        for source in SOURCES:
            lay(source, where)
        places = [where / "places" / str(number) for number in range(len(CASES))]
        tasks = [
            {one.module: prepared(one, place), "vars": VARIABLES} for one, place in zip(CASES, places, strict=True)
        ]
        results = run_with_ansible(tasks, where)
    finally:
        os.umask(before)
    return {
        one.name: Done(bool(result.get("failed")), result.get("changed", False), told(result, place), tree(place))
        for one, result, place in zip(CASES, results, places, strict=True)
    }


def do(one: Case, where: Path) -> Done:
    """Plan it, which must change nothing; do it, which must come out as planned; undo it; and do it twice."""
    module = load_module(one.module)
    host = ModuleHost(where, dict(VARIABLES))
    for source in SOURCES:
        lay(source, host.playbook_directory)
    place = where / "place"
    task = prepared(one, place)
    before = snapshot(place)
    try:
        planned = plan_module(module, task, host.planning())
        assert snapshot(place) == before, "a plan changed something"
        outcome = run_module(module, task, host)
    except CrossgradeError:
        assert snapshot(place) == before, "a task that failed changed something"
        return Done(True, False, {}, tree(place))
    changed = outcome.changed is not False
    assert changed == isinstance(planned, Change), "the plan said something else"
    after = tree(place)
    undo_all(module, host)
    assert snapshot(place) == before, "undo left something"
    undo_all(module, host)
    assert snapshot(place) == before, "undoing twice does more"
    host.steps.clear()
    again = run_module(module, task, host)
    assert tree(place) == after
    second = run_module(module, task, ModuleHost(where, dict(VARIABLES)))
    assert second.changed is False
    return Done(False, changed, told(dict(again.values), place), after)


@pytest.mark.parametrize("one", CASES, ids=lambda one: one.name)
def test_the_same_files_and_the_same_result(one: Case, ansible: dict[str, Done], tmp_path: Path) -> None:
    expected = ansible[one.name]
    found = do(one, tmp_path)
    assert (found.failed, found.changed) == (expected.failed, expected.changed)
    if not found.failed:
        assert found.files == expected.files
        assert {name: found.values.get(name) for name in expected.values} == expected.values
