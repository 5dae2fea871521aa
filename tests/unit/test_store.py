"""The store's own promises: whole records, one rename, one holder."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from crossgrade.errors import LockedError, StoreError
from crossgrade.gates.verdict import Verdict
from crossgrade.store.activation import adopt, switch, undo_adoption
from crossgrade.store.adoptable import check_adoptable
from crossgrade.store.atomic import exchange, write_file
from crossgrade.store.gc import reasons_to_keep
from crossgrade.store.generation import Generation
from crossgrade.store.layout import Store
from crossgrade.store.lock import hold, read_holder
from crossgrade.store.manifest import build_manifest, compare
from crossgrade.store.processes import find_users


def generation(number: int, origin: str = "built", state: str = "ready") -> Generation:
    return Generation(number, f"identity-{number}", origin, state, "2026-12-01T00:00:00Z", manifest="m")  # type: ignore[arg-type]


def tree(root: Path) -> Path:
    (root / "lib").mkdir(parents=True)
    (root / "lib" / "a.py").write_text("a = 1\n")
    (root / "lib" / "b.so").write_bytes(bytes(range(256)) * 10)
    (root / "link").symlink_to("lib/a.py")
    (root / "pyvenv.cfg").write_text("home = /usr/bin\n")
    return root


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "store")
    store.create()
    return store


def test_writes_replace_or_leave_alone(tmp_path: Path) -> None:
    target = tmp_path / "record"
    write_file(target, b"old")
    with pytest.raises(TypeError):
        write_file(target, "not bytes")  # type: ignore[arg-type]
    assert target.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["record"]


def test_exchange_swaps_a_directory_and_a_link(tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    (tmp_path / "link").symlink_to("elsewhere")
    exchange(tmp_path / "link", tmp_path / "directory")
    assert (tmp_path / "directory").is_symlink()
    assert (tmp_path / "link").is_dir()
    assert not (tmp_path / "link").is_symlink()


def test_adoption_and_its_undo_leave_the_tree_as_it_was(tmp_path: Path, store: Store) -> None:
    path = tree(tmp_path / "env")
    manifest = build_manifest(path)
    check_adoptable(store, path)
    store.write_generation(generation(1, "adopted"))
    store.set_active_link(path)
    adopt(store, path, 1)
    assert path.is_symlink()
    assert store.active() == 1
    assert compare(manifest, store.venv(1), full=True).identical
    assert undo_adoption(store, path, 1)
    assert not path.is_symlink()
    assert compare(manifest, path, full=True).identical
    assert not undo_adoption(store, path, 1)  # twice is harmless
    assert compare(manifest, path, full=True).identical


def test_a_process_in_an_adopted_directory_goes_on(tmp_path: Path, store: Store) -> None:
    path = tree(tmp_path / "env")
    script = "import sys, time\nfor line in sys.stdin:\n    print(open('lib/a.py').read().strip(), flush=True)\n"
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "a = 1\n"
        store.write_generation(generation(1, "adopted"))
        store.set_active_link(path)
        adopt(store, path, 1)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "a = 1\n"
        (user,) = find_users(store, [1], []).users[1]
        assert user.pid == process.pid
        process.stdin.close()
    assert not find_users(store, [1], []).users


@pytest.mark.parametrize("case", ["link", "no venv", "store inside"])
def test_adoption_says_beforehand_what_it_cannot_do(tmp_path: Path, store: Store, case: str) -> None:
    path = tree(tmp_path / "env")
    if case == "link":
        (tmp_path / "alias").symlink_to(path)
        path = tmp_path / "alias"
    elif case == "no venv":
        (path / "pyvenv.cfg").unlink()
    else:
        store = Store(path / "store")
        store.create()
    with pytest.raises(StoreError):
        check_adoptable(store, path)


def test_switching_is_refused_for_what_is_not_complete(tmp_path: Path, store: Store) -> None:
    path = tree(tmp_path / "env")
    store.write_generation(generation(1, "adopted"))
    store.set_active_link(path)
    adopt(store, path, 1)
    store.write_generation(generation(2, state="building"))
    with pytest.raises(StoreError, match="not complete"):
        switch(store, 2)
    store.write_generation(generation(3))
    with pytest.raises(StoreError, match="no venv"):
        switch(store, 3)
    assert store.active() == 1
    tree(store.venv(3))
    switch(store, 3)
    assert store.active() == 3
    with pytest.raises(StoreError, match="active"):
        store.remove_generation(3)


def test_a_link_that_points_elsewhere_is_no_generation(tmp_path: Path, store: Store) -> None:
    link = tmp_path / "env"
    link.symlink_to(tmp_path)
    store.set_active_link(link)
    assert store.active() is None


def test_verdicts_are_kept_with_their_generation(store: Store) -> None:
    store.write_generation(generation(2))
    verdict = Verdict("abi", "failed", "libcudart.so.12 is missing")
    store.write_verdict(2, "key", verdict)
    assert store.verdict(2, "key") == verdict
    assert store.verdict(2, "other") is None
    assert store.verdicts(2) == [verdict]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"number": 1}'])
def test_a_damaged_record_is_an_error_with_a_name(store: Store, text: str) -> None:
    store.write_generation(generation(1))
    (store.folder(1) / "generation.json").write_text(text)
    with pytest.raises(StoreError, match=r"generation\.json"):
        store.generations()


def test_a_store_of_another_schema_is_refused(store: Store) -> None:
    (store.root / "store.json").write_text(json.dumps({"schema": 99}))
    with pytest.raises(StoreError, match="schema 99"):
        store.create()


def test_the_lock_names_its_holder_and_dies_with_it(store: Store) -> None:
    script = (
        "import sys, time\nfrom pathlib import Path\nfrom crossgrade.store.lock import hold\n"
        "with hold(Path(sys.argv[1]), 'the other'):\n    print('held', flush=True)\n    time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(store.lock_path)], stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(LockedError, match=f"pid {other.pid}.*the other") as caught, hold(store.lock_path, "me"):
            pass
        assert caught.value.exit_code == 75
        holder = read_holder(store.lock_path)
        assert holder is not None
        assert holder.pid == other.pid
        other.send_signal(signal.SIGKILL)
    assert read_holder(store.lock_path) is None
    with hold(store.lock_path, "me"):
        assert read_holder(store.lock_path) is not None


def test_a_child_does_not_inherit_the_lock(store: Store) -> None:
    with hold(store.lock_path, "me"):
        child = subprocess.Popen(["sleep", "30"], close_fds=False)
    try:
        with hold(store.lock_path, "the next"):
            pass
    finally:
        child.kill()
        child.wait()


def test_gc_keeps_what_is_needed() -> None:
    generations = [generation(1, "adopted"), *(generation(number) for number in range(2, 8))]
    assert reasons_to_keep(generations, active=5, predecessor=3, keep=1, pinned={2}) == {
        1: "the backup of what was adopted",
        2: "pinned",
        3: "where `rollback` goes",
        5: "active",
        7: "one of the newest 1",
    }
    assert reasons_to_keep(generations, active=5, predecessor=3, keep=0).keys() == {1, 3, 5}
    assert reasons_to_keep(generations, active=None, predecessor=None, keep=10).keys() == set(range(1, 8))


def test_gc_does_not_keep_a_rejected_one_in_place_of_a_good_one() -> None:
    generations = [generation(1, "adopted"), generation(2), generation(3, state="rejected")]
    assert reasons_to_keep(generations, active=1, predecessor=None, keep=1).keys() == {1, 2}


def test_a_lock_whose_record_cannot_be_emptied_is_released_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was done under it is done: a disk error at its end must not make a failure of it."""
    truncate = os.ftruncate
    with hold(tmp_path / "lock", "one"):

        def fails(_descriptor: int, _length: int) -> None:
            raise OSError(errno.EIO, "Input/output error")

        monkeypatch.setattr(os, "ftruncate", fails)
    monkeypatch.setattr(os, "ftruncate", truncate)
    assert read_holder(tmp_path / "lock") is None
    with hold(tmp_path / "lock", "two"):
        pass
