"""Archives of unusual environments, to unusual places, and beside others that are written at the same time."""

from __future__ import annotations

import fcntl
import shutil
import signal
import subprocess
import tarfile
from pathlib import Path

import pytest
from tests.support.archives import info, members_of, write_members
from tests.support.commands import PROGRAM, crossgrade
from tests.support.privileges import can_mount, needs_mounts
from tests.support.small_upgrade import SmallUpgrade, make_small_upgrade

from crossgrade.store.archive import ArchiveError, part_of
from crossgrade.store.archive_reading import read_archive_record, unpack
from crossgrade.store.layout import Store, remove_path
from crossgrade.store.manifest import build_manifest

needs_setpriv = pytest.mark.skipif(
    shutil.which("setpriv") is None or not can_mount(), reason="setpriv is not there, or may not drop capabilities"
)
# root without the right to pass over modes: what an ordinary user may do with files of their own
AS_ANYBODY = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search", "--"]


@pytest.fixture
def server(tmp_path: Path) -> SmallUpgrade:
    return make_small_upgrade(tmp_path / "server")


def adopted(server: SmallUpgrade) -> SmallUpgrade:
    server = SmallUpgrade(server.folder, build_manifest(server.env))
    assert server.run("upgrade").code == 0
    return server


def exported(server: SmallUpgrade, target: Path) -> Path:
    answer = server.run("export", "1", "--to", str(target))
    assert answer.code == 0, answer.stderr
    return target


def site_of(venv: Path) -> Path:
    return next(venv.glob("lib/python3*/site-packages"))


def as_anybody(*words: object) -> subprocess.CompletedProcess[str]:
    argv = [*AS_ANYBODY, str(PROGRAM), *map(str, words)]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)


@needs_setpriv
def test_folders_that_their_owner_may_not_write_to(server: SmallUpgrade, tmp_path: Path) -> None:
    site = site_of(server.env)
    (site / "small_engine" / "data").mkdir()
    (site / "small_engine" / "data" / "table").write_text(str(server.env))
    for folder in (site / "small_engine" / "data", site / "small_engine", server.env / "bin", server.env):
        folder.chmod(0o555)
    archive = exported(adopted(server), tmp_path / "a.tar.zst")
    root = tmp_path / "root"
    restored = as_anybody("restore", archive, "--root", root, "--link", tmp_path / "env")
    assert restored.returncode == 0, restored.stderr
    venv = Store(root / "store").venv(1)
    assert [folder.stat().st_mode & 0o777 for folder in (venv, venv / "bin")] == [0o555, 0o555]
    assert str(venv / "bin") in (venv / "bin" / "small-engine").read_text(), "it was relocated"
    assert as_anybody("verify", "1", "--full", "--root", root).returncode == 0
    assert as_anybody("restore", archive, "--root", root).returncode == 0
    removed = as_anybody("retire", "2", "--root", root)
    assert removed.returncode == 0, removed.stderr
    assert Store(root / "store").numbers() == [1]


def test_the_mode_of_the_folder_itself(server: SmallUpgrade, tmp_path: Path) -> None:
    server.env.chmod(0o750)
    archive = exported(adopted(server), tmp_path / "a.tar.zst")
    unpacked = unpack(archive, None)
    assert unpacked.mode == 0o750
    status = server.store.venv(1).stat()
    assert unpacked.owner == (status.st_uid, status.st_gid)


def test_a_folder_is_removed_whatever_the_modes_in_it_and_nothing_behind_a_link_is_touched(tmp_path: Path) -> None:
    beside = tmp_path / "beside"
    beside.mkdir(mode=0o750)
    deep = tmp_path / "tree" / "a" / "b"
    deep.mkdir(parents=True)
    (deep / "file").touch()
    (tmp_path / "tree" / "link").symlink_to(beside)
    deep.chmod(0o500)
    deep.parent.chmod(0o000)
    if shutil.which("setpriv") and can_mount():
        code = "import sys; from pathlib import Path; from crossgrade.store.layout import remove_path as r"
        argv = [str(PROGRAM.parent / "python"), "-c", f"{code}; r(Path(sys.argv[1]))", str(tmp_path / "tree")]
        subprocess.run([*AS_ANYBODY, *argv], check=True)
    else:
        remove_path(tmp_path / "tree")
    assert [path.name for path in tmp_path.iterdir()] == ["beside"]
    assert beside.stat().st_mode & 0o777 == 0o750


def test_what_came_after_the_manifest_is_not_left_out(server: SmallUpgrade, tmp_path: Path) -> None:
    server = adopted(server)
    site = site_of(server.store.venv(1))
    (site / "__pycache__").mkdir(exist_ok=True)
    (site / "__pycache__" / "more.cpython-311.pyc").write_bytes(b"made at an import")
    exported(server, tmp_path / "a.tar.zst")
    (site / "patched.py").write_text("by hand")
    answer = server.run("export", "1", "--to", str(tmp_path / "b.tar.zst"))
    assert answer.code == 1
    assert "patched.py came after the manifest was made" in answer.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar.zst", "server"]


def test_a_file_that_became_a_hard_link_of_another(server: SmallUpgrade, tmp_path: Path) -> None:
    server = adopted(server)
    package = site_of(server.store.venv(1)) / "small_engine"
    (package / "server.py").unlink()
    (package / "server.py").hardlink_to(package / "__init__.py")
    answer = server.run("export", "1", "--to", str(tmp_path / "a.tar.zst"))
    assert answer.code == 1
    assert "small_engine/server.py is not what the manifest says" in answer.stderr
    assert not list(tmp_path.glob("*.zst"))


def test_two_exports_to_one_place(server: SmallUpgrade, tmp_path: Path) -> None:
    server, target = adopted(server), tmp_path / "a.tar.zst"
    with part_of(target).open("wb") as other:
        other.write(b"half of it")
        other.flush()
        fcntl.flock(other, fcntl.LOCK_EX)
        answer = server.run("export", "1", "--to", str(target))
        assert answer.code == 1
        assert "another export is writing" in answer.stderr
        assert part_of(target).read_bytes() == b"half of it"
    exported(server, target)
    assert unpack(target, None).manifest.digest == server.before.digest
    assert not part_of(target).exists()


def test_what_somebody_else_put_there_is_not_written_to(server: SmallUpgrade, tmp_path: Path) -> None:
    server, target = adopted(server), tmp_path / "a.tar.zst"
    (tmp_path / "precious").write_text("precious")
    for put in (part_of(target).symlink_to, part_of(target).hardlink_to):
        put(tmp_path / "precious")
        assert server.run("export", "1", "--to", str(target)).code == 1
        assert (tmp_path / "precious").read_text() == "precious"
        part_of(target).unlink()


def test_not_inside_what_it_is_a_backup_of(server: SmallUpgrade, tmp_path: Path) -> None:
    adopted(server)
    for folder in (server.env, server.store.root):
        answer = server.run("export", "1", "--to", str(folder))
        assert answer.code == 1
        assert "of which the archive is to be a backup" in answer.stderr
    other = make_small_upgrade(tmp_path / "other")
    archive_to(other, f"{other.env}/bin")
    answer = other.run("plan")
    assert answer.code == 1
    assert "of which the archive is to be a backup" in answer.stderr
    assert not list(tmp_path.rglob("*.zst"))


# ---- reading


def test_a_chain_of_headers_does_not_fill_memory(server: SmallUpgrade, tmp_path: Path) -> None:
    good = exported(adopted(server), tmp_path / "a.tar.zst")
    members = members_of(good)
    chain = []
    for _ in range(400):
        header = info("x", tarfile.XHDTYPE, size=1 << 16)
        chain.append((header, bytes(1 << 16)))
    archive = tmp_path / "chain.tar.zst"
    write_members(archive, [*members[:2], *chain, *members[2:]])
    with pytest.raises(ArchiveError, match="headers of one member"):
        unpack(archive, None)


@needs_mounts
def test_room_is_asked_for_before_anything_is_written(server: SmallUpgrade, tmp_path: Path) -> None:
    (site_of(server.env) / "large").write_bytes(bytes(8 << 20))
    archive = exported(adopted(server), tmp_path / "a.tar.zst")
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", small], check=True)
    try:
        answer = crossgrade("restore", archive, "--root", small / "root")
        assert answer.code == 1
        assert "MB are needed" in answer.stderr
        assert not list((small / "root" / "store" / "tmp").iterdir())
    finally:
        subprocess.run(["umount", small], check=True)


def test_what_a_kill_while_unpacking_leaves_is_removed_by_the_next_command(
    server: SmallUpgrade, tmp_path: Path
) -> None:
    archive = exported(adopted(server), tmp_path / "a.tar.zst")
    commands = (("gc",), ("restore", str(archive)), ("upgrade",))
    for command in commands:
        left = server.store.temporary / "restore-of-a-killed-run"
        (left / "venv").mkdir(parents=True)
        (left / "venv" / "file").write_text("unpacked")
        assert server.run(*command).code == 0
        assert not list(server.store.temporary.iterdir()), command


# ---- venv_backup


def archive_to(server: SmallUpgrade, elsewhere: str) -> None:
    text, arguments = server.playbook.read_text(), 'venv_backup: {path: "{{ env }}"'
    assert arguments in text
    server.playbook.write_text(text.replace(arguments, f'{arguments}, archive: "{elsewhere}"', 1))


def test_the_folder_may_be_made_by_a_task_before(server: SmallUpgrade, tmp_path: Path) -> None:
    archive_to(server, f"{tmp_path}/made")
    text = server.playbook.read_text()
    before = f"  tasks:\n    - file: {{path: {tmp_path}/made, state: directory}}\n"
    server.playbook.write_text(text.replace("  tasks:\n", before, 1))
    planned = server.run("plan")
    assert planned.code == 0, planned.stderr
    assert not (tmp_path / "made").exists()
    answer = server.run("upgrade", "--json")
    assert answer.code == 0, answer.stderr
    assert answer.ended["differs"] == 0
    (archive,) = (tmp_path / "made").iterdir()
    assert read_archive_record(archive).manifest == server.before.digest


def test_a_relative_folder_is_relative_to_the_playbook_also_when_room_is_counted(
    server: SmallUpgrade, tmp_path: Path
) -> None:
    (server.folder / "backups").mkdir()
    archive_to(server, "backups")
    argv = server.argv("upgrade")
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    assert len(list((server.folder / "backups").iterdir())) == 1


def test_another_file_of_that_name_is_no_backup(server: SmallUpgrade, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    archive_to(server, str(elsewhere))
    assert server.run("upgrade").code == 0
    (archive,) = elsewhere.iterdir()
    whole = archive.read_bytes()
    for wrong in (b"", b"not an archive", whole[:20]):
        archive.write_bytes(wrong)
        answer = server.run("upgrade")
        assert answer.code == 1, wrong
        assert f"{archive} is not the archive of generation 1" in answer.stderr
        assert archive.read_bytes() == wrong
    archive.write_bytes(whole)
    assert server.run("upgrade").code == 0


def test_killed_while_it_unpacks(server: SmallUpgrade, tmp_path: Path) -> None:
    (site_of(server.env) / "large").write_bytes(bytes(64 << 20))
    archive = exported(adopted(server), tmp_path / "a.tar.zst")
    root = tmp_path / "root"
    running = subprocess.Popen([str(PROGRAM), "restore", str(archive), "--root", str(root)], stderr=subprocess.DEVNULL)
    temporary = root / "store" / "tmp"
    while not list(temporary.glob("restore-*/venv/*")):
        assert running.poll() is None
    running.send_signal(signal.SIGKILL)
    running.wait()
    assert list(temporary.iterdir())
    assert crossgrade("restore", archive, "--root", root).code == 0
    assert not list(temporary.iterdir())
    assert Store(root / "store").numbers() == [1]
