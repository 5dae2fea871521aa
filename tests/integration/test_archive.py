"""Archives: whole or not there, restored to the byte, and nothing written of one that is not as it was."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.archives import Member, entry, info, members_of, with_entries, write_members
from tests.support.commands import Answer, crossgrade, snapshot
from tests.support.privileges import needs_mounts
from tests.support.small_upgrade import SmallUpgrade, make_small_upgrade

from crossgrade.store.archive import ArchiveError
from crossgrade.store.archive_reading import unpack
from crossgrade.store.layout import Store
from crossgrade.store.manifest import Entry, build_manifest, read_manifest


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[SmallUpgrade, Path]:
    """An upgraded server whose first generation has been archived."""
    folder = tmp_path_factory.mktemp("archived")
    upgrade = make_small_upgrade(folder / "server")
    site = next(upgrade.env.glob("lib/python3*/site-packages"))
    (site / ("long" * 30)).mkdir()
    (site / ("long" * 30) / ("name" * 60)).write_text("long")
    (site / "odd \udcff\nname").write_text("odd")
    (site / "twin").hardlink_to(site / "six.py" if (site / "six.py").exists() else site / "small_engine" / "server.py")
    (site / "empty").mkdir(mode=0o710)
    (site / "nothing").touch()
    (site / "away").symlink_to("/nowhere/at all")
    os.utime(site / "nothing", ns=(1, 1_600_000_000_123_456_789))
    upgrade = SmallUpgrade(upgrade.folder, build_manifest(upgrade.env))
    assert upgrade.run("upgrade").code == 0
    assert upgrade.run("export", "1", "--to", str(folder)).code == 0
    return upgrade, next(folder.glob("*.tar.zst"))


def restore(root: Path, archive: Path, *more: str, kill_at: str = "") -> Answer:
    environment = {"CROSSGRADE_KILL_AT": kill_at} if kill_at else {}
    return crossgrade("restore", archive, "--root", root, *more, environment=environment)


def test_what_is_restored_runs_from_its_new_place(made: tuple[SmallUpgrade, Path], tmp_path: Path) -> None:
    upgrade, archive = made
    assert archive.stat().st_mode & 0o777 == 0o600
    unpack(archive, tmp_path).seal_entries(tmp_path / "venv")
    assert build_manifest(tmp_path / "venv").digest == upgrade.before.digest
    nothing = next((tmp_path / "venv").glob("lib/python3*/site-packages/nothing"))
    assert nothing.stat().st_mtime_ns == 1_600_000_000_123_456_789
    assert (nothing.parent / "twin").samefile(nothing.parent / "small_engine" / "server.py")
    answer = restore(tmp_path / "root", archive, "--link", str(tmp_path / "env"))
    assert answer.code == 0, answer.stderr
    store = Store(tmp_path / "root" / "store")
    assert store.active() == 1
    assert (store.generation(1).origin, store.generation(1).state) == ("restored", "ready")
    assert crossgrade("verify", "1", "--full", "--root", tmp_path / "root").code == 0
    code = "import small_engine as e, sys; print(e.VERSION, sys.prefix)"
    script = store.venv(1) / "bin" / "small-engine"
    interpreter = script.read_text().splitlines()[0].removeprefix("#!")
    said = subprocess.run([interpreter, "-B", "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["1.0", str(store.venv(1))]
    kept = read_manifest(store.manifest_path(1)).entries
    changed = {path for path, each in upgrade.before.entries.items() if not each.same_content(kept[path])}
    assert all(path.startswith("bin/") or path.endswith(("RECORD", "direct_url.json")) for path in changed), changed


def test_tar_and_zstd_can_read_it(made: tuple[SmallUpgrade, Path], tmp_path: Path) -> None:
    if shutil.which("zstd") is None:
        pytest.skip("the program zstd is not installed here")
    unpacked = subprocess.run(["zstd", "-dc", made[1]], stdout=subprocess.PIPE, check=True).stdout
    subprocess.run(["tar", "-xpf", "-", "-C", tmp_path], input=unpacked, check=True)
    assert build_manifest(tmp_path / "venv").digest == made[0].before.digest


def test_it_comes_as_one_more_generation_and_can_be_activated(made: tuple[SmallUpgrade, Path], tmp_path: Path) -> None:
    upgrade = make_small_upgrade(tmp_path / "server")
    assert upgrade.run("upgrade").code == 0
    assert restore(upgrade.root, made[1]).code == 0
    assert upgrade.store.active() == 2, "restoring activates nothing"
    refused = restore(upgrade.root, made[1], "--link", str(tmp_path / "other"))
    assert refused.code == 1
    assert "active link already" in refused.stderr
    assert upgrade.run("rollback", "--to", "3").code == 0
    assert upgrade.version() == "1.0"
    checked = crossgrade("restore", "--check", made[1], "--json")
    assert checked.code == 0
    assert json.loads(checked.stdout)["generation"]["number"] == 1


def test_an_environment_that_changed_is_not_archived(tmp_path: Path) -> None:
    upgrade = make_small_upgrade(tmp_path / "server")
    assert upgrade.run("upgrade").code == 0
    module = next(upgrade.store.venv(2).glob("lib/python3*/site-packages/small_engine/__init__.py"))
    module.write_text("VERSION = 'x'\n")
    answer = upgrade.run("export", "--to", str(tmp_path))
    assert answer.code == 1
    assert "small_engine/__init__.py is not what the manifest says" in answer.stderr
    assert not list(tmp_path.glob("*.zst")) + list(tmp_path.glob(".*.part"))
    assert upgrade.run("export", "1", "--to", str(tmp_path / "a.tar.zst")).code == 0
    again = upgrade.run("export", "1", "--to", str(tmp_path / "a.tar.zst"))
    assert again.code == 1
    assert "not overwritten" in again.stderr


# ---- torn and changed archives


def refused(archive: Path, folder: Path) -> None:
    """Refused with an error of its own, and with nothing written."""
    shutil.rmtree(folder, ignore_errors=True)
    answer = restore(folder, archive)
    assert answer.code == 1, answer.stdout
    assert "Traceback" not in answer.stderr
    assert str(archive) in answer.stderr
    store = Store(folder / "store")
    assert store.generations() == []
    assert not list((store.root / "tmp").iterdir()) + list((store.root / "generations").iterdir())
    assert not list((store.root / "toolkits").iterdir())


def test_truncated_archives(made: tuple[SmallUpgrade, Path], tmp_path: Path) -> None:
    data = made[1].read_bytes()
    torn = tmp_path / "torn.tar.zst"
    for length in [*range(0, len(data), 97), len(data) - 4, len(data) - 1]:
        torn.write_bytes(data[:length])
        with pytest.raises(ArchiveError):
            unpack(torn, None)
    refused(torn, tmp_path / "root")
    torn.write_bytes(data + b"more")
    with pytest.raises(ArchiveError):
        unpack(torn, None)


def test_flipped_bytes(made: tuple[SmallUpgrade, Path], tmp_path: Path) -> None:
    data = made[1].read_bytes()
    broken = tmp_path / "broken.tar.zst"
    noticed = 0
    dice = random.Random(5)  # noqa: S311 - the same places in every run of the tests
    for position in [0, 4, 5, 6, *(dice.randrange(len(data)) for _ in range(200))]:
        broken.write_bytes(data[:position] + bytes([data[position] ^ (1 << dice.randrange(8))]) + data[position + 1 :])
        try:
            unpacked = unpack(broken, None)
        except ArchiveError:
            noticed += 1
        else:  # a bit that zstd does not use: every file has still been compared with its digest
            assert unpacked.manifest.digest == made[0].before.digest, position
    assert noticed > 195
    broken.write_bytes(data[:1000] + b"\0" + data[1001:])
    refused(broken, tmp_path / "root")


def hostile(change: Callable[[dict[str, Entry]], None], *more: Member) -> Callable[[list[Member]], list[Member]]:
    return lambda members: with_entries(members, change, more)


def put(*entries: Entry) -> Callable[[dict[str, Entry]], None]:
    return lambda known: known.update({each.path: each for each in entries})


EMPTY = "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"  # BLAKE3 of nothing
HOSTILE: dict[str, Callable[[list[Member]], list[Member]]] = {
    "a path that climbs out": hostile(put(entry("../out", "file", digest=EMPTY)), (info("venv/../out"), b"")),
    "a path that climbs out further in": hostile(
        put(entry("bin/../../out", "file", digest=EMPTY)), (info("venv/bin/../../out"), b"")
    ),
    "an absolute path": hostile(put(entry("/etc/out", "file", digest=EMPTY)), (info("venv//etc/out"), b"")),
    "a file through a link": hostile(
        put(entry("a", "link", target="/etc"), entry("a/out", "file", digest=EMPTY)),
        (info("venv/a", tarfile.SYMTYPE, link="/etc"), b""),
        (info("venv/a/out"), b""),
    ),
    "a setuid program": hostile(put(entry("su", "file", 0o4755, digest=EMPTY)), (info("venv/su"), b"")),
    "a device": hostile(put(entry("null", "other")), (info("venv/null", tarfile.CHRTYPE), b"")),
    "a device in the place of a file": hostile(
        put(entry("null", "file", digest=EMPTY)), (info("venv/null", tarfile.CHRTYPE), b"")
    ),
    "a FIFO in the place of a file": hostile(
        put(entry("pipe", "file", digest=EMPTY)), (info("venv/pipe", tarfile.FIFOTYPE), b"")
    ),
    "a link in the place of a file": hostile(
        put(entry("passwd", "file", digest=EMPTY)), (info("venv/passwd", tarfile.SYMTYPE, link="/etc/passwd"), b"")
    ),
    "a link that leads elsewhere than it says": hostile(
        put(entry("safe", "link", target="bin/python")), (info("venv/safe", tarfile.SYMTYPE, link="/etc/passwd"), b"")
    ),
    "a hard link to the outside": hostile(
        put(entry("hard", "file", digest=EMPTY)), (info("venv/hard", tarfile.LNKTYPE, link="/etc/passwd"), b"")
    ),
    "a hard link to another file": hostile(
        put(entry("hard", "file", digest=EMPTY)), (info("venv/hard", tarfile.LNKTYPE, link="venv/pyvenv.cfg"), b"")
    ),
    "other bytes than the manifest says": hostile(
        put(entry("x", "file", size=1, digest=EMPTY)), (info("venv/x", size=1), b"x")
    ),
    "more bytes than the manifest says": hostile(
        put(entry("bomb", "file", digest=EMPTY)), (info("venv/bomb", size=1 << 24), bytes(1 << 24))
    ),
    "a member twice": lambda members: [*members, members[-1]],
    "a member that no manifest lists": lambda members: [*members, (info("venv/zzz"), b"")],
    "a member outside of everything": lambda members: [*members, (info("etc/cron.d/evil"), b"")],
    "a missing member": lambda members: members[:-1],
    "members in another order": lambda members: [*members[:-2], members[-1], members[-2]],
    "no record": lambda members: members[1:],
    "no manifest": lambda members: [members[0], *members[2:]],
    "an extra that climbs out": lambda members: [
        *members[:2],
        (info("extras/../../out"), b""),
        *members[2:],
    ],
    "an extra that nobody asked for": lambda members: [
        *members[:2],
        (info("extras/generation.json"), b""),
        *members[2:],
    ],
    "an owner that nobody is": hostile(put(entry("x", "file", digest=EMPTY)._replace(uid=-1)), (info("venv/x"), b"")),
    "a mode that nothing has": hostile(put(entry("x", "file", 1 << 40, digest=EMPTY)), (info("venv/x"), b"")),
    "an extended header of a gigabyte": lambda members: [
        *members[:2],
        (info("x", tarfile.XHDTYPE, size=1 << 30), b""),
    ],
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_archives(made: tuple[SmallUpgrade, Path], tmp_path: Path, kind: str) -> None:
    archive = write_members(tmp_path / "hostile.tar.zst", HOSTILE[kind](members_of(made[1])))
    root = tmp_path / "root"
    with pytest.raises(ArchiveError):
        unpack(archive, None)
    refused(archive, root)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hostile.tar.zst", "root"]
    assert not Path("/etc/out").exists()


def test_the_way_the_hostile_ones_are_made_makes_good_ones_too(made: tuple[SmallUpgrade, Path], tmp_path: Path) -> None:
    good = with_entries(members_of(made[1]), put(entry("new", "file", digest=EMPTY)), [(info("venv/new"), b"")])
    archive = write_members(tmp_path / "good.tar.zst", good)
    assert restore(tmp_path / "root", archive).code == 0


# ---- kills and a full disk


@pytest.mark.parametrize("point", ["begun", "intended:restore", "effect:restore", "done:restore", "ending"])
def test_killed_while_it_restores(made: tuple[SmallUpgrade, Path], tmp_path: Path, point: str) -> None:
    upgrade = make_small_upgrade(tmp_path / "server")
    assert upgrade.run("upgrade").code == 0
    assert restore(upgrade.root, made[1], kill_at=point).code == -signal.SIGKILL
    assert upgrade.outcome() == "new"
    waiting = restore(upgrade.root, made[1])
    assert waiting.code == 1
    assert "was interrupted" in waiting.stderr
    assert upgrade.run("upgrade").code == 0
    assert upgrade.outcome() == "new"
    found = {each.number: each.state for each in upgrade.store.generations()}
    complete = point in ("effect:restore", "done:restore", "ending")
    assert found == ({1: "ready", 2: "ready", 3: "ready"} if complete else {1: "ready", 2: "ready"})
    assert not list(upgrade.store.temporary.iterdir())
    assert restore(upgrade.root, made[1]).code == 0


@needs_mounts
def test_no_room_for_an_archive_or_for_what_is_in_it(made: tuple[SmallUpgrade, Path], tmp_path: Path) -> None:
    upgrade, archive = made
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40k", "tmpfs", small], check=True)
    try:
        (small / "ballast").write_bytes(bytes(32 << 10))
        answer = upgrade.run("export", "1", "--to", str(small))
        assert answer.code == 1
        assert "No space left on device" in answer.stderr
        assert [path.name for path in small.iterdir()] == ["ballast"]
        answer = restore(small / "root", archive)
        assert answer.code == 1
        assert "No space left on device" in answer.stderr or "disk is full" in answer.stderr
        assert "Traceback" not in answer.stderr
    finally:
        subprocess.run(["umount", small], check=True)


# ---- venv_backup with archive


def archive_to(upgrade: SmallUpgrade, elsewhere: Path) -> None:
    text, arguments = upgrade.playbook.read_text(), 'venv_backup: {path: "{{ env }}"'
    upgrade.playbook.write_text(text.replace(arguments, f"{arguments}, archive: {elsewhere}"))


def test_a_backup_elsewhere(tmp_path: Path) -> None:
    upgrade = make_small_upgrade(tmp_path / "server")
    elsewhere = tmp_path / "elsewhere"
    text = upgrade.playbook.read_text()
    upgrade.playbook.write_text(
        text.replace('{path: "{{ env }}"}', f'{{path: "{{{{ env }}}}", archive: {elsewhere}}}', 1)
    )
    missing = upgrade.run("upgrade")
    assert missing.code == 1
    assert f"there is no directory {elsewhere}" in missing.stderr
    elsewhere.mkdir()
    planned = upgrade.run("plan")
    assert f"then archive generation 1 to {elsewhere}" in planned.stdout
    assert not list(elsewhere.iterdir())
    answer = upgrade.run("upgrade", "--json")
    assert answer.code == 0, answer.stderr
    assert answer.ended["differs"] == 0
    (archive,) = elsewhere.iterdir()
    assert unpack(archive, None).manifest.digest == upgrade.before.digest
    before = snapshot(elsewhere)
    assert upgrade.run("upgrade", "--json").recap["changed"] == 0
    assert snapshot(elsewhere) == before
    archive.unlink()
    assert upgrade.run("upgrade", "--json").recap["changed"] == 1
    assert [path.name for path in elsewhere.iterdir()] == [archive.name]


def test_killed_while_it_archives(tmp_path: Path) -> None:
    upgrade = make_small_upgrade(tmp_path / "server")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    text = upgrade.playbook.read_text()
    upgrade.playbook.write_text(
        text.replace('{path: "{{ env }}"}', f'{{path: "{{{{ env }}}}", archive: {elsewhere}}}', 1)
    )
    killed = upgrade.run("upgrade", environment={"CROSSGRADE_KILL_AT": "intended:play0/tasks/0#2"})
    assert killed.code == -signal.SIGKILL
    (elsewhere / ".env-generation-1.tar.zst.part").touch()
    assert upgrade.run("upgrade").code == 0
    assert len(list(elsewhere.glob("*.tar.zst"))) == 1
