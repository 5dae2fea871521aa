"""lineinfile, blockinfile and replace against Ansible's: the same tasks on the same files, then undone."""

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
from tests.support.ansible_tasks import run_ansible_modules, run_with_ansible
from tests.support.module_host import ModuleHost, plan_module, run_module, snapshot, undo_all

from crossgrade.errors import CrossgradeError
from crossgrade.modules import load_module
from crossgrade.modules.contract import Change, Unchanged

AB = "a=1\nb=2\na=3\nc\n"
SECTIONS = "a=1\nb=2\na=3\n# start\na=4\nb=5\n# end\na=6\n"
BEGIN, END = "# BEGIN ANSIBLE MANAGED BLOCK\n", "# END ANSIBLE MANAGED BLOCK\n"
BLOCK = f"a\n{BEGIN}old\n{END}b\n"
SPACED: dict[str, Any] = {"prepend_newline": True, "append_newline": True}


@dataclass(frozen=True)
class Case:
    """A task on a file with this content (None: there is no file)."""

    module: str
    content: str | None
    arguments: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.module} {self.content!r} {json.dumps(self.arguments)}".encode("ascii", "replace").decode()[:150]


def lines(content: str | None, /, **arguments: Any) -> Case:
    return Case("lineinfile", content, arguments)


def block(content: str | None, /, **arguments: Any) -> Case:
    return Case("blockinfile", content, arguments)


def replace(content: str | None, /, **arguments: Any) -> Case:
    return Case("replace", content, arguments)


CASES = [
    lines(AB, line="n"),
    lines(AB, line="c"),
    lines("a\nb", line="c"),
    lines("a\nb", line="b"),
    lines("a\r\nb\r\n", line="a"),
    lines("a\r\nb\r\n", line="n", insertafter="a"),
    lines("a\nb", line="c", insertbefore="b"),
    lines(AB, line="n", insertafter="^a"),
    lines(AB, line="n", insertafter="^a", firstmatch=True),
    lines(AB, line="c", insertafter="^a", firstmatch=True),
    lines(AB, line="b=2", insertafter="^a", firstmatch=True),
    lines(AB, line="a=1", insertafter="^a", firstmatch=True),
    lines(AB, line="c", insertbefore="^b", firstmatch=True),
    lines(AB, line="n", insertbefore="^a"),
    lines(AB, line="n", insertbefore="^a", firstmatch=True),
    lines(AB, line="n", insertbefore="nothing"),
    lines(AB, line="n", insertafter="nothing"),
    lines(AB, line="n", insertbefore="BOF"),
    lines(AB, line="n", insertafter="BOF"),
    lines(AB, line="n", insertafter="EOF"),
    lines(AB, line="n", insertbefore="EOF"),
    lines(AB, line="c", insertbefore="BOF"),
    lines(AB, line="n", regexp="^a"),
    lines(AB, line="n", regexp="^a", firstmatch=True),
    lines(AB, line="n", regexp="^z", insertafter="^b"),
    lines(AB, line="n", regexp="^b", insertafter="^c"),
    lines(AB, line="c", regexp="^z"),
    lines(AB, line=r"x\1", regexp="^a=(.)"),
    lines(AB, line=r"x\1", regexp="^a=(.)", backrefs=True),
    lines(AB, line=r"\g<k>=9", regexp="^(?P<k>[ab])=", backrefs=True),
    lines(AB, line=r"x\1", regexp="^z=(.)", backrefs=True),
    lines(AB, line=r"\2", regexp="^a", backrefs=True),
    lines(AB, line="n", search_string="="),
    lines(AB, line="n", search_string="=", firstmatch=True),
    lines(AB, line="n", search_string="nothing"),
    lines(AB, line="n", search_string="3\n"),
    lines(AB, line="n", regexp="3$"),
    lines(AB, line="", regexp="^b"),
    lines(AB, line=""),
    lines(AB, line="n", regexp="["),
    lines("", line="x"),
    lines("grüße\n", line="süß", regexp="ü"),
    lines(None, line="x"),
    lines(None, line="x", create=True),
    lines(None, line="x", create=True, mode="0600"),
    lines(None, line="x", state="absent"),
    lines(AB, line="x", mode="0600"),
    lines(AB, line="c", mode="u+x,g="),
    lines(AB, line="x", backup=True),
    lines(AB, line="x", validate="test -s %s"),
    lines(AB, line="x", validate="false %s"),
    lines(AB, state="absent", line="c"),
    lines(AB, state="absent", line="="),
    lines(AB, state="absent", regexp="^a"),
    lines(AB, state="absent", search_string="="),
    lines(AB, state="absent", regexp="^a", backup=True, mode="0600"),
    lines(AB, state="absent"),
    lines(AB),
    lines(AB, line="c", backrefs=True),
    lines(AB, value="n", regex="^b"),
    block("a\nb\n", block="x\ny"),
    block("a\nb", block="x\n"),
    block("", block="x"),
    block("a\nb\n", block="\n\nx\n\n"),
    block(None, block="x", create=True, mode="0600"),
    block(None, block="", create=True),
    block(None, block="x"),
    block(None, state="absent"),
    block(None, state="absent", create=True),
    block(BLOCK, block="new"),
    block(BLOCK, block="old"),
    block(BLOCK, content="old\n"),
    block(BLOCK, block="old", mode="0600"),
    block(BLOCK, block="new", mode="0600", backup=True),
    block(BLOCK, block=""),
    block(BLOCK, block="x", state="absent"),
    block("a\n", state="absent"),
    block("a\n" + END + "old\n" + BEGIN + "b\n", block="new"),
    block("a\n" + BEGIN + "b\n", block="new"),
    block("a\n" + END + "b\n", block="new"),
    block(BLOCK + BLOCK, block="new"),
    block("a\nb\na\nc\n", block="x", insertafter="^a"),
    block("a\nb\na\nc\n", block="x", insertbefore="^a"),
    block("a\nb\na\nc\n", block="x", insertbefore="BOF"),
    block("a\nb\na\nc\n", block="x", insertafter="BOF"),
    block("a\nb\na\nc\n", block="x", insertafter="EOF"),
    block("a\nb\na\nc\n", block="x", insertbefore="EOF"),
    block("a\nb\na\nc\n", block="x", insertafter="nothing"),
    block("a\nb\na\nc\n", block="x", insertbefore="nothing"),
    block("a\nb", block="x", insertafter="b"),
    block("a\nb", block="x", insertbefore="b"),
    block("a\nb\nc\n", block="x", insertafter="a\nb"),
    block("a\nb\nc\n", block="x", insertafter="(?m)^b$"),
    block("a\nb\na\n", block="x", insertafter="(?m)^a$"),
    block("a\nb\nc\n", block="x", insertafter="(?m)a\nb\n"),
    block("a\nb\nc\nd\n", block="x", insertbefore="(?m)b\nc"),
    block("ab\ncd", block="x", insertafter="(?m)cd"),
    block("a\nb\n", block="x", **SPACED),
    block("a\nb\n", block="x", insertafter="a", **SPACED),
    block("a\nb\n", block="x", insertbefore="BOF", **SPACED),
    block("a\n\nb\n", block="x", insertbefore="b", **SPACED),
    block("a\n  \nb\n", block="x", insertbefore="b", **SPACED),
    block(BLOCK, block="old", **SPACED),
    block("", block="x", **SPACED),
    block("a\n\n", block="x", **SPACED),
    block(BLOCK, state="absent", **SPACED),
    block("a\nb\n", block="x", marker="<!-- {mark} mine -->", marker_begin="S", marker_end="T"),
    block("a\r\nb\r\n", block="x\ny"),
    block("a\n", block="grüße"),
    block("a\n", block="x", validate="false %s"),
    block("a\n", block="x", insertafter="["),
    replace(SECTIONS, regexp="^a=(.)$", replace=r"A=\1"),
    replace(SECTIONS, regexp="^a=(.)$", replace=r"A=\g<1>0", backup=True),
    replace(SECTIONS, regexp="nothing"),
    replace(SECTIONS, regexp="^a=.*\n"),
    replace(SECTIONS, regexp="a", replace="X", after="# start"),
    replace(SECTIONS, regexp="a", replace="X", before="# end"),
    replace(SECTIONS, regexp="a", replace="X", after="# start", before="# end"),
    replace(SECTIONS, regexp="a", replace="X", after="nothing"),
    replace(SECTIONS, regexp="a", replace="X", before="nothing"),
    replace(SECTIONS, regexp="^a", replace="X", after="start\n"),
    replace(SECTIONS, regexp="a", replace="X", after="a=."),
    replace(SECTIONS, regexp="a", replace="X", before="a=."),
    replace(SECTIONS, regexp="[abs]", replace="X", after="a=.", before="a=."),
    replace(SECTIONS, regexp="^", replace="X", after="# st", before="a=6"),
    replace(SECTIONS, regexp="$", replace="X", after="# st", before="=4"),
    replace(SECTIONS, regexp="a", replace="X", before="^b"),
    replace(SECTIONS, regexp="a", replace="X", after="(?m)^b"),
    replace(SECTIONS, regexp="a", replace="X", after=""),
    replace(SECTIONS, regexp="a", replace="aa"),
    replace(SECTIONS, regexp="(?P<n>b)", replace=r"\g<n>\g<n>", after="(start)"),
    replace(SECTIONS, regexp="b", replace="b"),
    replace(SECTIONS, regexp="b", replace="b", mode="0600"),
    replace(SECTIONS, regexp="b", replace="c", mode="0600"),
    replace(SECTIONS, regexp="b", replace=r"\n"),
    replace(SECTIONS, regexp="b", replace=r"\9"),
    replace(SECTIONS, regexp="$", replace="!"),
    replace(SECTIONS, regexp="("),
    replace("a\r\nb\r\n", regexp="a\r?$", replace="x"),
    replace("a\r\nb\r\n", regexp="b", replace="x"),
    replace("", regexp="^", replace="x"),
    replace(None, regexp="a"),
    replace("grüße\n", regexp="ü", replace="ue"),
    replace("é\n", regexp="x", replace="y", encoding="latin-1"),
    replace("é", regexp="é", replace="e", encoding="ascii"),
    replace("é x", regexp="x", replace="y", encoding="ascii"),
    replace(SECTIONS, regexp="b", validate="test -s %s"),
    replace(SECTIONS, regexp="b", validate="false"),
]

# Different on purpose: the case, and the content that crossgrade makes (None: the task fails).
DIFFERENT: list[tuple[Case, str | None, str]] = [
    (lines("a\nb", line="c", insertafter="b"), "a\nb\nc\n", "Ansible glues the new line to the last one"),
    (lines("a\n", line="x\n"), "a\nx\n", "Ansible adds an empty line too, in every run: the text of `line: |` ends so"),
    (block("a", block=""), "a", "Ansible changes a file in which there is no block"),
    (block("a\nb\n", block="", insertafter="a", **SPACED), "a\nb\n", "Ansible puts empty lines around nothing"),
    (block(BLOCK.removesuffix("\nb\n"), block="old"), BLOCK.removesuffix("b\n"), "a last line without an end counts"),
    (block(BLOCK.replace("\n", "\r\n"), block="x"), f"a\r\n{BEGIN}x\n{END}b\r\n", "markers count in a DOS file too"),
    (block("a\n", block="x", marker="no mark"), None, "Ansible inserts it again in every run"),
    (block("a\n", block="x", marker="two\n{mark}"), None, "Ansible inserts it again in every run"),
]


@pytest.fixture(autouse=True)
def _usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def prepared(case: Case, folder: Path) -> dict[str, Any]:
    """The arguments of the task, for the file that now lies in the folder."""
    folder.mkdir(parents=True)
    path = folder / "file"
    if case.content is not None:
        path.write_bytes(case.content.encode())
        path.chmod(0o640)
        os.utime(path, ns=(10**18, 10**18))
    return {"path": str(path), **case.arguments}


def tree(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Mode and content of each file; the end of a backup's name, which is a time, left out."""
    return {
        re.sub(r"\.\d+\.[-\d]+@[\d:]+~$", ".backup", path.name): (stat.S_IMODE(path.stat().st_mode), path.read_bytes())
        for path in folder.iterdir()
    }


def told(values: Any) -> dict[str, Any]:
    """The results that both give, names of backups left out; what is said of attributes in crossgrade's words."""
    found = {name: values[name] for name in ("msg", "found", "rc") if name in values}
    found["backup"] = bool(values.get("backup") or values.get("backup_file"))
    words = str(found.get("msg", "")).replace("ownership, perms or SE linux context changed", "mode or owner changed")
    found["msg"] = re.sub(r"^(Pattern for before/after|the file has no such part).*", "no part", words)
    found["msg"] = re.sub(r"^File .* not present$", "File not present", found["msg"])
    return found


@dataclass(frozen=True)
class Done:
    changed: bool
    failed: bool
    values: dict[str, Any]


def do(case: Case, folder: Path) -> Done:
    """Plan it, which must change nothing; do it, which must come out as planned; undo it; and do it again to stay."""
    module = load_module(case.module)
    place = folder / "place"
    task = prepared(case, place)
    before = snapshot(place)
    try:
        host = ModuleHost(folder)
        planned = plan_module(module, task, host.planning())
        assert snapshot(place) == before, "a plan changed something"
        outcome = run_module(module, task, host)
    except CrossgradeError:
        assert snapshot(place) == before, "a task that failed changed something"
        return Done(False, True, {})
    changed = outcome.changed is not False
    assert changed == isinstance(planned, Change), "the plan said something else"
    after = tree(place)
    if isinstance(planned, Change):
        contents = [one for one in planned.differences if one.subject == str(place / "file")]
        assert all(one.after.encode() == after["file"][1] for one in contents), "--diff shows something else"
    undo_all(module, host)
    assert snapshot(place) == before, "undo left something"
    undo_all(module, host)
    assert snapshot(place) == before, "undoing twice does more"
    host.steps.clear()
    again = run_module(module, task, host)
    assert tree(place) == after
    return Done(changed, False, dict(again.values))


@pytest.fixture(scope="module")
def ansible(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[dict[str, Any], dict[str, tuple[int, bytes]]]]:
    """What Ansible's modules make of each case: the result, and the files."""
    folder = tmp_path_factory.mktemp("ansible")
    before = os.umask(0o022)
    try:
        tasks = [(case.module, prepared(case, folder / str(number))) for number, case in enumerate(CASES)]
        results = run_ansible_modules(tasks, folder)
    finally:
        os.umask(before)
    found = zip(CASES, results, (tree(folder / str(number)) for number in range(len(CASES))), strict=True)
    return {case.name: (result, files) for case, result, files in found}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_same_file_and_the_same_result(case: Case, ansible: Any, tmp_path: Path) -> None:
    result, files = ansible[case.name]
    done = do(case, tmp_path)
    assert done.failed == bool(result.get("failed")), result
    assert tree(tmp_path / "place") == files
    assert done.changed == result.get("changed", False)
    if not done.failed:
        assert told(done.values) == told(result)


@pytest.mark.parametrize(
    ("case", "content", "why"), DIFFERENT, ids=lambda value: value.name if isinstance(value, Case) else ""
)
def test_different_on_purpose(case: Case, content: str | None, why: str, tmp_path: Path) -> None:
    done = do(case, tmp_path)
    assert done.failed == (content is None), why
    path = tmp_path / "place/file"
    assert path.read_bytes().decode() == (case.content if content is None else content), why
    if not done.failed:  # and then it stays
        task = {"path": str(path), **case.arguments}
        left = plan_module(load_module(case.module), task, ModuleHost(tmp_path).planning())
        assert isinstance(left, Unchanged)


def test_ansible_playbook_does_what_its_modules_do(ansible: Any, tmp_path: Path) -> None:
    """The modules were asked without ansible-playbook above: some of all through it."""
    chosen = [case for case in CASES if case.arguments.get("mode") or case.arguments.get("backup")]
    assert {case.module for case in chosen} == {"lineinfile", "blockinfile", "replace"}
    tasks = [{case.module: prepared(case, tmp_path / str(number))} for number, case in enumerate(chosen)]
    for number, (case, result) in enumerate(zip(chosen, run_with_ansible(tasks, tmp_path), strict=True)):
        expected, files = ansible[case.name]
        assert told(result) == told(expected)
        assert tree(tmp_path / str(number)) == files


def test_a_symlink_is_followed(tmp_path: Path) -> None:
    host = ModuleHost(tmp_path)
    (tmp_path / "real").write_text("a\n", encoding="utf-8")
    (tmp_path / "link").symlink_to("real")
    run_module(load_module("lineinfile"), {"path": str(tmp_path / "link"), "line": "b"}, host)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text(encoding="utf-8") == "a\nb\n"


def test_a_plan_knows_what_earlier_tasks_write(tmp_path: Path) -> None:
    host = ModuleHost(tmp_path)
    planning = host.planning()
    path = tmp_path / "file"
    tasks: list[tuple[str, dict[str, Any]]] = [
        ("copy", {"content": "one\n", "dest": str(path)}),
        ("lineinfile", {"path": str(path), "line": "two"}),
        ("lineinfile", {"path": str(path), "line": "two"}),
        ("file", {"path": str(path), "mode": "0600"}),
        ("blockinfile", {"path": str(path), "block": "three", "marker": "# {mark}"}),
        ("replace", {"path": str(path), "regexp": "^t", "replace": "T"}),
        ("replace", {"path": str(path), "regexp": "^t", "replace": "T"}),
        ("slurp", {"src": str(path)}),
    ]
    planned = [plan_module(load_module(name), arguments, planning) for name, arguments in tasks]
    assert not path.exists()
    outcomes = [run_module(load_module(name), arguments, host) for name, arguments in tasks]
    assert [isinstance(one, Change) for one in planned[:-1]] == [one.changed is not False for one in outcomes[:-1]]
    assert planned[-1].values == outcomes[-1].values
    assert path.read_text(encoding="utf-8") == "one\nTwo\n# BEGIN\nThree\n# END\n"


def test_a_plan_says_when_only_the_run_makes_the_file(tmp_path: Path) -> None:
    planning = ModuleHost(tmp_path).planning()
    path = tmp_path / "made"
    creates = {"argv": ["touch", str(path)], "creates": str(path)}
    plan_module(load_module("command"), creates, planning)
    planned = plan_module(load_module("lineinfile"), {"path": str(path), "line": "x"}, planning)
    assert isinstance(planned, Change)
    assert not planned.values_known
