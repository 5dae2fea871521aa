"""copy, template and file on real files: what they make, that a plan touches nothing, and that undo takes it back."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.module_host import ModuleHost, plan_module, run_module, snapshot, undo_all

from crossgrade.errors import TaskError
from crossgrade.modules import copy, file, template
from crossgrade.modules.contract import Change, Module, Plan, Unchanged
from crossgrade.modules.file_operations import Remove, _record
from crossgrade.modules.file_undo import undo
from crossgrade.modules.files import entry_at

AnyModule = Module[Any, Any]


@pytest.fixture(autouse=True)
def _usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def host(tmp_path: Path) -> ModuleHost:
    return ModuleHost(tmp_path)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with something of everything, in which the tasks work."""
    place = tmp_path / "place"
    (place / "tree/sub").mkdir(parents=True)
    (place / "tree/a").write_text("a", encoding="utf-8")
    (place / "tree/sub/b").write_text("b", encoding="utf-8")
    (place / "tree/link").symlink_to("sub")
    (place / "file").write_text("old\n", encoding="utf-8")
    (place / "file").chmod(0o640)
    os.utime(place / "file", ns=(10**18, 10**18 + 123456789))
    (place / "empty").mkdir()
    (place / "link").symlink_to("file")
    (place / "dangling").symlink_to("nowhere")
    (place / "grüße ✓").write_text("unicode", encoding="utf-8")
    return place


@pytest.fixture
def sources(host: ModuleHost) -> Path:
    """The playbook's directory with files to copy."""
    files = host.playbook_directory / "files"
    (files / "conf/inner/empty").mkdir(parents=True)
    (files / "conf/one").write_text("1\n", encoding="utf-8")
    (files / "conf/inner/two").write_bytes(b"\0\1\2" * 1000)
    (files / "conf/inner/two").chmod(0o755)
    (files / "conf/alias").symlink_to("inner")
    (files / "conf/loop").symlink_to(".")
    (files / "conf/gone").symlink_to("nowhere")
    (files / "single").write_text("single\n", encoding="utf-8")
    (files / "single").chmod(0o751)
    return files


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def at(place: Path, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments with `@` standing for the place."""
    return dict(json.loads(json.dumps(arguments).replace("@", str(place))))


# Each of these changes something in `place`; `template` is among them below, with its own sources.
CHANGES: list[tuple[AnyModule, dict[str, Any]]] = [
    (copy.MODULE, {"content": "new\n", "dest": "@/new"}),
    (copy.MODULE, {"content": "new\n", "dest": "@/file"}),
    (copy.MODULE, {"content": "new\n", "dest": "@/file", "mode": "0600", "backup": True}),
    (copy.MODULE, {"content": "old\n", "dest": "@/file", "mode": "u=rwx,g=,o="}),
    (copy.MODULE, {"content": "new\n", "dest": "@/link"}),
    (copy.MODULE, {"content": "new\n", "dest": "@/link", "follow": True}),
    (copy.MODULE, {"content": "new\n", "dest": "@/grüße ✓"}),
    (copy.MODULE, {"src": "single", "dest": "@/empty"}),
    (copy.MODULE, {"src": "single", "dest": "@/far/away/", "mode": "preserve"}),
    (copy.MODULE, {"src": "conf", "dest": "@/tree"}),
    (copy.MODULE, {"src": "conf/", "dest": "@/tree/deep/er", "mode": "0600", "directory_mode": "0750"}),
    (copy.MODULE, {"src": "conf", "dest": "@", "local_follow": False}),
    (file.MODULE, {"path": "@/made/of/many", "state": "directory", "mode": "0710"}),
    (file.MODULE, {"path": "@/tree", "state": "directory", "recurse": True, "mode": "u=rwX,g=,o="}),
    (file.MODULE, {"path": "@/file", "mode": "a-w"}),
    (file.MODULE, {"path": "@/link", "mode": "0600"}),
    (file.MODULE, {"path": "@/file", "state": "touch"}),
    (file.MODULE, {"path": "@/file", "modification_time": "202001020304.05", "access_time": "202001020304.06"}),
    (file.MODULE, {"path": "@/touched", "state": "touch", "modification_time": "202001020304.05"}),
    (file.MODULE, {"path": "@/l", "state": "link", "src": "file"}),
    (file.MODULE, {"path": "@/link", "state": "link", "src": "tree"}),
    (file.MODULE, {"path": "@/link", "state": "link", "src": "tree", "mode": "0700"}),
    (file.MODULE, {"path": "@/file", "state": "link", "src": "../x", "force": True}),
    (file.MODULE, {"path": "@/empty", "state": "link", "src": "tree", "force": True}),
    (file.MODULE, {"path": "@/hard", "state": "hard", "src": "@/file"}),
    (file.MODULE, {"path": "@/tree/a", "state": "hard", "src": "@/file", "force": True}),
    (file.MODULE, {"path": "@/empty", "state": "hard", "src": "@/file"}),
    (file.MODULE, {"path": "@/file", "state": "absent"}),
    (file.MODULE, {"path": "@/tree", "state": "absent"}),
    (file.MODULE, {"path": "@/link", "state": "absent"}),
    (file.MODULE, {"path": "@/dangling", "state": "absent"}),
]


def name_of(case: Any) -> str:
    return json.dumps(case, ensure_ascii=True).replace('"', "") if isinstance(case, dict) else case.name


@pytest.mark.usefixtures("sources")
@pytest.mark.parametrize(("module", "arguments"), CHANGES, ids=name_of)
def test_each_change_is_planned_made_proven_and_undone(
    host: ModuleHost, place: Path, module: AnyModule, arguments: dict[str, Any]
) -> None:
    task = at(place, arguments)
    before = snapshot(place)

    planned = plan_module(module, task, host.planning())
    assert isinstance(planned, Change)
    assert "new\n" not in planned.summary
    assert snapshot(place) == before, "a plan changed something"

    outcome = run_module(module, task, host)  # looks a second time, which must find nothing left to do
    assert outcome.changed is None
    after = snapshot(place)
    assert after != before
    assert len(host.steps) == 1
    assert host.steps[0].done
    json.dumps(host.steps[0].undo)  # the journal keeps it as JSON
    assert host.steps[0].by_hand

    assert undo_all(module, host) != [""]
    assert snapshot(place) == before, "undo left a difference"
    assert undo_all(module, host) == [""], "a second undo found something to do"
    assert snapshot(place) == before

    outcome_again = run_module(module, task, host)
    assert outcome_again.changed is None
    changed_files = {path for path in after if not path.endswith("~")}
    assert {path for path in snapshot(place) if not path.endswith("~")} == changed_files


@pytest.mark.usefixtures("sources")
@pytest.mark.parametrize(("module", "arguments"), CHANGES, ids=name_of)
def test_undo_of_what_was_only_intended_changes_nothing(
    host: ModuleHost, place: Path, module: AnyModule, arguments: dict[str, Any]
) -> None:
    before = snapshot(place)
    planned = plan_module(module, at(place, arguments), host)
    assert isinstance(planned, Change)
    folder = host.log_directory / "undo"
    folder.mkdir()
    records: list[Any] = [_record(operation, folder, host.run_id) for operation in planned.payload["operations"]]
    temporary = Path(records[0]["temporary"])
    if temporary.parent.is_dir():
        temporary.write_text("half", encoding="utf-8")
    assert module.undo({"records": records}, host) == ""
    assert snapshot(place) == before


@pytest.mark.usefixtures("sources")
@pytest.mark.parametrize(("module", "arguments"), CHANGES, ids=name_of)
def test_a_step_that_broke_off_in_the_middle_is_undone(
    host: ModuleHost, place: Path, module: AnyModule, arguments: dict[str, Any]
) -> None:
    """Every number of operations, as if the run had been killed right after it."""
    task = at(place, arguments)
    before = snapshot(place)
    planned = plan_module(module, task, host)
    assert isinstance(planned, Change)
    count = len(planned.payload["operations"])
    for done in range(count):
        begun = ModuleHost(host.directory, run_id=f"run-{done}")
        again = plan_module(module, task, begun)
        assert isinstance(again, Change)
        stopping = replace(again, payload={"operations": Stopping(again.payload["operations"], done)})
        with pytest.raises(KeyboardInterrupt):
            module.apply(None, stopping, begun)
        undo_all(module, begun)
        assert snapshot(place) == before, f"after {done} of {count} operations"


class Stopping(tuple[Any, ...]):
    """Operations of which all records are made, and then only the first few are carried out."""

    walks: int
    last: int

    def __new__(cls, operations: tuple[Any, ...], last: int) -> Stopping:
        made = super().__new__(cls, operations)
        made.walks, made.last = 0, last
        return made

    def __iter__(self) -> Iterator[Any]:
        self.walks += 1
        for number, operation in enumerate(super().__iter__()):
            if self.walks == 2 and number == self.last:
                raise KeyboardInterrupt
            yield operation


# ---- copy


def test_copy_returns_what_ansible_returns(host: ModuleHost, place: Path) -> None:
    dest = place / "new"
    outcome = run_module(copy.MODULE, {"content": "hello\n", "dest": str(dest), "mode": "0640"}, host)
    status = dest.stat()
    values = dict(outcome.values)
    assert values.pop("owner")
    assert values.pop("group")
    assert values == {
        "dest": str(dest),
        "checksum": "f572d396fae9206628714fb2ce00f72e94f2258f",
        "md5sum": "b1946ac92492d2347c6235b4d2611184",
        "uid": status.st_uid,
        "gid": status.st_gid,
        "mode": "0640",
        "state": "file",
        "size": 6,
    }
    again = run_module(copy.MODULE, {"content": "hello\n", "dest": str(dest), "mode": "0640"}, host)
    assert again.changed is False
    assert {**again.values, "md5sum": outcome.values["md5sum"]} == {**outcome.values, "path": str(dest)}


def test_copy_writes_data_as_json_and_text_as_it_is(host: ModuleHost, place: Path) -> None:
    for content, written in (({"a": [1, "ü"]}, b'{"a": [1, "\\u00fc"]}'), ("ü", b"\xc3\xbc"), (5, b"5"), ("", b"")):
        run_module(copy.MODULE, {"content": content, "dest": str(place / "data")}, host)
        assert (place / "data").read_bytes() == written


def test_copy_keeps_mode_and_owner_of_the_old_file_and_minds_the_umask_for_a_new_one(
    host: ModuleHost, place: Path
) -> None:
    run_module(copy.MODULE, {"content": "x", "dest": str(place / "file")}, host)
    assert mode_of(place / "file") == 0o640
    os.umask(0o077)
    run_module(copy.MODULE, {"content": "x", "dest": str(place / "new")}, host)
    assert mode_of(place / "new") == 0o600
    run_module(copy.MODULE, {"content": "y", "dest": str(place / "new"), "mode": "g+r,u+s"}, host)
    assert mode_of(place / "new") == 0o4640


def test_copy_diff_shows_text_but_no_bytes(host: ModuleHost, place: Path) -> None:
    def difference(content: str, name: str) -> tuple[str, str]:
        planned = plan_module(copy.MODULE, {"content": content, "dest": str(place / name)}, host)
        assert isinstance(planned, Change)
        found = [one for one in planned.differences if one.subject == str(place / name)]
        return found[0].before, found[0].after

    assert difference("new\n", "file") == ("old\n", "new\n")
    assert difference("new\n", "absent") == ("", "new\n")
    assert difference("a\0b", "file") == ("old\n", "(3 bytes, not shown)")
    assert difference("x" * 200_000, "file") == ("old\n", "(200000 bytes, not shown)")


def test_copy_of_a_tree(host: ModuleHost, place: Path, sources: Path) -> None:
    outcome = run_module(copy.MODULE, {"src": "conf", "dest": str(place / "empty")}, host)
    made = place / "empty/conf"
    assert outcome.values == {"dest": f"{place}/empty/", "src": "conf"}
    assert (made / "one").read_text(encoding="utf-8") == "1\n"
    assert (made / "inner/two").read_bytes() == (sources / "conf/inner/two").read_bytes()
    assert mode_of(made / "inner/two") == 0o644
    assert (made / "inner/empty").is_dir()
    assert (made / "alias/two").is_file()
    assert not (made / "alias").is_symlink()
    assert os.readlink(made / "loop") == "."  # noqa: PTH115 - as it was written
    assert os.readlink(made / "gone") == "nowhere"  # noqa: PTH115 - as it was written
    (made / "one").write_text("other", encoding="utf-8")
    (sources / "conf/three").touch()
    planned = plan_module(copy.MODULE, {"src": "conf", "dest": str(place / "empty")}, host)
    assert "(2 of " in planned.summary


def test_copy_keeps_modes_of_a_tree_that_is_not_the_playbooks(host: ModuleHost, place: Path, sources: Path) -> None:
    run_module(copy.MODULE, {"src": f"{sources}/conf/", "dest": str(place / "n"), "remote_src": True}, host)
    assert mode_of(place / "n/inner/two") == 0o755
    assert os.readlink(place / "n/alias") == "inner"  # noqa: PTH115 - as it was written
    run_module(copy.MODULE, {"src": "single", "dest": str(place / "s"), "mode": "preserve"}, host)
    assert mode_of(place / "s") == 0o751


@pytest.mark.usefixtures("sources")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"src": "no-such-file", "dest": "@/x"}, "there is no 'no-such-file'"),
        ({"content": "x", "dest": "@/empty"}, "is a directory"),
        ({"content": "x", "dest": "@/new/"}, "`content` needs"),
        ({"content": "x", "dest": "@/no/where"}, "no directory"),
        ({"content": "x", "dest": "/dev/null"}, "device"),
        ({"content": "x", "dest": "@/file/below"}, "no directory"),
        ({"src": "single", "dest": "@/file/"}, "no directory"),
        ({"src": "conf", "dest": "@/file"}, "no directory"),
        ({"content": "x", "dest": "@/x", "mode": "preserve"}, "needs|there is none"),
        ({"content": "x", "dest": "@/x", "mode": "rwx"}, "not a mode"),
        ({"content": "x", "dest": "@/x", "owner": "no-such-user"}, "no user"),
        ({"content": "x", "dest": "@/x", "group": "no-such-group"}, "no group"),
        ({"content": "x", "dest": "@/x", "validate": "true"}, "%s"),
        ({"src": "single", "dest": "@/x", "checksum": "0" * 40}, "checksum"),
        ({"content": "x", "dest": "@/\0"}, "not a path"),
    ],
)
def test_copy_says_what_is_wrong_and_changes_nothing(
    host: ModuleHost, place: Path, arguments: dict[str, Any], said: str
) -> None:
    before = snapshot(place)
    with pytest.raises(TaskError, match=said):
        run_module(copy.MODULE, at(place, arguments), host)
    assert snapshot(place) == before


def test_copy_without_force_leaves_a_file_alone(host: ModuleHost, place: Path) -> None:
    outcome = run_module(copy.MODULE, {"content": "x", "dest": str(place / "file"), "force": False}, host)
    assert (outcome.changed, outcome.values) == (False, {"dest": str(place / "file")})
    assert (place / "file").read_text(encoding="utf-8") == "old\n"


def test_copy_backup_is_a_true_copy(host: ModuleHost, place: Path) -> None:
    outcome = run_module(copy.MODULE, {"content": "x", "dest": str(place / "file"), "backup": True}, host)
    backup = Path(outcome.values["backup_file"])
    assert backup.parent == place
    assert backup.read_text(encoding="utf-8") == "old\n"
    assert mode_of(backup) == 0o640
    assert backup.stat().st_mtime_ns == 10**18 + 123456789


def test_copy_asks_validate_before_it_replaces(host: ModuleHost, place: Path) -> None:
    task = {"content": "good\n", "dest": str(place / "file"), "validate": "grep -q good %s"}
    assert run_module(copy.MODULE, task, host).changed is None
    before = snapshot(place)
    with pytest.raises(TaskError, match="refuses the new content"):
        run_module(copy.MODULE, {**task, "content": "bad\n"}, host)
    assert snapshot(place) == before


def test_a_failing_write_leaves_the_old_file(
    host: ModuleHost, place: Path, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = snapshot(place)

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    for task in ({"content": "new", "dest": str(place / "file")}, {"src": f"{sources}/single", "dest": str(place)}):
        with pytest.raises(OSError, match="No space left"):
            run_module(copy.MODULE, task, host)
        assert snapshot(place) == before


def test_relative_destinations_count_from_the_playbook(host: ModuleHost) -> None:
    run_module(copy.MODULE, {"content": "x", "dest": "made-here"}, host)
    assert (host.playbook_directory / "made-here").read_text(encoding="utf-8") == "x"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_owners_are_set_kept_and_given_back(host: ModuleHost, place: Path) -> None:
    before = snapshot(place)
    run_module(copy.MODULE, {"content": "x", "dest": str(place / "file"), "owner": "65534", "group": "65534"}, host)
    run_module(copy.MODULE, {"content": "y", "dest": str(place / "file"), "mode": "6755"}, host)
    status = (place / "file").stat()
    assert (status.st_uid, status.st_gid, mode_of(place / "file")) == (65534, 65534, 0o6755)
    planned = plan_module(file.MODULE, {"path": str(place / "file"), "owner": "root"}, host)
    assert isinstance(planned, Change)
    assert [(one.before, one.after) for one in planned.differences] == [("nobody", "root")]
    run_module(file.MODULE, {"path": str(place / "file"), "owner": "root"}, host)
    assert mode_of(place / "file") == 0o6755, "a change of owner took the setuid bit away"
    undo_all(copy.MODULE, host)
    assert snapshot(place) == before


# ---- undo and other people's work


def test_undo_keeps_what_others_wrote(host: ModuleHost, place: Path) -> None:
    run_module(copy.MODULE, {"content": "ours", "dest": str(place / "file")}, host)
    (place / "file").write_text("theirs", encoding="utf-8")
    (words,) = undo_all(copy.MODULE, host)
    assert (place / "file").read_text(encoding="utf-8") == "old\n"
    kept = Path(words.partition("is kept at ")[2].rstrip(")"))
    assert kept.read_text(encoding="utf-8") == "theirs"


def test_undo_leaves_a_directory_that_is_used(host: ModuleHost, place: Path) -> None:
    run_module(file.MODULE, {"path": str(place / "new/sub"), "state": "directory"}, host)
    (place / "new/theirs").touch()
    (words,) = undo_all(file.MODULE, host)
    assert "removed" in words
    assert f"left {place}/new, which is not empty" in words
    assert (place / "new/theirs").exists()
    assert not (place / "new/sub").exists()


def test_undo_of_a_removal_puts_the_old_thing_before_the_new(host: ModuleHost, place: Path) -> None:
    before = snapshot(place)
    run_module(file.MODULE, {"path": str(place / "tree"), "state": "absent"}, host)
    (place / "tree").write_text("theirs", encoding="utf-8")
    (words,) = undo_all(file.MODULE, host)
    assert "is kept at" in words
    assert snapshot(place) == before


def test_undo_says_when_what_it_kept_is_gone(host: ModuleHost, place: Path) -> None:
    run_module(file.MODULE, {"path": str(place / "file"), "state": "absent"}, host)
    for kept in (host.log_directory / "undo").iterdir():
        kept.unlink()
    with pytest.raises(TaskError, match="cannot be restored"):
        undo_all(file.MODULE, host)


def test_what_is_replaced_twice_comes_back_in_order(host: ModuleHost, place: Path) -> None:
    before = snapshot(place)
    for content in ("one", "two", "three"):
        run_module(copy.MODULE, {"content": content, "dest": str(place / "file")}, host)
    run_module(file.MODULE, {"path": str(place / "file"), "state": "absent"}, host)
    run_module(file.MODULE, {"path": str(place / "file"), "state": "touch"}, host)
    assert len(undo_all(copy.MODULE, host)) == 5
    assert snapshot(place) == before


@pytest.mark.skipif(
    not Path("/dev/shm").is_dir() or Path("/dev/shm").stat().st_dev == Path("/tmp").stat().st_dev,  # noqa: S108 - another filesystem is what is tested
    reason="there is no second filesystem here",
)
@pytest.mark.usefixtures("sources")
@pytest.mark.parametrize(("module", "arguments"), CHANGES, ids=name_of)
def test_all_of_it_with_the_store_on_another_filesystem(
    host: ModuleHost, place: Path, module: AnyModule, arguments: dict[str, Any]
) -> None:
    import shutil
    import tempfile

    other = Path(tempfile.mkdtemp(dir="/dev/shm"))
    try:
        far = other / "place"
        shutil.copytree(place, far, symlinks=True)
        before = snapshot(far)
        run_module(module, at(far, arguments), host)
        undo_all(module, host)
        assert snapshot(far) == before
        assert undo_all(module, host) == [""]
    finally:
        shutil.rmtree(other)


def test_a_copy_to_another_filesystem_that_was_cut_short_loses_nothing(host: ModuleHost, place: Path) -> None:
    """The copy in the store is whole, the original still there: what a kill between the two leaves."""
    import shutil

    before = snapshot(place)
    folder = host.log_directory / "undo"
    folder.mkdir()
    record = _record(Remove(entry_at(place / "tree")), folder, host.run_id)
    shutil.copytree(place / "tree", str(record["backup"]), symlinks=True)
    assert undo({"records": [record]}, host) == ""
    assert snapshot(place) == before
    assert not Path(str(record["backup"])).exists()


# ---- file


def test_file_returns_what_ansible_returns(host: ModuleHost, place: Path) -> None:
    made = run_module(file.MODULE, {"path": str(place / "d"), "state": "directory", "mode": "0700"}, host)
    assert made.values["path"] == str(place / "d")
    assert (made.values["state"], made.values["mode"]) == ("directory", "0700")
    link = run_module(file.MODULE, {"dest": str(place / "l"), "state": "link", "src": "d"}, host)
    assert (link.values["dest"], link.values["src"], link.values["state"]) == (str(place / "l"), "d", "link")
    gone = run_module(file.MODULE, {"name": str(place / "l"), "state": "absent"}, host)
    assert gone.values == {"path": str(place / "l"), "state": "absent"}
    touched = run_module(file.MODULE, {"path": str(place / "t"), "state": "touch"}, host)
    assert (touched.values["dest"], touched.values["state"], touched.values["size"]) == (str(place / "t"), "file", 0)
    hard = run_module(file.MODULE, {"path": str(place / "h"), "state": "hard", "src": str(place / "t")}, host)
    assert (hard.values["dest"], hard.values["state"]) == (str(place / "h"), "hard")


def test_touch_always_changes(host: ModuleHost, place: Path) -> None:
    task = {"path": str(place / "file"), "state": "touch"}
    for _ in range(3):
        assert run_module(file.MODULE, task, host).changed is None
    still = {**task, "modification_time": "preserve", "access_time": "preserve"}
    assert run_module(file.MODULE, still, host).changed is False


def test_mkdir_gives_every_new_directory_the_mode(host: ModuleHost, place: Path) -> None:
    run_module(file.MODULE, {"path": str(place / "a/b/c"), "state": "directory", "mode": "0711"}, host)
    assert [mode_of(place / path) for path in ("a", "a/b", "a/b/c")] == [0o711] * 3
    assert mode_of(place) == 0o755


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"path": "@/nothing"}, "absent"),
        ({"path": "@/tree", "state": "file"}, "directory"),
        ({"path": "@/file", "state": "directory"}, "exists already"),
        ({"path": "@/file/x", "state": "directory"}, "no directory"),
        ({"path": "@/no/x", "state": "touch"}, "no directory"),
        ({"path": "@/x", "state": "link"}, "needs `src`"),
        ({"path": "@/x", "state": "link", "src": "nowhere"}, "does not exist"),
        ({"path": "@/file", "state": "link", "src": "tree"}, "force"),
        ({"path": "@/tree", "state": "link", "src": "@/file", "force": True}, "not empty"),
        ({"path": "@/x", "state": "hard", "src": "@/nothing"}, "does not exist"),
        ({"path": "@/x", "state": "hard", "src": "@/tree"}, "directory"),
        ({"path": "@/tree/a", "state": "hard", "src": "@/file"}, "another file"),
        ({"path": "@/file", "recurse": True}, "recurse"),
        ({"path": "@/file", "src": "x"}, "src"),
        ({"path": "@/file", "modification_time": "yesterday"}, "not a time"),
        ({"path": "@/..", "state": "absent"}, "not removed"),
        ({"path": "/", "state": "absent"}, "not removed"),
    ],
)
def test_file_says_what_is_wrong_and_changes_nothing(
    host: ModuleHost, place: Path, arguments: dict[str, Any], said: str
) -> None:
    before = snapshot(place)
    with pytest.raises(TaskError, match=said):
        run_module(file.MODULE, at(place, arguments), host)
    assert snapshot(place) == before


# ---- template


def test_template_renders_places_and_is_undone(host: ModuleHost, place: Path) -> None:
    templates = host.playbook_directory / "templates"
    templates.mkdir()
    text = "{% for name in names %}\n- {{ name }}\n{% endfor %}\nend\n"
    (templates / "list.j2").write_text(text, encoding="utf-8")
    host.variables = {"names": ["a", "ü"]}
    before = snapshot(place)
    task = {"src": "list.j2", "dest": str(place / "list"), "mode": "0600"}
    planning = host.planning()
    planned = plan_module(template.MODULE, task, planning)
    assert isinstance(planned, Change)
    assert snapshot(place) == before
    outcome = run_module(template.MODULE, task, host)
    assert (place / "list").read_text(encoding="utf-8") == "- a\n- ü\nend\n"
    assert (outcome.values["src"], outcome.values["mode"]) == ("list.j2", "0600")
    assert run_module(template.MODULE, task, host).changed is False
    run_module(template.MODULE, {"src": "list.j2", "dest": str(place / "empty"), "newline_sequence": "\\r\\n"}, host)
    assert (place / "empty/list.j2").read_bytes() == "- a\r\n- ü\r\nend\r\n".encode()
    undo_all(template.MODULE, host)
    assert snapshot(place) == before


def test_template_errors(host: ModuleHost, place: Path) -> None:
    (host.playbook_directory / "latin").write_bytes(b"\xe4")
    (host.playbook_directory / "euro").write_text("€", encoding="utf-8")
    for task, said in (
        ({"src": "latin"}, "not UTF-8"),
        ({"src": "euro", "output_encoding": "latin-1"}, "does not exist in latin-1"),
        ({"src": "euro", "output_encoding": "nonsense"}, "no encoding"),
        ({"src": "missing"}, "there is no 'missing'"),
    ):
        with pytest.raises(TaskError, match=said):
            run_module(template.MODULE, {**task, "dest": str(place / "x")}, host)


# ---- plans that build on each other


def test_a_plan_sees_what_earlier_tasks_will_make(host: ModuleHost, place: Path, sources: Path) -> None:
    before = snapshot(place)
    planning = host.planning()

    def plan(module: AnyModule, **arguments: Any) -> Plan:
        return plan_module(module, at(place, arguments), planning)

    def changes(module: AnyModule, **arguments: Any) -> bool:
        return isinstance(plan(module, **arguments), Change)

    assert changes(file.MODULE, path="@/new/deep", state="directory")
    assert not changes(file.MODULE, path="@/new", state="directory")
    assert not changes(file.MODULE, path="@/new/deep", state="directory")
    assert changes(copy.MODULE, content="x", dest="@/new/deep/file")
    assert not changes(copy.MODULE, content="x", dest="@/new/deep/file")
    assert changes(copy.MODULE, content="y", dest="@/new/deep/file", mode="0600")
    assert not changes(file.MODULE, path="@/new/deep/file", mode="0600")
    assert changes(copy.MODULE, src=str(sources / "single"), dest="@/new/deep")
    assert not changes(file.MODULE, path="@/new/deep/single", state="file")
    assert changes(file.MODULE, path="@/new/l", state="link", src="deep")
    assert not changes(file.MODULE, path="@/new/l", state="link", src="deep")
    assert changes(copy.MODULE, content="z", dest="@/new/l/file")
    assert changes(file.MODULE, path="@/tree", state="absent")
    assert not changes(file.MODULE, path="@/tree/a", state="absent")
    assert changes(file.MODULE, path="@/tree", state="directory")
    assert not changes(file.MODULE, path="@/tree/a", state="absent")
    assert changes(copy.MODULE, src="@/new/deep/file", dest="@/again")
    with pytest.raises(TaskError, match="no directory"):
        plan(copy.MODULE, content="x", dest="@/tree/sub/x")
    assert snapshot(place) == before
    assert not host.steps


def test_a_plan_with_a_user_that_is_still_to_come(host: ModuleHost, place: Path) -> None:
    planned = plan_module(file.MODULE, {"path": str(place / "file"), "owner": "new-user"}, host.planning())
    assert isinstance(planned, Change)
    assert [one.after for one in planned.differences] == ["a new one"]


def test_unchanged_says_so(host: ModuleHost, place: Path) -> None:
    planned = plan_module(file.MODULE, {"path": str(place / "file"), "mode": "0640"}, host)
    assert isinstance(planned, Unchanged)
    assert planned.values["mode"] == "0640"


def test_nobody_else_can_read_a_secret_while_it_is_written(
    host: ModuleHost, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    real = os.fsync

    def look(descriptor: int) -> None:
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode):
            seen.append(stat.S_IMODE(status.st_mode))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", look)
    run_module(copy.MODULE, {"content": "secret", "dest": str(place / "key"), "mode": "0600"}, host)
    assert seen[0] == 0o600
    run_module(copy.MODULE, {"content": "other", "dest": str(place / "key")}, host)
    undo_place = host.log_directory / "undo"
    assert mode_of(undo_place) == 0o700
