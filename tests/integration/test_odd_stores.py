"""Stores that are reached in odd ways, were changed by hand, or are in use: nothing that is needed is ever removed."""

from __future__ import annotations

import copy
import fcntl
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.archives import members_of, write_members
from tests.support.commands import Answer, crossgrade
from tests.support.small_upgrade import SmallUpgrade, keep, make_small_upgrade

from crossgrade.store.confirmation import read_confirmation
from crossgrade.store.layout import Store


@pytest.fixture(scope="module")
def again(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], SmallUpgrade]:
    made = make_small_upgrade(tmp_path_factory.mktemp("odd") / "server")
    assert made.run("upgrade").code == 0
    assert made.run("upgrade", "-e", "version=3.0").code == 0
    return keep(made)


@pytest.fixture
def server(again: Callable[[], SmallUpgrade]) -> SmallUpgrade:
    """Generations 1, 2 and 3, of which 3 is active."""
    return again()


def at(server: SmallUpgrade, root: str | Path, *words: str, cwd: Path | None = None) -> Answer:
    argv = [server.argv("x")[0], *words, "--root", str(root), "--playbook", str(server.playbook)]
    done = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    return Answer(done.returncode, done.stdout, done.stderr)


def intact(server: SmallUpgrade, *numbers: int) -> None:
    assert set(numbers) <= set(server.store.numbers())
    assert server.env.resolve().is_dir()
    assert server.version()


# ---- one place, whatever it is called


@pytest.mark.parametrize("how", ["relative", "link", "link of the root's folder"])
def test_the_active_one_stays_whatever_the_root_is_called(server: SmallUpgrade, tmp_path: Path, how: str) -> None:
    root, cwd = Path("../../root"), server.root / "files"
    if how != "relative":
        cwd = tmp_path
        (tmp_path / "L").symlink_to(server.root if how == "link" else server.folder)
        root = Path("L") if how == "link" else tmp_path / "L" / "root"
    assert at(server, root, "gc", "--keep", "0", cwd=cwd).code == 0
    intact(server, 1, 3)
    refused = at(server, root, "retire", "3", "--force", cwd=cwd)
    assert refused.code == 1
    assert "is the active one" in refused.stderr
    assert at(server, root, "rollback", "--to", "1", cwd=cwd).code == 0
    assert os.readlink(server.env) == str(server.store.venv(1)), "written as it is called everywhere else"  # noqa: PTH115
    assert server.version() == "1.0"


def test_the_active_one_stays_however_the_link_is_written(server: SmallUpgrade) -> None:
    server.env.unlink()
    server.env.symlink_to("store/generations/2/venv")
    assert server.store.active() == 2
    assert server.run("gc", "--keep", "0").code == 0
    intact(server, 1, 2)


@pytest.mark.parametrize("how", ["elsewhere", "gone", "a directory"])
def test_nothing_complete_is_removed_while_nobody_knows_what_is_in_use(
    server: SmallUpgrade, tmp_path: Path, how: str
) -> None:
    server.env.unlink()
    if how == "elsewhere":
        server.env.symlink_to(tmp_path)
    elif how == "a directory":
        server.env.mkdir()
    answer = server.run("gc", "--keep", "0", "-v")
    assert answer.code == 0
    assert "kept generation 2: the active link leads to no generation of this store" in answer.stdout
    assert server.store.numbers() == [1, 2, 3]
    refused = server.run("retire", "2", "--force")
    assert refused.code == 1
    assert "leads to no generation of this store" in refused.stderr


def test_a_store_whose_own_record_is_gone_finds_its_link_again(server: SmallUpgrade, tmp_path: Path) -> None:
    assert server.run("export", "1", "--to", str(tmp_path / "a.tar.zst")).code == 0
    (server.store.root / "store.json").unlink()
    assert crossgrade("restore", tmp_path / "a.tar.zst", "--root", server.root).code == 0
    assert (server.store.active_link, server.store.active()) == (server.env, 3)
    assert server.run("gc", "--keep", "0").code == 0
    intact(server, 1, 3)


def test_an_environment_named_with_dots_is_adopted_under_its_name(tmp_path: Path) -> None:
    server = make_small_upgrade(tmp_path / "server")
    text = server.playbook.read_text()
    server.playbook.write_text(
        text.replace('env: "{{ crossgrade_root }}/env"', 'env: "{{ crossgrade_root }}/files/../env"')
    )
    answer = server.run("upgrade")
    assert answer.code == 0, answer.stderr
    assert server.store.active_link == server.env
    assert server.outcome() == "new"


# ---- in use


def serving(*argv: str, **more: str) -> subprocess.Popen[bytes]:
    running = subprocess.Popen(argv, cwd="/", stdout=subprocess.DEVNULL, env={**os.environ, **more})
    time.sleep(0.5)
    assert running.poll() is None
    return running


@pytest.mark.parametrize("how", ["through the link", "by name, in an activated venv", "its own script"])
def test_what_a_process_was_started_from_stays(server: SmallUpgrade, how: str) -> None:
    """No file of the venv is open in a Python that runs pure code, and its program is the one behind the venv."""
    # the kernel tells the time of a start in whole seconds
    time.sleep(max(0.0, server.env.lstat().st_mtime + 2.5 - time.time()))
    argv: tuple[str, ...] = (str(server.env / "bin" / "python"), "-m", "small_engine.server", "0")
    more = {}
    if how == "by name, in an activated venv":
        argv = ("python", *argv[1:])
        more = {"VIRTUAL_ENV": str(server.env), "PATH": f"{server.env}/bin:{os.environ['PATH']}"}
    elif how == "its own script":
        argv = (str(server.env / "bin" / "small-engine"), "0")
    running = serving(*argv, **more)
    try:
        assert server.run("rollback").code == 0
        refused = server.run("retire", "3", "--force")
        assert refused.code == 1
        assert f"in use by pid {running.pid}" in refused.stderr
        assert server.run("gc", "--keep", "0").code == 0
        assert 3 in server.store.numbers()
    finally:
        running.kill()
        running.wait()
    assert server.run("retire", "3", "--force").code == 0


# ---- what waits to be confirmed


def unconfirmed(server: SmallUpgrade, seconds: int) -> SmallUpgrade:
    """Generation 2 waits to be confirmed, and nobody watches."""
    assert server.run("rollback", "--to", "1").code == 0
    answer = server.run("upgrade", "--confirm-within", str(seconds))
    assert answer.code == 0, answer.stderr
    os.kill(server.status()["confirmation"]["watcher"], signal.SIGKILL)
    return server


def test_what_a_confirmation_needs_is_not_removed(server: SmallUpgrade) -> None:
    unconfirmed(server, 300)
    for number in ("1", "2"):
        refused = server.run("retire", number, "--force")
        assert refused.code == 1
        assert "waits to be confirmed" in refused.stderr
    assert server.run("rollback").code == 0


def test_every_command_that_changes_something_goes_back_first(server: SmallUpgrade, tmp_path: Path) -> None:
    archive = tmp_path / "a.tar.zst"
    assert server.run("export", "1", "--to", str(archive)).code == 0
    assert server.run("rollback", "--to", "1").code == 0
    assert server.run("upgrade", "--confirm-within", "300").code == 0
    server.let_the_confirmation_lapse()
    again = keep(server)
    for command in (("pin", "1"), ("unpin", "1"), ("gc",), ("retire", "3"), ("restore", str(archive))):
        again()
        answer = server.run(*command)
        assert answer.code == 0, answer.stderr
        assert "the host goes back to generation 1" in answer.stdout
        assert server.store.active() == 1, command
        assert read_confirmation(server.store) is None


def test_a_confirmation_by_another_name_of_the_root(server: SmallUpgrade, tmp_path: Path) -> None:
    unconfirmed(server, 300)
    (tmp_path / "L").symlink_to(server.root)
    assert at(server, tmp_path / "L", "confirm").code == 0
    assert server.store.active() == 2


def test_a_confirmation_record_of_the_right_form_and_the_wrong_types(server: SmallUpgrade) -> None:
    unconfirmed(server, 300)
    path = server.store.root / "confirmation.json"
    value = json.loads(path.read_text())
    for name, wrong in (("boot_deadline", "y"), ("restart", "rm"), ("health", []), ("token", 5), ("generation", None)):
        path.write_text(json.dumps({**value, name: wrong}))
        status = server.run("status")
        assert status.code == 0
        assert f"{name} of another type" in status.stdout
        assert server.run("confirm").code == 1
    answer = server.run("rollback")
    assert answer.code == 0, answer.stderr
    assert server.version() == "1.0"


def test_no_endless_waiting(server: SmallUpgrade) -> None:
    answer = server.run("upgrade", "--confirm-within", "9" * 20)
    assert answer.code == 5
    assert server.run("upgrade", "--confirm-within", str(400 * 24 * 3600)).code == 5
    with server.store.lock_path.open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        began = time.monotonic()
        assert server.run("confirm").code == 75
        assert time.monotonic() - began < 30


# ---- refusals and interrupted runs


@pytest.mark.parametrize("how", ["the venv is gone", "a directory in place of the link"])
def test_a_refused_rollback_leaves_no_open_run(server: SmallUpgrade, how: str) -> None:
    if how == "the venv is gone":
        shutil.rmtree(server.store.venv(2))
    else:
        server.env.unlink()
        server.env.mkdir()
    assert server.run("rollback", "--to", "2").code == 1
    assert server.status()["interrupted"] is None
    assert server.run("gc").code == 0


def test_only_an_upgrade_is_resumed(server: SmallUpgrade) -> None:
    killed = server.run("rollback", environment={"CROSSGRADE_KILL_AT": "intended:rollback"})
    assert killed.code == -signal.SIGKILL
    status = server.run("status")
    assert "`crossgrade rollback` settles it" in status.stdout
    answer = server.run("upgrade", "--resume")
    assert answer.code == 1
    assert "the interrupted run is a `rollback`" in answer.stderr
    assert server.run("rollback").code == 0
    assert server.store.active() == 2


def test_settling_a_restore_turns_no_link(server: SmallUpgrade, tmp_path: Path) -> None:
    archive = tmp_path / "a.tar.zst"
    assert server.run("export", "1", "--to", str(archive)).code == 0
    killed = server.run("restore", str(archive), environment={"CROSSGRADE_KILL_AT": "intended:restore"})
    assert killed.code == -signal.SIGKILL
    refused = server.run("gc")
    assert "`restore` was interrupted" in refused.stderr
    assert server.run("rollback").code == 0
    assert server.store.active() == 3


def test_a_venv_that_was_removed_by_hand_is_built_anew(server: SmallUpgrade) -> None:
    assert server.run("rollback", "--to", "1").code == 0
    shutil.rmtree(server.store.venv(2))
    answer = server.run("upgrade")
    assert answer.code == 0, answer.stderr
    assert server.version() == "2.0"


# ---- damaged records


def test_one_damaged_verdict_hides_nothing_else(server: SmallUpgrade) -> None:
    path = next(server.store.folder(2).glob("verdicts/*.json"))
    for text in ("{", '{"gate": "x"}', "[]"):
        path.write_text(text)
        answer = server.run("status")
        assert answer.code == 0
        assert str(path) in answer.stdout
        assert "generation 3" in answer.stdout
        assert "Traceback" not in answer.stderr
        assert server.run("diff", "1", "2").code == 1


def test_a_journal_that_cannot_be_opened(server: SmallUpgrade) -> None:
    server.store.journal_path.unlink()
    server.store.journal_path.mkdir()
    for command in ("rollback", "gc", "confirm", "upgrade"):
        answer = server.run(command)
        assert answer.code == 1
        assert "journal.db cannot be used" in answer.stderr, command
        assert "Traceback" not in answer.stderr


def test_names_that_look_like_numbers(server: SmallUpgrade) -> None:
    (server.store.root / "generations" / "²").mkdir()
    assert server.run("status").code == 0
    assert server.run("gc").code == 0
    assert server.run("pin", "9" * 5000).code == 5


# ---- archives


def test_what_was_rejected_stays_rejected(server: SmallUpgrade, tmp_path: Path) -> None:
    server.store.write_generation(server.store.generation(2).with_state("rejected"))
    assert server.run("export", "2", "--to", str(tmp_path / "a.tar.zst")).code == 0
    assert server.run("restore", str(tmp_path / "a.tar.zst")).code == 0
    assert server.store.generation(4).state == "rejected"


@pytest.mark.parametrize("name", ["o'ne il", "a$b", 'q"x', "two  spaces"])
def test_places_with_characters_that_shells_know(tmp_path: Path, name: str) -> None:
    server = make_small_upgrade(tmp_path / name / "server")
    assert server.run("upgrade").code == 0
    archive = tmp_path / "a.tar.zst"
    assert server.run("export", "2", "--to", str(archive)).code == 0
    root = tmp_path / name / "new root"
    assert crossgrade("restore", archive, "--root", root).code == 0
    venv = Store(root / "store").venv(1)
    script = venv / "bin" / "small-engine"
    assert str(server.store.root) not in script.read_text()
    lines = script.read_text().splitlines(keepends=True)
    first = "".join(lines[:3] if lines[0] == "#!/bin/sh\n" else lines[:1])
    script.write_text(first + "import sys; print(sys.prefix)\n")
    said = subprocess.run([script], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == str(venv)
    for each in venv.glob("bin/activate*"):
        text = each.read_text()
        assert "server/root" not in text.replace(str(root), ""), each.name
    sourced = subprocess.run(
        ["bash", "-c", '. "$1" && echo "$VIRTUAL_ENV"', "bash", venv / "bin" / "activate"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert sourced.stdout.strip() == str(venv)


def test_records_of_archives_that_would_break_the_store(server: SmallUpgrade, tmp_path: Path) -> None:
    good = tmp_path / "good.tar.zst"
    assert server.run("export", "2", "--to", str(good)).code == 0
    members = members_of(good)
    record = json.loads(members[0][1])

    def put(place: int, value: object) -> Path:
        data = json.dumps(value).encode()
        info = copy.copy(members[place][0])
        info.size = len(data)
        return write_members(tmp_path / "bad.tar.zst", [*members[:place], (info, data), *members[place + 1 :]])

    for name, bad in (
        ("contents", {"toolkits": 5, "dists": [1]}),
        ("environment", {"X": 5}),
        ("number", "1"),
        ("state", "best"),
    ):
        answer = server.run("restore", str(put(0, {**record, "generation": {**record["generation"], name: bad}})))
        assert (answer.code, "damaged" in answer.stderr) == (1, True), answer.stderr
    answer = server.run("restore", str(put(0, {**record, "places": [f"/a/{number}" for number in range(20_000)]})))
    assert (answer.code, "more places" in answer.stderr) == (1, True), answer.stderr
    place = next(number for number, (info, _) in enumerate(members) if "verdicts/" in info.name)
    answer = server.run("restore", str(put(place, {"gate": "x"})))
    assert (answer.code, "Traceback" in answer.stderr) == (1, False), answer.stderr
    assert server.store.numbers() == [1, 2, 3]
    assert not list(server.store.temporary.iterdir())


def test_restores_that_begin_nothing(server: SmallUpgrade, tmp_path: Path) -> None:
    assert crossgrade("restore", tmp_path / "none.tar.zst", "--root", tmp_path / "new").code == 1
    assert not (tmp_path / "new").exists()
    assert server.run("export", "1", "--to", str(tmp_path / "a.tar.zst")).code == 0
    inside = crossgrade(
        "restore", tmp_path / "a.tar.zst", "--root", tmp_path / "new", "--link", tmp_path / "new/store/tmp/x"
    )
    assert inside.code == 1
    assert "lies inside the store" in inside.stderr
