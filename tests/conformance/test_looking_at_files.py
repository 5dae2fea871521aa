"""file, stat, find, slurp and tempfile against Ansible's: the same tasks in the same directories."""

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
from tests.support.ansible_tasks import run_ansible_modules
from tests.support.laid_files import WHEN, Put, folder, lay
from tests.support.module_host import ModuleHost, plan_module, run_module, snapshot, undo_all

from crossgrade.errors import CrossgradeError
from crossgrade.modules import load_module
from crossgrade.modules.contract import Change

BEFORE = (
    folder("d"),
    Put("d/one", b"one\n", 0o640),
    Put("d/two.txt", b"two\nlines\n"),
    Put("d/.hidden", b"x" * 2000),
    folder("d/sub", 0o750),
    Put("d/sub/three.txt", b"three\n", 0o600, when=WHEN - 100_000),
    folder("empty"),
    Put("file", b"content\n", 0o644),
    Put("second", hard="file"),
    Put("link", link="d/one"),
    Put("dirlink", link="d"),
    Put("dangling", link="nothing"),
    Put("grüße.txt", "süß\n".encode()),
)


FLAGS = {"attr_flags", "attributes", "version"}


@dataclass(frozen=True)
class Case:
    """A task in the directory `PLACE`, in which lies what `BEFORE` says."""

    module: str
    arguments: tuple[tuple[str, Any], ...]

    @property
    def name(self) -> str:
        return f"{self.module} {json.dumps(dict(self.arguments))}".encode("ascii", "replace").decode()


def file(path: str, **arguments: Any) -> Case:
    return Case("file", (("path", f"PLACE/{path}"), *arguments.items()))


def find(paths: str, **arguments: Any) -> Case:
    return Case("find", (("paths", f"PLACE/{paths}".rstrip("/")), *arguments.items()))


def look(path: str, **arguments: Any) -> Case:
    return Case("stat", (("path", f"PLACE/{path}"), *arguments.items()))


FILE = [
    file("new", state="directory"),
    file("new/a/b", state="directory", mode="0700"),
    file("d", state="directory"),
    file("d", state="directory", mode="0700"),
    file("d", state="directory", mode="u=rwX,g=rX,o=", recurse=True),
    file("d", mode="u=rwX,go=", recurse=True, state="directory", follow=False),
    file("d", recurse=True, mode="0700"),
    file("file", recurse=True, mode="0700"),
    file("file", state="directory"),
    file("link", state="directory"),
    file("dirlink", state="directory", mode="0711"),
    file("dirlink", state="directory", mode="0711", follow=False),
    file("dangling", state="directory"),
    file("file/below", state="directory"),
    file("file", mode="0600"),
    file("file", mode="u+x"),
    file("file", mode="a=rX"),
    file("file", mode="0o600"),
    file("file", mode="wrong"),
    file("file"),
    file("new"),
    file("new", state="file"),
    file("d"),
    file("link", mode="0600"),
    file("link", mode="0600", follow=False),
    file("link", state="file", mode="0600"),
    file("dangling", state="file"),
    file("new", state="touch"),
    file("new", state="touch", mode="0600"),
    file("file", state="touch"),
    file("file", state="touch", modification_time="preserve", access_time="preserve"),
    file("file", state="touch", modification_time="202001020304.05", access_time="preserve"),
    file("file", state="touch", modification_time="2020-01-02", modification_time_format="%Y-%m-%d"),
    file("file", state="touch", modification_time="nonsense"),
    file("file", state="file", modification_time="202001020304.05", access_time="202001020304.05"),
    file("d", state="touch", mode="0700"),
    file("missing/new", state="touch"),
    file("file", state="absent"),
    file("d", state="absent"),
    file("link", state="absent"),
    file("dirlink", state="absent"),
    file("dangling", state="absent"),
    file("new", state="absent"),
    file("file/below", state="absent"),
    file("new", state="link", src="file"),
    file("new", state="link", src="PLACE/file"),
    file("new", state="link", src="nothing"),
    file("new", state="link", src="nothing", force=True),
    file("new", state="link", src="file", mode="0600"),
    file("new", state="link", src="file", mode="0600", follow=False),
    file("link", state="link", src="d/one"),
    file("link", state="link", src="file"),
    file("link", state="link"),
    file("new", state="link"),
    file("file", state="link", src="d/one"),
    file("file", state="link", src="d/one", force=True),
    file("empty", state="link", src="d/one"),
    file("empty", state="link", src="d/one", force=True),
    file("empty", state="link", src="../d/one", force=True),
    file("d", state="link", src="file", force=True),
    file("dirlink", state="link", src="empty"),
    file("missing/new", state="link", src="../file"),
    file("new", state="hard", src="PLACE/file"),
    file("new", state="hard", src="PLACE/file", mode="0600"),
    file("second", state="hard", src="PLACE/file"),
    file("d/one", state="hard", src="PLACE/file"),
    file("d/one", state="hard", src="PLACE/file", force=True),
    file("link", state="hard", src="PLACE/file"),
    file("new", state="hard", src="PLACE/nothing"),
    file("new", state="hard", src="PLACE/d"),
    file("new", state="hard"),
    file("new", state="absent", src="file"),
    file("new", state="nonsense"),
]

READS = [
    *(look(path) for path in ("file", "d", "link", "dirlink", "dangling", "nothing", "d/sub/three.txt")),
    *(look(path, follow=True) for path in ("file", "link", "dirlink", "dangling")),
    *(look("file", checksum_algorithm=name) for name in ("md5", "sha256", "sha512")),
    look("file", get_checksum=False),
    look("file", get_mime=False, get_attributes=False),
    look("file", checksum_algorithm="crc"),
    find(""),
    find("d"),
    find("nothing"),
    find("file"),
    find("", recurse=True),
    find("d", hidden=True),
    find("d", patterns="*.txt"),
    find("d", patterns=["*.txt", "one"], recurse=True),
    find("d", patterns="*.txt,one", recurse=True),
    find("d", patterns="^t.*", use_regex=True),
    find("d", patterns=r"^[ot].{2}$", use_regex=True),
    find("d", patterns="wo", use_regex=True),
    find("d", excludes="*.txt", recurse=True),
    find("d", patterns="*.txt", excludes="two*", recurse=True),
    find("d", exclude="one"),
    find("", file_type="directory", recurse=True),
    find("", file_type="link"),
    find("", file_type="any", recurse=True, hidden=True),
    find("", recurse=True, depth=1),
    find("", recurse=True, depth=2, file_type="any"),
    find("", recurse=True, follow=True),
    find("dirlink"),
    find("d", recurse=True, contains="three"),
    find("d", recurse=True, contains=".*ne"),
    find("d", recurse=True, contains="ines"),
    find("d", recurse=True, contains="wo\nli", read_whole_file=True),
    find("d", recurse=True, hidden=True, size="1k"),
    find("d", recurse=True, size="-1k"),
    find("d", recurse=True, size="6"),
    find("d", recurse=True, size="huge"),
    find("d", recurse=True, age="1d"),
    find("d", recurse=True, age="-1w"),
    find("d", recurse=True, age="2000w"),
    find("d", recurse=True, age="1d", age_stamp="ctime"),
    find("d", recurse=True, age="often"),
    find("d", recurse=True, mode="0600"),
    find("d", recurse=True, mode="0600", exact_mode=False),
    find("d", recurse=True, mode="u=rw", exact_mode=False),
    find("d", recurse=True, get_checksum=True),
    find("d", recurse=True, get_checksum=True, checksum_algorithm="sha256"),
    find("d", recurse=True, limit=2),
    find("", patterns="gr*"),
    find("", contains="süß"),
    Case("find", (("paths", ["PLACE/d", "PLACE/d/sub", "PLACE/nothing"]),)),
    Case("find", (("paths", "PLACE/d,PLACE/empty"),)),
    *(Case("slurp", (("src", f"PLACE/{path}"),)) for path in ("file", "link", "d", "nothing", "grüße.txt", "dangling")),
    Case("slurp", (("path", "PLACE/file"),)),
]


@pytest.fixture(autouse=True)
def _usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def prepared(one: Case, where: Path) -> dict[str, Any]:
    """The arguments of the task, for the directory that is now there."""
    place = where / "place"
    place.mkdir(parents=True)
    for item in BEFORE:
        lay(item, place)
    return {name: _filled(value, str(place)) for name, value in one.arguments}


def _filled(value: Any, place: str) -> Any:
    if isinstance(value, list):
        return [_filled(one, place) for one in value]
    return value.replace("PLACE", place) if isinstance(value, str) else value


def tree(place: Path) -> dict[str, tuple[Any, ...]]:
    """Type and mode, number of names here, content, and of files the time where it is not that of the test."""
    found: dict[str, tuple[Any, ...]] = {}
    paths = sorted(place.rglob("*"))
    inodes = [path.lstat().st_ino for path in paths]  # what undo keeps is another name
    for path in paths:
        status = path.lstat()
        regular = stat.S_ISREG(status.st_mode)
        content: bytes | str = path.read_bytes() if regular else ""
        if path.is_symlink():
            content = os.readlink(path).replace(str(place), "")  # noqa: PTH115 - as it was written
        when = int(status.st_mtime) if regular and status.st_mtime < WHEN + 10_000_000 else "now"
        names = inodes.count(status.st_ino)
        found[str(path.relative_to(place))] = (oct(status.st_mode), when, names, content)
    return found


def told(values: dict[str, Any], where: Path) -> dict[str, Any]:
    names = ("path", "dest", "src", "state", "mode", "owner", "uid")
    found = {name: values[name] for name in names if values.get(name) is not None}
    return {name: value.replace(str(where), "") if isinstance(value, str) else value for name, value in found.items()}


@dataclass(frozen=True)
class Done:
    """What came of a task, and of the same task once more."""

    failed: bool
    changed: bool
    values: dict[str, Any]
    files: dict[str, tuple[Any, ...]]
    again: bool


@pytest.fixture(scope="module")
def ansible(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Done]:
    where = tmp_path_factory.mktemp("ansible")
    before = os.umask(0o022)
    try:
        tasks = [(one.module, prepared(one, where / str(number))) for number, one in enumerate(FILE)]
        results = run_ansible_modules(tasks, where)
        trees = [tree(where / str(number) / "place") for number in range(len(FILE))]
        again = run_ansible_modules(tasks, where)
    finally:
        os.umask(before)
    return {
        one.name: Done(
            bool(result.get("failed")),
            result.get("changed", False),
            {} if result.get("failed") else told(result, where / str(number)),
            files,
            second.get("changed", False),
        )
        for number, (one, result, files, second) in enumerate(zip(FILE, results, trees, again, strict=True))
    }


def do(one: Case, where: Path) -> Done:
    """Plan it, which must change nothing; do it, which must come out as planned; undo it; and do it twice."""
    module = load_module(one.module)
    task, place = prepared(one, where), where / "place"
    before = snapshot(place)
    host = ModuleHost(where)
    try:
        planned = plan_module(module, task, host.planning())
        assert snapshot(place) == before, "a plan changed something"
        outcome = run_module(module, task, host)
    except CrossgradeError:
        assert snapshot(place) == before, "a task that failed changed something"
        return Done(True, False, {}, tree(place), False)
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
    second = run_module(module, task, ModuleHost(where))
    return Done(False, changed, told(dict(again.values), where), after, second.changed is not False)


@pytest.mark.parametrize("one", FILE, ids=lambda one: one.name)
def test_file_does_the_same(one: Case, ansible: dict[str, Done], tmp_path: Path) -> None:
    expected = ansible[one.name]
    found = do(one, tmp_path)
    assert (found.failed, found.changed) == (expected.failed, expected.changed)
    if not found.failed:
        assert found.again == expected.again
        assert found.files == expected.files
        # of a link that leads nowhere crossgrade tells more
        assert {name: found.values.get(name) for name in expected.values} == expected.values


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One directory for all that only read."""
    where = tmp_path_factory.mktemp("read")
    before = os.umask(0o022)
    try:
        prepared(READS[0], where)
    finally:
        os.umask(before)
    return where / "place"


@pytest.fixture(scope="module")
def read_by_ansible(place: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    tasks = [(one.module, {n: _filled(v, str(place)) for n, v in one.arguments}) for one in READS]
    results = run_ansible_modules(tasks, tmp_path_factory.mktemp("results"))
    return dict(zip((one.name for one in READS), results, strict=True))


def normal(values: dict[str, Any], module: str) -> dict[str, Any]:
    """What both tell, in one order; reading changes the access time."""
    if module == "stat":
        told = {name: value for name, value in values["stat"].items() if name != "atime"}
        if Path(told.get("path", "")).is_symlink():
            # with `follow` Ansible tells type and flags of the link all the same, and of one to nowhere no type
            told = {n: v for n, v in told.items() if n not in {"mimetype", "charset", *FLAGS}}
        return {"stat": told}
    if module == "slurp":
        return {name: values[name] for name in ("content", "encoding", "source")}
    files = [{name: value for name, value in one.items() if name != "atime"} for one in values["files"]]
    return {
        "files": sorted(files, key=lambda one: str(one["path"])),
        "matched": values["matched"],
        "examined": values["examined"],
        "skipped": sorted(values.get("skipped_paths", {})),
    }


@pytest.mark.parametrize("one", READS, ids=lambda one: one.name)
def test_the_same_is_seen(one: Case, place: Path, read_by_ansible: dict[str, Any], tmp_path: Path) -> None:
    expected = read_by_ansible[one.name]
    task = {name: _filled(value, str(place)) for name, value in one.arguments}
    before = snapshot(place)
    try:
        outcome = run_module(load_module(one.module), task, ModuleHost(tmp_path))
    except CrossgradeError:
        assert expected.get("failed"), expected
        return
    assert not expected.get("failed"), expected
    assert snapshot(place) == before
    seen = normal(dict(outcome.values), one.module)
    assert json.loads(json.dumps(seen)) == normal(expected, one.module)


def test_different_on_purpose(place: Path, tmp_path: Path) -> None:
    """Below a file there is nothing: Ansible's stat fails there."""
    outcome = run_module(load_module("stat"), {"path": str(place / "file/below")}, ModuleHost(tmp_path))
    assert outcome.values == {"stat": {"exists": False}}
    followed = run_module(load_module("stat"), {"path": str(place / "dirlink"), "follow": True}, ModuleHost(tmp_path))
    assert followed.values["stat"]["mimetype"] in ("inode/directory", "unknown"), "Ansible tells of the link"


@pytest.mark.parametrize("arguments", [{}, {"state": "directory", "prefix": "p-", "suffix": ".d"}, {"suffix": ".txt"}])
def test_tempfile_makes_the_same(arguments: dict[str, Any], tmp_path: Path) -> None:
    module, host = load_module("tempfile"), ModuleHost(tmp_path)
    place = tmp_path / "place"
    place.mkdir()
    (expected,) = run_ansible_modules([("tempfile", {"path": str(place), **arguments})], tmp_path)
    before = snapshot(place)
    outcome = run_module(module, {"path": str(place), **arguments}, host)
    theirs, ours = Path(expected["path"]), Path(outcome.values["path"])
    assert ours != theirs
    assert ours.stat().st_mode == theirs.stat().st_mode
    shape = re.compile(rf"{re.escape(arguments.get('prefix', 'ansible.'))}\w+{re.escape(arguments.get('suffix', ''))}")
    assert shape.fullmatch(ours.name)
    assert shape.fullmatch(theirs.name)
    for name in ("state", "mode", "owner", "uid", "size"):
        assert outcome.values.get(name) == expected.get(name)
    assert outcome.changed is not False
    undo_all(module, host)
    undo_all(module, host)
    assert snapshot(place) == before


def test_tempfile_makes_nothing_in_a_plan_and_needs_its_directory(tmp_path: Path) -> None:
    host = ModuleHost(tmp_path)
    module = load_module("tempfile")
    before = snapshot(tmp_path)
    planned = plan_module(module, {"path": str(tmp_path)}, host.planning())
    assert isinstance(planned, Change)
    assert not planned.values_known
    assert snapshot(tmp_path) == before
    with pytest.raises(CrossgradeError):
        run_module(module, {"path": str(tmp_path / "nothing")}, host)
