"""git on real repositories: a plan writes nothing, a second look finds nothing, and every change is taken back."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.support.module_host import ModuleHost, plan_module, run_module, snapshot, undo_all

from crossgrade.errors import TaskError
from crossgrade.modules import copy, stat
from crossgrade.modules.contract import Change, Unchanged
from crossgrade.modules.git import MODULE, choose
from crossgrade.playbook.markers import Unknown


@pytest.fixture
def host(tmp_path: Path) -> ModuleHost:
    return ModuleHost(tmp_path)


@pytest.fixture
def up(tmp_path: Path) -> Path:
    """main (two commits), dev (one more), the tag v1 at the first commit, a submodule on dev."""
    folder = tmp_path / "up"
    inner = tmp_path / "inner"
    for each in (folder, inner):
        each.mkdir()
        git(each, "init", "--quiet", "--initial-branch=main")
        (each / "f").write_text("1\n")
        git(each, "add", "f")
        git(each, "commit", "--quiet", "-m", "one")
    git(folder, "tag", "--annotate", "-m", "first", "v1")
    git(folder, "checkout", "--quiet", "-b", "dev")
    git(folder, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(inner), "sub")
    git(folder, "commit", "--quiet", "-m", "sub")
    git(folder, "checkout", "--quiet", "main")
    (folder / "f").write_text("2\n")
    git(folder, "commit", "--quiet", "-am", "two")
    return folder


def git(folder: Path, *words: str) -> str:
    argv = ["git", "-C", str(folder), "-c", "user.name=n", "-c", "user.email=n@localhost", *words]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()


def state(folder: Path) -> tuple[Any, ...]:
    """Commit, branch, branches, address, what is changed, and the files."""
    files = {
        str(path.relative_to(folder)): path.read_text()
        for path in folder.rglob("*")
        if path.is_file() and ".git" not in path.relative_to(folder).parts
    }
    return (
        git(folder, "rev-parse", "HEAD"),
        git(folder, "branch", "--show-current"),
        git(folder, "for-each-ref", "refs/heads"),
        git(folder, "config", "remote.origin.url"),
        git(folder, "status", "--porcelain", "--untracked-files=no"),
        files,
    )


def test_a_plan_writes_nothing(tmp_path: Path, host: ModuleHost, up: Path) -> None:
    run_module(MODULE, {"repo": str(up), "dest": str(tmp_path / "old")}, host)
    (tmp_path / "old" / "f").touch()  # git status would like to refresh its index now
    before = snapshot(tmp_path)
    for dest in ("old", "new"):
        arguments = {"repo": str(up), "dest": str(tmp_path / dest), "version": "dev"}
        assert isinstance(plan_module(MODULE, arguments, host.planning()), Change)
    assert snapshot(tmp_path) == before


def test_a_clone_is_removed_again_with_the_folders_made_for_it(tmp_path: Path, host: ModuleHost, up: Path) -> None:
    before = snapshot(tmp_path)
    outcome = run_module(MODULE, {"repo": str(up), "dest": str(tmp_path / "a" / "b"), "version": "dev"}, host)
    assert outcome.values["before"] is None
    assert outcome.values["after"] == git(up, "rev-parse", "dev")
    assert (tmp_path / "a" / "b" / "sub" / "f").read_text() == "1\n"
    undo_all(MODULE, host)
    undo_all(MODULE, host)  # twice does no harm
    assert {name: kept for name, kept in snapshot(tmp_path).items() if not name.startswith("store")} == {
        name: kept for name, kept in before.items() if not name.startswith("store")
    }


def test_an_empty_folder_stays_after_undo(tmp_path: Path, host: ModuleHost, up: Path) -> None:
    (tmp_path / "empty").mkdir()
    run_module(MODULE, {"repo": str(up), "dest": str(tmp_path / "empty")}, host)
    undo_all(MODULE, host)
    assert list((tmp_path / "empty").iterdir()) == []


@pytest.mark.parametrize("version", ["dev", "v1", "main"])
@pytest.mark.parametrize("force", [False, True])
def test_moving_is_taken_back(tmp_path: Path, host: ModuleHost, up: Path, version: str, *, force: bool) -> None:
    dest = tmp_path / "one"
    run_module(MODULE, {"repo": str(up), "dest": str(dest)}, host)
    host.steps.clear()
    git(dest, "checkout", "--quiet", "-b", "mine", "HEAD~1")
    if force:
        (dest / "f").write_text("mine\n")
    before = state(dest)
    arguments = {"repo": f"file://{up}", "dest": str(dest), "version": version, "force": force}
    run_module(MODULE, arguments, host)
    assert git(dest, "rev-parse", "HEAD") == git(up, "rev-parse", f"{version}^{{commit}}")
    assert git(dest, "status", "--porcelain", "--untracked-files=no") == ""
    undo_all(MODULE, host)
    after = state(dest)
    assert (after[0], after[1], after[3], after[4], after[5]["f"]) == (*before[:2], *before[3:5], before[5]["f"])
    assert after[2] == before[2]
    undo_all(MODULE, host)
    assert state(dest)[:5] == before[:5]


def test_a_bare_repository_follows_and_goes_back(tmp_path: Path, host: ModuleHost, up: Path) -> None:
    dest = tmp_path / "bare"
    arguments = {"repo": str(up), "dest": str(dest), "bare": True, "version": "main"}
    run_module(MODULE, arguments, host)
    host.steps.clear()
    before = git(dest, "for-each-ref", "refs/heads")
    (up / "f").write_text("3\n")
    git(up, "commit", "--quiet", "-am", "three")
    git(up, "branch", "new")
    host.pins.clear()
    run_module(MODULE, arguments, host)
    assert git(dest, "rev-parse", "main") == git(up, "rev-parse", "main")
    undo_all(MODULE, host)
    assert git(dest, "for-each-ref", "refs/heads") == before


def test_local_changes_are_refused(tmp_path: Path, host: ModuleHost, up: Path) -> None:
    dest = tmp_path / "one"
    run_module(MODULE, {"repo": str(up), "dest": str(dest)}, host)
    (dest / "f").write_text("mine\n")
    with pytest.raises(TaskError, match=r"local changes in .*: f"):
        plan_module(MODULE, {"repo": str(up), "dest": str(dest)}, host.planning())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"accept_newhostkey": True}, "takes a host on trust"),
        ({"accept_hostkey": True}, "takes a host on trust"),
        ({"key_file": "/k"}, "not supported"),
        ({"version": "nope"}, "no branch or tag nope"),
        ({"version": "--upload-pack=x"}, "is no revision"),
        ({"repo": "ext::sh -c x"}, "helper program"),
        ({"repo": "/not/there"}, "no repository"),
        ({"dest": "/usr"}, "is no clone"),
        ({"depth": 0}, "depth"),
    ],
)
def test_what_is_refused(tmp_path: Path, host: ModuleHost, up: Path, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(TaskError, match=words):
        plan_module(MODULE, {"repo": str(up), "dest": str(tmp_path / "x"), **arguments}, host.planning())


def test_a_second_task_of_a_plan_knows_what_the_first_leaves(tmp_path: Path, host: ModuleHost, up: Path) -> None:
    planning = host.planning()
    arguments = {"repo": str(up), "dest": str(tmp_path / "one")}
    assert isinstance(plan_module(MODULE, arguments, planning), Change)
    assert isinstance(plan_module(MODULE, arguments, planning), Unchanged)
    moved = plan_module(MODULE, {**arguments, "version": "v1"}, planning)
    assert isinstance(moved, Change)
    assert moved.values["before"] == git(up, "rev-parse", "main")
    told = plan_module(stat.MODULE, {"path": arguments["dest"]}, planning)
    known = {name: value for name, value in told.values["stat"].items() if not isinstance(value, Unknown)}
    assert known == {"exists": True, "isdir": True, "path": arguments["dest"]}


def test_no_file_of_a_clone_that_will_move_is_known(tmp_path: Path, host: ModuleHost, up: Path) -> None:
    arguments = {"repo": str(up), "dest": str(tmp_path / "one")}
    run_module(MODULE, {**arguments, "version": "v1"}, host)
    planning = host.planning()
    assert isinstance(plan_module(MODULE, arguments, planning), Change)
    copied = {"src": f"{arguments['dest']}/f", "dest": str(tmp_path / "copied"), "remote_src": True}
    planned = plan_module(copy.MODULE, copied, planning)
    assert isinstance(planned, Change)
    assert not planned.values_known


def test_which_ref_a_version_is() -> None:
    listing = "ref: refs/heads/main\tHEAD\n" + "".join(
        f"{digit * 40}\t{name}\n"
        for digit, name in [
            ("a", "HEAD"), ("a", "refs/heads/main"), ("b", "refs/heads/old/main"), ("c", "refs/tags/v1"),
            ("d", "refs/tags/v1^{}"), ("e", "refs/heads/v1.x"), ("f", "refs/pull/7/head"),
        ]
    )  # fmt: skip
    assert choose(listing, "HEAD", "up") == ("a" * 40, "main")
    assert choose(listing, "main", "up") == ("a" * 40, "main")
    assert choose(listing, "v1", "up") == ("d" * 40, "")
    assert choose(listing, "refs/pull/7/head", "up") == ("f" * 40, "")
    assert choose(listing, "eeeeeeee", "up") == ("e" * 40, "")
    with pytest.raises(TaskError, match="no branch or tag v"):
        choose(listing, "v", "up")
